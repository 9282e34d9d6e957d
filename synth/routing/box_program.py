"""The hierarchy's linear program: how many chunks enter a box over each gate, and along which trees they spread inside.

Columns are trees of one box from each of its places, priced in as they are needed; there are as many rows as the box has links and
places (docs/formulation.md, eq. 43 and 44). Where links inside are what limits and gates have room, chunks may enter a box over
several gates (eq. 44a and 44b).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from synth.milp.lp import solve_lp
from synth.routing.box import Box

Floats = NDArray[np.float64]
Tree = tuple[int, ...]
#: The places of a box where a chunk starts or comes in.
Roots = tuple[int, ...]
#: The gates over which a chunk enters a box.
Gates = tuple[int, ...]

#: Rounds of pricing at most; boxes of the catalogue need a dozen.
_ROUNDS = 100
#: Trees this little cheaper than those known gain nothing (relative to the objective).
_ENOUGH = 1e-7
#: Amounts are whole or this far from it.
_NOTHING = 1e-6
#: Several gates for a chunk are connections more, and have to bring this share of the load at least.
WORTH_MORE_GATES = 2e-3


@dataclass(frozen=True)
class BoxPacking:
    """What goes where, in chunks of one box, of which place i has `own[i]`: how many enter every other box `over` which gates, and
    by the places where a chunk starts or comes in the share of each tree, of several places of each forest from there.

    `load_us` is what the most loaded link carries of all chunks, `home_load` what every link carries of the box's own.
    """

    own: tuple[int, ...]
    over: Mapping[Gates, float]
    trees: Mapping[Roots, Mapping[Tree, float]]
    loads: Mapping[Tree, Floats]
    home_load: Floats
    load_us: float

    @property
    def chunks(self) -> int:
        """The chunks of a box."""
        return sum(self.own)

    def mean_load(self, roots: Roots) -> Floats:
        """What one chunk that comes in at `roots` occupies each link of the box, on the mean of its trees."""
        return _mean(self.trees[roots], self.loads)


def _mean(trees: Mapping[Tree, float], loads: Mapping[Tree, Floats]) -> Floats:
    total = sum(trees.values())
    mean: Floats = sum((loads[tree] * (share / total) for tree, share in trees.items()), np.zeros(1))
    return mean


def pack_box(box: Box, mean: Box | None, own: Sequence[int], count: int) -> tuple[BoxPacking, BoxPacking | None]:
    """The packing of `own[i]` chunks from each place i of a box, in a cluster of `count` boxes: each over one gate, and of the box
    with mean gates, if it is asked for, over several, where that is worth it, else None.
    """
    master = _Master(box, own, count)
    master.solve_until(master.price)
    packing = master.packing()
    if mean is None:
        return packing, None
    if mean is not box:
        known, master = master.trees, _Master(mean, own, count)
        master.trees.update(known)
        master.solve_until(master.price)
    least_us = master.load_us * (1 - WORTH_MORE_GATES)
    if not master.price_entries():
        return packing, None
    master.solve_until(lambda: master.price() + master.price_entries())
    return packing, master.packing() if master.load_us <= least_us else None


class _Column(NamedTuple):
    """What one chunk on a tree occupies each of the links that are used, and how deep it is, in us."""

    load: Floats
    depth_us: float


class _Master:
    """The program over the trees known so far."""

    def __init__(self, box: Box, own: Sequence[int], count: int) -> None:
        self.box = box
        self.own = np.array(own, dtype=np.float64)
        self.others = count - 1
        self.spreads = float(self.own.sum()) * count
        self.used = np.flatnonzero((box.network.occupancy.sum(axis=0) > 0) | (box.gate_loads.sum(axis=0) > 0))
        self.trees: dict[tuple[int, Tree], _Column] = {}
        self.entries: dict[tuple[Gates, Tree], _Column] = {}
        for root in range(box.size):
            self._add(root, box.cheapest(self._early(root), root))
        self.x: Floats = np.zeros(0)
        self.spread = self.entered = slice(0)
        """which amounts are those of trees and of entries"""
        self.prices: Floats = np.zeros(0)
        self.values: Floats = np.zeros(0)

    def solve_until(self, added: Callable[[], int]) -> None:
        """Solve, and again as long as something was added."""
        for _ in range(_ROUNDS):
            self.solve()
            if not added():
                return

    @property
    def load_us(self) -> float:
        """What the most loaded link carries."""
        return float(self.x[-1])

    def solve(self) -> None:
        """Solve over the known columns: sets the amounts, the price of every link and the value of a tree from every place, and,
        last, of a chunk's way into all other boxes.
        """
        gates, places = len(self.box.gates), self.box.size
        trees, entries = list(self.trees.values()), list(self.entries.values())
        columns = gates + len(trees) + len(entries) + 1
        spread, entered = slice(gates, gates + len(trees)), slice(gates + len(trees), columns - 1)
        self.spread, self.entered = spread, entered
        capacity = np.zeros((len(self.used), columns))
        capacity[:, :gates] = self.others * self.box.gate_loads[:, self.used].T
        capacity[:, spread] = np.array([tree.load for tree in trees]).T
        for column, entry in enumerate(entries, entered.start):
            capacity[:, column] = self.others * entry.load
        capacity[:, -1] = -1.0
        balance = np.zeros((places + 1, columns))
        balance[places, :gates] = 1.0
        balance[places, entered] = 1.0
        balance[[gate.dst for gate in self.box.gates], np.arange(gates)] = -float(self.others)
        balance[[root for root, _ in self.trees], gates + np.arange(len(trees))] = 1.0
        objective = np.zeros(columns)
        objective[spread] = [tree.depth_us / self.spreads for tree in trees]
        objective[entered] = [self.others * entry.depth_us / self.spreads for entry in entries]
        objective[-1] = 1.0
        answer = solve_lp(
            objective,
            csr_matrix(capacity),
            np.zeros(len(self.used)),
            csr_matrix(balance),
            [*self.own, float(self.own.sum())],
        )
        self.x = answer.x
        self.prices = np.maximum(-answer.duals_ub, 0.0)
        self.values = answer.duals_eq

    def price(self) -> int:
        """Add every place's cheapest tree where that is cheaper than those known; how many were added."""
        box, added = self.box, 0
        if box.size == 1:
            return 0
        per_path = box.network.occupancy[:, self.used] @ self.prices
        for root in range(box.size):
            tree = box.cheapest(per_path + self._early(root) / self.spreads, root)
            cost = float(per_path[list(tree)].sum()) + box.network.depth_us(root, tree) / self.spreads
            if (root, tree) not in self.trees and cost < self.values[root] - self._enough:
                self._add(root, tree)
                added += 1
        return added

    def price_entries(self) -> int:
        """Add the cheapest way into a box over several gates, and on from there, if it is cheaper than over one."""
        box = self.box
        per_path = box.entering.occupancy[:, self.used] @ self.prices
        over, forest = box.cheapest_entry(per_path + box.entering.early_us[box.size] / self.spreads)
        load = box.gate_loads[list(over)].sum(axis=0) + box.network.load(forest)
        within = len(box.inside)
        depth_us = box.entering.depth_us(box.size, (*forest, *(within + gate for gate in over)))
        entry = _Column(load[self.used], depth_us)
        cost = self.others * float(entry.load @ self.prices + depth_us / self.spreads)
        if len(over) == 1 or (over, forest) in self.entries or cost >= self.values[-1] - self._enough:
            return 0
        self.entries[over, forest] = entry
        return 1

    def packing(self) -> BoxPacking:
        """The solution."""
        gates = len(self.box.gates)
        over: dict[Gates, float] = {(gate,): amount for gate, amount in enumerate(self.x[:gates].tolist())}
        found: dict[Roots, dict[Tree, float]] = {}
        # The last round may have added some that no amounts are known of.
        for (root, tree), amount in zip(self.trees, self.x[self.spread].tolist(), strict=False):
            if amount > _NOTHING:
                found.setdefault((root,), {})[tree] = amount
        for root, tree in self.trees:
            found.setdefault((root,), {tree: 1.0})
        for (entered, forest), amount in zip(self.entries, self.x[self.entered].tolist(), strict=False):
            if amount > _NOTHING:
                over[entered] = over.get(entered, 0.0) + amount
                forests = found.setdefault(roots_of(self.box, entered), {})
                forests[forest] = forests.get(forest, 0.0) + amount
        loads = {tree: self.box.network.load(tree) for shares in found.values() for tree in shares}
        home: Floats = np.zeros(self.box.gate_loads.shape[1])
        for root, chunks in enumerate(self.own):
            home = home + chunks * _mean(found[root,], loads)
        return BoxPacking(tuple(round(chunks) for chunks in self.own.tolist()), over, found, loads, home, self.load_us)

    @property
    def _enough(self) -> float:
        """What a column has to gain for each chunk."""
        return _ENOUGH * self.load_us / float(self.own.sum())

    def _early(self, root: int) -> Floats:
        early: Floats = self.box.network.early_us[root]
        return early

    def _add(self, root: int, tree: Tree) -> None:
        network = self.box.network
        self.trees[root, tree] = _Column(network.load(tree)[self.used], network.depth_us(root, tree))


def roots_of(box: Box, over: Gates) -> Roots:
    """The places where a chunk comes in that enters over these gates, ascending."""
    return tuple(sorted(box.gates[gate].dst for gate in over))
