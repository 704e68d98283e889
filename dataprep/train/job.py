"""One training, whole: frozen, and all that a backend and a launcher are given. Nothing in it is left to be guessed.

    Data       which prefixes each split is drawn from, in which shares
    Training   the schedule: batches, steps, learning rate, checkpoints; Megatron's flag names
    Parallel   how the model is spread, over how many machines
    Launch     what the machines are like: container, image, mounts, Slurm's and Kubernetes' own words
    Job        these, the model's shape, the tokenizer, and the trainer it is for

`request.py` makes one; `--set` reaches `model.*`, `train.*` and `launch.*`.
"""

from __future__ import annotations

import math
from typing import Literal, Self

from pydantic import Field, model_validator

from dataprep.samples import SEED, SPLIT, SplitPart, parse_split
from dataprep.specs import Model, TokenizerIdentity
from dataprep.train.presets import Shape

Backend = Literal["megatron", "rocm", "megatron-deepspeed", "torchtitan", "torch"]
Launcher = Literal["local", "slurm", "kubernetes", "print"]


class Part(Model):
    """One prefix of a split.

    Attributes:
        prefix: path without ``.bin``, as the training is to be given it.
        weight: its share of the samples of its split; all of a split add up to 1.
        num_documents, num_sequences, num_tokens: by its index.
        dtype: of its tokens.
    """

    prefix: str
    weight: float = Field(gt=0)
    num_documents: int
    num_sequences: int
    num_tokens: int
    dtype: str


class Data(Model):
    """What is trained on.

    Attributes:
        parts: prefixes that `Training.split` divides among train, valid and test; empty: `own`, or mock data.
        own: prefixes of each split for itself; then there is no split.
    """

    parts: tuple[Part, ...] = ()
    own: dict[SplitPart, tuple[Part, ...]] = Field(default_factory=dict)

    @property
    def is_mock(self) -> bool:
        """Whether there is no data, and the trainer makes some up."""
        return not (self.parts or self.own)

    @property
    def all_parts(self) -> tuple[Part, ...]:
        """Of every split, each prefix once."""
        parts = (*self.parts, *(part for parts in self.own.values() for part in parts))
        return tuple({part.prefix: part for part in parts}.values())


