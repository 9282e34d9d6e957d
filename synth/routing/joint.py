"""allreduce routed as one: where each piece is reduced, the trees up to there and the trees down, on one set of links.

Two halves solved one by one make every rank reduce as much as every other. Here roots are free (docs/formulation.md, section 6): a
program by column generation weighs roots, in-trees and out-trees against the load of links that all of them share. Weights are
then rounded to whole chunks, and so are the trees. On a mesh, where a corner has half the links of the middle, that is half as
much again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from synth.instance import Instance, OwnedInstance, Symmetry
from synth.ir import Routing, Transfer
from synth.routing.packing import Column, ColumnGeneration, Commodity, Network, Packing, growing_program, keeps
from synth.routing.rounding import Rounding
from synth.symmetry import members_of

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Tree = tuple[int, ...]
#: Of all chunks, how many a tree carries at least to count.
_CARRIES = 1e-7


@dataclass(frozen=True)
class Joint:
    """`instance` knows the owners; `up` sums each chunk to its owner, `down` copies it from there.

    No roots and trees over the paths that they may use need less than `bound_us`; the trees before rounding need `load_us`.
    """

    instance: OwnedInstance
    up: Routing
    down: Routing
    load_us: float
    bound_us: float


@dataclass(frozen=True)
class JointRouting:
    """Options: rounds of pricing for load alone, and then with depth; the proved gap at which the first end; the rounding."""

    rounds: int = 120
    shallow_rounds: int = 8
    gap: float = 1e-3
    rounding: Rounding = field(default_factory=Rounding)

    def __call__(self, instance: Instance, paths: Collection[int] | None = None) -> Joint:
        """Owners and trees for all chunks of an allreduce instance over `paths` (None: all), which have to join all ranks."""
        master = JointMaster(replace(instance, symmetries=_kept(instance, paths)), paths)
        master.solve_until(self.rounds, self.shallow_rounds, self.gap)
        owned = master.dealt()
        packing = _packing(master, owned)
        counts = self.rounding(master.turned, packing, instance.num_ranks)
        first = np.concatenate([[0], np.cumsum(owned)]).tolist()
        up: list[Transfer] = []
        down: list[Transfer] = []
        for commodity, trees in zip(packing.commodities, counts, strict=True):
            sums = commodity.source >= instance.num_ranks
            half, moved = (up, master.halves.paths) if sums else (down, 0)
            for turn, tree in enumerate(_interleaved(trees)):
                for member in master.members:
                    chunk = first[member.ranks[commodity.source % instance.num_ranks]] + turn
                    half += [Transfer(chunk, member.paths[path - moved], sums) for path in tree]
        owners = tuple(root for root, count in enumerate(owned) for _ in range(count))
        return Joint(
            instance.owned_by(owners),
            Routing(tuple(sorted(up)), master.load_us),
            Routing(tuple(sorted(down)), master.load_us),
            master.load_us,
            master.bound_us,
        )


@dataclass(frozen=True)
class _Halves(Network):
    """Both halves as one network: ranks and paths of the half that sums are numbered on from those of the half that copies.

    Paths of the summing half are turned around, so that its trees too lead away from the root; links are the same for both.
    """

    ranks: int
    paths: int
    copying: Network
    summing: Network

    @classmethod
    def both(cls, instance: Instance, usable: Collection[int] | None) -> _Halves:
        """The network of an instance's paths, of which trees may use some (None: all)."""
        down, up = Network.of(instance, usable), Network.of(instance.reversed(), usable)
        ranks, paths = instance.num_ranks, len(instance.paths)
        early = np.zeros((2 * ranks, 2 * paths))
        early[:ranks, :paths], early[ranks:, paths:] = down.early_us, up.early_us
        return cls(
            np.concatenate([down.src, up.src + ranks]),
            np.concatenate([down.dst, up.dst + ranks]),
            np.concatenate([down.latency_us, up.latency_us]),
            np.vstack([down.occupancy, up.occupancy]),
            early,
            ranks,
            paths,
            down,
            up,
        )

    def cheapest(self, prices: Floats, commodity: Commodity, num_ranks: int) -> Tree:
        """The cheapest tree of the half that the commodity's source is in."""
        if commodity.source < self.ranks:
            return self.copying.cheapest(prices[: self.paths], commodity, num_ranks)
        moved = Commodity(
            commodity.source - self.ranks, frozenset(d - self.ranks for d in commodity.dests), commodity.chunks
        )
        tree = self.summing.cheapest(prices[self.paths :], moved, num_ranks)
        return tuple(path + self.paths for path in tree)


