"""Cuts and links in words."""

from __future__ import annotations

import re
from collections.abc import Sequence

from synth.bounds.value import Cut

#: Names that are listed before the rest is counted.
_MOST_NAMES = 6


def cut_words(cut: Cut) -> str:
    """Which GPUs are cut off, and how fast the links are: "into gpu0-gpu7 (25 GB/s)"."""
    return f"{'into' if cut.into else 'out of'} {names(cut.gpus)} ({cut.GBps:g} GB/s)"


def names(ids: Sequence[str]) -> str:
    """Names, with runs of numbers joined: "gpu0-gpu3, gpu6 and 2 more"."""
    runs: list[tuple[str, str]] = []
    for name in ids:
        if runs and _follows(runs[-1][1], name):
            runs[-1] = (runs[-1][0], name)
        else:
            runs.append((name, name))
    shown = [first if first == last else f"{first}-{last}" for first, last in runs]
    if len(shown) <= _MOST_NAMES:
        return ", ".join(shown)
    return f"{', '.join(shown[: _MOST_NAMES - 1])} and {len(shown) - _MOST_NAMES + 1} more"


def _follows(before: str, after: str) -> bool:
    """Whether two names differ by a number at their end, by one: gpu3 and gpu4, gpu3.1 and gpu4.1."""
    one, two = (re.fullmatch(r"(\D*)(\d+)(.*)", name) for name in (before, after))
    if one is None or two is None:
        return False
    return one[1] == two[1] and one[3] == two[3] and int(one[2]) + 1 == int(two[2])
