"""Fractional packing of trees into the machine's capacities, by column generation (docs/formulation.md, section 6).

A commodity is all chunks with the same source and destinations. The master linear program spreads each commodity's chunks over
trees so that the most loaded link carries as little as possible; pricing looks for a tree that is cheaper than those known at
the current link prices: a minimum-cost arborescence where everything is a destination, a cheapest path where one rank is. Any
prices prove a lower bound (eq. 17), so the packing says how far from the optimum it can be.

Under symmetries only one commodity of each orbit is in the program, with links merged into orbits: its images carry the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from synth.instance import Instance, Symmetry
from synth.milp.lp import GrowingLp, solve_lp
from synth.paths import distances
from synth.routing.arborescence import cheapest_trees, prune, shallow_tree
from synth.symmetry import members_of

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Share of a link price that decides between trees of equal price: shallow ones first.
_TIE = 1e-6
#: Shares of its commodity's chunks that a tree carries at least, tried one after the other, if loads and depths together grow by no
#: more than this.
_LEAST_SHARES = (1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64)
_FEW_COST = 3e-3
#: Rounds of pricing for one chunk, which goes along one tree: many trees that share it say nothing of which that should be.
_ROUNDS_OF_ONE = 8


class Commodity(NamedTuple):
    """Chunks that start at `source` and have to reach `dests`."""

    source: int
    dests: frozenset[int]
    chunks: tuple[int, ...]


class Column(NamedTuple):
    """Tree `paths` (sorted) carries `amount` chunks of a commodity."""

    commodity: int
    paths: tuple[int, ...]
    amount: float


@dataclass(frozen=True)
class Packing:
    """Columns over all commodities, chosen for load and depth together: where shallow trees are worth it, their most loaded link
    needs more than `load_us`, the least found for any trees. No routing at all over the paths that it may use needs less than
    `bound_us`.
    """

    commodities: tuple[Commodity, ...]
    columns: tuple[Column, ...]
    load_us: float
    bound_us: float
    rounds: int


@dataclass(frozen=True)
class Network:
    """The instance's paths as arrays: `occupancy[p, l]` is how many us one chunk on path p occupies link l."""

    src: Ints
    dst: Ints
    latency_us: Floats
    occupancy: Floats
    early_us: Floats
    """early_us[r, p]: when a chunk of rank r can have crossed path p at the earliest, in an empty machine; 0 if it never can."""

    @classmethod
    def of(cls, instance: Instance, paths: Collection[int] | None = None) -> Network:
        """The network of all paths, and the earliest times if `paths` alone may be used (None: all)."""
        occupancy = np.zeros((len(instance.paths), len(instance.topology.links)))
        for path in instance.paths:
            occupancy[path.index, list(path.links)] = path.busy_us(instance.chunk_bytes)
        src = np.array([path.src for path in instance.paths], dtype=np.int64)
        dst = np.array([path.dst for path in instance.paths], dtype=np.int64)
        latency = np.array([path.latency_us(instance.chunk_bytes) for path in instance.paths])
        usable = instance.paths if paths is None else [instance.paths[path] for path in sorted(paths)]
        distance = distances(instance.num_ranks, usable, latency[[path.index for path in usable]].tolist())
        early = distance[:, src] + latency
        return cls(src, dst, latency, occupancy, np.where(np.isfinite(early), early, 0.0))

    def cheapest(self, prices: Floats, commodity: Commodity, num_ranks: int) -> tuple[int, ...]:
        """The paths of the cheapest tree for the commodity where path p costs `prices[p]`; among equals a shallow one."""
        (tree,) = self.cheapest_from(prices, commodity.source, [commodity.dests], num_ranks)
        return tree

    def cheapest_from(
        self, prices: Floats, source: int, ends: Sequence[frozenset[int]], num_ranks: int
    ) -> list[tuple[int, ...]]:
        """`cheapest` for several commodities of one source, with what they have in common done once."""
        cost, index = self._dense(prices, num_ranks)
        return [_edges(index, parent) for parent in cheapest_trees(cost, source, ends)]

    def shallow(self, prices: Floats, commodity: Commodity, num_ranks: int, price_of_us: float) -> tuple[int, ...]:
        """The paths of a tree that is cheap and shallow, where each us that a rank waits costs `price_of_us`."""
        _, index = self._dense(prices + price_of_us * self.latency_us, num_ranks)
        price = np.where(index >= 0, prices[index], np.inf)
        parent = shallow_tree(price, self.latency_us[index], commodity.source, price_of_us)
        return _edges(index, prune(parent, commodity.dests))

    def _dense(self, prices: Floats, num_ranks: int) -> tuple[Floats, Ints]:
        """The price of the cheapest path between any two ranks, infinite where there is none, and which path it is, or -1."""
        order = np.lexsort((np.arange(len(prices)), prices, self.dst, self.src))
        first = np.ones(len(order), dtype=bool)
        pairs = self.src[order] * num_ranks + self.dst[order]
        first[1:] = pairs[1:] != pairs[:-1]
        chosen = order[first]
        cost = np.full((num_ranks, num_ranks), np.inf)
        index = np.full((num_ranks, num_ranks), -1, dtype=np.int64)
        cost[self.src[chosen], self.dst[chosen]] = prices[chosen]
        index[self.src[chosen], self.dst[chosen]] = chosen
        return cost, index

    def depth_us(self, source: int, paths: tuple[int, ...]) -> float:
        """When the last rank of the tree has a chunk, in an empty machine."""
        out: dict[int, list[int]] = defaultdict(list)
        for path in paths:
            out[int(self.src[path])].append(path)
        latest, stack = 0.0, [(source, 0.0)]
        while stack:
            rank, time_us = stack.pop()
            latest = max(latest, time_us)
            stack += [(int(self.dst[path]), time_us + float(self.latency_us[path])) for path in out[rank]]
        return latest

    def load(self, paths: tuple[int, ...]) -> Floats:
        """What one chunk on all of `paths` loads each link with, in us."""
        total: Floats = self.occupancy[list(paths)].sum(axis=0)
        return total


