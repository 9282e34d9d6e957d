"""Checks of links: rates and lanes that do not go together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from synth.suspicion import Suspicion, lane_GBps, majority, pairs, relinked
from synth.topology import Device, DeviceKind, Link, Topology

#: Rates nearer than this share count as equal: one lane's rate is rounded in many a source.
_EQUAL = 0.02
#: A link this many times slower than its like is no slow link but another thing: a management port, a lost unit.
_ABSURD = 16
#: The widest lane there is, with room for the next generation: NVLink 5 carries 53 GB/s raw, xGMI of MI300 64, PCIe 6 x16 121,
#: a port of 1.6 Tbit/s 200.
_WIDEST_LANE_GBPS = {"nvlink": 110.0, "xgmi": 130.0, "pcie": 250.0, "network": 400.0}
#: NVLinks of a GPU: 18 since Hopper; xGMI links: 8 on MI250X.
_MOST_LANES = {"nvlink": 18, "xgmi": 8}
_SLOWEST_GBPS = 0.05
#: What NCCL takes for two things on one device (LOC_BW): no wire, so no wire is too fast.
_LOCAL_GBPS = 5000.0
#: Links that lead out of a box or between its CPUs, not to a GPU's neighbours.
_NOT_OF_GPUS = frozenset({"network", "socket"})


def self_links(topology: Topology) -> Iterator[Suspicion]:
    """Links from a device to itself."""
    for link in topology.links:
        if link.src == link.dst:
            links = tuple(other for other in topology.links if other is not link)
            yield Suspicion(link.src, f"linked to itself ({link.kind})", replace(topology, links=links))


def asymmetric_links(topology: Topology) -> Iterator[Suspicion]:
    """Pairs of devices whose two directions carry different rates, or one of which is missing."""
    for (a, b), links in pairs(topology).items():
        there = sum(link.GBps for link in links if link.src == a)
        back = sum(link.GBps for link in links if link.src == b)
        if a == b or abs(there - back) <= _EQUAL * max(there, back):
            continue
        if there and back:
            what = f"{there:g} GB/s one way, {back:g} the other"
        else:
            what = f"a link from {a if there else b} to {b if there else a} only, none back"
        yield Suspicion(f"{a}-{b}", what, _symmetric(topology, a, b, links))


def _symmetric(topology: Topology, a: str, b: str, links: list[Link]) -> Topology:
    """The machine with the better direction of the pair both ways."""
    better = max((a, b), key=lambda end: sum(link.GBps for link in links if link.src == end))
    model = [link for link in links if link.src == better]
    others = tuple(link for link in topology.links if link not in links)
    back = tuple(replace(link, src=link.dst, dst=link.src) for link in model)
    return replace(topology, links=(*others, *model, *back))


def slow_lanes(topology: Topology) -> Iterator[Suspicion]:
    """Links whose lanes are slower than those of most links of their kind between devices of the same kinds."""
    groups: dict[tuple[str, frozenset[DeviceKind]], list[Link]] = defaultdict(list)
    for link in topology.links:
        ends = frozenset(topology.by_id[end].kind for end in (link.src, link.dst))
        groups[link.kind, ends].append(link)
    for (kind, _), links in groups.items():
        usual = majority(lane_GBps(link) for link in links)
        slow = [link for link in links if usual is not None and lane_GBps(link) < usual * (1 - _EQUAL)]
        for (a, b), lanes in pairs(replace(topology, links=tuple(slow))).items():
            if usual is None:
                continue
            rate = min(lane_GBps(link) for link in lanes)
            how = f", {usual / rate:.3g} times less" if usual / rate >= _ABSURD else ""
            what = f"{rate:g} GB/s a lane where most {kind} links of this kind have {usual:g}{how}"
            changed = {link: replace(link, GBps=usual * link.count) for link in lanes}
            yield Suspicion(f"{a}-{b}", what, relinked(topology, changed))


def twins(topology: Topology) -> Iterator[Suspicion]:
    """GPUs with fewer lanes of some kind than most GPUs of their architecture in their box."""
    groups: dict[tuple[int, str], list[Device]] = defaultdict(list)
    for gpu in topology.gpus:
        groups[gpu.node, gpu.arch].append(gpu)
    for gpus in groups.values():
        ids = {gpu.id for gpu in gpus}
        for kind in dict.fromkeys(link.kind for link in topology.links if link.src in ids):
            if kind not in _NOT_OF_GPUS:
                yield from _fewer_lanes(topology, [gpu.id for gpu in gpus], kind)


def _fewer_lanes(topology: Topology, gpus: list[str], kind: str) -> Iterator[Suspicion]:
    lanes = {gpu: sum(link.count for link in topology.links if link.src == gpu and link.kind == kind) for gpu in gpus}
    usual = majority(lanes.values())
    if not usual:
        return
    lacking = {gpu: int(usual) - count for gpu, count in lanes.items() if count < usual}
    if len(lacking) == 2 and len(set(lacking.values())) == 1:
        a, b = lacking
        told = f"{usual - lacking[a]:g} lanes of {kind} at each where their twins have {usual:g}"
        what = f"{told}: a link between them of {lacking[a]} seems lost"
        yield Suspicion(f"{a}-{b}", what, _joined(topology, a, b, kind, lacking[a]))
        return
    for gpu, lack in lacking.items():
        what = f"{usual - lack:g} lanes of {kind} where most of its twins have {usual:g}"
        yield Suspicion(gpu, what, _filled(topology, gpu, kind, lack, int(usual)))


def _joined(topology: Topology, a: str, b: str, kind: str, lanes: int) -> Topology:
    """The machine with so many more lanes between two GPUs, like the others of the kind."""
    model = next(link for link in topology.links if link.kind == kind and a not in (link.src, link.dst))
    more = replace(model, src=a, dst=b, count=lanes, GBps=lane_GBps(model) * lanes)
    return relinked(topology, {}, (more, replace(more, src=b, dst=a)))


def _filled(topology: Topology, gpu: str, kind: str, lack: int, usual: int) -> Topology | None:
    """The machine with the missing lanes at one GPU: on the links it has, or to the switch that its twins are on."""
    own = [link for link in topology.links if link.kind == kind and gpu in (link.src, link.dst)]
    if own:
        factor = usual / (usual - lack) if usual > lack else 1.0
        return relinked(topology, {link: replace(link, GBps=link.GBps * factor) for link in own})
    hubs = [
        link
        for link in topology.links
        if link.kind == kind and topology.by_id[link.dst].kind not in (DeviceKind.GPU, DeviceKind.NIC)
    ]
    if not hubs or topology.by_id[hubs[0].src].node != topology.by_id[gpu].node:
        return None
    there = replace(hubs[0], src=gpu)
    return relinked(topology, {}, (there, replace(there, src=there.dst, dst=gpu)))


def odd_rates(topology: Topology) -> Iterator[Suspicion]:
    """Rates and lanes that no hardware has."""
    for (a, b), links in pairs(topology).items():
        link = max(links, key=lane_GBps)
        rate, most = lane_GBps(link), _WIDEST_LANE_GBPS.get(link.kind)
        if most is not None and rate > most and rate != _LOCAL_GBPS:
            yield Suspicion(f"{a}-{b}", f"{rate:g} GB/s a lane, more than any {link.kind} link has ({most:g})")
        elif link.GBps < _SLOWEST_GBPS:
            yield Suspicion(f"{a}-{b}", f"{link.GBps:g} GB/s, less than any {link.kind} link has: a mistake of unit?")
    for gpu in topology.gpus:
        for kind, most in _MOST_LANES.items():
            lanes = sum(link.count for link in topology.links if link.src == gpu.id and link.kind == kind)
            if lanes > most:
                yield Suspicion(gpu.id, f"{lanes} lanes of {kind}, where hardware has {most} at most")
