"""Chunks that enter a box over several gates, in whole numbers (docs/formulation.md, section 11).

Where a box looks the same from all its places, so does what is best: every gate gets as many chunks then, and trees stay as alike as
the program has them, since links between which messages turn round in step are never idle. What that leaves uneven is evened out
path by path.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import product
from math import ceil, floor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from synth.routing.box import Box
from synth.routing.box_dealing import deal_gates, in_turns, load_of, log_potential
from synth.routing.box_program import BoxPacking, Gates, Tree, roots_of

Floats = NDArray[np.float64]

#: Kinds of gates for which both whole numbers beside an amount are tried.
_KINDS = 6
#: Chunks that are moved from one path to another at most.
_MOVES = 400
#: Loads are even enough if the most loaded link carries no more than this, times what it does in the program.
_EVEN = 1.004
#: What a hop counts beside the potential.
_HOP = 1e-6


class Ways(NamedTuple):
    """How often each tree is used: at home by place, and `away`, by the gates over which chunks enter, each forest behind these."""

    home: dict[int, dict[Tree, int]]
    away: dict[Gates, dict[Tree, int]]


def deal_entries(box: Box, packing: BoxPacking, count: int) -> Ways:
    """Trees in whole numbers for a packing over several gates, in a cluster of `count` boxes: those of the packing, whose paths give
    way to others, from gates, too, as long as that evens out loads that are above the program's.
    """
    within = len(box.inside)
    home = {place: _whole(packing.trees[place,], own) for place, own in enumerate(packing.own)}
    trees: dict[Tree, int] = {}
    for over, chunks in (_dealt_alike(box, packing, count) or deal_gates(box, packing, count)).items():
        for forest, number in _whole(packing.trees[roots_of(box, over)], chunks).items():
            trees[tuple(sorted((*forest, *(within + gate for gate in over))))] = number
    loads = _Loads(box, [*home.values(), trees], count)
    for _ in range(_MOVES):
        if loads.worst_us <= packing.load_us * _EVEN or not loads.improve():
            break
    away: dict[Gates, dict[Tree, int]] = {}
    for tree, number in trees.items():
        over = tuple(path - within for path in tree if path >= within)
        if number:
            away.setdefault(over, {})[tuple(path for path in tree if path < within)] = number
    return Ways(home, away)


def _dealt_alike(box: Box, packing: BoxPacking, count: int) -> dict[Gates, int] | None:
    """As many chunks for each of the gates between which the packing makes no difference, and the rest over several, so that links
    are loaded least; None where gates differ too much.
    """
    several = [over for over in packing.over if len(over) > 1]
    alike: dict[float, list[Gates]] = defaultdict(list)
    for over, amount in packing.over.items():
        if len(over) == 1:
            alike[round(amount, 4)].append(over)
    if len(several) != 1 or len(alike) > _KINDS:
        return None
    best: tuple[float, dict[Gates, int]] | None = None
    for rounding in product((floor, ceil), repeat=len(alike)):
        kinds = zip(rounding, alike.items(), strict=True)
        dealt = {over: whole(amount) for whole, (amount, gates) in kinds for over in gates}
        dealt[several[0]] = packing.chunks - sum(dealt.values())
        if dealt[several[0]] < 0:
            continue
        loads = [number * load_of(box, packing, over) for over, number in dealt.items()]
        worst_us = float((packing.home_load + (count - 1) * np.sum(loads, axis=0)).max())
        if best is None or worst_us < best[0]:
            best = (worst_us, dealt)
    return best and best[1]


def _whole(shares: Mapping[Tree, float], number: int) -> dict[Tree, int]:
    """`number` uses of trees by their shares, in whole numbers."""
    counts: dict[Tree, int] = defaultdict(int)
    dealer = in_turns(shares)
    for _ in range(number):
        counts[next(dealer)] += 1
    return counts


class _Loads:
    """How often each tree of the network of a box that others send to is used, those of the last of `counts` in every box but a
    chunk's own, and what links carry, in us.
    """

    def __init__(self, box: Box, counts: list[dict[Tree, int]], boxes: int) -> None:
        self.network = box.entering
        self.counts = counts
        self.weights = [1.0] * (len(counts) - 1) + [float(boxes - 1)]
        self.load: Floats = sum(
            (
                weight * number * self.network.load(tree)
                for weight, trees in zip(self.weights, counts, strict=True)
                for tree, number in trees.items()
            ),
            np.zeros(self.network.occupancy.shape[1]),
        )
        self.scale_us = float(np.median(self.network.occupancy[self.network.occupancy > 0])) / 2

    @property
    def worst_us(self) -> float:
        """What the most loaded link carries."""
        return float(self.load.max())

    def improve(self) -> bool:
        """Take one chunk off the most loaded link, by another path to where it leads; whether any evens out the loads."""
        worst = int(np.argmax(self.load))
        best: tuple[float, int, Tree, int, int] | None = None
        for index, (trees, weight) in enumerate(zip(self.counts, self.weights, strict=True)):
            for tree in [tree for tree, number in trees.items() if number]:
                moves = self._moves(tree, worst)
                if not moves:
                    continue
                changes = np.array([self.network.occupancy[new] - self.network.occupancy[old] for old, new, _ in moves])
                hops = np.array([hops for _, _, hops in moves])
                after = log_potential(self.load + weight * changes, self.scale_us) + _HOP * hops
                least = int(np.argmin(after))
                if best is None or after[least] < best[0]:
                    best = (float(after[least]), index, tree, *moves[least][:2])
        if best is None or best[0] >= float(log_potential(self.load[None], self.scale_us)[0]):
            return False
        _, index, tree, old, new = best
        other = tuple(sorted({*tree, new} - {old}))
        self.counts[index][tree] -= 1
        self.counts[index][other] = self.counts[index].get(other, 0) + 1
        self.load = self.load + self.weights[index] * (self.network.occupancy[new] - self.network.occupancy[old])
        return True

    def _moves(self, tree: Tree, link: int) -> list[tuple[int, int, int]]:
        """Paths of a tree over a link, each with one that may stand in its place and on how many other paths that one follows."""
        source, end = self.network.src, self.network.dst
        over = [path for path in tree if self.network.occupancy[path, link] > 0]
        if not over:
            return []
        parent = {int(end[path]): int(source[path]) for path in tree}
        places = {*parent, *parent.values()}

        def above(place: int) -> list[int]:
            ways = [place]
            while ways[-1] in parent:
                ways.append(parent[ways[-1]])
            return ways

        ways = {place: above(place) for place in places}
        return [
            (path, int(other), len(ways[int(source[other])]))
            for path in over
            for other in np.flatnonzero(end == end[path])
            if other != path and int(source[other]) in places and int(end[path]) not in ways[int(source[other])]
        ]
