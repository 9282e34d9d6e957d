"""From the hierarchy's program to whole chunks: how many enter a box over which gates, and which tree spreads which.

Loads are compared by a potential, as in rounding.py (docs/formulation.md, sections 6 and 11).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from synth.routing.box import Box
from synth.routing.box_program import BoxPacking, Gates, Roots, Tree, roots_of

Floats = NDArray[np.float64]


def deal_gates(box: Box, packing: BoxPacking, count: int) -> dict[Gates, int]:
    """Whole chunks for every gate, and every several that some share: the packing's amounts rounded down, then each chunk left to
    where the loads stay most even, and chunks moved while that evens them out.

    A chunk over a gate counts with the trees that spread it in the boxes behind; `count` boxes.
    """
    loads = np.array([(count - 1) * load_of(box, packing, over) for over in packing.over])
    counts = [int(amount + 1e-6) for amount in packing.over.values()]
    total = np.array(counts, dtype=np.float64) @ loads + packing.home_load
    scale = float(loads[loads > 0].min()) / 2
    for _ in range(packing.chunks - sum(counts)):
        best = int(np.argmin(log_potential(total + loads, scale)))
        counts[best] += 1
        total = total + loads[best]
    for _ in range(packing.chunks):
        now = float(log_potential(total[None], scale)[0])
        moves = []
        for gate in (gate for gate, chunks in enumerate(counts) if chunks):
            after = log_potential(total - loads[gate] + loads, scale)
            moves.append((float(after.min()), gate, int(np.argmin(after))))
        potential, gate, other = min(moves)
        if potential >= now - 1e-9:
            break
        counts[gate] -= 1
        counts[other] += 1
        total = total - loads[gate] + loads[other]
    return dict(zip(packing.over, counts, strict=True))


def load_of(box: Box, packing: BoxPacking, over: Gates) -> Floats:
    """What one chunk that enters a box over these gates occupies each link, on the mean of the trees that spread it."""
    load: Floats = box.gate_loads[list(over)].sum(axis=0) + packing.mean_load(roots_of(box, over))
    return load


def log_potential(loads: Floats, scale: float) -> Floats:
    """By row, log of the sum over links of exp(load / scale): it follows the largest load, and does not overflow."""
    top = loads.max(axis=1)
    summed: Floats = top / scale + np.log(np.exp((loads - top[:, None]) / scale).sum(axis=1))
    return summed


class Dealer:
    """Deals the uses of each place's trees in turn, so that at every moment they are near their shares."""

    def __init__(self, trees: Mapping[Roots, Mapping[Tree, float]]) -> None:
        self.streams: Mapping[Roots, Iterator[Tree]] = {roots: in_turns(shares) for roots, shares in trees.items()}

    def next(self, roots: Roots) -> Tree:
        """The tree of the next chunk from these places."""
        return next(self.streams[roots])


def in_turns(trees: Mapping[Tree, float]) -> Iterator[Tree]:
    """Trees without end, each as often as its share says: the one that is furthest behind comes next."""
    whole = sum(trees.values())
    used: dict[Tree, int] = defaultdict(int)
    number = 0
    while True:
        number += 1
        tree = max(trees, key=lambda tree: (trees[tree] / whole * number - used[tree], tree))
        used[tree] += 1
        yield tree
