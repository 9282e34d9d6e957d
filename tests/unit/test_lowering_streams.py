"""Streams: which chunks go the same way, and the channels that each way has to itself."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import pytest

from msccl_xml.model import Algo, StepType
from synth.baselines import Machine
from synth.collective import Collective, CollectiveName
from synth.inputs.load import load_topology
from synth.instance import Instance
from synth.ir import Schedule, Send
from synth.known import known_solution
from synth.lowering import LoweringOptions, lowered_collective
from synth.lowering.streams import find_streams, stream_channels, stream_width
from synth.paths import find_paths
from synth.solve import Solution
from synth.verify import verify_algo
from tests import graphs
from tests.schedules import direct_schedule, tree_schedule

MB = 1 << 20
FUSED = {StepType.RECV_COPY_SEND, StepType.RECV_REDUCE_SEND, StepType.RECV_REDUCE_COPY_SEND}


def _six_rings(name: CollectiveName) -> Solution:
    """A DGX-1's six rings, where double links carry two of them."""
    topology = load_topology("dgx1")
    count = 1024 if name is CollectiveName.ALLREDUCE else 8 * 256
    machine = Machine(topology, find_paths(topology))
    return known_solution("ring", machine, Collective(name, 8, count), 8 * MB)


def _connected(algo: Algo) -> int:
    """Threadblocks of the busiest rank that send or receive."""
    return max(sum(tb.send >= 0 or tb.recv >= 0 for tb in gpu.threadblocks) for gpu in algo.gpus)


@pytest.mark.parametrize("name", [CollectiveName.ALLGATHER, CollectiveName.REDUCE_SCATTER, CollectiveName.ALLREDUCE])
@pytest.mark.parametrize(("protocol", "instances"), [("Simple", 1), ("LL128", 1), ("Simple", 2), ("LL", 4)])
def test_a_ring_is_one_threadblock_of_every_rank_on_each_of_its_channels(
    name: CollectiveName, protocol: str, instances: int
) -> None:
    solution = _six_rings(name)
    options = LoweringOptions(protocol=protocol, instances=instances, max_bytes=8 * MB)  # type: ignore[arg-type]
    algo = solution.program(options)
    verify_algo(algo, lowered_collective(solution.collective, options))
    wide = 2 if (protocol, instances) == ("LL128", 1) else instances  # a threadblock drives less of a link
    assert _connected(algo) == 6 * wide
    if name is not CollectiveName.ALLREDUCE:
        copying = instances if name is CollectiveName.ALLGATHER else 0
        assert algo.threadblocks == 6 * wide + copying
    for gpu in algo.gpus:
        for tb in gpu.threadblocks:
            if tb.send >= 0:
                kinds = Counter(step.type in FUSED for step in tb.steps)
                assert tb.recv >= 0
                assert kinds[True] >= 6
                assert kinds[False] == 2


def test_chunks_of_one_ring_are_one_stream() -> None:
    solution = _six_rings(CollectiveName.ALLGATHER)
    paths = solution.instance.paths
    streams = find_streams(paths, solution.schedule.sends)
    assert streams is not None
    assert sorted(map(len, streams.paths)) == [8] * 6
    assert set(streams.sharing.values()) == {1, 2}
    for route in streams.paths:
        assert {paths[path].src for path in route} == {paths[path].dst for path in route} == set(range(8))
    # Runs of 42 and 43 chunks, dealt to other rings rank by rank.
    assert sorted(Counter(streams.of.values()).values()) == [340] * 2 + [342] * 4


