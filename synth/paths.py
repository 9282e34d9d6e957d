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
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.csgraph import csgraph_from_dense, shortest_path

from synth.collective import Collective
from synth.collector import collector_paused
from synth.errors import NoAnswerError
from synth.topology import DeviceKind, Topology
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
        return tuple([gap + message_bytes * per_byte for gap, per_byte in self.occupancy])

    def latency_us(self, message_bytes: float) -> float:
        """From the start of a message to its arrival: every alpha once, and the slowest link's occupancy (cut-through)."""
        return self.costs_us(message_bytes)[1]

    def costs_us(self, message_bytes: float) -> tuple[tuple[float, ...], float]:
        """`busy_us` and `latency_us` of a message."""
        busy_us = self.busy_us(message_bytes)
        return busy_us, self.alpha_us + max(*busy_us, message_bytes * self.message_us_per_byte)


Pairs = dict[tuple[int, int], list[tuple[int, ...]]]
Bools = NDArray[np.bool_]


@collector_paused()
def find_paths(topology: Topology, collective: Collective | None = None) -> tuple[Path, ...]:
    """All paths between the topology's ranks, ordered by (src, dst, variant); `index` is the position. Those that lead nowhere for
    a collective are left out where it is given: what starts where nothing comes from, or ends where nothing has to get from.

    Raises NoAnswerError naming two GPUs where some rank cannot reach some other even over other GPUs; of a collective, some sender
    some receiver.
    """
    used = _without_fallback(topology, _joined(topology))
    needed = needed_pairs(topology, joined_pairs(topology.num_ranks, used), collective)
    return _numbered(topology, {pair: ways for pair, ways in used.items() if needed[pair]})


@collector_paused()
def find_all_paths(topology: Topology) -> tuple[Path, ...]:
    """The same, and those over fallback kinds of nodes whose GPUs are connected without them, which a runtime would take for two
    GPUs that somebody else's algorithm connects. Raises nothing.
    """
    return _numbered(topology, _joined(topology))


def reverse_path(path: Path) -> Path:
    """The path on the reversed topology: same index, same links the other way round."""
    return replace(path, src=path.dst, dst=path.src, links=path.links[::-1], occupancy=path.occupancy[::-1])


def ways_back(topology: Topology, paths: Sequence[Path]) -> tuple[int, ...]:
    """By path the index of the one that goes back over the twins of its links, which join the same devices the other way round at
    the same cost; -1 where there is none.
    """
    alike: dict[tuple[str, str, str, float, float, float], list[int]] = defaultdict(list)
    for index, link in enumerate(topology.links):
        alike[link.src, link.dst, link.kind, link.GBps, link.alpha_us, link.gap_us].append(index)
    twin: dict[int, int] = {}
    for (src, dst, *figures), there in alike.items():
        back = alike.get((dst, src, *figures), [])  # type: ignore[arg-type]
        if len(back) == len(there):
            twin.update(zip(there, back, strict=True))
    by_links = {path.links: path.index for path in paths}
    return tuple(by_links.get(tuple(twin.get(link, -1) for link in reversed(path.links)), -1) for path in paths)


def meeting(paths: Iterable[Path]) -> list[int]:
    """The paths, by index, that share a link with another of these."""
    listed = list(paths)
    on = Counter(link for path in listed for link in path.links)
    return [path.index for path in listed if any(on[link] > 1 for link in path.links)]


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


def one_each(num_ranks: int, paths: Iterable[Path]) -> dict[tuple[int, int], int]:
    """The path, by index, of every ordered pair of ranks that is joined. Of equal ones that whose links fewer pairs have so far, the
    pairs that are equally far apart in a row: two GPUs beside two NICs get one each, as in NCCL.
    """
    equal: dict[tuple[int, int], list[Path]] = defaultdict(list)
    for path in paths:
        equal[path.src, path.dst].append(path)
    pairs: Counter[int] = Counter()
    chosen = {}
    for src, dst in sorted(equal, key=lambda pair: ((pair[1] - pair[0]) % num_ranks, pair)):
        best = min(equal[src, dst], key=lambda path: (sum(pairs[link] for link in path.links), path.index))
        pairs.update(best.links)
        chosen[src, dst] = best.index
    return chosen


