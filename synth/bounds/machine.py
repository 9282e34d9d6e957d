"""A machine as capacities between devices: which links can be of use, how fast they are, and how late what crosses them is.

Data may turn at any device that it crosses, GPUs included, so a flow here can do all that an algorithm over the machine's paths
can, and perhaps more: what limits flows limits algorithms.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import shortest_path

from synth.bounds.used import used_links
from synth.collective import Collective
from synth.paths import Path, distances
from synth.topology import Topology

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
#: Rates as written are fractions of small numbers; one that is not (a third as a double) is taken for what it nearly is.
_MOST_DENOMINATOR = 10**6


@dataclass(frozen=True)
class Machine:
    """Edge i is the topology's link `links[i]`, from device `tails[i]` to `heads[i]`; GPU of rank r is device `gpus[r]`."""

    topology: Topology
    links: Ints
    tails: Ints
    heads: Ints
    gpus: Ints
    GBps: tuple[Fraction, ...]
    delays: Delays

    @classmethod
    def of(cls, topology: Topology, paths: Sequence[Path] | None, collective: Collective | None = None) -> Machine:
        """The machine that `paths` use; where they are not given, all links that a shortest path crosses, without delays, as far as
        they lead somewhere for the collective, if one is given.

        Raises NoAnswerError as `find_paths` does.
        """
        place = {device.id: index for index, device in enumerate(topology.devices)}
        used = (
            used_links(topology, collective)
            if paths is None
            else sorted({link for path in paths for link in path.links})
        )
        kept = [topology.links[index] for index in used if topology.links[index].src != topology.links[index].dst]
        links = np.array([i for i in used if topology.links[i].src != topology.links[i].dst], dtype=np.int64)
        return cls(
            topology=topology,
            links=links,
            tails=np.array([place[link.src] for link in kept], dtype=np.int64),
            heads=np.array([place[link.dst] for link in kept], dtype=np.int64),
            gpus=np.array([place[gpu.id] for gpu in topology.gpus], dtype=np.int64),
            GBps=tuple(_fraction(link.GBps) for link in kept),
            delays=Delays.of(topology, links, paths),
        )

    @property
    def num_ranks(self) -> int:
        return len(self.gpus)

    @cached_property
    def rates(self) -> Floats:
        """Bytes a us of every edge."""
        return np.array([float(rate) * 1e3 for rate in self.GBps])

    def crossing(self, side: Bools) -> Ints:
        """The edges that lead out of a set of devices."""
        found: Ints = np.flatnonzero(side[self.tails] & ~side[self.heads])
        return found


@dataclass(frozen=True)
class Delays:
    """When what crosses an edge can be there at the earliest, and how long it takes from there.

    `distance[r, s]` is the least sum of alphas from rank r to s. Path `crossed[i]` crosses edge `edges[i]`; both are empty where the
    paths are not known, and all delays are then 0.
    """

    distance: Floats
    num_edges: int
    src: Ints
    dst: Ints
    alpha_us: Floats
    edges: Ints
    crossed: Ints

    @classmethod
    def of(cls, topology: Topology, links: Ints, paths: Sequence[Path] | None) -> Delays:
        known = tuple(paths or ())
        if paths is None:
            distance = _device_distances(topology, links)
        else:
            distance = distances(topology.num_ranks, known, [path.alpha_us for path in known])
        edge_of = {int(link): edge for edge, link in enumerate(links)}
        crossings = [(edge_of[link], at) for at, path in enumerate(known) for link in path.links if link in edge_of]
        pairs = np.array(crossings, dtype=np.int64).reshape(-1, 2)
        return cls(
            distance=distance,
            num_edges=len(links),
            src=np.array([path.src for path in known], dtype=np.int64),
            dst=np.array([path.dst for path in known], dtype=np.int64),
            alpha_us=np.array([path.alpha_us for path in known]),
            edges=pairs[:, 0],
            crossed=pairs[:, 1],
        )

    def between(self, sources: Collection[int], dests: Collection[int]) -> Floats:
        """For every edge: the least alphas to a path over it from one of `sources`, and those from the start of one, which may be
        another, to one of `dests`: something crosses it first, and something else last.
        """
        if not len(self.edges):
            return np.zeros(self.num_edges)
        early = self.distance[sorted(sources)].min(axis=0)[self.src]
        late = self.alpha_us + self.distance[:, sorted(dests)].min(axis=1)[self.dst]
        return self._least(early) + self._least(late)

    def _least(self, of_paths: Floats) -> Floats:
        """For every edge the least of the paths that cross it; infinite where none does."""
        least = np.full(self.num_edges, np.inf)
        np.minimum.at(least, self.edges, of_paths[self.crossed])
        return least


def _device_distances(topology: Topology, links: Ints) -> Floats:
    """[r, s]: the least alphas between the GPUs of two ranks over these links, whatever device they turn at."""
    place = {device.id: index for index, device in enumerate(topology.devices)}
    least: dict[tuple[int, int], float] = {}
    for link in (topology.links[index] for index in links):
        ends = (place[link.src], place[link.dst])
        # An alpha of 0 would be read as no link at all.
        least[ends] = min(least.get(ends, np.inf), max(link.alpha_us, 1e-12))
    rows, columns = zip(*least, strict=True) if least else ((), ())
    graph = csr_array((list(least.values()), (rows, columns)), shape=(len(place), len(place)))
    gpus = [place[gpu.id] for gpu in topology.gpus]
    found: Floats = shortest_path(graph, method="D", indices=gpus)[:, gpus]
    return np.where(found < 1e-6, 0.0, found)


def _fraction(rate: float) -> Fraction:
    exact = Fraction(rate)
    near = exact.limit_denominator(_MOST_DENOMINATOR)
    return near if abs(near - exact) <= exact * Fraction(1, 10**13) else exact
