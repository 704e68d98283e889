"""A transformers model of a shape, its loss, and how it lies on the ranks.

Weights are drawn on the processor, all of them on every rank from the same seed, and cut up afterwards: one rank and
many begin with the same model. To draw the pieces where they lie (meta device, `to_empty`) gives every rank of a CPU
mesh the same numbers, so that the pieces of a matrix are copies of each other (measured with torch 2.13: correlation
0.996). The price is a whole model in float32 in each process while it starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

from dataprep.errors import SpecError
from dataprep.train.presets import RopeScaling, Shape

if TYPE_CHECKING:
    from dataprep.train.builtin.ranks import Ranks
    from dataprep.train.builtin.settings import Settings


def config_of(shape: Shape, bos_id: int | None = None, eod_id: int | None = None) -> Any:
    """The transformers config of a shape: no dropout, no cache of keys and values."""
    fields: dict[str, Any] = {
        "vocab_size": shape.vocab_size,
        "tie_word_embeddings": shape.tie_embeddings,
        "initializer_range": shape.init_method_std,
        "bos_token_id": bos_id,
        "eos_token_id": eod_id,
        "use_cache": False,
    }
    if shape.family == "gpt":
        return GPT2Config(
            n_layer=shape.num_layers,
            n_embd=shape.hidden_size,
            n_inner=shape.ffn_hidden_size,
            n_head=shape.num_attention_heads,
            n_positions=shape.max_position_embeddings,
            layer_norm_epsilon=shape.norm_epsilon,
            **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
            **fields,
        )
    scaling = {} if shape.rope_scaling is None else shape.rope_scaling.to_json()
    return LlamaConfig(
        num_hidden_layers=shape.num_layers,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.ffn_hidden_size,
        num_attention_heads=shape.num_attention_heads,
        num_key_value_heads=shape.num_query_groups,
        max_position_embeddings=shape.max_position_embeddings,
        rms_norm_eps=shape.norm_epsilon,
        rope_parameters={
            "rope_type": "llama3" if scaling else "default",
            "rope_theta": shape.rotary_base,
            **scaling,
        },
        attention_bias=shape.add_bias_linear,
        mlp_bias=shape.add_bias_linear,
        **fields,
    )


def shape_of(config: Any) -> Shape:
    """The shape of a transformers config, the reverse of `config_of`.

    Raises:
        SpecError: a model that is neither of llama's nor of gpt2's kind, or differs from it.
    """
    gpt2 = config.model_type == "gpt2"
    if not gpt2 and config.model_type != "llama":
        raise SpecError(f"a model of type {config.model_type}: expected llama or gpt2")
    rope = {} if gpt2 else dict(config.rope_parameters)
    shape = Shape(
        family="gpt" if gpt2 else "llama",
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        ffn_hidden_size=(config.n_inner or 4 * config.n_embd) if gpt2 else config.intermediate_size,
        num_attention_heads=config.num_attention_heads,
        num_query_groups=config.num_attention_heads if gpt2 else config.num_key_value_heads,
        vocab_size=config.vocab_size,
        max_position_embeddings=config.max_position_embeddings,
        rotary_base=float(rope.get("rope_theta", 10000.0)),
        rope_scaling=_scaling_of(rope),
        norm_epsilon=config.layer_norm_epsilon if gpt2 else config.rms_norm_eps,
        tie_embeddings=config.tie_word_embeddings,
        add_bias_linear=gpt2 or config.mlp_bias,
        init_method_std=config.initializer_range,
    )
    same = config_of(shape)
    names = ["activation_function"] if gpt2 else ["hidden_act", "attention_bias", "head_dim"]
    differing = [name for name in names if getattr(config, name) != getattr(same, name)]
    if not gpt2 and dict(same.rope_parameters) != rope:
        differing.append("rope_parameters")
    if differing:
        raise SpecError(f"a {config.model_type} model of another {' and '.join(differing)} than the trainer's")
    return shape


def _scaling_of(rope: dict[str, Any]) -> RopeScaling | None:
    if "factor" not in rope:
        return None
    return RopeScaling(**{name: rope[name] for name in RopeScaling.model_fields if name in rope})


def build(shape: Shape, seed: int, bos_id: int | None = None, eod_id: int | None = None) -> Any:
    """A model with weights drawn from `seed`: float32, on the processor."""
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(config_of(shape, bos_id, eod_id), dtype=torch.float32)


def distributed(model: Any, settings: Settings, ranks: Ranks) -> Any:
    """The same model, laid out on the ranks as the settings say; of FSDP2, cut up by layers."""
    layers = [each for each in model.modules() if type(each).__name__ in model._no_split_modules]
    if settings.activation_checkpointing:
        enable = getattr(
            model, "activation_checkpointing_enable", model.gradient_checkpointing_enable
        )  # renamed in 5.x
        enable({"use_reentrant": False})
    model.to(ranks.device)
    model.train()
    if settings.compile:
        for layer in layers:
            layer.compile()
    if settings.parallel == "ddp":
        return DistributedDataParallel(model, gradient_as_bucket_view=True)
    mesh = init_device_mesh(ranks.device.type, (ranks.size,))
    kind = torch.bfloat16 if settings.precision == "bf16" else torch.float32
    policy = MixedPrecisionPolicy(param_dtype=kind, reduce_dtype=torch.float32)
    for module in (*layers, model):
        fully_shard(module, mesh=mesh, mp_policy=policy)
    return model


def next_token_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The mean over all tokens, in float32."""
    return functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def loss_of(model: Any, tokens: torch.Tensor, settings: Settings, loss: Any = next_token_loss) -> torch.Tensor:
    """The loss of a micro batch.

    Args:
        model: of `distributed`.
        tokens: int64[samples, seq_length + 1], on its device.
        settings: of the training.
        loss: `next_token_loss`, or that compiled.
    """
    mixed = settings.precision == "bf16" and settings.parallel == "ddp"  # FSDP2 has its own way
    with torch.autocast(tokens.device.type, torch.bfloat16, enabled=mixed):
        logits = model(input_ids=tokens[:, :-1]).logits
    return loss(logits, tokens[:, 1:])


def optimizer_of(model: Any, settings: Settings) -> torch.optim.AdamW:
    """AdamW; matrices and embeddings decay, biases and norms do not."""
    named = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [each for each in named if each.dim() > 1], "weight_decay": settings.weight_decay},
        {"params": [each for each in named if each.dim() <= 1], "weight_decay": 0.0},
    ]
    betas = (settings.adam_beta1, settings.adam_beta2)
    fused = named[0].device.type == "cuda"
    return torch.optim.AdamW(groups, lr=settings.lr, betas=betas, eps=settings.adam_eps, fused=fused)
