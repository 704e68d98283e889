"""Writes the golden pairs of this folder with Megatron's own writer. `test_preprocess.py` compares with them.

    pip install torch==2.13.0 packaging tokenizers && pip install --no-deps megatron-core==0.16.1
    python tests/golden/make.py

It encodes with the `tokenizers` library, adds what tools/preprocess_data.py adds, and knows nothing of dataprep.
"""

import json
from pathlib import Path

import numpy as np
import tokenizers
import torch
from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder

HERE = Path(__file__).parent
SAMPLE = HERE.parent.parent / "tokenizers" / "sample" / "tokenizer.json"
EOD = "<|endoftext|>"

TEXTS = [
    "",
    "Hello world",
    " ",
    "  two  spaces   three ",
    "line\nbreak\r\nand\ttab\n\n",
    EOD,
    f"text with {EOD} inside",
    "<s>no token here</s>",
    "na\u00efve caf\u00e9, cafe\u0301",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002",
    "\u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 family",
    "\x00nul\x00",
    "\ufeffmark inside",
    "",
    "1234567890 3.14159 1,000,000",
    "def f(x):\n    return x ** 2\n",
    "a" * 3000,
    "don't I'LL we've",
    "\u2028\u2029\x85 line ends of Unicode",
]
SENTENCES = [[], ["One."], ["", "Two.", ""], ["Three.", "Four!"], [""], ["Five, ", EOD, " six"]]


def write(name: str, encode, texts: list, append_eod: bool) -> None:
    """One pair, as Encoder.encode and Partition.process_json_file of Megatron-LM d98e8a64 make it."""
    builder = IndexedDatasetBuilder(str(HERE / f"{name}.bin"), dtype=DType.optimal_dtype(8192))
    eod = tokenizers.Tokenizer.from_file(str(SAMPLE)).token_to_id(EOD)
    for text in texts:
        ids, lengths = [], []
        for sentence in text if isinstance(text, list) else [text]:
            if found := encode(sentence):
                ids += found
                lengths.append(len(found))
        if ids and append_eod:
            ids.append(eod)
            lengths[-1] += 1
        builder.add_document(torch.tensor(ids, dtype=torch.int64), lengths)
    builder.finalize(str(HERE / f"{name}.idx"))


def main() -> None:
    plain = tokenizers.Tokenizer.from_file(str(SAMPLE))
    eod = plain.token_to_id(EOD)

    def without_bos(text: str) -> list[int]:
        return plain.encode(text).ids

    def with_bos(text: str) -> list[int]:
        return [eod, *plain.encode(text).ids]

    (HERE / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    (HERE / "sentences.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in SENTENCES))
    write("texts", without_bos, TEXTS, append_eod=False)
    write("texts-eod", without_bos, TEXTS, append_eod=True)
    write("texts-bos-eod", with_bos, TEXTS, append_eod=True)
    dealt = [text for i in range(3) for text in TEXTS[i::3]]
    write("texts-dealt-to-3", without_bos, dealt, append_eod=True)
    write("sentences-eod", without_bos, SENTENCES, append_eod=True)
    write("sentences-bos-eod", with_bos, SENTENCES, append_eod=True)
    assert np.fromfile(HERE / "texts.bin", "<u2").max() < 8192


if __name__ == "__main__":
    main()