class JointMaster(ColumnGeneration):
    """The master program of an allreduce instance over `paths` (None: all): trees so far, how many chunks each carries, and what the
    prices prove (eq. 17 with free roots). Under the instance's symmetries it has one root of each orbit, with links merged into
    orbits: what is said of a tree is said of all its images together.
    """

    def __init__(self, instance: Instance, paths: Collection[int] | None = None) -> None:
        super().__init__(len(instance.paths))
        collective, ranks = instance.collective, instance.num_ranks
        self.halves, self.ranks, self.chunks = _Halves.both(instance, paths), ranks, collective.chunks
        # Trees to some of the ranks are cheap, not cheapest, and so prove nothing.
        self.proves = collective.group is None
        everyone = [frozenset(first + rank for rank in collective.members) for first in (0, ranks)]
        self.sources = [Commodity(s, everyone[s >= ranks] - {s}, ()) for s in range(2 * ranks)]
        self.members = members_of(instance, instance.symmetries)
        rank_images = np.array([member.ranks for member in self.members])
        link_images = np.array([member.links for member in self.members])
        crossed = [instance.paths[path] for path in (range(len(instance.paths)) if paths is None else paths)]
        through = {path.src for path in crossed} & {path.dst for path in crossed}
        self.roots = [root for root in np.unique(rank_images.min(axis=0)).tolist() if root in through]
        _, self.link_orbit = np.unique(link_images.min(axis=0), return_inverse=True)
        self.orbit_size = np.bincount(self.link_orbit).astype(np.float64)
        # What one chunk on each image of a path takes of a link of every orbit.
        merged = csr_matrix(
            (len(self.members) / self.orbit_size[self.link_orbit], (range(len(self.link_orbit)), self.link_orbit))
        )
        occupancy = np.asarray(self.halves.occupancy @ merged, dtype=np.float64)
        self.turned = replace(self.halves, occupancy=occupancy)
        self.trees: dict[tuple[int, Tree], Floats] = {}
        self.depths: dict[tuple[int, Tree], float] = {}
        self.amounts: Floats = np.zeros(0)
        # At a rank as much is summed as is copied from there.
        self.program = growing_program(len(self.orbit_size), np.append(np.zeros(ranks), float(self.chunks)))
        if paths is not None:
            self._allow(paths)

    def solve_until(self, rounds: int, shallow_rounds: int, gap: float) -> None:
        """Price and solve until the gap is closed, no tree is new, or the rounds end; then look for shallow trees as good."""
        self._begin()
        steady = self._generate(rounds, lambda: self.load_us <= self.bound_us * (1 + gap))
        self._prices(1.0)
        self._generate(shallow_rounds, lambda: False, depth_weight=1.0, steady=steady)
        self._prices(1.0)

    def add(self, source: int, tree: Tree) -> bool:
        """Add a tree; whether it is new."""
        if (source, tree) in self.trees:
            return False
        self.trees[source, tree] = self.turned.load(tree) / len(self.members)
        self.depths[source, tree] = self.halves.depth_us(source, tree)
        return True

    def used(self) -> Floats:
        """By path, how many chunks the solution sends over it, as sums and as copies: what goes over a path and its images is
        counted for some of these.
        """
        chunks = np.zeros(2 * self.halves.paths)
        for (_, tree), amount in zip(self.trees, self.amounts, strict=False):  # what was priced last is not in yet
            chunks[list(tree)] += amount
        both: Floats = chunks[: self.halves.paths] + chunks[self.halves.paths :]
        return both

    def _begin(self) -> None:
        """Every root's cheapest trees where all links cost as much as they are busy."""
        busy = self.halves.occupancy.max(axis=0)
        self._price(np.where(busy > 0, 1.0 / np.maximum(busy, 1e-30), 0.0) / len(busy))

    def dealt(self) -> list[int]:
        """Whole chunks for every root, as near to the weights as whole numbers are; images have as many."""
        weights = np.zeros(2 * self.ranks)
        for (source, _), amount in zip(self.trees, self.amounts, strict=True):
            weights[source] += amount
        each = self.chunks // len(self.members)
        exact = weights[: self.ranks] * each / weights[: self.ranks].sum()
        counts = np.floor(exact + 1e-6).astype(int)
        for rank in np.argsort(-(exact - counts), kind="stable")[: each - int(counts.sum())]:
            counts[rank] += 1
        dealt = np.zeros(self.ranks, dtype=int)
        for member in self.members:
            dealt[list(member.ranks)] += counts
        owned: list[int] = dealt.tolist()
        return owned

    def _prices(self, depth_weight: float) -> Floats:
        """The least load over the known trees that may be used; returns the prices of links (sum 1)."""
        barred = np.tile(~self.allowed, 2)
        usable = np.array([not barred[list(tree)].any() for _, tree in self.trees])
        self.program.add(self._columns(list(self.trees)[self.program.columns - 1 :]))
        costs = np.append(1.0, depth_weight / self.chunks * np.array(list(self.depths.values())))
        answer = self.program.solve(costs, np.append(True, usable))
        self.amounts, self.load_us = answer.x[1:], float(answer.x[0])
        prices: Floats = np.maximum(-answer.duals[: len(self.orbit_size)], 0.0)
        per_link: Floats = (prices / (float(prices.sum()) * self.orbit_size))[self.link_orbit]
        return per_link

    def _columns(self, trees: Sequence[tuple[int, Tree]]) -> Floats:
        """What trees add to the rows, (rows, trees)."""
        links = len(self.orbit_size)
        columns = np.zeros((links + self.ranks + 1, len(trees)))
        for number, (source, tree) in enumerate(trees):
            copies = source < self.ranks
            columns[:links, number] = self.trees[source, tree]
            columns[links + source % self.ranks, number] = 1.0 if copies else -1.0
            columns[-1, number] = copies
        return columns

    def _price(self, prices: Floats, depth_weight: float = 0.0) -> int:
        """Add every root's cheapest trees; any prices of sum 1 prove what the cheapest pair of trees pays for all chunks."""
        per_path = self.halves.occupancy @ prices
        tie = 1e-7 * float(per_path.max())
        cost, added = np.full(2 * self.ranks, np.inf), 0
        barred = np.tile(~self.allowed, 2)
        for source in (*self.roots, *(root + self.ranks for root in self.roots)):
            commodity = self.sources[source]
            early = self.halves.early_us[source]
            price = per_path + tie * early / float(early.max()) + depth_weight * early / self.chunks
            price[barred] = np.inf
            tree = self.halves.cheapest(price, commodity, self.ranks)
            cost[source] = float(per_path[list(tree)].sum())
            added += self.add(source, tree)
        if depth_weight:
            return added
        slip = tie * 2 * self.ranks * self.chunks
        pair = float((cost[: self.ranks] + cost[self.ranks :]).min())
        if self.proves and abs(prices.sum() - 1) < 1e-9:
            self.bound_us = max(self.bound_us, pair * self.chunks - slip)
        return added