class Training(Model):
    """The schedule, by the names of Megatron's flags.

    Attributes:
        train_iters: optimizer steps.
        lr_warmup_iters, lr_decay_iters: of them, for the warm-up, and until `min_lr` is reached.
        split: shares of train, valid and test.
        eval_iters: batches of each evaluation; 0: none.
        precision: ``fp8`` is bf16 with matrix products in 8 bits by Transformer Engine.
        fp8_recipe: how those are scaled.
        recompute: what is computed again in the backward pass: ``selective`` the attention's core, ``full`` each layer.
        sequences: whether Megatron is given a file of how many sequences each prefix has, and reads no index for it.
        dataloader_type: ``single`` takes samples in the order of the shuffle index; ``cyclic`` shuffles them again.
        save: folder of checkpoints; None: none are written.
        save_optim: whether the optimizer and the state of random numbers are part of a checkpoint.
        load: folder of a checkpoint to start from.
        ckpt_format: Megatron's --ckpt-format; None: its own default.
        data_cache_path: folder of index caches, on a file system that all nodes share.
        log_dir: folder for TensorBoard; None: none.
        log_file: where a local run's output is copied to; None: nowhere.
        tee: whether it is shown as well.
        use_flash_attn, sequence_parallel, rope_fusion, use_distributed_optimizer, mcore: switches of Megatron.
        profile: record a profile with PyTorch's profiler.
        gemm_tuning: of Transformer Engine on ROCm.
        wandb_project: name of a Weights & Biases project; None: it is not used.
        torch_compile: of the built-in trainer and torchtitan.
    """

    seq_length: int = Field(ge=1)
    micro_batch_size: int = Field(default=1, ge=1)
    global_batch_size: int = Field(ge=1)
    train_iters: int = Field(ge=1)
    optimizer: Literal["adam", "sgd"] = "adam"
    lr: float = Field(gt=0)
    min_lr: float = Field(ge=0)
    lr_decay_style: Literal["constant", "linear", "cosine", "inverse-square-root", "WSD"] = "cosine"
    lr_warmup_iters: int = Field(ge=0)
    lr_decay_iters: int = Field(ge=1)
    weight_decay: float = Field(default=0.1, ge=0)
    clip_grad: float = Field(default=1.0, ge=0)
    adam_beta1: float = Field(default=0.9, ge=0, lt=1)
    adam_beta2: float = Field(default=0.95, ge=0, lt=1)
    adam_eps: float = Field(default=1e-8, gt=0)
    seed: int = Field(default=SEED, ge=1, lt=2**32)
    split: str = SPLIT
    eval_interval: int = Field(default=1000, ge=1)
    eval_iters: int = Field(default=10, ge=0)
    log_interval: int = Field(default=10, ge=1)
    save_interval: int = Field(default=1000, ge=1)
    save: str | None = Field(default=None, min_length=1)
    save_optim: bool = True
    load: str | None = Field(default=None, min_length=1)
    ckpt_format: Literal["torch", "torch_dist", "torch_dcp"] | None = None
    data_cache_path: str | None = Field(default=None, min_length=1)
    log_dir: str | None = Field(default=None, min_length=1)
    log_file: str | None = Field(default=None, min_length=1)
    tee: bool = True
    precision: Literal["bf16", "fp16", "fp32", "fp8"] = "bf16"
    fp8_recipe: Literal["delayed", "tensorwise", "mxfp8", "blockwise"] = "delayed"
    recompute: Literal["none", "selective", "full"] = "none"
    sequences: bool = False
    dataloader_type: Literal["single", "cyclic"] = "single"
    num_workers: int = Field(default=2, ge=0)
    use_flash_attn: bool = True
    sequence_parallel: bool = False
    rope_fusion: bool = True
    use_distributed_optimizer: bool = True
    mcore: bool = True
    profile: bool = False
    gemm_tuning: bool = False
    wandb_project: str | None = Field(default=None, min_length=1)
    torch_compile: bool = False

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        parse_split(self.split)
        if self.min_lr > self.lr:
            raise ValueError(f"min_lr {self.min_lr} is above lr {self.lr}")
        if self.lr_warmup_iters >= self.lr_decay_iters:
            warm, decay = self.lr_warmup_iters, self.lr_decay_iters
            raise ValueError(f"lr_warmup_iters {warm} leaves no step of lr_decay_iters {decay} to decay in")
        return self

    @property
    def eval_rounds(self) -> int:
        """How often Megatron evaluates: every `eval_interval` steps, and at the end."""
        return self.train_iters // self.eval_interval + 1

    def num_samples(self, part: SplitPart) -> int:
        """Samples that Megatron asks a split for.

        Source: Megatron-LM d98e8a64, megatron/training/training.py, `get_train_valid_test_num_samples`.
        """
        rounds = {"train": self.train_iters, "valid": self.eval_rounds * self.eval_iters, "test": self.eval_iters}
        return rounds[part] * self.global_batch_size

    @property
    def num_tokens(self) -> int:
        """Tokens trained on."""
        return self.train_iters * self.global_batch_size * self.seq_length


class Parallel(Model):
    """How the model is spread, and over what.

    Attributes:
        fsdp: parameters, gradients and optimizer are spread over all data-parallel ranks.
        zero_stage: DeepSpeed's.
    """

    tensor_model_parallel_size: int = Field(default=1, ge=1)
    pipeline_model_parallel_size: int = Field(default=1, ge=1)
    context_parallel_size: int = Field(default=1, ge=1)
    fsdp: bool = False
    zero_stage: int = Field(default=1, ge=0, le=3)
    nodes: int = Field(default=1, ge=1)
    gpus_per_node: int = Field(default=8, ge=1)

    @property
    def world_size(self) -> int:
        """Processes, one for each accelerator."""
        return self.nodes * self.gpus_per_node

    @property
    def model_size(self) -> int:
        """Processes that one copy of the model takes."""
        return self.tensor_model_parallel_size * self.pipeline_model_parallel_size * self.context_parallel_size

    @property
    def data_parallel_size(self) -> int:
        """Copies of the model; 0 if it does not fit even once."""
        return self.world_size // self.model_size


class Mount(Model):
    """A folder of the machine that is seen in a container, there under another path or the same."""

    source: str
    target: str


