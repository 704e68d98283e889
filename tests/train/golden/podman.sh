#!/bin/bash
set -eo pipefail
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT="${TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-300}"
export CUDA_DEVICE_MAX_CONNECTIONS="${CUDA_DEVICE_MAX_CONNECTIONS:-1}"
mkdir -p -- /fsx/checkpoints /fsx/runs/one
printf %s '{"steps": 10}
' > /fsx/runs/one/config.json.tmp-$$
mv -f -- /fsx/runs/one/config.json.tmp-$$ /fsx/runs/one/config.json
IFS= read -r -d '' trainer <<'END_OF_TRAINER' || true
#!/bin/bash
set -eo pipefail
cd -- /workspace/Megatron-LM
exec torchrun \
  --nproc-per-node=2 \
  --standalone \
  pretrain_gpt.py \
  --data-path 1.0 /fsx/data/sample-gpt2-0a1b2c3d/sample_text_document \
  --config-file /fsx/runs/one/config.json
END_OF_TRAINER
more=()
for group in video render; do
  gid=$(getent group "$group" | cut -d : -f 3) || gid=
  if [[ -n $gid ]]; then more+=(--group-add "$gid"); fi
done
if [[ $EUID != 0 ]]; then more=(--group-add keep-groups); fi
if [[ -e /dev/infiniband ]]; then more+=(--device=/dev/infiniband); fi
podman rm --force "sample-125m-${SLURM_JOB_ID:-$$}" > /dev/null 2>&1 || true
exec podman run \
  --rm \
  --name="sample-125m-${SLURM_JOB_ID:-$$}" \
  --network=host "${more[@]}" \
  --device=/dev/kfd \
  --device=/dev/dri \
  --security-opt=seccomp=unconfined \
  --cap-add=SYS_PTRACE \
  --security-opt=label=disable \
  --shm-size=128g \
  --ulimit=memlock=-1 \
  --ulimit=stack=67108864 \
  --mount='type=bind,source=/lustre/it'"'"'s,target=/data' \
  --mount=type=bind,source=/fsx/checkpoints,target=/fsx/checkpoints \
  --mount=type=bind,source=/fsx/data/sample-gpt2-0a1b2c3d,target=/fsx/data/sample-gpt2-0a1b2c3d \
  --mount=type=bind,source=/fsx/runs/one,target=/fsx/runs/one \
  --env=TORCH_ELASTIC_SHUTDOWN_TIMEOUT \
  --env=CUDA_DEVICE_MAX_CONNECTIONS \
  --env=HF_TOKEN \
  --env=WANDB_API_KEY \
  --entrypoint=bash \
  rocm/megatron-lm:v25.4 -c "$trainer"