def _kept(instance: Instance, paths: Collection[int] | None) -> tuple[Symmetry, ...]:
    """The instance's symmetries that map those who take part, and the `paths` that may be used (None: all), to such; none where the
    chunks cannot be dealt evenly to what is alike.
    """
    group = set(instance.collective.members)
    kept = tuple(
        each for each in instance.symmetries if {each.ranks[rank] for rank in group} == group and keeps(each, paths)
    )
    return kept if instance.collective.chunks % len(members_of(instance, kept)) == 0 else ()


def _interleaved(trees: dict[Tree, int]) -> list[Tree]:
    """Every tree as often as it is to be used, all of them advancing evenly: links are then loaded evenly at any time."""
    turns = [((turn + 0.5) / count, tree) for tree, count in trees.items() for turn in range(count)]
    return [tree for _, tree in sorted(turns)]


def _packing(master: JointMaster, owned: list[int]) -> Packing:
    """The solution as a packing with a commodity for each root and half, its trees scaled to the root's whole chunks; of what is
    alike one root, and a chunk stands for those of all its images.
    """
    roots = [root for root in master.roots if owned[root]]
    place: dict[int, int] = {}
    commodities: list[Commodity] = []
    for source in [*roots, *(root + master.ranks for root in roots)]:
        place[source] = len(commodities)
        chunks = tuple(range(owned[source % master.ranks]))
        commodities.append(Commodity(source, master.sources[source].dests, chunks))
    total: dict[int, float] = defaultdict(float)
    for (source, _), amount in zip(master.trees, master.amounts, strict=True):
        total[source] += amount
    columns = []
    for (source, tree), amount in zip(master.trees, master.amounts, strict=True):
        if source in place and amount > _CARRIES * master.chunks:
            columns.append(Column(place[source], tree, amount * owned[source % master.ranks] / total[source]))
    return Packing(tuple(commodities), tuple(columns), master.load_us, master.bound_us, 0)
