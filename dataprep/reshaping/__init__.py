"""Pairs made from pairs: some documents of one, or all of several.

verbs       merge, split, sample
inputs      what is taken from, checked before anything is written
parting     where to cut
draws       which are drawn
selections  documents of a pair that another one is to hold, and how that is written
lineage     what manifests know of them
making      private until proven, then named all together
"""

from __future__ import annotations

from dataprep.reshaping.verbs import Made, merge, sample, split

__all__ = ["Made", "merge", "sample", "split"]
