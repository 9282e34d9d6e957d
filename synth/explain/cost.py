"""What a file costs where it runs: multiprocessors, channels, connections, memory."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from msccl_xml.model import Algo
from synth.errors import NoAnswerError
from synth.paths import find_paths
from synth.topology import DeviceKind, Topology


@dataclass(frozen=True, slots=True)
class Cost:
    """Each figure is that of the GPU (or NIC) that has most of it."""

    threadblocks: int
    """as many multiprocessors are taken while the collective runs"""
    channels: int
    steps: int
    """of the longest threadblock"""
    connections_per_gpu: int
    """one for each peer, direction and channel; each has its own buffers"""
    connections_per_nic: int | None
    """None without a topology, or one without NICs"""
    busiest_nic: str | None
    scratch_bytes: int
    """at maxBytes (128 MB where the file has none, the largest size asked about where it has no limit)"""


def cost_of(algo: Algo, largest_bytes: int, topology: Topology | None) -> Cost:
    """The cost of `algo`, with scratch for a vector of `largest_bytes`."""
    connections = {(gpu.id, tb.send, tb.channel) for gpu in algo.gpus for tb in gpu.threadblocks if tb.send >= 0} | {
        (tb.recv, gpu.id, tb.channel) for gpu in algo.gpus for tb in gpu.threadblocks if tb.recv >= 0
    }
    ends = Counter(rank for src, dst, _ in connections for rank in (src, dst))
    nics = _nics(connections, topology) if topology is not None else Counter()
    busiest = min(nics, key=lambda nic: (-nics[nic], nic), default=None)
    chunks = max((gpu.scratch_chunks for gpu in algo.gpus), default=0)
    return Cost(
        threadblocks=algo.threadblocks,
        channels=algo.nchannels,
        steps=max((len(tb.steps) for gpu in algo.gpus for tb in gpu.threadblocks), default=0),
        connections_per_gpu=max(ends.values(), default=0),
        connections_per_nic=None if busiest is None else nics[busiest],
        busiest_nic=busiest,
        scratch_bytes=-(-max(0, largest_bytes) * chunks // algo.nchunksperloop) if algo.nchunksperloop > 0 else 0,
    )


def _nics(connections: set[tuple[int, int, int]], topology: Topology) -> Counter[str]:
    """How many connections cross each NIC; equal paths between two ranks take turns by channel."""
    try:
        paths = find_paths(topology)
    except NoAnswerError:
        return Counter()
    ways: dict[tuple[int, int], list[tuple[str, ...]]] = {}
    for path in paths:
        crossed = (topology.links[link].dst for link in path.links)
        nics = tuple(device for device in crossed if topology.by_id[device].kind is DeviceKind.NIC)
        ways.setdefault((path.src, path.dst), []).append(nics)
    count: Counter[str] = Counter()
    for src, dst, channel in sorted(connections):
        variants = ways.get((src, dst))
        if variants:
            count.update(variants[channel % len(variants)])
    return count
