"""Paths: how data gets from one GPU to another without a third GPU's help.

NCCL does not let an algorithm choose the wires between two GPUs: it takes the nearest kind of connection that there is (NVLink
before PCIe, one PCIe switch before the CPU, the box before the network; `ncclTopoComputePaths` and the PATH_* classes of
NCCL's src/graph). So an ordered pair of ranks has one path here, or several that tie in everything (two equal NICs), which
take turns by channel.

Between GPUs of one node, kinds in `topology.fallback` (by default CPU, NIC and network) are crossed only where the node's GPUs
are not connected without them: on a DGX-1, the pairs without NVLink go through another GPU, not through the CPU.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.csgraph import csgraph_from_dense, shortest_path

from synth.collector import collector_paused
from synth.errors import NoAnswerError
from synth.topology import DeviceKind, Link, Topology
from synth.units import transfer_us

#: What crossing a device costs when the nearest connection is sought: networks before NICs before CPUs before switches.
DISTANCE = {
    DeviceKind.NETWORK: 10**9,
    DeviceKind.NIC: 10**7,
    DeviceKind.CPU: 10**5,
    DeviceKind.PCIE_SWITCH: 10**3,
    DeviceKind.NVSWITCH: 1,
    DeviceKind.GPU: 0,
}
#: Equal paths kept for a pair of ranks, and how many candidates are looked at to find them.
MAX_EQUAL_PATHS = 4
_MAX_CANDIDATES = 256


@dataclass(frozen=True, slots=True)
class Path:
    """A way from rank `src` to rank `dst`. `links` index the topology's links, in order; `variant` tells equal paths apart."""

    index: int
    src: int
    dst: int
    links: tuple[int, ...]
    alpha_us: float
    GBps: float
    occupancy: tuple[tuple[float, float], ...]
    """(gap_us, us per byte) of each link: a message of n bytes occupies link i for gap_us + n times us per byte."""
    variant: int = 0
    variants: int = 1
    """How many equal paths the two ranks have. A runtime rotates over them: a connection on channel c takes the one whose
    `variant` is c modulo `variants`."""
    message_us_per_byte: float = 0.0
    """What a byte of one message takes at least, where a path is several connections and one message goes over one of them."""

    def busy_us(self, message_bytes: float) -> tuple[float, ...]:
        """How long a message occupies each link of the path, in the order of `links`."""
        return tuple(gap + message_bytes * per_byte for gap, per_byte in self.occupancy)

    def latency_us(self, message_bytes: float) -> float:
        """From the start of a message to its arrival: every alpha once, and the slowest link's occupancy (cut-through)."""
        return self.alpha_us + max(*self.busy_us(message_bytes), message_bytes * self.message_us_per_byte)


@collector_paused()
def find_paths(topology: Topology) -> tuple[Path, ...]:
    """All paths between the topology's ranks, ordered by (src, dst, variant); `index` is the position.

    Raises NoAnswerError naming two GPUs where some rank cannot reach some other even over other GPUs.
    """
    found: dict[tuple[int, int], list[tuple[int, ...]]] = {}
    for gpu in topology.gpus:
        for rank, candidates in _paths_from(topology, gpu.id).items():
            found[gpu.rank if gpu.rank is not None else -1, rank] = candidates
    found = _without_fallback(topology, found)
    _require_connected(topology, found)
    paths: list[Path] = []
    for (src, dst), candidates in sorted(found.items()):
        for variant, links in enumerate(candidates):
            path = _make_path(topology, len(paths), src, dst, links)
            paths.append(replace(path, variant=variant, variants=len(candidates)))
    return tuple(paths)


def reverse_path(path: Path) -> Path:
    """The path on the reversed topology: same index, same links the other way round."""
    return replace(path, src=path.dst, dst=path.src, links=path.links[::-1], occupancy=path.occupancy[::-1])


