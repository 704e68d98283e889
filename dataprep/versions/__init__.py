"""Versioned datasets: a folder of versions, each a list of parts, of which only the newest ones are new.

    <dataset>/                     `Versions`; whoever writes here holds the claim
      claim/
      v000007/manifest.json        `VersionManifest`: its parts, by relative paths; immutable, appears by one rename
      v000007/data_args.txt        prefixes and their weights, for Megatron's --data-args-path
      current -> v000007           switched by one rename
      parts/<name>-<tokenizer>-<digest 8>/   datasets as `run` makes them; a version names them, none holds them
      pending.json                 the files that the next part is to be made of
      leases/                      who uses a version, and which ones are to go
      removing-<epoch>/            what retention takes away
      gone/                        the names of parts that were removed
      runs/ paused                 the service's

    changes     what of a source is new, changed or gone since a version; and the run that makes a part of it
    folder      the versions, and how one appears
    leases      who uses which
    retention   which go, with the parts that nobody names any more

A source file is in one part of a version at the most, and where all of its documents are. Everything that shows or
destroys is a rename out of, or into, a folder that bears the epoch of the claim: who takes a claim over moves the
folders of older ones away first, so that a writer that was only asleep finds nothing to rename.
"""

from __future__ import annotations

from dataprep.versions.changes import Changes, Pending, compare, part_request, recipes_of, renamed
from dataprep.versions.folder import Versions, find_version, versioned
from dataprep.versions.leases import Lease, hold_lease, leases_of, release_lease, take_lease
from dataprep.versions.manifest import VersionManifest, VersionPart
from dataprep.versions.retention import Removed, drop, retain

__all__ = [
    "Changes",
    "Lease",
    "Pending",
    "Removed",
    "VersionManifest",
    "VersionPart",
    "Versions",
    "compare",
    "drop",
    "find_version",
    "hold_lease",
    "leases_of",
    "part_request",
    "recipes_of",
    "release_lease",
    "renamed",
    "retain",
    "take_lease",
    "versioned",
]
