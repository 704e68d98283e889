"""Training: from a proven dataset to a running job. It proves, plans, renders and launches; the trainers train.

presets      the shapes of models, with their parameter counts
variables    what the public scripts take from their environment: MBS, BS, TP, SEQ_LENGTH, ...
job          one training, whole: data, model, schedule, parallel sizes, machines
request      what was asked for -> a job
preflight    what would go wrong with it, before anything is submitted
profiles     which flags each version of each trainer knows
backends     a job -> the program that each process runs: megatron, deepspeed, torchtitan, builtin
launchers    job and program -> a command, an sbatch script, Kubernetes manifests, a container's command line
builtin      the built-in trainer, the only part that needs torch
"""
