"""What boxes do alike is lowered for one of them: right for all, and of all where boxes differ in anything."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from unittest.mock import patch

import pytest

from msccl_xml.model import Algo, StepType
from synth.build import Builder
from synth.collective import Collective, CollectiveName
from synth.hierarchical import hierarchical, over_boxes
from synth.instance import Instance
from synth.ir import Message, Schedule
from synth.lowering import LoweringOptions, lower, lowered_collective
from synth.lowering.channels import channels_per_path, deal_messages, number_channels
from synth.lowering.messages import Message as Hop
from synth.lowering.turns import Turns, boxes_first
from synth.paths import find_paths
from synth.routing.across import AcrossRouting
from synth.routing.hierarchy import HierarchyRouting
from synth.routing.patterns import DIRECT
from synth.solve import Solution, Stages
from synth.timing import retime
from synth.topology import Device, DeviceKind, Topology, replicate
from synth.verify import verify_algo
from tests import graphs

SIZE = 1 << 26
SYMMETRIC = [
    CollectiveName.ALLGATHER,
    CollectiveName.REDUCE_SCATTER,
    CollectiveName.ALLREDUCE,
    CollectiveName.ALLTOALL,
]


def _cluster(boxes: int) -> Topology:
    """Copies of a square of GPUs with two NICs."""
    box = graphs.mesh(2, 2)
    nics = tuple(Device(f"nic{rank}", DeviceKind.NIC, 0) for rank in (0, 3))
    links = [link for nic in nics for link in graphs.both_ways(f"gpu{nic.id[3:]}", nic.id, 12.0, 1.0)]
    return replicate(replace(box, devices=(*box.devices, *nics), links=(*box.links, *links)), boxes)


def _whole(collective: Collective, messages: list[Hop]) -> Iterator[tuple[Turns, list[Hop]]]:
    yield Turns(collective.num_ranks, collective.num_ranks), messages


def _work(algo: Algo) -> list[Counter[StepType]]:
    """By rank, how many chunks it handles in steps of which kind."""
    work: list[Counter[StepType]] = [Counter() for _ in algo.gpus]
    for gpu, _, _, step in algo.steps():
        work[gpu.id][step.type] += step.count
    return work


def _lowered_whole(instance: Instance, schedule: Schedule, options: LoweringOptions) -> Algo:
    with patch.object(sys.modules["synth.lowering.lower"], "boxes_first", _whole):
        return lower(instance, schedule, options)


def _over_boxes(topology: Topology, name: CollectiveName, count: int = 2) -> Solution:
    collective = Collective(name, topology.num_ranks, count * topology.num_ranks)
    pattern = DIRECT if name is CollectiveName.ALLTOALL else "ring"
    found = Builder(topology, None, find_paths(topology)).boxed(collective, SIZE, pattern)
    assert found is not None
    return hierarchical(*found, Stages(), over_boxes(AcrossRouting() if pattern == DIRECT else HierarchyRouting()))


def _messages(instance: Instance, schedule: Schedule) -> list[Hop]:
    options = LoweringOptions()
    parallel = channels_per_path(instance, schedule, options)
    return deal_messages(instance, schedule, parallel, number_channels(instance, schedule, options, parallel))[0]


@pytest.mark.parametrize("instances", [1, 3])
@pytest.mark.parametrize("runtime", ["msccl", "executor", "rccl"])
@pytest.mark.parametrize("boxes", [2, 3])
@pytest.mark.parametrize("name", SYMMETRIC)
def test_one_box_turned_is_a_right_program_of_all_and_no_more_work(
    name: CollectiveName, boxes: int, runtime: str, instances: int
) -> None:
    solution = _over_boxes(_cluster(boxes), name)
    instance, schedule = solution.instance, solution.schedule
    apart = name is CollectiveName.ALLTOALL
    options = LoweringOptions(
        runtime=runtime,  # type: ignore[arg-type]
        instances=instances,
        both_layouts=not apart,
        max_threadblocks=200,
        reuses_scratch=not apart,
    )
    turns, own = next(boxes_first(instance.collective, _messages(instance, schedule)))
    assert turns.boxes == boxes
    assert len(own) * boxes == len(_messages(instance, schedule))
    algo = lower(instance, schedule, options)
    verify_algo(algo, lowered_collective(instance.collective, options), runtime=runtime)
    assert _work(algo) == _work(_lowered_whole(instance, schedule, options))


def test_ranks_of_a_ring_are_boxes_of_one() -> None:
    instance = graphs.instance_of(graphs.ring(5), "allgather", 2)
    over = {(path.src, path.dst): path.index for path in instance.paths}
    around = [
        Message((2 * ((rank - hop) % 5), 2 * ((rank - hop) % 5) + 1), over[rank, (rank + 1) % 5])
        for hop in range(4)
        for rank in range(5)
    ]
    schedule = retime(instance, around)
    (turns, own), (all_ranks, everything) = boxes_first(instance.collective, _messages(instance, schedule))
    assert (turns.size, len(own)) == (1, 4)
    assert (all_ranks.size, len(everything)) == (5, 20)
    assert [(hop.sent.chunks, hop.received.chunks) for hop in own][:2] == [((0, 1), (8, 9)), ((8, 9), (6, 7))]
    assert {(hop.sent.peer, hop.received.rank, hop.received.peer) for hop in own} == {(1, 0, 4)}
    algo = lower(instance, schedule, LoweringOptions())
    verify_algo(algo, instance.collective)
    assert {tb.send for gpu in algo.gpus for tb in gpu.threadblocks if tb.send >= 0} == set(range(5))


def _sizes(collective: Collective, hops: list[Hop]) -> list[int]:
    return [turns.size for turns, _ in boxes_first(collective, hops)]


def test_what_differs_in_anything_is_lowered_whole() -> None:
    solution = _over_boxes(_cluster(2), CollectiveName.ALLGATHER)
    collective, hops = solution.collective, _messages(solution.instance, solution.schedule)
    assert _sizes(collective, hops) == [4, 8]
    last = hops[-1]
    later = last._replace(arrive_us=last.arrive_us * 2)
    elsewhere = last._replace(channel=last.channel + 1)
    other = last._replace(sent=last.sent._replace(chunks=((last.sent.chunks[0] + 1) % collective.chunks,)))
    for changed in (later, elsewhere, other):
        assert _sizes(collective, [*hops[:-1], changed]) == [8]
    assert _sizes(collective, hops[:-1]) == [8]


def test_chunks_of_two_boxes_in_one_message_are_not_turned() -> None:
    """Two ranks' chunks lie together in all ranks' buffers but one's, where one is first and the other last."""
    instance = graphs.instance_of(graphs.full(4), "allgather")
    over = {(path.src, path.dst): path.index for path in instance.paths}
    ranks = range(4)
    to_next = [Message((rank,), over[rank, (rank + 1) % 4]) for rank in ranks]
    apart = [Message(((rank - back) % 4,), over[rank, (rank + 2) % 4]) for back in (1, 0) for rank in ranks]
    pairs = [Message(tuple(sorted((rank, (rank - 1) % 4))), over[rank, (rank + 2) % 4]) for rank in ranks]
    assert _sizes(instance.collective, _messages(instance, retime(instance, [*to_next, *apart]))) == [1, 4]
    together = retime(instance, [*to_next, *pairs])
    assert _sizes(instance.collective, _messages(instance, together)) == [4]
    verify_algo(lower(instance, together, LoweringOptions(channels=1)), instance.collective)


def test_one_root_and_a_group_have_no_images() -> None:
    instance = graphs.instance_of(graphs.ring(4), "broadcast", 4, root=0)
    assert _sizes(instance.collective, []) == [4]
    grouped = graphs.instance_of(graphs.ring(4), "allgather", 4, group=(0, 2))
    assert _sizes(grouped.collective, []) == [4]
