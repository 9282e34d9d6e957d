"""Clusters for tests, and what one box's answer is for all of them."""

from __future__ import annotations

from dataclasses import replace

from synth.build import Builder
from synth.collective import Collective, CollectiveName
from synth.instance import Instance
from synth.ir import Routing, Transfer
from synth.reductions.fold import Fold, fold
from synth.topology import Device, DeviceKind, Topology, replicate
from tests.graphs import both_ways


def cluster(box: Topology, nodes: int, nics: tuple[tuple[int, float], ...]) -> Topology:
    """Copies of a box; (rank, GB/s) of every NIC, each on its own GPU."""
    devices, links = [*box.devices], [*box.links]
    for rank, rate in nics:
        devices.append(Device(f"nic{rank}", DeviceKind.NIC, 0))
        links += both_ways(f"gpu{rank}", f"nic{rank}", rate, 1.0)
    return replicate(replace(box, devices=tuple(devices), links=tuple(links)), nodes)


def boxed(topology: Topology, name: str, per_rank: int, size: float, pattern: str = "ring") -> tuple[Instance, Fold]:
    """The instance with so many chunks a rank, and its fold."""
    kind = CollectiveName(name)
    found = Builder(topology).boxed(Collective(kind, topology.num_ranks, per_rank * topology.num_ranks), size, pattern)
    assert found is not None
    answer = fold(*found)
    assert answer is not None
    return found[0], answer


def unfolded(answer: Fold, routing: Routing) -> Routing:
    """The transfers of all chunks from those of the deciding ones."""
    transfers = [
        Transfer(chunks[transfer.chunk], paths[transfer.path], transfer.reduce)
        for chunks, paths in zip(answer.chunks.tolist(), answer.boxes.paths.tolist(), strict=True)
        for transfer in routing.transfers
    ]
    return Routing(tuple(sorted(transfers)), routing.relaxed_us)
