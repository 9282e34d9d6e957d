"""NVLinks as counts between GPUs: a matrix to links, and what is suspicious about the NVLinks of a machine.

A matrix as `nvidia-smi topo -m` prints it (NV12: twelve links) does not tell direct links from an NVSwitch. Where the links of a
GPU add up to more than it has, they are one port to a switch, counted once for each peer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from synth.doubts import Doubt
from synth.inputs.builder import told_once
from synth.inputs.nccl_links import UNKNOWN_NVLINK_GBPS, UNKNOWN_XGMI_GBPS, links_GBps, most_links
from synth.topology import Device, DeviceKind, Link, Topology

#: Kinds of link that join GPUs with each other, or with a switch of their own.
FABRIC_KINDS = ("nvlink", "xgmi")
_RATE_DIGITS = 6


@dataclass(frozen=True)
class Fabric:
    """NVLinks of one box, by the position of its GPUs: lanes between two of them, or to the switch (each way the same)."""

    pairs: dict[tuple[int, int], int]
    switched: dict[int, int]


def fabric_of(counts: Sequence[Sequence[int]], archs: Sequence[str]) -> Fabric:
    """What a matrix of link counts, row by row, means for GPUs of these architectures ("" where unknown)."""
    size = len(counts)
    port = [max(counts[gpu], default=0) for gpu in range(size)]
    too_many = any(sum(row) > most_links(arch) for row, arch in zip(counts, archs, strict=True))
    consistent = all(
        counts[a][b] in (0, min(port[a], port[b])) and (counts[a][b] or not (port[a] and port[b]))
        for a in range(size)
        for b in range(size)
        if a != b
    )
    if too_many and consistent:
        return Fabric({}, {gpu: count for gpu, count in enumerate(port) if count})
    return Fabric({(a, b): counts[a][b] for a in range(size) for b in range(size) if a != b and counts[a][b]}, {})


def fabric_links(
    fabric: Fabric, gpus: Sequence[Device], kind: str, switch: str, alpha_us: tuple[float, float]
) -> list[Link]:
    """The links of a fabric between `gpus`, at NCCL's rates; `alpha_us` is that between GPUs and that to the switch."""
    links: list[Link] = []
    for first, second in sorted({(min(pair), max(pair)) for pair in fabric.pairs}):
        for a, b in ((first, second), (second, first)):
            if count := fabric.pairs.get((a, b), 0):
                rate = _lanes_GBps(count, gpus[a].arch, kind)
                links.append(Link(gpus[a].id, gpus[b].id, kind, rate, alpha_us[0], 0.0, count))
    for position, count in sorted(fabric.switched.items()):
        gpu = gpus[position]
        port = Link(gpu.id, switch, kind, _lanes_GBps(count, gpu.arch, kind), alpha_us[1], 0.0, count)
        links += [port, replace(port, src=switch, dst=gpu.id)]
    return links


def _lanes_GBps(count: int, arch: str, kind: str) -> float:
    return links_GBps(arch or ("gfx" if kind == "xgmi" else ""), count)


def fabric_doubts(topology: Topology) -> tuple[Doubt, ...]:
    """What is suspicious about a machine's NVLinks: pairs unlike one another in the two directions, more links than a GPU has,
    fewer than its twins have, and rates that stand on no architecture.
    """
    doubts = [*_unequal(topology), *_too_many(topology), *_too_few(topology), *_unknown_rate(topology)]
    return told_once(doubts)


def _fabric(topology: Topology) -> list[Link]:
    return [link for link in topology.links if link.kind in FABRIC_KINDS]


def _unequal(topology: Topology) -> list[Doubt]:
    links = {(link.src, link.dst): link for link in _fabric(topology)}
    doubts = []
    for (src, dst), link in links.items():
        back = links.get((dst, src))
        if back is None:
            what = f"{link.count} links one way and none back"
            doubts.append(
                Doubt(f"{src}-{dst}", what, f"{link.GBps:g} GB/s from {src}, 0 from {dst}: one end is mistaken")
            )
        elif link.count > back.count:
            what = f"{link.count} links one way and {back.count} the other"
            cost = f"{link.GBps:g} GB/s from {src}, {back.GBps:g} from {dst}: one end is mistaken, or links are down"
            doubts.append(Doubt(f"{src}-{dst}", what, cost))
    return doubts


def _lanes(topology: Topology) -> dict[str, int]:
    """Links that leave each GPU, to GPUs and switches."""
    lanes = {gpu.id: 0 for gpu in topology.gpus}
    for link in _fabric(topology):
        if link.src in lanes and topology.by_id[link.dst].kind in (DeviceKind.GPU, DeviceKind.NVSWITCH):
            lanes[link.src] += link.count
    return lanes


def _too_many(topology: Topology) -> list[Doubt]:
    doubts = []
    for gpu, count in _lanes(topology).items():
        arch = topology.by_id[gpu].arch
        most = most_links(arch)
        if count > most:
            has = f"{arch} has {most}" if arch else f"no GPU has more than {most}"
            doubts.append(Doubt(gpu, f"{count} links, where {has}", "the plan counts on links that cannot be there"))
    return doubts


def _too_few(topology: Topology) -> list[Doubt]:
    """A GPU with fewer links than its twins; a minority only, since GPUs of a mesh may differ by half and half."""
    doubts = []
    lanes = _lanes(topology)
    for node in sorted({gpu.node for gpu in topology.gpus}):
        twins = [gpu for gpu in topology.gpus if gpu.node == node]
        usual, number = Counter(lanes[gpu.id] for gpu in twins).most_common(1)[0]
        for gpu in twins:
            if lanes[gpu.id] < usual and 2 * number > len(twins):
                cost = "links are down or hidden; a ring or tree through it runs at what is left"
                if not lanes[gpu.id]:
                    cost = "down, hidden or without a bridge; NCCL then takes PCIe wherever it is in between, and so does the plan"
                doubts.append(Doubt(gpu.id, f"{lanes[gpu.id] or 'no'} links, where its twins have {usual}", cost))
    return doubts


def _unknown_rate(topology: Topology) -> list[Doubt]:
    doubts = []
    for gpu in topology.gpus:
        mine = [link for link in _fabric(topology) if link.src == gpu.id]
        guesses = (UNKNOWN_NVLINK_GBPS, UNKNOWN_XGMI_GBPS)
        if not gpu.arch and any(round(link.GBps / link.count, _RATE_DIGITS) in guesses for link in mine):
            rate = mine[0].GBps / mine[0].count
            others = "24.0 to 48.0" if mine[0].kind == "xgmi" else "12.0 (A6000) to 40.1 (B200)"
            what = f"the GPU is unknown: {rate:g} GB/s a link, what NCCL takes for one that it does not know"
            doubts.append(Doubt("GPUs", what, f"known ones have {others}; pass --arch, such as sm_90 or gfx942"))
    return doubts
