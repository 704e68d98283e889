"""Name or path -> YAML -> model.

    corpora      a shipped name, a YAML, hf:org/name, addresses, or paths and globs of files
    tokenizers   a shipped name, a YAML, a folder, a file, or a hub repository
    shipped      where the YAMLs lie, and how one is found by its name

Shipped YAMLs lie in ``pipelines/`` and ``tokenizers/`` of a checkout and in ``dataprep/_catalog`` of a wheel.
``$DATAPREP_PATH`` (folders, ``:`` between them) adds folders that are laid out the same way and win.
"""

from dataprep.catalog.corpora import find_corpus, find_mixture
from dataprep.catalog.shipped import describe, names
from dataprep.catalog.tokenizers import find_tokenizer

__all__ = ["describe", "find_corpus", "find_mixture", "find_tokenizer", "names"]