def distances(num_ranks: int, paths: Sequence[Path], lengths: Sequence[float]) -> NDArray[np.float64]:
    """[r, s]: the shortest way from rank r to rank s over `paths`, where path i is `lengths[i]` long; infinite if none."""
    direct = np.full((num_ranks, num_ranks), np.inf)
    for path, length in zip(paths, lengths, strict=True):
        direct[path.src, path.dst] = min(direct[path.src, path.dst], length)
    shortest: NDArray[np.float64] = shortest_path(csgraph_from_dense(direct, null_value=np.inf), method="D")
    return shortest


def strongly_connected(num_ranks: int, pairs: Iterable[tuple[int, int]]) -> tuple[int, int] | None:
    """None if every rank reaches every other over `pairs`; else two ranks (a, b) such that a does not reach b."""
    everyone = range(num_ranks)
    return unreached(joined_pairs(num_ranks, pairs), everyone, everyone)


def unreached(joined: Bools, senders: Collection[int], receivers: Collection[int]) -> tuple[int, int] | None:
    """None if every sender reaches every receiver over the pairs (r, s) whose `joined[r, s]` is true; else such two that do not.
    Some rank is both.
    """
    # What all senders reach and what reaches all receivers is what sends and receives itself: one such will do.
    between = min(set(senders).intersection(receivers))
    onward, back = _reached(joined, [between]), _reached(joined.T, [between])
    beyond = [rank for rank in sorted(receivers) if not onward[rank]]
    before = [rank for rank in sorted(senders) if not back[rank]]
    if beyond:
        return between, beyond[0]
    return (before[0], between) if before else None


def senders_and_receivers(topology: Topology, collective: Collective | None) -> tuple[Collection[int], Collection[int]]:
    """Those of a collective; without one every rank is both."""
    if collective is None:
        return range(topology.num_ranks), range(topology.num_ranks)
    return collective.senders, collective.receivers


def needed_pairs(topology: Topology, joined: Bools, collective: Collective | None) -> Bools:
    """[r, s]: whether the ranks are joined, and a way from a sender of the collective to a receiver may lead over the pair; without
    a collective every rank is both.

    Raises NoAnswerError naming two GPUs where some sender cannot reach some receiver over what is joined.
    """
    senders, receivers = senders_and_receivers(topology, collective)
    gap = unreached(joined, senders, receivers)
    if gap is not None:
        raise unreachable(topology, *gap)
    useful: Bools = joined & _reached(joined, senders)[:, None] & _reached(joined.T, receivers)[None, :]
    return useful


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
        f"{topology.name}: links: {here} cannot reach {there}{lacks}, expected a connection between all ranks that "
        "exchange data, over switches, CPUs, NICs, networks or other GPUs"
    )


def joined_pairs(num_ranks: int, pairs: Iterable[tuple[int, int]]) -> Bools:
    """[r, s]: whether (r, s) is one of `pairs`."""
    joined = np.zeros((num_ranks, num_ranks), dtype=bool)
    for pair in pairs:
        joined[pair] = True
    return joined


def _reached(joined: Bools, starts: Iterable[int]) -> Bools:
    """[r]: whether some way from one of `starts` leads to rank r, or none has to."""
    reached = np.zeros(len(joined), dtype=bool)
    reached[list(starts)] = True
    fresh = reached
    while fresh.any():
        fresh = joined[fresh].any(axis=0) & ~reached
        reached = reached | fresh
    return reached


class _Way(NamedTuple):
    """Links from a sender to a device, and what they come to."""

    links: tuple[int, ...]
    GBps: float
    alpha_us: float

    @property
    def quality(self) -> tuple[float, float, int]:
        """The less, the better: the widest way, then the quickest, then the shortest."""
        return (-self.GBps, self.alpha_us, len(self.links))


class _Hop(NamedTuple):
    """A link as a search takes it: its number, the device that it leads to, how far that is, and whether no way leads on from there
    (a GPU); `only_from` is the node whose GPUs alone may take it, None where all may.
    """

    link: int
    there: str
    distance: int
    is_end: bool
    only_from: int | None


def _joined(topology: Topology) -> Pairs:
    """The equally good ways of every pair of ranks that a connection joins, fallback or not."""
    hops = _hops(topology)
    return {
        (rank, end): ways
        for rank, gpu in enumerate(topology.gpus)
        for end, ways in _ways_from(topology, hops, gpu.id).items()
    }