def _edges(index: Ints, parent: Ints) -> tuple[int, ...]:
    """The paths of a tree that is given by parents, sorted."""
    children = np.flatnonzero(parent >= 0)
    return tuple(sorted(index[parent[children], children].tolist()))


def commodities_of(instance: Instance) -> tuple[Commodity, ...]:
    """The instance's demands by (source, destinations), in order of first chunk."""
    grouped: dict[tuple[int, frozenset[int]], list[int]] = defaultdict(list)
    for demand in instance.demands:
        grouped[demand.source, demand.dests].append(demand.chunk)
    return tuple(Commodity(source, dests, tuple(chunks)) for (source, dests), chunks in grouped.items())


class _Element(NamedTuple):
    """One symmetry of the machine, as arrays: path and link images, and the images of commodities."""

    paths: Ints
    links: Ints
    commodities: Ints


def keeps(symmetry: Symmetry, paths: Collection[int] | None) -> bool:
    """Whether a symmetry maps the `paths` that may be used (None: all) to such."""
    return paths is None or all(symmetry.paths[path] in paths for path in paths)


def _group(instance: Instance, commodities: tuple[Commodity, ...], paths: Collection[int] | None) -> list[_Element]:
    """The group that those of the instance's symmetries make that map commodities to commodities, and the `paths` that may be used
    to such (None: all), the identity included.
    """
    place = {(commodity.source, commodity.dests): index for index, commodity in enumerate(commodities)}

    def images(symmetry: Symmetry) -> list[int | None]:
        ranks = symmetry.ranks
        return [place.get((ranks[c.source], frozenset(ranks[dest] for dest in c.dests))) for c in commodities]

    kept = [symmetry for symmetry in instance.symmetries if None not in images(symmetry) and keeps(symmetry, paths)]
    return [
        _Element(np.array(member.paths), np.array(member.links), np.array(images(member), dtype=np.int64))
        for member in members_of(instance, kept)
    ]


@dataclass(frozen=True)
class TreePacking:
    """Solves the packing until the proved gap is below `gap`, or for `rounds` rounds of pricing. Of more than `few_ranks` every
    solve goes on from the one before: prices jump about less then, so that fewer trees are seen, in a fraction of the time.
    """

    rounds: int = 80
    gap: float = 1e-3
    few_ranks: int = 32

    def __call__(
        self,
        instance: Instance,
        known: Sequence[tuple[int, ...]] = (),
        paths: Collection[int] | None = None,
        sources: Collection[int] | None = None,
    ) -> Packing:
        """The packing of the instance's demands; loads in us for all chunks together. `known` are trees (sorted paths) of the first
        commodity that are worth looking at from the start: pricing finds what loads least, but not always what is shallow as well.
        `paths` may be used (None: all), over which every source has to reach its destinations, and of the demands those of the
        `sources` count (None: all).
        """
        commodities = tuple(c for c in commodities_of(instance) if sources is None or c.source in sources)
        if not commodities:
            return Packing((), (), 0.0, 0.0, 0)
        master = Master(instance, commodities, paths, resumes=instance.num_ranks > self.few_ranks)
        for tree in known:
            master.add(0, tree)
        alone = sum(len(commodity.chunks) for commodity in commodities) == 1
        master.solve_until(min(self.rounds, _ROUNDS_OF_ONE) if alone else self.rounds, self.gap)
        return Packing(commodities, master.columns(), master.least_load_us, master.bound_us, master.rounds)


