"""allreduce by roots: the most that can be reduced at one rank each and broadcast from there, all sharing the machine's links.

Weights w(r) say how much is reduced at rank r; x(l) is what trees that broadcast load a link with, y(l) what trees that reduce do.
No switch copies or adds, so at all devices but GPUs what comes in goes out. Trees need that every cut lets through what starts on
its other side, in both halves; Edmonds' theorem on branchings says that they need no more (docs/formulation.md, eq. 39). There are
too many cuts to list: a linear program over those known says which weights and loads are best, and maximum flows find the cuts that
these violate. The duals prove a limit at every step (eq. 40), so the search may end at any time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from scipy.sparse import block_diag, csr_array, eye_array, hstack, vstack

from synth.bounds.machine import Floats, Machine
from synth.bounds.oracle import CutOracle
from synth.bounds.refine import Matrix, joined
from synth.bounds.turning import Classes
from synth.bounds.value import Limit
from synth.milp.lp import solve_lp

#: Rounds of cuts after which what is proved is taken.
ROUNDS = 60
#: Columns of the program above which cuts are no longer sought: each round would take seconds.
MOST_COLUMNS = 4000
#: A cut is violated if it lacks more than this share of everything.
_SLIP = 1e-7


class Half(NamedTuple):
    """A cut of one half: `side` sends to the rest. Broadcasts have to get out of it, or sums (`reduces`)."""

    side: tuple[bool, ...]
    reduces: bool


class Rooted(NamedTuple):
    """What is proved; how much each rank reduces (weights sum to 1); the edges that are full; whether there is no better limit."""

    limit: Limit
    weights: Floats
    edges: tuple[int, ...]
    settled: bool


def rooted_allreduce(oracle: CutOracle, sets: Iterable[frozenset[int]] = (), rounds: int = ROUNDS) -> Rooted:
    """The limit of allreduce by roots, the best there is unless `rounds` end before.

    `sets` of ranks may be cuts that matter (boxes, islands): the fewer have to be found, the sooner it ends.
    """
    machine = oracle.machine
    master = _Master(machine)
    around = [*(frozenset({rank}) for rank in range(machine.num_ranks)), *sets]
    for into, out in zip(oracle.narrowest(around, into=True), oracle.narrowest(around, into=False), strict=True):
        master.add(Half(tuple(~into), reduces=False))
        master.add(Half(tuple(out), reduces=True))
    master.solve()
    # Corners of the program jump about; a running mean of them is violated by deeper cuts.
    steady, settled = master.point, False
    for _ in range(rounds if len(master.sizes) <= MOST_COLUMNS else 0):
        steady = 0.5 * steady + 0.5 * master.point
        # A cut that is known and violated is so by the solver's tolerance.
        settled = not any(sum(map(master.add, _violated(oracle, master, point))) for point in (steady, master.point))
        if settled:
            break
        master.solve()
    return master.answer(settled)


def _violated(oracle: CutOracle, master: _Master, point: Floats) -> list[Half]:
    """Cuts that weights and loads do not get through."""
    weights, broadcast, reduced = np.split(point, [master.ranks, master.ranks + master.edges])
    total = float(weights.sum())
    halves = [
        oracle.root_cuts(weights / total, master.reps, load / total, reduces, _SLIP)
        for reduces, load in ((False, broadcast), (True, reduced))
    ]
    return [
        Half(tuple(side), reduces)
        for sides in zip(*halves, strict=True)
        for reduces, side in zip((False, True), sides, strict=True)
        if side is not None
    ]


class _Master:
    """The linear program over the cuts known. Columns: weights, then loads of broadcasts, then of sums.

    Rates are shares of the fastest edge's. What rotations of boxes take to each other has one column, which stands for the mean.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.edges, self.ranks = len(machine.links), machine.num_ranks
        self.scale = float(machine.rates.max())
        self.halves: dict[Half, Floats] = {}
        classes = Classes.of(machine)
        edges = classes.edges + classes.ranks.max() + 1
        self.column = np.concatenate([classes.ranks, edges, edges + classes.edges.max() + 1])
        self.sizes = np.bincount(self.column).astype(np.float64)
        first = np.unique(classes.edges, return_index=True)[1]
        self.rates = machine.rates[first] / self.scale
        blank = csr_array((len(first), len(self.sizes) - 2 * len(first)))
        self.shared = hstack([blank, eye_array(len(first)), eye_array(len(first))])
        self.balance = _balance(machine)
        inner = np.delete(classes.devices, machine.gpus)
        self.rows = np.unique(np.concatenate([inner, inner + classes.devices.max() + 1]), return_inverse=True)[1]
        self.balanced = joined(self.balance, self.rows, self.column)
        self.reps = np.unique(classes.ranks, return_index=True)[1].tolist()
        self.point: Floats = np.zeros(len(self.column))
        self.best: tuple[float, Floats] = (np.inf, np.zeros(self.edges))

    def add(self, half: Half) -> bool:
        """Put a cut into the program; False where it is known.

        A cut of broadcasts, from S to the rest: w(S) <= x(S). One of sums, from S to the rest: w outside S <= y(S).
        """
        if half in self.halves:
            return False
        side = np.array(half.side)
        row = np.zeros(len(self.column))
        row[: self.ranks] = side[self.machine.gpus] != half.reduces
        row[self.ranks + (self.edges if half.reduces else 0) + self.machine.crossing(side)] = -1.0
        self.halves[half] = self._joined(row)
        return True

    def _joined(self, row: Floats) -> Floats:
        """A row with the columns of each class summed."""
        sums: Floats = np.bincount(self.column, row, minlength=len(self.sizes)).astype(np.float64)
        return sums

    def solve(self) -> None:
        """The best weights and loads under the cuts known, and what their duals prove."""
        cost = self._joined((np.arange(len(self.column)) < self.ranks).astype(np.float64))
        matrix = np.unique(np.array(list(self.halves.values())), axis=0)
        rhs = np.concatenate([np.zeros(len(matrix)), self.rates])
        rows: Matrix = vstack([csr_array(matrix), self.shared], format="csr")
        answer = solve_lp(-cost, rows, rhs, self.balanced, np.zeros(self.balanced.shape[0]))
        self.point = np.maximum(answer.x, 0.0)[self.column] * self.scale
        self._prove(np.maximum(-answer.duals_ub[: len(matrix)], 0.0) @ matrix, answer.duals_eq)

    def _prove(self, cuts: Floats, potentials: Floats) -> None:
        """Eq. 40: prices of cuts that pay every root at least 1 limit the weights by what the links are worth at them.

        `cuts` are the columns of the cuts, summed at their prices. A cut stands for all its rotations, which share its price.
        """
        priced = (cuts / self.sizes)[self.column]
        paid = float(priced[: self.ranks].min())
        if paid <= 0:
            return
        # A load is worth the prices of the cuts that it crosses, and what the potential rises along it.
        rise = (potentials / np.bincount(self.rows))[self.rows] @ self.balance
        worth = rise[self.ranks :] - priced[self.ranks :]
        prices: Floats = np.maximum(np.maximum(worth[: self.edges], worth[self.edges :]), 0.0) / paid
        limit = float(prices @ self.machine.rates)
        if limit < self.best[0]:
            self.best = (limit, prices)

    @property
    def weights(self) -> Floats:
        """How much is reduced at each rank."""
        return self.point[: self.ranks]

    def answer(self, settled: bool) -> Rooted:
        machine, prices = self.machine, self.best[1]
        ranks = range(machine.num_ranks)
        limit = Limit.of(1.0, machine.rates * prices, machine.delays.between(ranks, ranks))
        edges = np.flatnonzero(prices > prices.max() * 1e-7)
        return Rooted(limit, self.weights / self.weights.sum(), tuple(edges.tolist()), settled)


def _balance(machine: Machine) -> Matrix:
    """Rows: what loads bring into each device that is no GPU, less what they take out, is nothing; for each half by itself."""
    edges, inner = len(machine.links), np.ones(len(machine.topology.devices), dtype=bool)
    inner[machine.gpus] = False
    row = np.cumsum(inner) - 1
    into, out = np.flatnonzero(inner[machine.heads]), np.flatnonzero(inner[machine.tails])
    signs = np.concatenate([np.ones(len(into)), -np.ones(len(out))])
    at = np.concatenate([row[machine.heads[into]], row[machine.tails[out]]])
    half = csr_array((signs, (at, np.concatenate([into, out]))), shape=(int(inner.sum()), edges))
    weights = csr_array((2 * half.shape[0], machine.num_ranks))
    return hstack([weights, block_diag([half, half])]).tocsr()
