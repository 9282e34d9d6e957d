"""The machine as baselines see it: who is joined to whom, in which node, and the way between two ranks that are not.

Where NVLink does not join two GPUs of a DGX-1, NCCL's point-to-point transfers cross the GPU that both have a link to
(PATH_NVB in src/graph/paths.cc). `Machine.route` does that for any pair: the way with the fewest transfers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from synth.baselines.ring_search import Ring, find_rings
from synth.errors import NoAnswerError
from synth.paths import Path, one_each, reverse_path, unreachable
from synth.topology import Topology


@dataclass(frozen=True)
class Machine:
    """A topology and all its paths (`synth.paths.find_paths`). `mirrors` is the machine that this one is the reversal of."""

    topology: Topology
    paths: tuple[Path, ...]
    mirrors: Machine | None = None

    @property
    def num_ranks(self) -> int:
        return self.topology.num_ranks

    @cached_property
    def direct(self) -> dict[tuple[int, int], int]:
        """The path of every ordered pair of ranks that is joined (`one_each`). A reversed machine has the same paths."""
        if self.mirrors is not None:
            return {(dst, src): path for (src, dst), path in self.mirrors.direct.items()}
        return one_each(self.num_ranks, self.paths)

    @cached_property
    def nodes(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of every node, ascending."""
        ranks: dict[int, list[int]] = {}
        for rank in range(self.num_ranks):
            ranks.setdefault(self.topology.node_of(rank), []).append(rank)
        return tuple(tuple(ranks[node]) for node in sorted(ranks))

    @cached_property
    def rings(self) -> tuple[Ring, ...]:
        """The rings of the machine (ring_search.py); those of a reversed machine are the same, turned around."""
        if self.mirrors is not None:
            return tuple(ring.reversed() for ring in self.mirrors.rings)
        return find_rings(self.topology, self.paths)

    def reversed(self) -> Machine:
        """The machine with every link turned around; paths keep their index."""
        return Machine(self.topology.reversed(), tuple(map(reverse_path, self.paths)), self)

    def route(self, src: int, dst: int) -> tuple[int, ...]:
        """The paths from `src` to `dst`, fewest transfers first, then widest, then lowest ranks.

        Raises NoAnswerError where no way leads there.
        """
        way = self._routes_from(src).get(dst)
        if way is None:
            raise unreachable(self.topology, src, dst)
        return way

    def _routes_from(self, src: int) -> dict[int, tuple[int, ...]]:
        known = self._route_tables.get(src)
        if known is None:
            known = self._route_tables[src] = self._search(src)
        return known

    @cached_property
    def _route_tables(self) -> dict[int, dict[int, tuple[int, ...]]]:
        return {}

    def _search(self, src: int) -> dict[int, tuple[int, ...]]:
        """Breadth first; among ways of equal length, the one with the widest narrowest path."""
        best: dict[int, tuple[int, float, tuple[int, ...]]] = {src: (0, float("inf"), ())}
        queue = deque([src])
        while queue:
            here = queue.popleft()
            hops, width, way = best[here]
            for path in self._outgoing[here]:
                wider = min(width, path.GBps)
                if path.dst not in best:
                    queue.append(path.dst)
                elif best[path.dst][0] != hops + 1 or best[path.dst][1] >= wider:
                    continue
                best[path.dst] = (hops + 1, wider, (*way, path.index))
        return {rank: way for rank, (_, _, way) in best.items()}

    @cached_property
    def _outgoing(self) -> tuple[tuple[Path, ...], ...]:
        table: list[list[Path]] = [[] for _ in range(self.num_ranks)]
        for path in self.paths:
            if self.direct[path.src, path.dst] == path.index:
                table[path.src].append(path)
        return tuple(map(tuple, table))


def equal_nodes(machine: Machine, needed_by: str) -> tuple[tuple[int, ...], ...]:
    """The nodes of a machine that has several, all of the same number of GPUs; NoAnswerError otherwise."""
    nodes = machine.nodes
    name = machine.topology.name
    if len(nodes) < 2:
        raise NoAnswerError(f"{needed_by}: {name} is one node, expected two or more")
    sizes = sorted({len(node) for node in nodes})
    if len(sizes) > 1:
        raise NoAnswerError(f"{needed_by}: the nodes of {name} have {_listed(sizes)} GPUs, expected equal nodes")
    return nodes


def _listed(numbers: Sequence[int]) -> str:
    return " and ".join(map(str, numbers))