def _hops(topology: Topology) -> dict[str, list[_Hop]]:
    """By device, the links that lead to GPUs and to what may be relayed through."""
    hops: dict[str, list[_Hop]] = defaultdict(list)
    for index, link in enumerate(topology.links):
        here, there = topology.by_id[link.src], topology.by_id[link.dst]
        is_end = there.kind is DeviceKind.GPU
        if not is_end and there.kind not in topology.relay_through:
            continue
        # No box forwards what is not for its own GPUs.
        leaves = here.kind is DeviceKind.NIC and (there.kind is DeviceKind.NETWORK or there.node != here.node)
        hops[link.src].append(_Hop(index, link.dst, DISTANCE[there.kind], is_end, here.node if leaves else None))
    return hops


def _ways_from(topology: Topology, hops: dict[str, list[_Hop]], start: str) -> dict[int, list[tuple[int, ...]]]:
    """For every rank that `start` reaches: its equally good shortest link sequences."""
    node = topology.by_id[start].node
    distance = {start: 0}
    tight: dict[str, list[int]] = defaultdict(list)
    heap = [(0, start)]
    while heap:
        here, device = heapq.heappop(heap)
        if here > distance[device]:
            continue
        for link, there, step, is_end, only_from in hops.get(device, ()):
            if there == start or (only_from is not None and only_from != node):
                continue
            reached = here + step
            if there not in distance or reached < distance[there]:
                distance[there] = reached
                tight[there] = [link]
                if not is_end:
                    heapq.heappush(heap, (reached, there))
            elif reached == distance[there]:
                tight[there].append(link)
    ranks = {gpu.id: rank for rank, gpu in enumerate(topology.gpus)}
    ways = {start: [_Way((), math.inf, 0.0)]}
    # Whatever is crossed adds to the distance, so that the device before is known; ends, which add nothing, come last.
    for device in sorted(tight, key=lambda device: (device in ranks, distance[device])):
        ways[device] = _extended(topology, ways, tight[device])
    return {rank: _best(ways[device]) for device, rank in ranks.items() if device in tight}


def _extended(topology: Topology, ways: dict[str, list[_Way]], links: list[int]) -> list[_Way]:
    """The ways to a device whose last link is one of `links`, as many as are looked at."""
    longer = []
    for index in links:
        link = topology.links[index]
        longer += [
            _Way((*way.links, index), min(way.GBps, link.GBps), way.alpha_us + link.alpha_us) for way in ways[link.src]
        ]
    return longer[:_MAX_CANDIDATES]


def _best(ways: list[_Way]) -> list[tuple[int, ...]]:
    if len(ways) == 1:
        return [ways[0].links]
    qualities = [way.quality for way in ways]
    best = min(qualities)
    return sorted(way.links for way, quality in zip(ways, qualities, strict=True) if quality == best)[:MAX_EQUAL_PATHS]


def _without_fallback(topology: Topology, found: Pairs) -> Pairs:
    """Drop paths inside a node over fallback kinds, node by node, where the node's GPUs are connected without them."""
    kept = dict(found)
    members: dict[int, list[int]] = defaultdict(list)
    for rank in range(topology.num_ranks):
        members[topology.node_of(rank)].append(rank)
    for ranks in members.values():
        local = {rank: position for position, rank in enumerate(ranks)}
        inside = [pair for pair in itertools.product(ranks, ranks) if pair in found]
        direct = [pair for pair in inside if not _crosses(topology, found[pair][0], topology.fallback)]
        if strongly_connected(len(ranks), [(local[a], local[b]) for a, b in direct]) is None:
            for pair in set(inside) - set(direct):
                del kept[pair]
    return kept


def _crosses(topology: Topology, links: tuple[int, ...], kinds: frozenset[DeviceKind]) -> bool:
    return any(topology.by_id[topology.links[index].dst].kind in kinds for index in links)


def _numbered(topology: Topology, pairs: Pairs) -> tuple[Path, ...]:
    """The paths of these ways, in order."""
    alpha_us, rates = [link.alpha_us for link in topology.links], [link.GBps for link in topology.links]
    occupancy = [(link.gap_us, transfer_us(1, link.GBps)) for link in topology.links]
    paths: list[Path] = []
    for (src, dst), ways in sorted(pairs.items()):
        for variant, links in enumerate(ways):
            path = Path(
                index=len(paths),
                src=src,
                dst=dst,
                links=links,
                alpha_us=sum([alpha_us[link] for link in links]),
                GBps=min([rates[link] for link in links]),
                occupancy=tuple([occupancy[link] for link in links]),
                variant=variant,
                variants=len(ways),
            )
            paths.append(path)
    return tuple(paths)
