"""What paths have in common: whether all are as wide, and whether ways of several ranks meet in a link."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from synth.paths import Path


def is_uneven(paths: Iterable[Path]) -> bool:
    """Whether some of the paths are wider than others."""
    return len({path.GBps for path in paths}) > 1


def are_all_joined(num_ranks: int, paths: Iterable[Path]) -> bool:
    """Whether every rank has a path to every other, all of these are as wide, and none meets others' ways."""
    paths = tuple(paths)
    pairs = {(path.src, path.dst) for path in paths}
    return len(pairs) == num_ranks * (num_ranks - 1) and not is_uneven(paths) and not is_crowded(paths)


def is_crowded(paths: Iterable[Path]) -> bool:
    """Whether some link is on paths from several ranks to several: no port of one, but what others' ways meet in."""
    ends: dict[int, tuple[set[int], set[int]]] = defaultdict(lambda: (set(), set()))
    for path in paths:
        for link in path.links:
            sources, destinations = ends[link]
            sources.add(path.src)
            destinations.add(path.dst)
    return any(len(sources) > 1 and len(destinations) > 1 for sources, destinations in ends.values())