class PathKind(StrEnum):
    """What a path's latency depends on beside its alpha: the farthest kind of connection that it crosses."""

    NVLINK = "nvlink"
    PCIE = "pcie"
    NETWORK = "network"


_PCIE_LIKE = frozenset({DeviceKind.PCIE_SWITCH, DeviceKind.CPU})
_NETWORK_LIKE = frozenset({DeviceKind.NIC, DeviceKind.NETWORK})


def kind_of(topology: Topology, path: Path) -> PathKind:
    """The kind of a path, from the devices that it crosses and the words for its links; direct links count as NVLink."""
    devices = {topology.by_id[topology.links[link].dst].kind for link in path.links[:-1]}
    wires = {topology.links[link].kind for link in path.links}
    if devices & _NETWORK_LIKE or "network" in wires:
        return PathKind.NETWORK
    return PathKind.PCIE if devices & _PCIE_LIKE or "pcie" in wires else PathKind.NVLINK


def distances(num_ranks: int, paths: Sequence[Path], lengths: Sequence[float]) -> NDArray[np.float64]:
    """[r, s]: the shortest way from rank r to rank s over `paths`, where path i is `lengths[i]` long; infinite if none."""
    direct = np.full((num_ranks, num_ranks), np.inf)
    for path, length in zip(paths, lengths, strict=True):
        direct[path.src, path.dst] = min(direct[path.src, path.dst], length)
    shortest: NDArray[np.float64] = shortest_path(csgraph_from_dense(direct, null_value=np.inf), method="D")
    return shortest


def strongly_connected(num_ranks: int, pairs: Iterable[tuple[int, int]]) -> tuple[int, int] | None:
    """None if every rank reaches every other over `pairs`; else two ranks (a, b) such that a does not reach b."""
    out: dict[int, set[int]] = defaultdict(set)
    into: dict[int, set[int]] = defaultdict(set)
    for src, dst in pairs:
        out[src].add(dst)
        into[dst].add(src)
    for edges, forward in ((out, True), (into, False)):
        missing = set(range(num_ranks)) - _reach(edges, 0)
        if missing:
            return (0, min(missing)) if forward else (min(missing), 0)
    return None


def unreachable(topology: Topology, src: int, dst: int) -> NoAnswerError:
    """The refusal of a machine on which rank `src` cannot reach rank `dst`: names both GPUs, and the link that one of them lacks."""
    here, there = topology.gpus[src].id, topology.gpus[dst].id
    leave, enter = {link.src for link in topology.links}, {link.dst for link in topology.links}
    bare = [gpu for gpu in (here, there) if gpu not in leave | enter]
    if bare:
        lacks = f" ({bare[0]} has no link)"
    elif here not in leave:
        lacks = f" (no link leads out of {here})"
    else:
        lacks = "" if there in enter else f" (no link leads into {there})"
    return NoAnswerError(
        f"{topology.name}: links: {here} cannot reach {there}{lacks}, expected a connection between all ranks, "
        "over switches, CPUs, NICs, networks or other GPUs"
    )


def _reach(edges: dict[int, set[int]], start: int) -> set[int]:
    seen = {start}
    stack = [start]
    while stack:
        for follower in edges[stack.pop()] - seen:
            seen.add(follower)
            stack.append(follower)
    return seen