class ColumnGeneration(ABC):
    """A master program over trees, to which pricing adds: the least load so far, and the bound proved, over the paths `allowed`."""

    allowed: NDArray[np.bool_]

    def __init__(self, num_paths: int) -> None:
        self.allowed = np.ones(num_paths, dtype=bool)
        self.load_us, self.bound_us = np.inf, 0.0
        self.rounds = 0

    def least_us(self, rounds: int, gap: float) -> float:
        """The least load of the busiest link, as near as that many rounds of pricing or that gap to what is proved come."""
        self._begin()
        self._generate(rounds, lambda: self.load_us <= self.bound_us * (1 + gap))
        return self.load_us

    def reaches(self, paths: Collection[int], most_us: float, rounds: int) -> bool:
        """Whether trees over `paths` alone need no more than `most_us`, as far as so many rounds of pricing find out; if so, `used`
        says of such. Trees of earlier calls are used again.
        """
        self._allow(paths)
        self._begin()
        self._generate(rounds, lambda: self.load_us <= most_us or self.bound_us > most_us)
        return self.load_us <= most_us

    @abstractmethod
    def used(self) -> Floats:
        """By path, how many chunks the solution sends over it: of what is in the program, without images."""

    @abstractmethod
    def _begin(self) -> None:
        """Add trees, so that the program has a solution."""

    @abstractmethod
    def _prices(self, depth_weight: float) -> Floats:
        """Solve the program over the trees that may be used; the prices of links."""

    @abstractmethod
    def _price(self, prices: Floats, depth_weight: float) -> int:
        """Add what is cheapest at these prices, and the bound that they prove; how many trees were new."""

    def _allow(self, paths: Collection[int]) -> None:
        """Use these paths alone, over which nothing is proved yet."""
        self.allowed = np.zeros(len(self.allowed), dtype=bool)
        self.allowed[list(paths)] = True
        self.bound_us = 0.0

    def _generate(
        self, rounds: int, is_enough: Callable[[], bool], *, depth_weight: float = 0.0, steady: Floats | None = None
    ) -> Floats | None:
        """Solve and price until that is enough, no tree is new, or the rounds end; the running mean of prices, which goes on from
        `steady`. Prices of the program jump about; their mean proves better bounds and finds better trees.
        """
        for _ in range(rounds):
            self.rounds += 1
            prices = self._prices(depth_weight)
            steady = prices if steady is None else 0.5 * steady + 0.5 * prices
            added = self._price(steady, depth_weight) + self._price(prices, depth_weight)
            if not added or is_enough():
                break
        return steady


def growing_program(links: int, amounts: Floats) -> GrowingLp:
    """A master program without trees: rows for links, loaded no more than what is the first column, and for what adds up to
    `amounts`.
    """
    program = GrowingLp(np.append(np.full(links, -np.inf), amounts), np.append(np.zeros(links), amounts))
    program.add(_load_column(links, len(amounts)))
    return program


def _load_column(links: int, others: int) -> Floats:
    """What the load of the busiest link takes off the rows of links and of others, (rows, 1)."""
    return np.append(-np.ones(links), np.zeros(others))[:, None]


