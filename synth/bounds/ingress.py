"""A bound at once: how fast data can enter or leave single GPUs and islands of them, and how far apart they are.

The ingress bound (docs/formulation.md, eq. 15): a set S of GPUs that has to take in D bytes over links that together let B bytes a
microsecond in (the minimum cut from everybody else, on the links that paths use) needs at least D / B. It is evaluated for
every single GPU and every island (GPUs joined by paths wider than those to others: bridged pairs, sockets, nodes), and for what
has to leave them. The latency bound is the longest shortest path in alpha
between a source and a destination. Both hold for any algorithm over the paths of `find_paths`.

For allreduce, the figure quoted is the limit of algorithms that reduce each piece at one rank and broadcast it from there (eq. 28):
over any parting of the ranks into k sets, every byte enters k - 1 of them on its way up and k - 1 on its way down.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components, maximum_flow

from synth.bounds.cases import farthest_us
from synth.bounds.value import Bound
from synth.collective import Collective, CollectiveName
from synth.paths import Path, distances
from synth.topology import Topology

#: Capacities are whole numbers for SciPy's max-flow: the widest cut is scaled to this, well inside 32 bits.
_SCALE = 1 << 28


def ingress_bound(topology: Topology, collective: Collective, paths: Sequence[Path]) -> Bound:
    """The best of the ingress and egress bounds of every GPU and every node, with the set that gives it named."""
    best, what = 0.0, "nothing has to move"
    cuts = _Cuts(topology, paths)
    for name, ranks in _sets(topology, paths):
        inside, outside = _share_that_must_move(collective, ranks)
        for direction, share, cut in (("into", inside, cuts.into), ("out of", outside, cuts.out_of)):
            if share > best * 1e-12 and share > 0:
                us_per_byte = share / cut(ranks)
                if us_per_byte > best * (1 + 1e-9):
                    best, what = us_per_byte, f"ingress bound: what must get {direction} {name}"
    if collective.name is CollectiveName.ALLREDUCE and collective.num_ranks > 1 and collective.group is None:
        for name, sets in partings(topology, paths):
            rate = sum(map(cuts.into, sets))
            us_per_byte = 2 * (len(sets) - 1) / rate
            if us_per_byte > best * (1 + 1e-9):
                best = us_per_byte
                what = f"limit of reducing each piece at one rank and broadcasting it: what must get into {name}"
    return Bound(_latency_us(collective, paths), best, what)


def partings(topology: Topology, paths: Sequence[Path]) -> list[tuple[str, list[frozenset[int]]]]:
    """Ways to part the ranks that machines suggest: each by itself, and into islands joined by paths wider than some width."""
    partings = [("single GPUs", [frozenset({rank}) for rank in range(topology.num_ranks)])]
    # Boxes are islands even where a NIC that all of a box shares is as wide as a link inside.
    inside = [path for path in paths if topology.node_of(path.src) == topology.node_of(path.dst)]
    wider = [[path for path in paths if path.GBps > width] for width in sorted({path.GBps for path in paths})]
    for joined in (inside, *wider):
        islands = _islands(topology.num_ranks, joined)
        if 1 < len(islands) < topology.num_ranks and islands not in [sets for _, sets in partings]:
            partings.append((f"{len(islands)} islands of GPUs", islands))
    return partings


def _islands(num_ranks: int, paths: Sequence[Path]) -> list[frozenset[int]]:
    """The weakly connected components of the ranks under the paths, by smallest rank."""
    rows, columns = [path.src for path in paths], [path.dst for path in paths]
    graph = csr_array((np.ones(len(paths)), (rows, columns)), shape=(num_ranks, num_ranks))
    count, labels = connected_components(graph, directed=False)
    return [frozenset(np.flatnonzero(labels == label).tolist()) for label in range(count)]


def _sets(topology: Topology, paths: Sequence[Path]) -> list[tuple[str, frozenset[int]]]:
    """Every set of every parting that somebody is outside of, with a name for it."""
    sets: dict[frozenset[int], str] = {}
    for _, parts in partings(topology, paths):
        for ranks in parts:
            if len(ranks) < topology.num_ranks:
                sets.setdefault(ranks, "+".join(topology.gpus[rank].id for rank in sorted(ranks)))
    return [(name, ranks) for ranks, name in sets.items()]


def _share_that_must_move(collective: Collective, ranks: frozenset[int]) -> tuple[float, float]:
    """The shares of the buffer that have to enter and to leave a set of ranks."""
    entering = leaving = 0
    for chunk in range(collective.num_chunk_ids):
        sources, dests = collective.sources(chunk), collective.destinations(chunk)
        if collective.combining:
            entering += bool(dests & ranks) and bool(sources - ranks)
            leaving += bool(dests - ranks) and bool(sources & ranks)
        else:
            entering += bool(dests & ranks) and not sources & ranks
            leaving += bool(dests - ranks) and not sources - ranks
    return entering / collective.chunks, leaving / collective.chunks


class _Cuts:
    """The minimum cuts between a set of ranks and all others, in bytes a us, on the links that paths use. The network is the same
    for every set, but for which terminal a GPU is joined to.
    """

    def __init__(self, topology: Topology, paths: Sequence[Path]) -> None:
        place = {device.id: index for index, device in enumerate(topology.devices)}
        self._outside, self._inside = len(place), len(place) + 1
        capacity: dict[tuple[int, int], float] = {}
        for index in sorted({link for path in paths for link in path.links}):
            link = topology.links[index]
            ends = place[link.src], place[link.dst]
            capacity[ends] = capacity.get(ends, 0.0) + link.GBps * 1e3
        self._ends = np.array(list(capacity), dtype=np.int32).reshape(-1, 2)
        self._gpus = np.array([place[gpu.id] for gpu in topology.gpus], dtype=np.int32)
        # Rounded up, so that the cut is never too small and the bound never too high; the terminals never bind.
        self._unit = sum(capacity.values()) / _SCALE
        whole = np.ceil(np.array(list(capacity.values())) / self._unit)
        self._whole = np.concatenate([np.minimum(whole, _SCALE), np.full(topology.num_ranks, _SCALE)]).astype(np.int32)
        self._known: dict[tuple[frozenset[int], bool], float] = {}

    def into(self, ranks: frozenset[int]) -> float:
        """What the others can send into the set."""
        return self._found(ranks, reverse=False)

    def out_of(self, ranks: frozenset[int]) -> float:
        """What the set can send to the others."""
        return self._found(ranks, reverse=True)

    def _found(self, ranks: frozenset[int], *, reverse: bool) -> float:
        if (ranks, reverse) not in self._known:
            self._known[ranks, reverse] = self._flow(ranks, reverse=reverse)
        return self._known[ranks, reverse]

    def _flow(self, ranks: frozenset[int], *, reverse: bool) -> float:
        ends = self._ends[:, ::-1] if reverse else self._ends
        is_inside = np.isin(np.arange(len(self._gpus)), list(ranks))
        rows = np.concatenate([ends[:, 0], np.where(is_inside, self._gpus, self._outside)])
        columns = np.concatenate([ends[:, 1], np.where(is_inside, self._inside, self._gpus)])
        size = self._inside + 1
        graph = csr_array((self._whole, (rows, columns)), shape=(size, size))
        return float(maximum_flow(graph, self._outside, self._inside).flow_value) * self._unit


def _latency_us(collective: Collective, paths: Sequence[Path]) -> float:
    """The longest shortest path, in alpha, that some chunk or contribution has to travel."""
    if collective.num_ranks == 1:
        return 0.0
    return farthest_us(collective, distances(collective.num_ranks, paths, [path.alpha_us for path in paths]))
