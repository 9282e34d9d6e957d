"""Rings through all ranks, as wide as the machine allows: what NCCL's channel search is after (src/graph/search.cc).

NCCL looks for channels of one common speed such that no link carries more than it can, tries speeds from fast to slow, and
keeps what has the most bandwidth in all. In several nodes a channel enters a node over one NIC, visits its GPUs, and leaves
over one. So does this search: for every speed worth trying, one ring after the other is taken out of what the links have left,
with backtracking, and every ring brings its reversal along where that fits too. The work is counted in steps, never timed,
so equal machines get equal rings.

Unlike NCCL's, the search sees paths, where a ring may not pass through a third GPU, and links of any rate.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from synth.paths import Path
from synth.topology import Topology

#: Steps (a path tried, or given up) for one ring, and for all rings of one speed. A ring of 128 ranks takes 128 of them where
#: nothing has to be taken back. The rings of every machine of the catalogue are found within a tenth of the second.
_STEPS_PER_RING = 5_000
_STEPS_PER_SPEED = 20_000
#: So many ranks, spread evenly, are asked how many rings can reach them.
_FLOWS = 16
#: A link is shared by at most so many rings of one speed before slower speeds are left untried.
_MAX_SHARES = 4
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Ring:
    """`ranks` in the order of travel; `paths[i]` leads from `ranks[i]` to the next, the last to the first. `GBps` is its share
    of every link that it crosses.
    """

    ranks: tuple[int, ...]
    paths: tuple[int, ...]
    GBps: float

    @cached_property
    def place(self) -> dict[int, int]:
        """The position of every rank."""
        return {rank: position for position, rank in enumerate(self.ranks)}

    def hops(self, start: int, count: int) -> Iterator[tuple[int, int, int]]:
        """(from, to, path) of `count` hops from rank `start` on."""
        size, first = len(self.ranks), self.place[start]
        for hop in range(first, first + count):
            yield self.ranks[hop % size], self.ranks[(hop + 1) % size], self.paths[hop % size]

    def reversed(self) -> Ring:
        """The ring on the reversed machine: the same paths the other way round, from the same first rank."""
        return Ring((self.ranks[0], *self.ranks[:0:-1]), self.paths[::-1], self.GBps)


def find_rings(topology: Topology, paths: Sequence[Path]) -> tuple[Ring, ...]:
    """Rings of one speed that together carry the most without overloading a link; of equal sets the one with the fewest.

    Empty where no cycle of paths visits every rank once with the ranks of a node in a row, or none was found in the bounded search.
    """
    best: list[Ring] = []
    total, ways = 0.0, _Ways.of(topology, paths)
    for speed in _speeds(paths):
        search = _Search(topology, ways, speed)
        needed = total * (1 + _ROUNDING) / speed
        most = search.most(topology, needed)
        if most <= needed:
            continue
        rings = search.run(most)
        if len(rings) * speed > total * (1 + _ROUNDING):
            best, total = rings, len(rings) * speed
    return tuple(best)


def _speeds(paths: Sequence[Path]) -> list[float]:
    """GB/s worth trying, fastest first: what a path carries alone, and its shares."""
    rates = {path.GBps for path in paths}
    speeds = sorted({rate / share for rate in rates for share in range(1, _MAX_SHARES + 1)}, reverse=True)
    return [
        speed for speed, faster in zip(speeds, [math.inf, *speeds], strict=False) if speed < faster * (1 - _ROUNDING)
    ]


class _Ways(NamedTuple):
    """What the paths are like for rings of any speed: the node of every rank, by path the GB/s of its narrowest link, and, of one to
    another node, the links of its own that it crosses.
    """

    paths: Sequence[Path]
    node: list[int]
    narrowest: list[float]
    out: list[tuple[int, ...]]

    @classmethod
    def of(cls, topology: Topology, paths: Sequence[Path]) -> _Ways:
        node = [topology.node_of(rank) for rank in range(topology.num_ranks)]
        begins = [topology.by_id[link.src].node for link in topology.links]
        narrowest = [min(topology.links[link].GBps for link in path.links) for path in paths]
        out = [
            tuple([link for link in path.links if begins[link] == node[path.src]])
            if node[path.src] != node[path.dst]
            else ()
            for path in paths
        ]
        return cls(paths, node, narrowest, out)


class _Search:
    """Rings of `speed`: what every link has left, in whole rings, and how many steps may still be taken."""

    def __init__(self, topology: Topology, ways: _Ways, speed: float) -> None:
        self.speed = speed
        self.num_ranks = topology.num_ranks
        self.paths, self.node = ways.paths, ways.node
        self.size: dict[int, int] = defaultdict(int)
        for node in self.node:
            self.size[node] += 1
        self.left = [math.floor(link.GBps / speed + _ROUNDING) for link in topology.links]
        self.out: list[list[Path]] = [[] for _ in range(self.num_ranks)]
        self.into: list[list[Path]] = [[] for _ in range(self.num_ranks)]
        self.between: dict[tuple[int, int], list[Path]] = defaultdict(list)
        for path, narrowest in zip(self.paths, ways.narrowest, strict=True):
            if math.floor(narrowest / speed + _ROUNDING) >= 1:
                self.out[path.src].append(path)
                self.into[path.dst].append(path)
                self.between[path.src, path.dst].append(path)
        self.exits = [self._exits(ways, rank) for rank in range(self.num_ranks)]
        self.steps = _STEPS_PER_SPEED

    def _exits(self, ways: _Ways, rank: int) -> list[tuple[int, ...]]:
        """The ways from a rank out of its node, each as the links of the node that it crosses."""
        return sorted({ways.out[path.index] for path in self.out[rank] if self.node[path.dst] != self.node[rank]})

    def most(self, topology: Topology, needed: float) -> int:
        """No more rings fit: every one is a way from rank 0 to any other, and these share no more of a link than there is.

        What is found to be no more than is `needed` is answer enough.
        """
        place = {device.id: position for position, device in enumerate(topology.devices)}
        rooms: dict[tuple[int, int], int] = defaultdict(int)
        for link in {link for some in self.out for path in some for link in path.links}:
            rooms[place[topology.links[link].src], place[topology.links[link].dst]] += self.left[link]
        if not rooms:
            return 0
        rows, columns = zip(*rooms, strict=True)
        room = np.array(list(rooms.values()), dtype=np.int32)
        graph = csr_array((room, (rows, columns)), shape=(len(place), len(place)))
        here, *others = (place[gpu.id] for gpu in topology.gpus)
        spread = others[:: -(-len(others) // _FLOWS)]
        ends = [here, *spread]
        fewest = int(min(graph.sum(axis=0)[ends].min(), graph.sum(axis=1)[ends].min()))
        for pair in (pair for far in reversed(spread) for pair in ((here, far), (far, here))):
            if fewest <= needed:
                break
            fewest = min(fewest, int(maximum_flow(graph, *pair).flow_value))
        return fewest

    def run(self, most: int) -> list[Ring]:
        """The most rings found, `most` at most; every accepted ring brings its reversal where it fits."""
        best: list[Ring] = []
        taken: list[list[Ring]] = []
        searches = [self._cycles()]
        while searches:
            found = next(searches[-1], None)
            if found is None:
                searches.pop()
                if taken:
                    self._take(taken.pop(), -1)
                continue
            taken.append(self._with_reversal(found))
            rings = [ring for some in taken for ring in some]
            if len(rings) > len(best):
                best = rings
            if len(best) >= most:
                break
            searches.append(self._cycles())
        return best

    def _with_reversal(self, ring: Ring) -> list[Ring]:
        """The ring and, if it fits beside it, its reversal; both are taken."""
        self._take([ring], 1)
        back: list[int] = []
        ranks = (ring.ranks[0], *ring.ranks[:0:-1], ring.ranks[0])
        for src, dst in pairwise(ranks):
            path = next((path for path in self.between.get((src, dst), []) if self._fits(path)), None)
            if path is None:
                break
            back.append(path.index)
            self._use(path, 1)
        for index in back:
            self._use(self.paths[index], -1)
        if len(back) < len(ring.ranks):
            return [ring]
        reversal = Ring(ranks[:-1], tuple(back), self.speed)
        self._take([reversal], 1)
        return [ring, reversal]

    def _cycles(self) -> Iterator[Ring]:
        """Cycles that fit into what is left, each in a moment when nothing of it is taken."""
        budget = min(self.steps, _STEPS_PER_RING)
        for start in self._starts():
            way: list[Path] = []
            seen = {start}
            choices = [iter(self._onward(start, start, seen))]
            while choices:
                path = next(choices[-1], None)
                budget -= 1
                self.steps -= 1
                if budget < 0 or self.steps < 0:
                    for used in way:
                        self._use(used, -1)
                    return
                if path is None:
                    choices.pop()
                    if way:
                        last = way.pop()
                        seen.discard(last.dst)
                        self._use(last, -1)
                    continue
                if not self._fits(path):
                    continue
                if path.dst == start:
                    yield from self._closed(way, path)
                    continue
                way.append(path)
                seen.add(path.dst)
                self._use(path, 1)
                choices.append(iter(self._onward(path.dst, start, seen)))

    def _closed(self, way: list[Path], last: Path) -> Iterator[Ring]:
        """The finished cycle; while the caller has it, its links are free."""
        cycle = [*way, last]
        for path in way:
            self._use(path, -1)
        yield Ring(tuple(path.src for path in cycle), tuple(path.index for path in cycle), self.speed)
        for path in way:
            self._use(path, 1)

    def _starts(self) -> list[int]:
        """Where cycles may begin: any rank of a single node; of several, the ranks of the first that the network still reaches."""
        if len(self.size) == 1:
            return [0]
        first = self.node[0]
        ranks = [rank for rank in range(self.num_ranks) if self.node[rank] == first]
        reached = {}
        for rank in ranks:
            entries = [path for path in self.into[rank] if self.node[path.src] != first and self._fits(path)]
            if entries:
                reached[rank] = max(self._width(path) for path in entries)
        return sorted(reached, key=lambda rank: (-reached[rank], rank))

    def _onward(self, here: int, start: int, seen: set[int]) -> list[Path]:
        """The paths that a cycle may take from `here`, the best first: within the node until all of it is seen."""
        node = self.node[here]
        if len(seen) == self.num_ranks:
            return self.between.get((here, start), [])
        inside = [path for path in self.out[here] if self.node[path.dst] == node and path.dst not in seen]
        done = not any(self.node[rank] == node and rank not in seen for rank in range(self.num_ranks))
        if not done:
            onward = inside
        else:
            following = min(self.node[rank] for rank in range(self.num_ranks) if rank not in seen)
            onward = [path for path in self.out[here] if self.node[path.dst] == following and path.dst not in seen]
        return sorted(
            (path for path in onward if self._fits(path)),
            key=lambda path: (
                -self._width(path),
                self._exit_width(path.dst),
                path.alpha_us,
                (path.dst - here) % self.num_ranks,
                path.index,
            ),
        )

    def _exit_width(self, rank: int) -> int:
        """How many more rings can leave the node from here: a ring visits the ranks that it cannot leave from first."""
        return max((min(self.left[link] for link in way) for way in self.exits[rank] if way), default=0)

    def _width(self, path: Path) -> int:
        """How many more rings the path can carry."""
        return min(self.left[link] for link in path.links)

    def _fits(self, path: Path) -> bool:
        return all(self.left[link] >= 1 for link in path.links)

    def _use(self, path: Path, rings: int) -> None:
        for link in path.links:
            self.left[link] -= rings

    def _take(self, rings: list[Ring], sign: int) -> None:
        for ring in rings:
            for index in ring.paths:
                self._use(self.paths[index], sign)
