"""Cutting texts into sentences with nltk's punkt, in processes of their own; imports little."""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dataprep.batches import TextBatch
from dataprep.errors import SourceError, SpecError

if TYPE_CHECKING:
    from collections.abc import Callable

    from dataprep.batches import Offsets

CUT_CHARACTERS = 1_000_000
"""Megatron cuts each run of so many characters apart (d98e8a64, tools/preprocess_data.py, Encoder.split)."""


@dataclass(frozen=True)
class Cut:
    """How texts are cut.

    Attributes:
        key: field of the JSON lines.
        lang: punkt's model; None: texts that are strings stay whole.
        keep_newlines: what follows a sentence stays part of it.
    """

    key: str
    lang: str | None
    keep_newlines: bool


def follow_parent() -> None:
    """End this process when the one that started it does: killed, it cannot tell its pool to end."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def cut_lines(
    cut: Cut, name: str, row: int, values: bytes, offsets: Offsets, num_bytes: int
) -> tuple[TextBatch, Offsets, int]:
    """Lines -> their sentences, how many each has, and the bytes of source they stand for.

    Args:
        name: of the file, and `row`: lines before these, for a message.
        values, offsets: the lines, see `TextBatch`.

    Raises:
        SourceError: a line is no object with a text.
    """
    split = splitter(cut)
    sentences: list[bytes] = []
    counts = []
    for number, (start, stop) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)):
        line = values[start:stop].strip()
        if not line:
            continue
        try:
            found = split(json.loads(line)[cut.key])
        except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
            what = f"no field {cut.key!r}" if isinstance(error, KeyError) else str(error)
            raise SourceError(
                f"{name}, line {row + number + 1}: {what}; it begins {line[:80]!r}. Mend it and run again"
            ) from None
        sentences += found
        counts.append(len(found))
    return TextBatch.of(sentences), np.array(counts, np.int64), num_bytes


def splitter(cut: Cut) -> Callable[[Any], list[bytes]]:
    """What cuts one text.

    Raises:
        SpecError: nltk or its model is not here.
    """
    tokenize = _punkt(cut.lang, cut.keep_newlines) if cut.lang is not None else None

    def split(text: Any) -> list[bytes]:
        if isinstance(text, list) and all(isinstance(part, str) for part in text):
            return [part.encode() for part in text]
        if not isinstance(text, str):
            raise TypeError(f"expected {cut.key!r} to be a string, found {type(text).__name__}")
        if tokenize is None:
            return [text.encode()]
        parts = (text[i : i + CUT_CHARACTERS] for i in range(0, len(text), CUT_CHARACTERS))
        return [sentence.encode() for part in parts for sentence in tokenize(part)]

    return split


_tokenizers: dict[tuple[str, bool], Any] = {}


def _punkt(lang: str, keep_newlines: bool) -> Callable[[str], list[str]]:
    """nltk's splitter of a language, opened once in a process."""
    if (lang, keep_newlines) not in _tokenizers:
        try:
            import nltk
            from nltk.tokenize.punkt import PunktLanguageVars, PunktSentenceTokenizer, PunktTokenizer
        except ImportError as error:
            raise SpecError("--split-sentences needs nltk: pip install 'dataprep-llm[sentences]'") from error
        with contextlib.suppress(ImportError):  # nltk before 3.10 has none
            from nltk import redos

            redos.DEFAULT_TIMEOUT = None  # 5 s: a long text on a busy machine is no attack, and must not fail
        try:
            try:
                model = PunktTokenizer(lang)
            except LookupError:
                nltk.download("punkt_tab", os.environ.get("NLTK_DATA"), quiet=True, print_error_to=io.StringIO())
                model = PunktTokenizer(lang)
        except (LookupError, OSError, ValueError) as error:
            raise SpecError(
                f"nltk's model of {lang!r} is not here and cannot be fetched: python -m nltk.downloader punkt_tab, "
                "where there is network; the folder that holds tokenizers/punkt_tab/ may be named by NLTK_DATA"
            ) from error
        if keep_newlines:
            # Megatron's: white space behind the end of a sentence belongs to it, and needs not to be there.
            context = r"\S*%(SentEndChars)s\s*(?=(?P<after_tok>%(NonWord)s|(?P<next_tok>\S+)))"
            variables = type("Variables", (PunktLanguageVars,), {"_period_context_fmt": context})
            model = PunktSentenceTokenizer(model._params, lang_vars=variables())
        _tokenizers[lang, keep_newlines] = model
    found: Callable[[str], list[str]] = _tokenizers[lang, keep_newlines].tokenize
    return found