def test_streams_that_share_a_path_share_no_channel() -> None:
    solution = _six_rings(CollectiveName.ALLGATHER)
    paths = solution.instance.paths
    streams = find_streams(paths, solution.schedule.sends)
    assert streams is not None
    channels = stream_channels(paths, streams, dict(streams.sharing), 31)
    assert channels is not None
    assert set(map(len, channels)) == {1}
    for one, mine in zip(streams.paths, channels, strict=True):
        for other, theirs in zip(streams.paths, channels, strict=True):
            assert one is other or one.isdisjoint(other) or set(mine).isdisjoint(theirs)
    wide = stream_channels(paths, streams, {path: 2 * count for path, count in streams.sharing.items()}, 31)
    assert wide is not None
    assert set(map(len, wide)) == {2}
    assert stream_channels(paths, streams, dict.fromkeys(streams.sharing, 40), 31) is None
    # Every ring has two ends at a rank: where a channel's tables hold no more, each has channels of its own.
    few = stream_channels(paths, streams, dict(streams.sharing), 2)
    assert few is not None
    assert len({channel for own in few for channel in own}) == 6
    assert stream_channels(paths, streams, dict(streams.sharing), 1) is None


def test_as_many_channels_as_streams_need_are_known_beforehand() -> None:
    rings = _six_rings(CollectiveName.ALLGATHER)
    assert stream_width(rings.instance.paths, rings.schedule.sends, 31) == 2
    assert stream_width(rings.instance.paths, rings.schedule.sends, 2) == 6
    ring = graphs.instance_of(graphs.ring(4), "allgather", 2)
    assert stream_width(ring.paths, tree_schedule(ring).sends, 31) == 1


def test_a_stream_takes_the_channels_on_which_a_runtime_takes_its_paths() -> None:
    solution = _six_rings(CollectiveName.ALLGATHER)
    streams = find_streams(solution.instance.paths, solution.schedule.sends)
    assert streams is not None
    odd = [replace(path, variant=1, variants=2) for path in solution.instance.paths]
    channels = stream_channels(odd, streams, dict(streams.sharing), 31)
    assert channels is not None
    assert {channel % 2 for own in channels for channel in own} == {1}
    first = next(iter(streams.paths[0]))
    apart = [replace(path, variant=path.index == first, variants=2) for path in solution.instance.paths]
    assert stream_channels(apart, streams, dict(streams.sharing), 31) is None


def test_ways_that_part_or_share_nothing_are_no_streams() -> None:
    star = graphs.instance_of(graphs.full(4), "broadcast", 4, root=0)
    assert find_streams(star.paths, direct_schedule(star).sends) is None
    ring = graphs.instance_of(graphs.ring(4), "allgather", 2)
    assert find_streams(ring.paths, tree_schedule(ring).sends) is None


def _over(instance: Instance, *routes: tuple[int, ...]) -> Schedule:
    """Chunk after chunk over the ranks of its route."""
    by_ends = {(path.src, path.dst): path.index for path in instance.paths}
    hops = [[by_ends[pair] for pair in itertools.pairwise(route)] for route in routes]
    return Schedule(tuple(Send((chunk,), path, False, 0.0, 1.0) for chunk, way in enumerate(hops) for path in way))


def test_a_message_of_two_streams_leaves_none() -> None:
    instance = graphs.instance_of(graphs.full(4), "broadcast", 2, root=0)
    two = _over(instance, (0, 1, 2, 3), (0, 1, 3, 2))
    streams = find_streams(instance.paths, two.sends)
    assert streams is not None
    assert streams.of == {0: 0, 1: 1}
    first = two.sends[0]._replace(chunks=(0, 1))
    shared = (first, *(send for send in two.sends if send.path != first.path))
    assert find_streams(instance.paths, shared) is None


def test_too_many_ways_are_left_alone() -> None:
    instance = graphs.instance_of(graphs.full(6), "broadcast", 13, root=0)
    routes = [
        (0, 1, *rest) for rest in [(2, 3, 4, 5), (2, 3, 5, 4), (2, 4, 3, 5), (2, 4, 5, 3), (2, 5, 3, 4), (2, 5, 4, 3)]
    ]
    routes += [
        (0, 1, *rest) for rest in [(3, 2, 4, 5), (3, 2, 5, 4), (3, 4, 2, 5), (3, 4, 5, 2), (3, 5, 2, 4), (3, 5, 4, 2)]
    ]
    assert find_streams(instance.paths, _over(instance, *routes).sends) is not None
    routes.append((0, 1, 4, 2, 3, 5))
    assert find_streams(instance.paths, _over(instance, *routes).sends) is None
