"""`verify` is silent about sound pairs, whoever wrote them, and says no more than is odd about odd ones."""

import json

import numpy as np
import pytest

from dataprep.checks.report import Expected
from dataprep.stages.verify import verify, with_tokenizer

# What Megatron-LM's scripts wrote for 40 nasty documents, one of them empty, three with special strings in them:
# without knowledge, and with the tokenizer.
GOLDEN = {
    "gpt2-hf-eod": ("gpt2", {"documents-empty", "eod-inside"}, {"documents-empty", "eod-inside"}),
    "gpt2-fast-eod": ("gpt2", {"eod-inside"}, {"eod-inside"}),
    "llama2-sp-eod": ("llama2/tokenizer.model", {"documents-empty"}, {"documents-empty"}),
    "llama3-hf-eod": ("llama3", {"eod-inside"}, {"eod-inside", "specials-inside"}),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_what_megatron_lm_wrote(assets, name):
    tokenizer, alone, known = GOLDEN[name]
    prefix = assets / "golden" / f"{name}_text_document"
    expect = with_tokenizer(Expected(split="100,0,0", seq_length=256), str(assets / "tokenizers" / tokenizer))

    assert verify(prefix, "index").codes == alone - {"eod-inside"}
    assert verify(prefix).codes == alone
    report = verify(prefix, expect=expect)
    assert (report.codes, report.ok) == (known, True)
    assert report.num_with_eod == report.num_sequences
    assert report.num_with_bos == (40 if name.startswith("llama3") else 0 if name.startswith("llama2") else None)


@pytest.mark.parametrize("kind", ["bpe", "bos_bpe", "spm"])
def test_what_dataprep_writes_with_every_kind_of_tokenizer(request, kind, written_text, tmp_path):
    import dataprep

    trained = request.getfixturevalue(kind)
    path = trained.path / "tokenizer.model" if kind == "spm" else trained.path
    lines = [json.dumps({"text": text}) for text in written_text]
    (tmp_path / "in.jsonl").write_text("\n".join(lines) + "\n")
    prefix = dataprep.run(str(tmp_path / "in.jsonl"), str(path), tmp_path / "out").prefix
    expect = with_tokenizer(Expected(split="90,5,5", seq_length=64), str(path))

    for level in ("index", "tokens", "source"):
        assert verify(prefix, level).problems == []
        assert verify(prefix, level, expect).problems == []
    for manifest in (tmp_path / "out").glob("*/manifest.json"):
        manifest.unlink()
    assert verify(prefix).problems == []
    assert verify(prefix, expect=expect).problems == []


@pytest.mark.megatron
@pytest.mark.parametrize("dtype", ["uint16", "int32"])
def test_what_megatron_cores_builder_writes(tmp_path, dtype):
    torch = pytest.importorskip("torch")
    pytest.importorskip("megatron.core", reason="pip install --no-deps megatron-core==0.16.1")
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    rng = np.random.default_rng(0)
    builder = IndexedDatasetBuilder(str(tmp_path / "a.bin"), dtype=np.dtype(dtype).type)
    for length in rng.integers(1, 300, 700).tolist():
        builder.add_item(torch.from_numpy(np.append(rng.integers(1, 50_000, length), 50_256)))
        builder.end_document()
    builder.finalize(str(tmp_path / "a.idx"))

    expect = Expected(
        vocab_size=50_257 if dtype == "uint16" else 100_000, eod_id=50_256, split="969,30,1", seq_length=32
    )
    for level in ("index", "tokens"):
        assert verify(tmp_path / "a", level).problems == []
        assert verify(tmp_path / "a", level, expect).problems == []


@pytest.mark.parametrize("kind", ["bpe", "bos_bpe"])
def test_what_datatrove_writes(request, kind, written_text, tmp_path):
    """Lone EODs for empty documents, no BOS."""
    pytest.importorskip("datatrove", reason="pip install 'dataprep-llm[bench]'")
    from datatrove.data import Document
    from datatrove.pipeline.tokens.megatron_tokenizer import MegatronDocumentTokenizer

    trained = request.getfixturevalue(kind)
    eod = {"bpe": "<|endoftext|>", "bos_bpe": "<|end_of_text|>"}[kind]
    path = str(trained.path / "tokenizer.json")
    writer = MegatronDocumentTokenizer(str(tmp_path / "out"), "dt", path, eos_token=eod)
    texts = [*written_text, "", *written_text]
    writer.run((Document(text=text, id=str(i)) for i, text in enumerate(texts)), 0, 1)
    (prefix,) = {path.with_suffix("") for path in (tmp_path / "out").glob("*.idx")}

    expect = with_tokenizer(Expected(split="90,5,5", seq_length=64), str(trained.path))
    assert verify(prefix).problems == []
    report = verify(prefix, expect=expect)
    assert (report.problems, report.num_with_eod, report.num_documents) == ([], len(texts), len(texts))
