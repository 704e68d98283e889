"""Megatron's own model learns from what we write."""

from __future__ import annotations

import contextlib
import itertools
import math
import warnings

import pytest

import dataprep

pytestmark = [
    pytest.mark.megatron,
    # of megatron-core's layers among themselves
    pytest.mark.filterwarnings("ignore:.*tp_group is None:DeprecationWarning"),
]

LENGTH = 64


@pytest.fixture
def model(process_group, monkeypatch):
    """A GPTModel of two layers of 32, on the CPU: what asks for a GPU is told that there is none to be asked."""
    import torch

    monkeypatch.setattr(torch.cuda, "current_device", lambda: torch.device("cpu"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of megatron-core's parts among themselves
        from megatron.core import parallel_state
        from megatron.core.models.gpt import GPTModel
        from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
        from megatron.core.tensor_parallel.random import CudaRNGStatesTracker
        from megatron.core.transformer.transformer_config import TransformerConfig

        monkeypatch.setattr(CudaRNGStatesTracker, "fork", lambda self, name="": contextlib.nullcontext())
        fusions = ("bias_dropout_fusion", "bias_activation_fusion", "masked_softmax_fusion", "apply_rope_fusion")
        config = TransformerConfig(
            num_layers=2,
            hidden_size=32,
            num_attention_heads=4,
            use_cpu_initialization=True,
            hidden_dropout=0.0,
            attention_dropout=0.0,
            gradient_accumulation_fusion=False,
            **dict.fromkeys(fusions, False),
        )
        parallel_state.initialize_model_parallel()
        torch.manual_seed(0)
        gpt = GPTModel(
            config=config,
            transformer_layer_spec=get_gpt_layer_local_spec(),
            vocab_size=8192,
            max_sequence_length=LENGTH,
            position_embedding_type="rope",
        )
    yield gpt
    parallel_state.destroy_model_parallel()


@pytest.mark.parametrize("dtype", ["uint16", "int32"])
def test_the_loss_falls(megatron, model, gpt_config, write_texts, tmp_path, dtype):
    import torch

    texts = [f"document {i}: " + "some words " * (i % 23) for i in range(600)]
    settings = [f"policy.dtype={dtype}"]
    prefix = dataprep.run(str(write_texts(texts)), "sample", tmp_path / "out", settings=settings).prefix
    config = gpt_config(([prefix], None), LENGTH, "969,30,1", path_to_cache=str(tmp_path / "cache"))
    train, *_ = megatron.BlendedMegatronDatasetBuilder(megatron.GPTDataset, [40, 4, 1], lambda: True, config).build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for batch in itertools.islice(torch.utils.data.DataLoader(train, batch_size=8), 5):
        loss = model(batch["tokens"], batch["position_ids"], batch["attention_mask"], labels=batch["labels"])
        loss = (loss * batch["loss_mask"]).sum() / batch["loss_mask"].sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(math.log(8192), abs=0.5), "it knows nothing yet"
    assert all(later < earlier for earlier, later in itertools.pairwise(losses)), losses
    assert losses[-1] < losses[0] - 0.5
