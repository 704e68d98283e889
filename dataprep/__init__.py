"""dataprep: text corpora in, training-ready Megatron token files out.

    run            build a dataset: list, tokenize, merge, verify, publish
    plan           what `run` would do
    download       fetch a corpus, for any tokenizer
    repair         mend a .bin/.idx pair, in a new one
    verify         prove a .bin/.idx pair
    merge          one pair of several
    split          several pairs of one
    sample         a pair of documents drawn from another
    diff           where two pairs part
    open_dataset   read one: ``len(ds)``, ``ds[i]``, ``ds.lengths``; numpy only
    inspect        counts and length quantiles
    decode         one document as text

The same verbs as the command line's. Nothing heavy is imported before a verb is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataprep.differences import diff
    from dataprep.fetching import download
    from dataprep.indexed import IndexedDataset as open_dataset
    from dataprep.inspection import decode, inspect
    from dataprep.planning import plan
    from dataprep.repairs import repair
    from dataprep.reshaping import merge, sample, split
    from dataprep.runner import run
    from dataprep.stages.verify import verify

__version__ = "0.1.0"
__all__ = [
    "decode",
    "diff",
    "download",
    "inspect",
    "merge",
    "open_dataset",
    "plan",
    "repair",
    "run",
    "sample",
    "split",
    "verify",
]

_HOMES = {
    "decode": ("dataprep.inspection", "decode"),
    "diff": ("dataprep.differences", "diff"),
    "download": ("dataprep.fetching", "download"),
    "inspect": ("dataprep.inspection", "inspect"),
    "merge": ("dataprep.reshaping", "merge"),
    "open_dataset": ("dataprep.indexed", "IndexedDataset"),
    "plan": ("dataprep.planning", "plan"),
    "repair": ("dataprep.repairs", "repair"),
    "run": ("dataprep.runner", "run"),
    "sample": ("dataprep.reshaping", "sample"),
    "split": ("dataprep.reshaping", "split"),
    "verify": ("dataprep.stages.verify", "verify"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'dataprep' has no attribute {name!r}")
    module, attribute = _HOMES[name]
    return getattr(import_module(module), attribute)
