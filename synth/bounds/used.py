"""The links that shortest paths between GPUs cross, found for all pairs at once: what `find_paths` uses, or a little more.

For hundreds of GPUs the paths themselves are too many to list. A link is kept where some pair of ranks has a shortest path over it;
`find_paths` then keeps only the best of equally short ones, so it never uses a link that is missing here.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components, shortest_path

from synth.collective import Collective

# The one rule of what is near: it has to be the same in both places.
from synth.paths import DISTANCE, needed_pairs
from synth.topology import DeviceKind, Topology

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def used_links(topology: Topology, collective: Collective | None = None) -> list[int]:
    """Indices, ascending, of the links on shortest paths between ranks (synth/paths.py has the rules of nearness), as far as they
    lead somewhere for the collective, if one is given.

    Raises NoAnswerError as `find_paths` does.
    """
    nearness = _Nearness(topology, frozenset())
    wanted = needed_pairs(topology, _wanted(topology, nearness), collective)
    return [
        index
        for index, link in enumerate(topology.links)
        if link.src in nearness.place and link.dst in nearness.place and link.src != link.dst
        if nearness.uses(index, wanted)
    ]


class _Nearness:
    """Distances as `find_paths` counts them: from every rank to every device, and from every device to every rank."""

    def __init__(self, topology: Topology, closed: Collection[DeviceKind]) -> None:
        self.topology = topology
        passable = [
            device.kind is DeviceKind.GPU or (device.kind in topology.relay_through and device.kind not in closed)
            for device in topology.devices
        ]
        self.place = {d.id: at for at, (d, open_) in enumerate(zip(topology.devices, passable, strict=True)) if open_}
        size, gpus = len(topology.devices), [self.place[gpu.id] for gpu in topology.gpus]
        # A GPU is left by its twin only, so that no path goes through it.
        twin = {at: size + rank for rank, at in enumerate(gpus)}
        least: dict[tuple[int, int], float] = {}
        for link in topology.links:
            if link.src in self.place and link.dst in self.place and link.src != link.dst:
                start, end = self.place[link.src], self.place[link.dst]
                least[twin.get(start, start), end] = float(DISTANCE[topology.by_id[link.dst].kind])
        self.twin = twin
        total = size + len(gpus)
        rows, columns = zip(*least, strict=True) if least else ((), ())
        graph = csr_array((np.array(list(least.values())), (rows, columns)), shape=(total, total))
        twins = [twin[at] for at in gpus]
        self.onward: Floats = shortest_path(graph, method="D", indices=twins)
        self.back: Floats = shortest_path(graph.T.tocsr(), method="D", indices=gpus)
        self.between: Floats = self.onward[:, gpus]
        np.fill_diagonal(self.between, np.inf)

    def uses(self, index: int, wanted: Bools) -> bool:
        """Whether a wanted pair of ranks has a shortest path over a link."""
        link = self.topology.links[index]
        start, end = self.place[link.src], self.place[link.dst]
        step = float(DISTANCE[self.topology.by_id[link.dst].kind])
        before = self.onward[:, self.twin.get(start, start)] + step
        if start in self.twin:
            before = np.where(np.arange(len(before)) == self.topology.by_id[link.src].rank, step, np.inf)
        after = self.back[:, end]
        # A shortest path over the link is shortest up to its end, and from its start on.
        first = np.flatnonzero(np.isfinite(before) & (before == self.onward[:, end]))
        last = np.flatnonzero(np.isfinite(after) & (after + step == self.back[:, self.twin.get(start, start)]))
        pairs = np.ix_(first, last)
        return bool(np.any((before[first][:, None] + after[last][None, :] == self.between[pairs]) & wanted[pairs]))


def _wanted(topology: Topology, nearness: _Nearness) -> Bools:
    """The pairs that have a path: connected, and not one over fallback kinds in a box that is connected without them."""
    wanted: Bools = np.isfinite(nearness.between)
    direct = _Nearness(topology, topology.fallback).between
    without = np.isfinite(direct) & (direct == nearness.between)
    nodes = np.array([gpu.node for gpu in topology.gpus])
    for node in np.unique(nodes):
        inside = np.flatnonzero(nodes == node)
        box = np.ix_(inside, inside)
        count, _ = connected_components(csr_array(without[box].astype(np.int8)), connection="strong")
        if count == 1:
            wanted[box] &= without[box]
    return wanted
