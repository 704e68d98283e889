"""dataprep: text corpora in, training-ready Megatron token files out.

    run            build a dataset: list, tokenize, merge, verify, publish
    plan           what `run` would do
    preprocess     the same by the flags of Megatron's tools/preprocess_data.py, given as a list
    download       fetch a corpus, for any tokenizer
    repair         mend a .bin/.idx pair, in a new one, as is asked for (`Wanted`)
    verify         prove a .bin/.idx pair, for what a training expects of it (`Expected`)
    merge          one pair of several
    split          several pairs of one
    sample         a pair of documents drawn from another
    diff           where two pairs part
    export         the documents of pairs as text
    open_dataset   read one: ``len(ds)``, ``ds[i]``, ``ds.lengths``; numpy only
    inspect        counts, lengths, frequent tokens, repeated documents
    decode         one document as text
    training_sample  one sample as Megatron trains on it, and `Sampling`, what decides which that is
    cache          Megatron's index caches of a training (`CacheSpec`), built before it
    where          the source file and record of a document, or of those in a sample
    DataprepError  every error that is meant for a person; its kinds are in `dataprep.errors`

The same verbs as the command line's. Nothing heavy is imported before a verb is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataprep.caching import CacheSpec, cache
    from dataprep.checks.report import Expected
    from dataprep.compat.preprocess import preprocess
    from dataprep.differences import diff
    from dataprep.errors import DataprepError
    from dataprep.exporting import export
    from dataprep.fetching import download
    from dataprep.indexed import IndexedDataset as open_dataset
    from dataprep.inspection import inspect
    from dataprep.inspection.excerpts import decode, where
    from dataprep.inspection.excerpts import sample as training_sample
    from dataprep.planning import plan
    from dataprep.repairs import Wanted, repair
    from dataprep.reshaping import merge, sample, split
    from dataprep.runner import run
    from dataprep.samples import Sampling
    from dataprep.stages.verify import verify

__version__ = "0.1.0"
__all__ = [
    "CacheSpec",
    "DataprepError",
    "Expected",
    "Sampling",
    "Wanted",
    "cache",
    "decode",
    "diff",
    "download",
    "export",
    "inspect",
    "merge",
    "open_dataset",
    "plan",
    "preprocess",
    "repair",
    "run",
    "sample",
    "split",
    "training_sample",
    "verify",
    "where",
]

_HOMES = {
    "CacheSpec": ("dataprep.caching", "CacheSpec"),
    "DataprepError": ("dataprep.errors", "DataprepError"),
    "Expected": ("dataprep.checks.report", "Expected"),
    "Sampling": ("dataprep.samples", "Sampling"),
    "Wanted": ("dataprep.repairs", "Wanted"),
    "cache": ("dataprep.caching", "cache"),
    "decode": ("dataprep.inspection.excerpts", "decode"),
    "diff": ("dataprep.differences", "diff"),
    "download": ("dataprep.fetching", "download"),
    "export": ("dataprep.exporting", "export"),
    "inspect": ("dataprep.inspection", "inspect"),
    "merge": ("dataprep.reshaping", "merge"),
    "open_dataset": ("dataprep.indexed", "IndexedDataset"),
    "plan": ("dataprep.planning", "plan"),
    "preprocess": ("dataprep.compat.preprocess", "preprocess"),
    "repair": ("dataprep.repairs", "repair"),
    "run": ("dataprep.runner", "run"),
    "sample": ("dataprep.reshaping", "sample"),
    "split": ("dataprep.reshaping", "split"),
    "training_sample": ("dataprep.inspection.excerpts", "sample"),
    "verify": ("dataprep.stages.verify", "verify"),
    "where": ("dataprep.inspection.excerpts", "where"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'dataprep' has no attribute {name!r}")
    module, attribute = _HOMES[name]
    return getattr(import_module(module), attribute)
