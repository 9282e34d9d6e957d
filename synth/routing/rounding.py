"""From a fractional packing to whole chunks: round down, deal the rest, then move chunks off the most loaded links.

Loads are compared by a potential, the sum over links of exp(load / temperature): it follows the largest load closely and still
tells two solutions with the same largest load apart (docs/formulation.md, section 6).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from synth.routing.packing import Commodity, Network, Packing

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Rounding:
    """`moves` bounds the local search; `tolerance` is how far above the fractional load it may stop (relative)."""

    moves: int = 400
    tolerance: float = 1e-9

    def __call__(self, network: Network, packing: Packing, num_ranks: int) -> list[dict[tuple[int, ...], int]]:
        """For each commodity: how many of its chunks each tree carries, in whole numbers that add up."""
        state = _State(network, packing, num_ranks)
        state.deal()
        for _ in range(self.moves):
            if state.worst_us <= packing.load_us * (1 + self.tolerance) or not state.improve():
                break
        return state.counts


class _State:
    """Counts of chunks per tree, and the load they put on every link."""

    def __init__(self, network: Network, packing: Packing, num_ranks: int) -> None:
        self.network = network
        self.packing = packing
        self.num_ranks = num_ranks
        self.load: Floats = np.zeros(network.occupancy.shape[1])
        self.counts: list[dict[tuple[int, ...], int]] = [defaultdict(int) for _ in packing.commodities]
        self.known: dict[tuple[int, ...], Floats] = {}
        used = network.occupancy[network.occupancy > 0]
        # One chunk on a typical link changes the exponent by two: sharp enough to follow the maximum.
        self.temperature_us = float(np.median(used)) / 2

    @property
    def worst_us(self) -> float:
        return float(self.load.max())

    def load_of(self, tree: tuple[int, ...]) -> Floats:
        if tree not in self.known:
            self.known[tree] = self.network.load(tree)
        return self.known[tree]

    def weights(self) -> Floats:
        """Every link's share of the potential, scaled so that the worst link has 1."""
        scaled: Floats = np.exp((self.load - self.load.max()) / self.temperature_us)
        return scaled

    def deal(self) -> None:
        """Give every tree the whole part of its amount, then each chunk left to the tree that raises the potential least."""
        known: list[list[tuple[int, ...]]] = [[] for _ in self.packing.commodities]
        for column in self.packing.columns:
            whole = int(column.amount + 1e-6)
            known[column.commodity].append(column.paths)
            self._add(column.commodity, column.paths, whole)
        for index, commodity in enumerate(self.packing.commodities):
            for _ in range(len(commodity.chunks) - sum(self.counts[index].values())):
                self._add(index, self._best_tree(commodity, known[index]), 1)
            for _ in range(sum(self.counts[index].values()) - len(commodity.chunks)):
                self._add(index, max(self.counts[index], key=lambda tree: (self.counts[index][tree], tree)), -1)

    def improve(self) -> bool:
        """Move one chunk from a tree over the most loaded link to a better tree; whether any such move was found."""
        worst = int(np.argmax(self.load))
        before = self._potential()
        best: tuple[float, int, tuple[int, ...], tuple[int, ...]] | None = None
        for index, counts in enumerate(self.counts):
            for tree in [tree for tree, count in counts.items() if count and self.load_of(tree)[worst] > 0]:
                self._shift(tree, -1)
                other = self._best_tree(self.packing.commodities[index], [t for t in counts if t != tree])
                self._shift(other, 1)
                after = self._potential()
                self._shift(other, -1)
                self._shift(tree, 1)
                if after < (before if best is None else best[0]) * (1 - 1e-9):
                    best = (after, index, tree, other)
        if best is None:
            return False
        _, index, tree, other = best
        self._add(index, tree, -1)
        self._add(index, other, 1)
        return True

    def _potential(self) -> float:
        """log of the sum of exp(load / temperature), which does not overflow."""
        top = self.worst_us
        return top / self.temperature_us + float(np.log(self.weights().sum()))

    def _best_tree(self, commodity: Commodity, known: list[tuple[int, ...]]) -> tuple[int, ...]:
        """Of the known trees and the one that is cheapest at present loads, the one that raises the potential least."""
        prices = self.network.occupancy @ self.weights()
        early = self.network.early_us[commodity.source]
        tie = 1e-9 * max(float(prices.max()), 1e-30) * early / float(early.max())
        fresh = self.network.cheapest(prices + tie, commodity, self.num_ranks)
        candidates = list(dict.fromkeys([*known, fresh]))
        loads = np.array([self.load_of(tree) for tree in candidates])
        after = self.load + loads
        top = float(after.max())
        scores = np.exp((after - top) / self.temperature_us).sum(axis=1)
        return candidates[int(np.argmin(scores))]

    def _add(self, index: int, tree: tuple[int, ...], count: int) -> None:
        self.counts[index][tree] += count
        self._shift(tree, count)

    def _shift(self, tree: tuple[int, ...], count: int) -> None:
        self.load = self.load + count * self.load_of(tree)
