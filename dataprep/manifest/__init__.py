"""Units, and the manifests that prove units and datasets complete.

    Slice            a part of one source file:   (file, start, stop)
    Unit             consecutive slices -> one shard; of a long one, shards in pieces
    UnitManifest     what became of them; written after a shard, the last one's presence says "done"
    DatasetManifest  what the dataset is, made of what, proved how; written last, its presence says "exists"
    PairManifest     the same of one pair that was made from other pairs

Manifests are JSON with sorted keys. Positions of a slice are bytes for files that are read as a stream (all
of the file for compressed ones) and for Arrow streams, row groups for Parquet, record batches for Arrow files.
"""

from __future__ import annotations

from dataprep.manifest.datasets import DatasetManifest, EngineRecord, Lengths, Prefix, Preprocess, Span
from dataprep.manifest.loading import Manifest, eod_of, is_of, load_as, load_manifest, manifest_of, readable_manifest
from dataprep.manifest.pairs import PairManifest, Part
from dataprep.manifest.units import SCHEMA, Counts, PairFiles, Slice, SliceRows, Unit, UnitManifest

__all__ = [
    "SCHEMA",
    "Counts",
    "DatasetManifest",
    "EngineRecord",
    "Lengths",
    "Manifest",
    "PairFiles",
    "PairManifest",
    "Part",
    "Prefix",
    "Preprocess",
    "Slice",
    "SliceRows",
    "Span",
    "Unit",
    "UnitManifest",
    "eod_of",
    "is_of",
    "load_as",
    "load_manifest",
    "manifest_of",
    "readable_manifest",
]
