"""Merging: several boxes, alike or not, and a network become one cluster.

Boxes keep their devices and links; ids of box k > 0 get the suffix `.k`, as in `synth.topology.replicate`, ranks count on. What a
box said of its own network (a device that stands in no box) gives way to the cluster's, but its NICs' line rates are kept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from synth.errors import InputError
from synth.topology import Device, DeviceKind, Link, Topology

#: One traversal between a NIC and the network where nobody says otherwise: TACCL and TE-CCL dgx2.py put two boxes 2.6 us apart,
#: four PCIe hops of 0.5 us included.
NETWORK_ALPHA_US = 0.3


class NetworkKind(StrEnum):
    """`switch`: one device that every NIC connects to; `rails`: the k-th NICs of all boxes share the k-th device; `cables`: none."""

    SWITCH = "switch"
    RAILS = "rails"
    CABLES = "cables"


@dataclass(frozen=True, slots=True)
class Cable:
    """A full-duplex cable between two ends, each (number of the box, id of a NIC in that box's own description)."""

    ends: tuple[tuple[int, str], tuple[int, str]]
    GBps: float | None = None
    """GB/s each way; None for the slower of the two NICs' line rates."""
    alpha_us: float = 2 * NETWORK_ALPHA_US


@dataclass(frozen=True, slots=True)
class NetworkPlan:
    """What joins the boxes. `GBps` and `alpha_us` are those of a NIC's connection to the network; None: what the box says."""

    kind: NetworkKind = NetworkKind.SWITCH
    GBps: float | None = None
    alpha_us: float | None = None
    cables: tuple[Cable, ...] = ()


def merge(nodes: Sequence[Topology], network: NetworkPlan) -> Topology:
    """The cluster of `nodes`, box k being `nodes[k]`, joined by `network`.

    A NIC's line rate is, in this order: the plan's, that of its link to the box's own network, its widest link's. Raises
    InputError naming the box (`cluster[k]`) that has several nodes in itself or no NIC to join it by, and the cable that ends at
    something else than a NIC. Whether all ranks reach each other is `synth.paths.find_paths`'s to say.
    """
    for number, node in enumerate(nodes):
        if node.num_nodes != 1:
            raise InputError(f"cluster[{number}]", node.name, f"{node.num_nodes} nodes", "one node: list each box")
        if len(nodes) > 1 and not _nics(node):
            raise InputError(f"cluster[{number}]", node.name, "no NIC", "a box with NICs to join it to the others by")
    devices: list[Device] = []
    links: list[Link] = []
    for number, node in enumerate(nodes):
        inside, wires = _box(node, number, len([device for device in devices if device.rank is not None]))
        devices += inside
        links += wires
    hubs, wires = _network(nodes, network)
    return Topology(
        name="+".join(_counted([node.name for node in nodes])),
        devices=(*devices, *hubs),
        links=(*links, *wires, *_cables(nodes, network.cables)),
        relay_through=frozenset().union(*(node.relay_through for node in nodes)),
        fallback=frozenset().union(*(node.fallback for node in nodes)),
    )


def box_id(device: str, number: int) -> str:
    """What device `device` of box `number` is called in the cluster."""
    return device if number == 0 else f"{device}.{number}"


def _box(node: Topology, number: int, first_rank: int) -> tuple[list[Device], list[Link]]:
    """The devices and links of a box as they stand in the cluster, without its own network."""
    devices = [
        replace(
            device,
            id=box_id(device.id, number),
            node=number,
            rank=None if device.rank is None else device.rank + first_rank,
        )
        for device in node.devices
        if device.kind is not DeviceKind.NETWORK
    ]
    links = [
        replace(link, src=box_id(link.src, number), dst=box_id(link.dst, number))
        for link in node.links
        if DeviceKind.NETWORK not in (node.by_id[link.src].kind, node.by_id[link.dst].kind)
    ]
    return devices, links


def _network(nodes: Sequence[Topology], plan: NetworkPlan) -> tuple[list[Device], list[Link]]:
    """The network devices, and each NIC's connection to its own."""
    if plan.kind is NetworkKind.CABLES:
        return [], []
    taken = {
        box_id(device.id, number)
        for number, node in enumerate(nodes)
        for device in node.devices
        if device.kind is not DeviceKind.NETWORK
    }
    members: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for number, node in enumerate(nodes):
        for position, nic in enumerate(_nics(node)):
            members["network" if plan.kind is NetworkKind.SWITCH else f"rail{position}"].append((number, nic))
    hubs: list[Device] = []
    links: list[Link] = []
    for name, nics in members.items():
        hub = _free(name, taken)
        hubs.append(Device(hub, DeviceKind.NETWORK, node=-1))
        for number, nic in nics:
            rate, alpha_us = _line(nodes[number], nic)
            rate, alpha_us = plan.GBps or rate, alpha_us if plan.alpha_us is None else plan.alpha_us
            there = Link(box_id(nic, number), hub, "network", rate, alpha_us)
            links += [there, replace(there, src=there.dst, dst=there.src)]
    return hubs, links


def _cables(nodes: Sequence[Topology], cables: Sequence[Cable]) -> list[Link]:
    links: list[Link] = []
    for position, cable in enumerate(cables):
        for end, (number, nic) in enumerate(cable.ends):
            where = f"cables[{position}].between[{end}]"
            if not 0 <= number < len(nodes):
                raise InputError(where, "", number, f"the number of a box, 0 to {len(nodes) - 1}")
            if nic not in _nics(nodes[number]):
                known = ", ".join(_nics(nodes[number])) or "it has none"
                raise InputError(where, "", f"{number}:{nic}", f"a NIC of box {number}, {nodes[number].name}: {known}")
        (a, nic_a), (b, nic_b) = cable.ends
        if a == b:
            raise InputError(
                f"cables[{position}]", "between", f"{a}:{nic_a}, {b}:{nic_b}", "two NICs of different boxes"
            )
        rate = cable.GBps or min(_line(nodes[a], nic_a)[0], _line(nodes[b], nic_b)[0])
        there = Link(box_id(nic_a, a), box_id(nic_b, b), "network", rate, cable.alpha_us)
        links += [there, replace(there, src=there.dst, dst=there.src)]
    return links


def _nics(node: Topology) -> list[str]:
    return [device.id for device in node.devices if device.kind is DeviceKind.NIC]


def _line(node: Topology, nic: str) -> tuple[float, float]:
    """(GB/s, alpha in us) of a NIC's connection to the network, as far as its box tells."""
    own = [link for link in node.links if link.src == nic]
    for link in own:
        if node.by_id[link.dst].kind is DeviceKind.NETWORK:
            return link.GBps, link.alpha_us
    return max((link.GBps for link in own), default=1e-9), NETWORK_ALPHA_US


def _free(name: str, taken: set[str]) -> str:
    """`name`, or what is nearest to it that no device of a box is called."""
    while name in taken:
        name += "-"
    return name


def _counted(names: Sequence[str]) -> list[str]:
    """Neighbours of one name as one word: dgx1, dgx1, ndv2 as dgx1x2, ndv2."""
    runs: list[tuple[str, int]] = []
    for name in names:
        if runs and runs[-1][0] == name:
            runs[-1] = (name, runs[-1][1] + 1)
        else:
            runs.append((name, 1))
    return [name if count == 1 else f"{name}x{count}" for name, count in runs]
