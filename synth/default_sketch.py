"""The sketch that a machine suggests by itself: who sends between nodes, and to whom.

Two observations, each used only where it costs no bandwidth:

1. A NIC is served best by the GPUs nearest to it. Where a node's GPUs are joined by NVLink-class paths, the others hand
   their data to those (a *relay*) rather than cross a CPU or a longer PCIe tree to the same NIC, which is the
   bottleneck anyway.
2. Every pair of GPUs of two nodes exchanging data makes g x g connections a pair of nodes, each with its own buffers
   and proxy work. Where NVLink has room, GPU i of a node talking to GPU i of the others only (rails) fills the same
   NICs with g.

A machine whose GPUs have nothing but PCIe inside a node keeps every path.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from synth.collective import CollectiveName
from synth.paths import Path, strongly_connected
from synth.sketch import Sketch
from synth.topology import DeviceKind, Topology

#: What an NVLink-class path may cross or end at: straight from GPU to GPU, or through an NVSwitch.
_NVLINK_CLASS = frozenset({DeviceKind.GPU, DeviceKind.NVSWITCH})
#: Each byte of these has one destination, so a detour over a mate is extra NVLink load; elsewhere what a NIC brings in
#: has to be spread over the node in any case, and a detour adds none.
_ONE_DESTINATION = frozenset({CollectiveName.ALLTOALL, CollectiveName.GATHER, CollectiveName.SCATTER})
#: How much wider than its share of the network a GPU's NVLink has to be. The detour of a byte with one destination is
#: at most two hops (the diameter of a DGX-1's mesh; one on a switch) at its own node and two at the other.
_DETOUR_HEADROOM = 4.0
_SPREAD_HEADROOM = 1.0


class _Access(NamedTuple):
    """How a rank reaches a NIC (or the NIC it): CPUs and links on the way, the way's rate, the NIC's own."""

    nic: str
    rank: int
    distance: tuple[int, int]
    GBps: float
    nic_GBps: float


def default_sketch(
    topology: Topology, paths: Sequence[Path], collective_name: CollectiveName, *, rails: bool = True
) -> Sketch:
    """The derived sketch: which GPU pairs may exchange data across nodes; everything inside nodes stays.

    Without `rails` the second observation is not used: for buffers so small that the hop to a mate costs more than it saves.
    `paths` are those of `find_paths`. The result never disconnects ranks, and leaves every NIC in use that was.
    """
    inside = [path for path in paths if topology.node_of(path.src) == topology.node_of(path.dst)]
    crossing = [path for path in paths if topology.node_of(path.src) != topology.node_of(path.dst)]
    wide = _wide_nodes(topology, inside, crossing, collective_name) if rails else set()
    chosen = _chosen(topology, inside, crossing, wide)
    pairs = [(path.src, path.dst) for path in (*inside, *chosen)]
    if len(chosen) == len(crossing) or strongly_connected(topology.num_ranks, pairs) is not None:
        return Sketch(source="default")
    across = sorted({(path.src, path.dst) for path in chosen})
    return Sketch(source="default", across=tuple((topology.gpus[src].id, topology.gpus[dst].id) for src, dst in across))


def _chosen(topology: Topology, inside: Sequence[Path], crossing: Sequence[Path], wide: set[int]) -> list[Path]:
    """The paths across nodes worth keeping, decided for each ordered pair of nodes on its own; rails between `wide` ones."""
    leaving, entering = (_accesses(topology, crossing, sending=sending) for sending in (True, False))
    joined = _joined_nodes(topology, inside)
    senders = _near(topology, joined, [access for access in leaving.values() if access])
    receivers = _near(topology, joined, [access for access in entering.values() if access])
    railed = wide & joined
    by_nodes: dict[tuple[int, int], list[Path]] = defaultdict(list)
    for path in crossing:
        by_nodes[topology.node_of(path.src), topology.node_of(path.dst)].append(path)
    chosen: list[Path] = []
    for nodes, between in sorted(by_nodes.items()):
        if all(leaving[path.index] for path in between):
            between = [path for path in between if path.src in senders and path.dst in receivers] or between
            between = _mates(topology, between) if railed.issuperset(nodes) else between
        chosen += between
    return chosen


def _accesses(topology: Topology, crossing: Sequence[Path], *, sending: bool) -> dict[int, _Access | None]:
    """By path the way between its GPU (its source if `sending`) and its NIC, the nearest on the path; None without. Of thousands of
    paths there are but a few such ways.
    """
    at_nic = {
        index
        for index, link in enumerate(topology.links)
        if topology.by_id[link.dst if sending else link.src].kind is DeviceKind.NIC
    }
    known: dict[tuple[int, ...], _Access] = {}
    accesses: dict[int, _Access | None] = {}
    for path in crossing:
        links = path.links if sending else path.links[::-1]
        last = next((place for place, link in enumerate(links[:-1]) if link in at_nic), None)
        if last is None:
            accesses[path.index] = None
            continue
        way = links[: last + 2]
        if way not in known:
            known[way] = _access(topology, way, path.src if sending else path.dst, sending=sending)
        accesses[path.index] = known[way]
    return accesses


def _access(topology: Topology, way: Sequence[int], rank: int, *, sending: bool) -> _Access:
    """A rank's way to (or from) a NIC, whose links are numbered from the rank on, with the NIC's link beyond."""
    *before, beyond = (topology.links[index] for index in way)
    devices = [topology.by_id[link.dst if sending else link.src] for link in before]
    cpus = sum(device.kind is DeviceKind.CPU for device in devices)
    rate, nic_rate = min(link.GBps for link in before), min(before[-1].GBps, beyond.GBps)
    return _Access(devices[-1].id, rank, (cpus, len(before)), rate, nic_rate)


def _near(topology: Topology, joined: set[int], accesses: Iterable[_Access]) -> set[int]:
    """The ranks nearest to some NIC that they use (all ranks of nodes that are not joined).

    The next nearest are added until those chosen can fill the NIC: a GPU whose PCIe is slower than the NIC does not.
    """
    users: dict[str, set[_Access]] = defaultdict(set)
    near = set()
    for access in accesses:
        users[access.nic].add(access)
        if topology.node_of(access.rank) not in joined:
            near.add(access.rank)
    for using in users.values():
        filled = 0.0
        for distance in sorted({access.distance for access in using}):
            at_distance = {access.rank: access.GBps for access in using if access.distance == distance}
            near |= set(at_distance)
            filled += sum(at_distance.values())
            if filled >= max(access.nic_GBps for access in using):
                break
    return near


def _nvlink_paths(topology: Topology, inside: Iterable[Path]) -> list[Path]:
    """Those of the paths inside nodes that cross no device but NVSwitches."""
    return [
        path
        for path in inside
        if all(topology.by_id[topology.links[link].dst].kind in _NVLINK_CLASS for link in path.links)
    ]


def _ranks_by_node(topology: Topology) -> dict[int, list[int]]:
    ranks: dict[int, list[int]] = defaultdict(list)
    for rank in range(topology.num_ranks):
        ranks[topology.node_of(rank)].append(rank)
    return ranks


def _joined_nodes(topology: Topology, inside: Sequence[Path]) -> set[int]:
    """The nodes whose GPUs all reach each other over NVLink-class paths."""
    pairs = [(path.src, path.dst) for path in _nvlink_paths(topology, inside)]
    joined = set()
    for node, ranks in _ranks_by_node(topology).items():
        local = {rank: position for position, rank in enumerate(ranks)}
        if strongly_connected(len(ranks), [(local[a], local[b]) for a, b in pairs if a in local]) is None:
            joined.add(node)
    return joined


def _wide_nodes(
    topology: Topology, inside: Sequence[Path], crossing: Sequence[Path], collective_name: CollectiveName
) -> set[int]:
    """The nodes in which every GPU's NVLink is wide enough, next to its way to the network, for a free detour."""
    headroom = _DETOUR_HEADROOM if collective_name in _ONE_DESTINATION else _SPREAD_HEADROOM
    ports: dict[int, set[int]] = defaultdict(set)
    for path in _nvlink_paths(topology, inside):
        ports[path.src].add(path.links[0])
    network: dict[int, float] = defaultdict(float)
    for path in crossing:
        network[path.src] = max(network[path.src], path.GBps)
    nvlink = {rank: sum(topology.links[link].GBps for link in ports[rank]) for rank in range(topology.num_ranks)}
    return {
        node
        for node, ranks in _ranks_by_node(topology).items()
        if all(nvlink[rank] >= headroom * network[rank] for rank in ranks)
    }


def _mates(topology: Topology, paths: list[Path]) -> list[Path]:
    """Of the paths between two nodes, those between GPUs at the same place; all where a GPU has no such mate."""
    place = {rank: ranks.index(rank) for ranks in _ranks_by_node(topology).values() for rank in ranks}
    mates = [path for path in paths if place[path.src] == place[path.dst]]
    senders_have = {path.src for path in mates} == {path.src for path in paths}
    receivers_have = {path.dst for path in mates} == {path.dst for path in paths}
    return mates if senders_have and receivers_have else paths
