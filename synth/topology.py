"""Machines as values: devices, one-way links, and the three ways a description is varied (nodes, ranks, direction).

A topology is a directed multigraph. GPUs hold ranks 0..R-1; switches, CPUs, NICs and networks carry data across without being
asked. Every link direction is a capacity that all transfers crossing it share. docs/design.md, section 2, is the format.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

from synth.errors import InputError


class DeviceKind(StrEnum):
    GPU = "gpu"
    NVSWITCH = "nvswitch"
    PCIE_SWITCH = "pcie-switch"
    CPU = "cpu"
    NIC = "nic"
    NETWORK = "network"


#: Kinds that data may cross between two GPUs where a file does not say (`paths.relay_through`).
DEFAULT_RELAY_THROUGH = frozenset(kind for kind in DeviceKind if kind is not DeviceKind.GPU)
#: Kinds that data between two GPUs of one node crosses only where nothing else connects the node's GPUs (`paths.fallback`).
DEFAULT_FALLBACK = frozenset({DeviceKind.CPU, DeviceKind.NIC, DeviceKind.NETWORK})


@dataclass(frozen=True, slots=True)
class Device:
    """A vertex: `rank` and `arch` for GPUs only; `node` is the box it stands in (networks belong to none: -1).

    `arch` is what a compiler calls the GPU ("sm_70", "gfx90a"), "" where nobody said.
    """

    id: str
    kind: DeviceKind
    node: int = 0
    rank: int | None = None
    arch: str = ""


@dataclass(frozen=True, slots=True)
class Link:
    """One direction of a link: all `count` lanes together carry `GBps`; a message also costs `alpha_us` and `gap_us`."""

    src: str
    dst: str
    kind: str
    GBps: float
    alpha_us: float
    gap_us: float = 0.0
    count: int = 1


@dataclass(frozen=True)
class Topology:
    """A machine or cluster. Devices and links keep the order of their file; a link's index names its capacity."""

    name: str
    devices: tuple[Device, ...]
    links: tuple[Link, ...]
    about: str = ""
    relay_through: frozenset[DeviceKind] = DEFAULT_RELAY_THROUGH
    fallback: frozenset[DeviceKind] = DEFAULT_FALLBACK

    @cached_property
    def by_id(self) -> dict[str, Device]:
        return {device.id: device for device in self.devices}

    @cached_property
    def gpus(self) -> tuple[Device, ...]:
        """The GPUs in rank order."""
        gpus = [device for device in self.devices if device.kind is DeviceKind.GPU]
        return tuple(sorted(gpus, key=lambda device: device.rank if device.rank is not None else -1))

    @property
    def names_gpus(self) -> bool:
        """Whether it says which GPUs all of these are."""
        return all(gpu.arch for gpu in self.gpus)

    @property
    def is_machine(self) -> bool:
        """Whether it is of GPUs that somebody has: it names them, or the CPUs that they hang off, as probes and dumps do; else it
        is a graph of latencies and bandwidths.
        """
        return self.names_gpus or any(device.kind is DeviceKind.CPU for device in self.devices)

    @property
    def num_ranks(self) -> int:
        return len(self.gpus)

    @cached_property
    def num_nodes(self) -> int:
        return len({gpu.node for gpu in self.gpus})

    def node_of(self, rank: int) -> int:
        """The box that a rank's GPU stands in."""
        return self.gpus[rank].node

    def reversed(self) -> Topology:
        """The same machine with every link turned around; links keep their index."""
        links = tuple(replace(link, src=link.dst, dst=link.src) for link in self.links)
        return replace(self, links=links)


def restrict(topology: Topology, ranks: Iterable[int]) -> Topology:
    """The topology with only the GPUs of `ranks`, renumbered 0.. in the order given; what hangs off the others goes too.

    Raises InputError (`--ranks`) for an empty list, a rank twice, or one that the topology lacks.
    """
    wanted = list(ranks)
    if not wanted or len(set(wanted)) != len(wanted):
        raise InputError("--ranks", "", ",".join(map(str, wanted)), "different ranks, at least one")
    for rank in wanted:
        if not 0 <= rank < topology.num_ranks:
            raise InputError("--ranks", "", rank, f"ranks from 0 to {topology.num_ranks - 1} of {topology.name}")
    new_rank = {topology.gpus[rank].id: position for position, rank in enumerate(wanted)}
    devices = tuple(
        replace(device, rank=new_rank[device.id]) if device.kind is DeviceKind.GPU else device
        for device in topology.devices
        if device.kind is not DeviceKind.GPU or device.id in new_rank
    )
    kept = {device.id for device in devices}
    links = tuple(link for link in topology.links if link.src in kept and link.dst in kept)
    name = topology.name
    if wanted != list(range(topology.num_ranks)):
        name += "[" + ",".join(map(str, wanted)) + "]"
    return replace(topology, name=name, devices=devices, links=links)


def replicate(topology: Topology, nodes: int) -> Topology:
    """`nodes` copies of a one-node description, joined where it touches the network.

    Network devices of the description are shared by all copies. A description without a network gets one switch that every NIC
    connects to at the NIC's own rate. Device ids of copy k>0 get the suffix `.k`, ranks count on. Raises InputError (`--nodes`)
    where a copy could not be reached: no NIC and no network, or a description that already has several nodes.
    """
    if nodes < 1:
        raise InputError("--nodes", "", nodes, "1 or more")
    if nodes == 1:
        return topology
    if topology.num_nodes != 1:
        raise InputError("--nodes", "", nodes, f"1, since {topology.name} already describes {topology.num_nodes} nodes")
    networked = _with_network(topology)
    devices: list[Device] = []
    links: list[Link] = []
    for node in range(nodes):
        name = {
            device.id: device.id if node == 0 or device.kind is DeviceKind.NETWORK else f"{device.id}.{node}"
            for device in networked.devices
        }
        for device in networked.devices:
            if device.kind is not DeviceKind.NETWORK:
                rank = None if device.rank is None else device.rank + node * networked.num_ranks
                devices.append(replace(device, id=name[device.id], node=node, rank=rank))
            elif node == 0:
                devices.append(device)
        for link in networked.links:
            both_shared = name[link.src] == link.src and name[link.dst] == link.dst and node > 0
            if not both_shared:
                links.append(replace(link, src=name[link.src], dst=name[link.dst]))
    return replace(networked, name=f"{topology.name}x{nodes}", devices=tuple(devices), links=tuple(links))


def _with_network(topology: Topology) -> Topology:
    """The topology with a network that all its NICs reach; unchanged where it has one."""
    if any(device.kind is DeviceKind.NETWORK for device in topology.devices):
        return topology
    nics = [device for device in topology.devices if device.kind is DeviceKind.NIC]
    if not nics:
        raise InputError(
            "--nodes", topology.name, "no NIC", "a topology with NICs or a network to join its copies over"
        )
    network = Device("network", DeviceKind.NETWORK, node=-1)
    links = list(topology.links)
    for nic in nics:
        rate = max(link.GBps for link in topology.links if nic.id in (link.src, link.dst))
        links += [Link(nic.id, network.id, "network", rate, 1.0), Link(network.id, nic.id, "network", rate, 1.0)]
    return replace(topology, devices=(*topology.devices, network), links=tuple(links))
