"""The hierarchy's linear program: how many chunks enter a box over each gate, and along which trees they spread inside.

Columns are trees of one box from each of its places, priced in as they are needed; there are as many rows as the box has links and
places (docs/formulation.md, eq. 42 to 44).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from synth.milp.lp import solve_lp
from synth.routing.box import Box

Floats = NDArray[np.float64]
Tree = tuple[int, ...]

#: Rounds of pricing at most; boxes of the catalogue need a dozen.
_ROUNDS = 100
#: Trees this little cheaper than those known gain nothing (relative to the objective).
_ENOUGH = 1e-7


@dataclass(frozen=True)
class BoxPacking:
    """What goes where, in chunks of one box: `gates[g]` through each gate, and by root the share of each tree.

    `load_us` is what the most loaded link carries of all chunks, `home_load` what every link carries of the box's own.
    """

    chunks: int
    gates: tuple[float, ...]
    trees: Mapping[int, Mapping[Tree, float]]
    loads: Mapping[Tree, Floats]
    home_load: Floats
    load_us: float

    def mean_load(self, root: int) -> Floats:
        """What one chunk that comes in at `root` occupies each link of the box, on the mean of its trees."""
        return _mean(self.trees[root], self.loads)


def _mean(trees: Mapping[Tree, float], loads: Mapping[Tree, Floats]) -> Floats:
    total = sum(trees.values())
    mean: Floats = sum((loads[tree] * (share / total) for tree, share in trees.items()), np.zeros(1))
    return mean


def pack_box(box: Box, own: Sequence[int], count: int) -> BoxPacking:
    """The packing of `own[i]` chunks from each place i of a box, in a cluster of `count` boxes."""
    master = _Master(box, own, count)
    for _ in range(_ROUNDS):
        master.solve()
        if not master.price():
            break
    return master.packing()


class _Master:
    """The program over the trees known so far."""

    def __init__(self, box: Box, own: Sequence[int], count: int) -> None:
        self.box = box
        self.own = np.array(own, dtype=np.float64)
        self.others = count - 1
        self.used = np.flatnonzero((box.network.occupancy.sum(axis=0) > 0) | (box.gate_loads.sum(axis=0) > 0))
        self.trees: dict[tuple[int, Tree], None] = {}
        for root in range(box.size):
            self.trees[root, box.cheapest(self._early(root), root)] = None
        self.x: Floats = np.zeros(0)
        self.prices: Floats = np.zeros(0)
        self.values: Floats = np.zeros(0)

    def solve(self) -> None:
        """Solve over the known trees: sets the amounts, the price of every link and the value of a tree from every place."""
        gates, places = len(self.box.gates), self.box.size
        keys = list(self.trees)
        loads = np.array([self._load(tree) for _, tree in keys])
        columns = gates + len(keys) + 1
        capacity = np.zeros((len(self.used), columns))
        capacity[:, :gates] = self.others * self.box.gate_loads[:, self.used].T
        capacity[:, gates:-1] = loads.T
        capacity[:, -1] = -1.0
        balance = np.zeros((places + 1, columns))
        balance[places, :gates] = 1.0
        balance[[gate.dst for gate in self.box.gates], np.arange(gates)] = -float(self.others)
        balance[[root for root, _ in keys], gates + np.arange(len(keys))] = 1.0
        chunks = float(self.own.sum())
        objective = np.zeros(columns)
        objective[gates:-1] = [self._depth_us(root, tree) / (chunks * (self.others + 1)) for root, tree in keys]
        objective[-1] = 1.0
        answer = solve_lp(
            objective, csr_matrix(capacity), np.zeros(len(self.used)), csr_matrix(balance), [*self.own, chunks]
        )
        self.x = answer.x
        self.prices = np.maximum(-answer.duals_ub, 0.0)
        self.values = answer.duals_eq[:places]

    def price(self) -> int:
        """Add every place's cheapest tree where that is cheaper than those known; how many were added."""
        box, added = self.box, 0
        if box.size == 1:
            return 0
        per_path = box.network.occupancy[:, self.used] @ self.prices
        chunks = float(self.own.sum()) * (self.others + 1)
        for root in range(box.size):
            tree = box.cheapest(per_path + self._early(root) / chunks, root)
            cost = float(per_path[list(tree)].sum()) + self._depth_us(root, tree) / chunks
            if (root, tree) not in self.trees and cost < self.values[root] - _ENOUGH * self.x[-1] / chunks:
                self.trees[root, tree] = None
                added += 1
        return added

    def packing(self) -> BoxPacking:
        """The solution."""
        gates = len(self.box.gates)
        amounts = dict(zip(self.trees, self.x[gates:-1].tolist(), strict=False))
        trees: dict[int, dict[Tree, float]] = {}
        for (root, tree), amount in amounts.items():
            if amount > 1e-6:
                trees.setdefault(root, {})[tree] = amount
        for root, tree in self.trees:
            trees.setdefault(root, {tree: 1.0})
        loads = {tree: self.box.network.load(tree) for shares in trees.values() for tree in shares}
        home: Floats = np.zeros(self.box.gate_loads.shape[1])
        for root, chunks in enumerate(self.own):
            home = home + chunks * _mean(trees[root], loads)
        chunks_in_all = round(float(self.own.sum()))
        return BoxPacking(chunks_in_all, tuple(self.x[:gates].tolist()), trees, loads, home, float(self.x[-1]))

    def _early(self, root: int) -> Floats:
        early: Floats = self.box.network.early_us[root]
        return early

    def _depth_us(self, root: int, tree: Tree) -> float:
        return self.box.network.depth_us(root, tree)

    def _load(self, tree: Tree) -> Floats:
        load: Floats = self.box.network.load(tree)[self.used]
        return load