def _paths_from(topology: Topology, start: str) -> dict[int, list[tuple[int, ...]]]:
    """For every rank that `start` reaches: its equally good shortest link sequences."""
    outgoing: dict[str, list[int]] = defaultdict(list)
    for index, link in enumerate(topology.links):
        outgoing[link.src].append(index)
    distance = {start: 0}
    tight: dict[str, list[int]] = defaultdict(list)
    heap = [(0, start)]
    while heap:
        here, device = heapq.heappop(heap)
        if here > distance[device] or (device != start and topology.by_id[device].kind is DeviceKind.GPU):
            continue
        for index in outgoing[device]:
            there = topology.links[index].dst
            kind = topology.by_id[there].kind
            if there == start or (kind is not DeviceKind.GPU and kind not in topology.relay_through):
                continue
            if _leaves_foreign_box(topology, start, topology.links[index]):
                continue
            reached = here + DISTANCE[kind]
            if there not in distance or reached < distance[there]:
                distance[there] = reached
                tight[there] = [index]
                heapq.heappush(heap, (reached, there))
            elif reached == distance[there]:
                tight[there].append(index)
    return {
        gpu.rank: _best_candidates(topology, tight, start, gpu.id)
        for gpu in topology.gpus
        if gpu.rank is not None and gpu.id in distance and gpu.id != start
    }


def _leaves_foreign_box(topology: Topology, start: str, link: Link) -> bool:
    """Whether a link leads out of a box that is not the sender's, over a NIC: no box forwards what is not for its own GPUs."""
    here, there = topology.by_id[link.src], topology.by_id[link.dst]
    if here.kind is not DeviceKind.NIC or here.node == topology.by_id[start].node:
        return False
    return there.kind is DeviceKind.NETWORK or there.node != here.node


def _best_candidates(topology: Topology, tight: dict[str, list[int]], start: str, end: str) -> list[tuple[int, ...]]:
    """Shortest link sequences from start to end: the widest, then the quickest, then the shortest of them."""
    candidates: list[tuple[int, ...]] = []
    stack: list[tuple[str, tuple[int, ...]]] = [(end, ())]
    while stack and len(candidates) < _MAX_CANDIDATES:
        device, tail = stack.pop()
        if device == start:
            candidates.append(tail)
            continue
        for index in reversed(tight[device]):
            stack.append((topology.links[index].src, (index, *tail)))

    def quality(links: tuple[int, ...]) -> tuple[float, float, int]:
        chosen = [topology.links[index] for index in links]
        return (-min(link.GBps for link in chosen), sum(link.alpha_us for link in chosen), len(links))

    best = min(map(quality, candidates))
    return sorted(links for links in candidates if quality(links) == best)[:MAX_EQUAL_PATHS]


def _without_fallback(
    topology: Topology, found: dict[tuple[int, int], list[tuple[int, ...]]]
) -> dict[tuple[int, int], list[tuple[int, ...]]]:
    """Drop paths inside a node over fallback kinds, node by node, where the node's GPUs are connected without them."""
    kept = dict(found)
    for node in sorted({gpu.node for gpu in topology.gpus}):
        ranks = [rank for rank in range(topology.num_ranks) if topology.node_of(rank) == node]
        local = {rank: position for position, rank in enumerate(ranks)}
        inside = [pair for pair in found if pair[0] in local and pair[1] in local]
        direct = [pair for pair in inside if not _crosses(topology, found[pair][0], topology.fallback)]
        if strongly_connected(len(ranks), [(local[a], local[b]) for a, b in direct]) is None:
            for pair in set(inside) - set(direct):
                del kept[pair]
    return kept


def _crosses(topology: Topology, links: tuple[int, ...], kinds: frozenset[DeviceKind]) -> bool:
    return any(topology.by_id[topology.links[index].dst].kind in kinds for index in links)


def _require_connected(topology: Topology, found: dict[tuple[int, int], list[tuple[int, ...]]]) -> None:
    gap = strongly_connected(topology.num_ranks, found)
    if gap is not None:
        raise unreachable(topology, *gap)


def _make_path(topology: Topology, index: int, src: int, dst: int, links: tuple[int, ...]) -> Path:
    chosen: list[Link] = [topology.links[link] for link in links]
    return Path(
        index=index,
        src=src,
        dst=dst,
        links=links,
        alpha_us=sum(link.alpha_us for link in chosen),
        GBps=min(link.GBps for link in chosen),
        occupancy=tuple((link.gap_us, transfer_us(1, link.GBps)) for link in chosen),
    )
