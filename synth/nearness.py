"""How near a GPU is to the NICs of its box: what lies between them, as `nvidia-smi topo -m` would say it."""

from __future__ import annotations

import heapq
from collections import defaultdict
from typing import NamedTuple

from synth.topology import DeviceKind, Topology


class Between(NamedTuple):
    """What lies on the nearest way between two devices; fewer CPUs are nearer, then fewer switches, then fewer links."""

    cpus: int
    switches: int
    links: int

    @property
    def label(self) -> str:
        """PIX, PXB, PHB or SYS as `nvidia-smi topo -m` prints them; "direct" for a link with nothing between."""
        if self.cpus:
            return "SYS" if self.cpus > 1 else "PHB"
        return "PXB" if self.switches > 1 else "PIX" if self.switches else "direct"


def reach(topology: Topology, start: str) -> dict[str, Between]:
    """What lies between `start` and every device that it reaches without crossing a GPU, a NIC or the network."""
    outgoing: dict[str, list[str]] = defaultdict(list)
    for link in topology.links:
        outgoing[link.src].append(link.dst)
    heap = [(Between(0, 0, 0), start)]
    found: dict[str, Between] = {}
    while heap:
        (cpus, switches, links), here = heapq.heappop(heap)
        if here in found:
            continue
        found[here] = Between(cpus, switches, links)
        if topology.by_id[here].kind is DeviceKind.NIC:
            continue
        for there in outgoing[here]:
            kind = topology.by_id[there].kind
            if there not in found and kind not in (DeviceKind.GPU, DeviceKind.NETWORK):
                passed = Between(
                    cpus + (kind is DeviceKind.CPU), switches + (kind is DeviceKind.PCIE_SWITCH), links + 1
                )
                heapq.heappush(heap, (passed, there))
    return found


def nearest_nics(topology: Topology, gpu: str) -> tuple[Between, tuple[str, ...]] | None:
    """The NICs of a GPU's own box that none of its NICs is nearer than, and what lies between; None where it reaches none."""
    node = topology.by_id[gpu].node
    found = {
        device: between
        for device, between in reach(topology, gpu).items()
        if topology.by_id[device].kind is DeviceKind.NIC and topology.by_id[device].node == node
    }
    if not found:
        return None
    best = min(found.values())
    return best, tuple(device.id for device in topology.devices if found.get(device.id) == best)
