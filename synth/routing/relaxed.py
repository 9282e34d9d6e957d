"""The relaxed cost (level 1) of broadcast-form routings, and what every routing strategy measures with it.

Chunks that cross one link are not put in order: time is at least every chunk's latency along its tree (eq. 3) and
at least every link's total load plus what no transfer over that link can avoid before and after it (eq. 4).
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from synth.errors import CheckError
from synth.instance import Demand, Instance
from synth.ir import Routing, Transfer
from synth.paths import distances
from synth.timing import link_loads_us


def relaxed_cost(instance: Instance, routing: Routing) -> float:
    """Microseconds at level 1 of a routing of the instance's demands (no reductions), eq. 3 and 4.

    Raises CheckError where a chunk's transfers are no tree from its source.
    """
    by_chunk: dict[int, list[int]] = defaultdict(list)
    for transfer in routing.transfers:
        by_chunk[transfer.chunk].append(transfer.path)
    latest = 0.0
    for demand in instance.demands:
        arrival = arrivals_us(instance, demand.source, by_chunk.get(demand.chunk, ()))
        missing = demand.dests - arrival.keys()
        if missing or len(arrival) != len(by_chunk[demand.chunk]) + 1:
            raise CheckError(
                "routing", f"chunk {demand.chunk} is not routed along a tree", tuple(by_chunk[demand.chunk])
            )
        latest = max(latest, max(arrival[rank] for rank in demand.dests))
    margins = link_margins_us(instance)
    loads = link_loads_us(instance, (transfer.path for transfer in routing.transfers))
    return max([latest, *(load + margins[link] for link, load in loads.items())])


def arrivals_us(instance: Instance, source: int, paths: Iterable[int]) -> dict[int, float]:
    """When a chunk that starts at `source` gets to each rank over `paths` alone, links being free: shortest
    latencies.
    """
    onward: dict[int, list[int]] = defaultdict(list)
    for path in sorted(paths):
        onward[instance.paths[path].src].append(path)
    arrival: dict[int, float] = {}
    heap = [(0.0, source)]
    while heap:
        now, rank = heapq.heappop(heap)
        if rank in arrival:
            continue
        arrival[rank] = now
        for path in onward[rank]:
            there = instance.paths[path]
            heapq.heappush(heap, (now + there.latency_us(instance.chunk_bytes), there.dst))
    return arrival


def distances_us(instance: Instance) -> list[list[float]]:
    """[r][s]: the least latency of one chunk from rank r to rank s, over free links; infinite where there is no way."""
    latencies_us = [path.latency_us(instance.chunk_bytes) for path in instance.paths]
    table: list[list[float]] = distances(instance.num_ranks, instance.paths, latencies_us).tolist()
    return table


def link_margins_us(instance: Instance) -> dict[int, float]:
    """What eq. 4 adds to a link's load: the earliest that a chunk can be on it, and the least that an arrival comes
    after it.

    Both are taken over all demands and all paths across the link, so they depend on no routing.
    """
    sources = sorted({demand.source for demand in instance.demands})
    distance = distances_us(instance)
    head: dict[int, float] = {}
    tail: dict[int, float] = {}
    soonest = [min((distance[source][rank] for source in sources), default=0.0) for rank in range(instance.num_ranks)]
    for path in instance.paths:
        earliest = soonest[path.src]
        latency = path.latency_us(instance.chunk_bytes)
        for link, busy in zip(path.links, path.busy_us(instance.chunk_bytes), strict=True):
            head[link] = min(head.get(link, earliest), earliest)
            tail[link] = min(tail.get(link, latency - busy), latency - busy)
    return {link: head[link] + tail[link] for link in sorted(head)}


def tree_of(instance: Instance, demand: Demand, paths: Iterable[int]) -> frozenset[int]:
    """The part of `paths` that a chunk needs: the quickest way from its source to each destination, and nothing else.

    Raises CheckError where a destination cannot be reached over them.
    """
    arrival = arrivals_us(instance, demand.source, paths)
    into: dict[int, int] = {}
    for index in sorted(set(paths)):
        path = instance.paths[index]
        if path.dst == demand.source or path.src not in arrival or path.dst in into:
            continue
        if arrival[path.src] + path.latency_us(instance.chunk_bytes) <= arrival[path.dst]:
            into[path.dst] = index
    tree: set[int] = set()
    for dest in sorted(demand.dests):
        if dest not in into:
            raise CheckError("routing", f"chunk {demand.chunk} does not reach rank {dest}", tuple(sorted(set(paths))))
        rank = dest
        while rank != demand.source and into[rank] not in tree:
            tree.add(into[rank])
            rank = instance.paths[into[rank]].src
    return frozenset(tree)


def shortest_routing(instance: Instance) -> Routing:
    """Every chunk along shortest paths, of equal ones those that earlier chunks have loaded least: a quick
    feasible routing.
    """
    loads: dict[int, float] = defaultdict(float)
    trees: dict[int, frozenset[int]] = {}
    distance = distances_us(instance)
    for demand in instance.demands:
        into = _least_loaded_parents(instance, distance[demand.source], loads)
        trees[demand.chunk] = tree_of(instance, demand, into.values())
        for link, busy in link_loads_us(instance, trees[demand.chunk]).items():
            loads[link] += busy
    return routing_of(instance, trees)


def routing_of(instance: Instance, trees: Mapping[int, Iterable[int]]) -> Routing:
    """The routing of one tree of paths per chunk, in order of chunk and path, with its relaxed cost."""
    transfers = tuple(Transfer(chunk, path) for chunk in sorted(trees) for path in sorted(trees[chunk]))
    return Routing(transfers, relaxed_cost(instance, Routing(transfers)))


def _least_loaded_parents(instance: Instance, distance: Sequence[float], loads: Mapping[int, float]) -> dict[int, int]:
    """For each rank that there is a way to, the path that ends a shortest one and crosses the least loaded links."""
    into: dict[int, int] = {}
    reached = [rank for rank, us in enumerate(distance) if us < math.inf]
    for rank in sorted(reached, key=lambda rank: (distance[rank], rank))[1:]:
        tight = [
            path
            for path in instance.incoming[rank]
            if distance[path.src] + path.latency_us(instance.chunk_bytes) <= distance[rank] * (1 + 1e-12)
        ]
        best = min(tight, key=lambda path: (max(loads.get(link, 0.0) for link in path.links), path.index))
        into[rank] = best.index
    return into