class Launch(Model):
    """What the machines are like, and how they are asked for.

    Attributes:
        trainer: folder of the trainer's code, as the processes see it: a checkout of Megatron-LM, of
            Megatron-DeepSpeed, of torchtitan. Empty: the folder where the command is started.
        container: what starts an image; ``none``: there is no container.
        image: of the container: a name, or a file (.sqsh) for pyxis.
        mounts: ``SOURCE`` or ``SOURCE:TARGET``.
        environment: variables for the trainer, over those that are rendered.
        interface: network interface of NCCL/RCCL and Gloo, as ``eth0``; None: theirs to find.
        master_port: of the rendezvous.
        master_addr, node_rank: of a local start on several machines, one after the other by hand.
        python: that runs torchrun, as the nodes see it; empty: ``torchrun`` of the search path. Of the built-in
            trainer, started here, the one that runs this.
        prologue: shell lines before the trainer, on every node: to load modules, to activate an environment.
        time, partition, account, qos, reservation, constraint, cpus_per_task, memory, exclusive: Slurm's.
        directives: further options of sbatch, as they are.
        gpus_option: how Slurm is asked for accelerators: ``gres=gpu:N``, ``gpus-per-node=N``, or not at all.
        requeue: whether Slurm may start the job again.
        auto_resume: SageMaker HyperPod's ``srun --auto-resume=1``, where the nodes are such.
        namespace, claim, mount_path: Kubernetes: where the pods are, the PersistentVolumeClaim and where they see it.
        kind: of the Kubernetes object.
        runtime: TrainJob's ClusterTrainingRuntime.
        efa_per_node: Elastic Fabric Adapters of each pod: 32 on p5, 16 on p5en, 8 on p6-b200.
        instance_type: of the nodes that pods may run on.
        cpu_per_node, memory_per_node: requests of each pod, as Kubernetes writes them.
        shared_memory: of each pod, as Kubernetes writes it.
        token_secret: Kubernetes: Secret with the key HF_TOKEN.
        max_restarts: of torchrun.
    """

    trainer: str = ""
    container: Literal["none", "docker", "podman", "pyxis"] = "none"
    image: str = ""
    mounts: tuple[str, ...] = ()
    environment: dict[str, str] = Field(default_factory=dict)
    interface: str | None = None
    master_addr: str | None = None
    master_port: int = Field(default=29500, ge=1, le=65535)
    node_rank: int | None = None
    python: str = ""
    prologue: tuple[str, ...] = ()
    time: str | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    reservation: str | None = None
    constraint: str | None = None
    cpus_per_task: int | None = None
    memory: str | None = None
    exclusive: bool = True
    directives: tuple[str, ...] = ()
    gpus_option: Literal["gres", "gpus-per-node", "none"] = "gres"
    requeue: bool = False
    auto_resume: bool = False
    namespace: str | None = None
    claim: str | None = None
    mount_path: str = "/fsx"
    kind: Literal["pytorchjob", "trainjob"] = "pytorchjob"
    runtime: str = "torch-distributed"
    efa_per_node: int = Field(default=0, ge=0)
    instance_type: str | None = None
    cpu_per_node: str | None = None
    memory_per_node: str | None = None
    shared_memory: str = "128Gi"
    token_secret: str | None = None
    max_restarts: int = Field(default=0, ge=0)

    @property
    def mounted(self) -> tuple[Mount, ...]:
        """The mounts, parted."""
        pairs = (text.partition(":") for text in self.mounts)
        return tuple(Mount(source=source, target=target or source) for source, _, target in pairs)


class Job(Model):
    """One training.

    Attributes:
        name: of the job; a word that Slurm and Kubernetes take.
        profile: the trainer's version, a key of `profiles.PROFILES`.
        model: the preset's name, or ``own`` after changes.
        vocab_size: of the tokenizer, without padding.
        tokenizer: that the data were made with, or that the training is said to use; None with mock data only.
        tokenizer_type: Megatron's name of its type, or ``NullTokenizer``.
        tokenizer_path: where the trainer finds it: a folder, a file, or a name on the hub.
        output: absolute folder for the files of the job and for its logs.
        arguments: further flags of the trainer: name without dashes -> value, None for a flag without one. They win.
    """

    name: str
    backend: Backend
    profile: str
    model: str
    shape: Shape
    vocab_size: int = Field(ge=1)
    tokenizer: TokenizerIdentity | None
    tokenizer_type: str
    tokenizer_path: str
    data: Data
    train: Training
    parallel: Parallel
    launch: Launch
    output: str
    arguments: dict[str, str | None] = Field(default_factory=dict)

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the embedding, as Megatron pads it: to a multiple of 128 for every tensor-parallel rank.

        Source: Megatron-LM d98e8a64, megatron/training/tokenizer, --make-vocab-size-divisible-by 128.
        """
        multiple = 128 * self.parallel.tensor_model_parallel_size
        return math.ceil(self.vocab_size / multiple) * multiple
