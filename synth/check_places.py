"""Checks of places: what hangs where, what reaches what."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from synth.errors import NoAnswerError
from synth.nearness import nearest_nics
from synth.paths import find_paths
from synth.suspicion import Suspicion, listed, relinked
from synth.topology import DeviceKind, Topology

#: A NIC may be this much faster than its PCIe connection: 400 Gbit/s on generation 5 x16 (50 on 48 GB/s) is the usual case.
_NIC_MARGIN = 1.15
#: Wide enough to limit nothing.
_FREE_GBPS = 10_000.0
_SWITCHES = frozenset({DeviceKind.NVSWITCH, DeviceKind.PCIE_SWITCH, DeviceKind.NETWORK})


def linkless_gpus(topology: Topology) -> Iterator[Suspicion]:
    """GPUs that no link leads to or from."""
    linked = {end for link in topology.links for end in (link.src, link.dst)}
    for gpu in topology.gpus:
        if gpu.id not in linked and topology.num_ranks > 1:
            yield Suspicion(gpu.id, "no link at all", cost="no collective over all ranks is possible")


def unreachable(topology: Topology) -> Iterator[Suspicion]:
    """Ranks that the first rank does not reach, in either direction, even over other GPUs."""
    try:
        find_paths(topology)
    except NoAnswerError as error:
        outside = _apart_from_first(topology)
        cost = "no collective over all ranks is possible"
        if outside:
            yield Suspicion(listed(outside), f"no connection to {topology.gpus[0].id}", cost=cost)
        elif not any(True for _ in linkless_gpus(topology)):
            told = str(error).split("links: ", 1)[-1].split(", expected", 1)[0]
            yield Suspicion(topology.name, f"one-way links: {told}", cost=cost)


def _apart_from_first(topology: Topology) -> list[str]:
    """The GPUs with links that no chain of links joins to the first GPU, whatever their direction."""
    around: dict[str, set[str]] = defaultdict(set)
    for link in topology.links:
        around[link.src].add(link.dst)
        around[link.dst].add(link.src)
    first = next((gpu.id for gpu in topology.gpus if gpu.id in around), "")
    seen, stack = {first}, [first]
    while stack:
        for there in around[stack.pop()] - seen:
            seen.add(there)
            stack.append(there)
    return [gpu.id for gpu in topology.gpus if gpu.id in around and gpu.id not in seen]


def idle_devices(topology: Topology) -> Iterator[Suspicion]:
    """Switches that connect nothing, NICs that lead nowhere, devices without links."""
    around: dict[str, set[str]] = defaultdict(set)
    for link in topology.links:
        around[link.src].add(link.dst)
        around[link.dst].add(link.src)
    nets = {device.id for device in topology.devices if device.kind is DeviceKind.NETWORK}
    for device in topology.devices:
        neighbours = around[device.id] - {device.id}
        if device.kind is DeviceKind.GPU:
            continue
        if not neighbours:
            yield Suspicion(device.id, "no link leads to it: it is of no use")
        elif device.kind is DeviceKind.NIC and len(neighbours) == 1:
            if neighbours & nets:
                yield Suspicion(device.id, "no GPU or CPU beside it: it hangs on the network alone")
            elif nets:
                yield Suspicion(device.id, "not connected to a network, which other NICs are")
        elif device.kind in _SWITCHES and len(neighbours) == 1 and not _lone_port(topology, device.kind):
            yield Suspicion(device.id, f"a {device.kind} with one port in use, to {next(iter(neighbours))}")


def _lone_port(topology: Topology, kind: DeviceKind) -> bool:
    """Whether one port in use is as it should be: the network of a single box with one NIC."""
    return kind is DeviceKind.NETWORK and topology.num_nodes == 1


def nics_behind_narrow_links(topology: Topology) -> Iterator[Suspicion]:
    """NICs whose line is faster than what connects them to their box."""
    for device in topology.devices:
        if device.kind is not DeviceKind.NIC:
            continue
        out = [link for link in topology.links if link.src == device.id]
        line = sum(link.GBps for link in out if topology.by_id[link.dst].kind is DeviceKind.NETWORK)
        host = [link for link in out if topology.by_id[link.dst].kind not in (DeviceKind.NETWORK, DeviceKind.NIC)]
        width = sum(link.GBps for link in host)
        if host and line > width * _NIC_MARGIN:
            changed = {
                link: replace(link, GBps=link.GBps * line / width)
                for link in topology.links
                if {link.src, link.dst} in [{device.id, near.dst} for near in host]
            }
            what = f"a line of {line:g} GB/s behind a connection of {width:g}: PCIe lanes or generation lost?"
            yield Suspicion(device.id, what, relinked(topology, changed), between_nodes=True)


def far_from_nics(topology: Topology) -> Iterator[Suspicion]:
    """GPUs that reach a NIC over several CPUs only, where other GPUs of their box do better; or none at all."""
    if not any(device.kind is DeviceKind.NIC for device in topology.devices):
        return
    near = {gpu.id: nearest_nics(topology, gpu.id) for gpu in topology.gpus}
    for node in sorted({gpu.node for gpu in topology.gpus}):
        gpus = [gpu.id for gpu in topology.gpus if gpu.node == node]
        if not any(near[gpu] for gpu in gpus):
            continue
        lost = [gpu for gpu in gpus if near[gpu] is None]
        far = [gpu for gpu in gpus if (found := near[gpu]) is not None and found[0].cpus > 1]
        if lost:
            yield Suspicion(listed(lost), "no way to a NIC but over other GPUs, where their twins have one")
        if far and len(far) < len(gpus):
            what = "far from any NIC: over several CPUs, where other GPUs are beside one"
            yield Suspicion(listed(far), what, _free_sockets(topology), between_nodes=True)


def _free_sockets(topology: Topology) -> Topology:
    """The machine with connections between CPUs that limit nothing."""
    between = {
        link: replace(link, GBps=_FREE_GBPS)
        for link in topology.links
        if all(topology.by_id[end].kind is DeviceKind.CPU for end in (link.src, link.dst))
    }
    return relinked(topology, between)
