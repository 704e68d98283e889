"""What other tools write around the tokens of the same documents: no two of them agree.

                  BOS                          EOD             empty document                  dtype
    megatron      HuggingFaceTokenizer's own   --append-eod    boundary (BOS and EOD if BOS)   uint16 below 65500 ids
    megatron-0.14 and Llama2Tokenizer's        --append-eod    the same                        uint16 below 65500 ids
    megatron-fast never                        --append-eod    a sequence, of EOD or nothing   uint16 below 65500 ids
    curator       never                        --append-eod    a sequence, of EOD or nothing   uint16 below 65500 ids
    datatrove     never                        always          a sequence of EOD               uint16 to 65536 ids
    nemotron      never                        always          a sequence of EOD               int32

Read in Megatron-LM d98e8a64 and core_r0.8.0 (tools/preprocess_data.py, preprocess_data_fast.py), NeMo Curator 1e2e4275,
datatrove a649de79 and Nemotron e27b3713; the first, the third and datatrove were also run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from dataprep.specs import TokenizerType


@dataclass(frozen=True, slots=True)
class Convention:
    """One tool's.

    Attributes:
        bos: the types of tokenizers whose own BOS it writes.
        eod: whether it writes one unasked.
        empty: see `specs.TokenPolicy`.
        plain: the types of tokenizers for which a literal special string stays text.
        dtype: ``65500`` and ``65536``: uint16 for a vocabulary of fewer, or of as many; or the dtype.
    """

    bos: tuple[TokenizerType, ...] = ()
    eod: bool = False
    empty: Literal["keep", "sequence"] = "sequence"
    plain: tuple[TokenizerType, ...] = ()
    dtype: Literal["65500", "65536", "int32"] = "65500"

    def settings(self, kind: TokenizerType, vocab_size: int, append_eod: bool, bos: bool) -> list[str]:
        """The token policy as texts for ``--set``.

        Args:
            kind: of the tokenizer.
            vocab_size: ids it has.
            append_eod: whether one was asked for.
            bos: False: none, whatever the tool does by itself.
        """
        dtype = {"65500": "auto", "65536": "uint16" if vocab_size <= 65536 else "int32", "int32": "int32"}[self.dtype]
        return [
            f"policy.bos={'auto' if bos and kind in self.bos else 'never'}",
            f"policy.eod={'append' if append_eod or self.eod else 'none'}",
            f"policy.empty={self.empty}",
            f"policy.special_text={'plain' if kind in self.plain else 'encode'}",
            f"policy.dtype={dtype}",
        ]


CONVENTIONS = {
    "megatron": Convention(bos=("HuggingFaceTokenizer",), empty="keep"),
    "megatron-0.14": Convention(
        bos=("HuggingFaceTokenizer", "Llama2Tokenizer"), empty="keep", plain=("GPT2BPETokenizer",)
    ),
    "megatron-fast": Convention(),
    "curator": Convention(),
    "datatrove": Convention(eod=True, dtype="65536"),
    "nemotron": Convention(eod=True, dtype="int32"),
}