class Master(ColumnGeneration):
    """The master program: its columns so far, its prices, and the bound proved, over `paths` (None: all). Where it `resumes`, a
    solve goes on from the one before.
    """

    def __init__(
        self,
        instance: Instance,
        commodities: tuple[Commodity, ...],
        paths: Collection[int] | None = None,
        *,
        resumes: bool = False,
    ) -> None:
        super().__init__(len(instance.paths))
        self.network = Network.of(instance, paths)
        self.num_ranks = instance.num_ranks
        self.commodities = commodities
        self.group = _group(instance, commodities, paths)
        orbits = np.array([element.commodities for element in self.group]).min(axis=0)
        self.members = {int(rep): np.flatnonzero(orbits == rep) for rep in np.unique(orbits)}
        self.reps = sorted(self.members)
        self.by_source: dict[int, list[int]] = defaultdict(list)
        for rep in self.reps:
            self.by_source[commodities[rep].source].append(rep)
        link_orbit = np.array([element.links for element in self.group]).min(axis=0)
        self.link_class, self.link_orbit = np.unique(link_orbit, return_inverse=True)
        self.orbit_size = np.bincount(self.link_orbit).astype(np.float64)
        sizes = [len(commodity.chunks) for commodity in commodities]
        self.amount = {rep: float(np.mean([sizes[member] for member in self.members[rep]])) for rep in self.reps}
        self.trees: list[tuple[int, tuple[int, ...]]] = []
        self.loads: list[Floats] = []
        self.depths: list[float] = []
        self.num_chunks = sum(sizes)
        self.seen: set[tuple[int, tuple[int, ...]]] = set()
        self.weights: Floats = np.zeros(0)
        self.least_load_us = np.inf
        amounts = np.array([self.amount[rep] for rep in self.reps])
        self.program = growing_program(len(self.orbit_size), amounts) if resumes else None
        if paths is not None:
            self._allow(paths)

    def solve_until(self, rounds: int, gap: float) -> None:
        """Column generation twice: for the least load, which proves the bound, then with the depth of trees in the price."""
        self.least_load_us = self.least_us(rounds, gap)
        self._generate(rounds, lambda: False, depth_weight=1.0)
        self._solve(1.0)
        self._keep_few()

    def _prices(self, depth_weight: float) -> Floats:
        """Solve over the trees that may be used; the price of every link orbit (sum 1)."""
        return self._solve(depth_weight, self._within())

    def _within(self) -> Ints | None:
        """The trees over paths that may be used; None: all."""
        if self.allowed.all():
            return None
        within = [number for number, (_, tree) in enumerate(self.trees) if self.allowed[list(tree)].all()]
        return np.array(within, dtype=np.int64)

    def used(self) -> Floats:
        """By path, how many chunks the solution sends over it: of the commodities in the program, without their images."""
        chunks = np.zeros(len(self.allowed))
        for (_, tree), weight in zip(self.trees[: len(self.weights)], self.weights, strict=True):
            chunks[list(tree)] += weight
        return chunks

    def _begin(self) -> None:
        """A tree for every commodity, so that the program has a solution."""
        for rep in self.reps:
            early = np.where(self.allowed, self.network.early_us[self.commodities[rep].source], np.inf)
            self.add(rep, self.network.cheapest(early, self.commodities[rep], self.num_ranks))

    def columns(self) -> tuple[Column, ...]:
        """The solution over all commodities: every tree with its images under the group, weights shared evenly."""
        amounts: dict[tuple[int, tuple[int, ...]], float] = defaultdict(float)
        for (rep, tree), weight in zip(self.trees[: len(self.weights)], self.weights, strict=True):
            if weight <= 1e-7 * self.amount[rep]:
                continue
            share = weight * len(self.members[rep]) / len(self.group)
            for element in self.group:
                member = int(element.commodities[rep])
                scale = len(self.commodities[member].chunks) / self.amount[rep]
                image = tuple(sorted(element.paths[list(tree)].tolist()))
                amounts[member, image] += share * scale
        return tuple(Column(member, tree, amount) for (member, tree), amount in sorted(amounts.items()))

    def add(self, rep: int, tree: tuple[int, ...]) -> bool:
        """Add a tree of a commodity that is its orbit's first; whether it is new."""
        if (rep, tree) in self.seen:
            return False
        self.seen.add((rep, tree))
        load = np.bincount(self.link_orbit, self.network.load(tree), minlength=len(self.orbit_size))
        self.trees.append((rep, tree))
        self.loads.append(load * len(self.members[rep]) / self.orbit_size)
        depth = self.network.depth_us(self.commodities[rep].source, tree)
        self.depths.append(depth * len(self.members[rep]) / self.num_chunks)
        return True

    def _keep_few(self) -> None:
        """Do without trees that carry little, where the others are hardly worse: each tree takes connections of its own."""
        weights, load_us, worth = self.weights, self.load_us, self._worth_us()
        amounts = np.array([self.amount[rep] for rep, _ in self.trees])
        for least in _LEAST_SHARES:
            kept = np.flatnonzero(weights >= least * amounts)
            if {self.trees[each][0] for each in kept} != set(self.reps):
                continue
            self._solve(1.0, kept)
            if self._worth_us() <= worth * (1 + _FEW_COST):
                return
        self.weights, self.load_us = weights, load_us

    def _worth_us(self) -> float:
        """What the master makes as small as it can where depths count."""
        return self.load_us + float(np.dot(self.depths, self.weights))

    def _solve(self, depth_weight: float, kept: Ints | None = None) -> Floats:
        """Solve the master over the known columns, or those that are `kept`: sets weights and load, returns the price of every
        link orbit (sum 1).
        """
        kept = np.arange(len(self.trees)) if kept is None else kept
        # What a schedule takes beyond the busiest link's load is about the depth of a chunk's tree: the mean over chunks.
        costs, links = depth_weight * np.array(self.depths), len(self.orbit_size)
        if self.program is not None:
            self.program.add(self._columns(range(self.program.columns - 1, len(self.trees))))
            grown = self.program.solve(np.append(1.0, costs), np.append(True, np.isin(np.arange(len(costs)), kept)))
            load_us, weights, duals = grown.x[0], grown.x[1:][kept], grown.duals[:links]
        else:
            # Dense, though most of it is nothing: programs are small, and SciPy is twice as fast with these.
            amounts = np.array([self.amount[rep] for rep in self.reps])
            rows = np.column_stack([self._columns(kept), _load_column(links, len(amounts))])
            solution = solve_lp(np.append(costs[kept], 1.0), rows[:links], np.zeros(links), rows[links:], amounts)
            load_us, weights, duals = solution.x[-1], solution.x[:-1], solution.duals_ub
        self.load_us, self.weights = float(load_us), np.zeros(len(self.trees))
        self.weights[kept] = weights
        prices: Floats = np.maximum(-duals, 0.0)
        return prices / prices.sum() if prices.sum() > 0 else np.full(len(prices), 1.0 / len(prices))

    def _columns(self, trees: Sequence[int] | Ints) -> Floats:
        """What trees add to the rows, (rows, trees)."""
        links = len(self.orbit_size)
        columns = np.zeros((links + len(self.reps), len(trees)))
        if len(trees):
            columns[:links] = np.array([self.loads[tree] for tree in trees]).T
        columns[[links + self.reps.index(self.trees[tree][0]) for tree in trees], range(len(trees))] = 1.0
        return columns

    def _price(self, prices: Floats, depth_weight: float) -> int:
        """Add the cheapest tree of every commodity at these prices, and the bound that the prices prove; how many were new."""
        per_link = (prices / self.orbit_size)[self.link_orbit]
        per_path = self.network.occupancy @ per_link
        scale = float(per_path.max()) or 1.0
        bound, added = 0.0, 0
        trees: dict[int, tuple[int, ...]] = {}
        for source, reps in self.by_source.items():
            early = self.network.early_us[source]
            tie = _TIE * scale * early / float(early.max()) + depth_weight * early / self.num_chunks
            ends = [self.commodities[rep].dests for rep in reps]
            costs = np.where(self.allowed, per_path + tie, np.inf)
            trees |= zip(reps, self.network.cheapest_from(costs, source, ends, self.num_ranks), strict=True)
        for rep in self.reps:
            tree = trees[rep]
            bound += self.amount[rep] * len(self.members[rep]) * float(per_path[list(tree)].sum())
            added += self.add(rep, tree)
            if depth_weight and len(self.commodities) == 1:
                # Above, a wait costs as much on whatever way a rank is reached: of one source's trees, each of which begins with
                # another hop, deep ones are as cheap. Many sources' trees come out as shallow, and more alike, without this.
                price_of_us = depth_weight / self.num_chunks
                costs = np.where(self.allowed, per_path, np.inf)
                added += self.add(rep, self.network.shallow(costs, self.commodities[rep], self.num_ranks, price_of_us))
        exact = all(len(c.dests) in (1, self.num_ranks - 1) for c in self.commodities)
        if exact and not depth_weight:
            # The tie price may have cost at most itself on every edge of every tree.
            slip = _TIE * scale * sum(self.amount[r] * len(self.members[r]) for r in self.reps) * self.num_ranks
            self.bound_us = max(self.bound_us, bound - slip)
        return added
