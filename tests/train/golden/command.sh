#!/bin/bash
set -eo pipefail
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT="${TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-300}"
export NCCL_SOCKET_IFNAME="${NCCL_SOCKET_IFNAME:-eth0}"
export GLOO_SOCKET_IFNAME="${GLOO_SOCKET_IFNAME:-eth0}"
export CUDA_DEVICE_MAX_CONNECTIONS="${CUDA_DEVICE_MAX_CONNECTIONS:-1}"
export NCCL_DEBUG=INFO
mkdir -p -- '/fsx/it'"'"'s/checkpoints' '/fsx/it'"'"'s/runs/one'
printf %s '{"steps": 10}
' > '/fsx/it'"'"'s/runs/one/config.json'.tmp-$$
mv -f -- '/fsx/it'"'"'s/runs/one/config.json'.tmp-$$ '/fsx/it'"'"'s/runs/one/config.json'
module load rocm
cd -- /opt/Megatron-LM
mkdir -p -- /tmp
trap : HUP INT TERM
torchrun \
  --nproc-per-node=2 \
  --standalone \
  pretrain_gpt.py \
  --data-path 1.0 '/fsx/it'"'"'s/data/sample-gpt2-0a1b2c3d/sample_text_document' \
  --config-file '/fsx/it'"'"'s/runs/one/config.json' 2>&1 | { trap '' HUP INT TERM; exec tee -a -- '/tmp/a b.log'; }
