"""What a run is made of: frozen models, and the line between recipe and runtime.

    Corpus         a named body of documents: where it is and how it is read      pipelines/*.yaml
    TokenizerSpec  which tokenizer, as the user wrote it                          tokenizers/*.yaml
    TokenPolicy    BOS, EOD, special strings, empty documents, dtype
    OutputSpec     how the dataset is cut into prefixes
    Recipe         all that decides the output bytes, resolved; has the digest
    Runtime        workers, memory, engine, ...: all that must not change the bytes
    ClusterSpec    where units are worked, which must not either

Two YAML kinds, both flat data. They are validated strictly and as JSON, so that ``lang: no`` (False to
YAML) and ``2024_10`` (the integer 202410) are refused instead of believed: quote revisions, languages and
dates. Precedence in one line: model default < YAML < ``--set key=value``.

The digest is the sha256 of the canonical JSON of `Recipe.identity`. Not in it, and why: the paths and
the mtime of the source files and the name of the tokenizer (they say where things lie, not what they
are), descriptions, and all of `Runtime` (equal bytes for any of it is promise 1, and tested).
"""

from dataprep.specs.cluster import (
    ClusterSpec,
    Existing,
    Kubernetes,
    Local,
    Slurm,
    SlurmElastic,
    cluster_settings,
    find_cluster,
)
from dataprep.specs.corpus import (
    Contents,
    Corpus,
    FilesSource,
    HubSource,
    Mixture,
    MixturePart,
    MixtureSpec,
    ReaderSpec,
    Source,
    UrlsSource,
)
from dataprep.specs.models import MIB, Model, Name, load_yaml, parse_yaml
from dataprep.specs.recipe import Compression, FileFormat, Listing, OutputSpec, Recipe, SourceFile, TokenPolicy
from dataprep.specs.runtime import NAMESPACES, Runtime, parse_settings
from dataprep.specs.tokenizer import TokenizerIdentity, TokenizerSpec, TokenizerType

__all__ = [
    "MIB",
    "NAMESPACES",
    "ClusterSpec",
    "Compression",
    "Contents",
    "Corpus",
    "Existing",
    "FileFormat",
    "FilesSource",
    "HubSource",
    "Kubernetes",
    "Listing",
    "Local",
    "Mixture",
    "MixturePart",
    "MixtureSpec",
    "Model",
    "Name",
    "OutputSpec",
    "ReaderSpec",
    "Recipe",
    "Runtime",
    "Slurm",
    "SlurmElastic",
    "Source",
    "SourceFile",
    "TokenPolicy",
    "TokenizerIdentity",
    "TokenizerSpec",
    "TokenizerType",
    "UrlsSource",
    "cluster_settings",
    "find_cluster",
    "load_yaml",
    "parse_settings",
    "parse_yaml",
]
