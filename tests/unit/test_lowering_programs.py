"""Threadblocks and their steps: fused, merged, waiting for no more than they must, never for each other."""

from __future__ import annotations

from collections import Counter

import pytest

from msccl_xml.check import fused_runs
from msccl_xml.model import Algo, Buffer, StepType
from synth.instance import Instance
from synth.ir import Message, Schedule
from synth.lowering import LoweringOptions, lower
from synth.lowering.buffers import Layout, Slot
from synth.lowering.deadlock import find_splits
from synth.lowering.dependences import find_waits
from synth.lowering.messages import End
from synth.lowering.messages import Message as Hop
from synth.lowering.operations import Lane, Operation
from synth.lowering.order import global_order, order_as_sent
from synth.lowering.threadblocks import Owner
from synth.timing import retime
from synth.verify import verify_algo
from tests import graphs
from tests.schedules import tree_schedule


def _around(
    size: int, per_rank: int = 1, name: str = "allgather", *, together: bool = False
) -> tuple[Instance, Schedule]:
    """One way around a ring: round after round everybody sends on what came last."""
    instance = graphs.instance_of(graphs.ring(size), name, per_rank)
    over = {(path.src, path.dst): path.index for path in instance.paths}
    reduce = instance.collective.combining
    messages = []
    for turn in range(size - 1):
        for rank in range(size):
            share = (rank - turn - (1 if reduce else 0)) % size
            chunks = tuple(range(share * per_rank, (share + 1) * per_rank))
            parts = [chunks] if together else [(chunk,) for chunk in chunks]
            messages += [Message(part, over[rank, (rank + 1) % size], reduce) for part in parts]
    return instance, retime(instance, messages)


def _types(algo: Algo) -> Counter[StepType]:
    return Counter(step.type for _, _, _, step in algo.steps())


def _waits(algo: Algo) -> int:
    return sum(step.depid >= 0 for _, _, _, step in algo.steps())


def test_a_ring_forwards_in_fused_steps_and_waits_for_nothing() -> None:
    instance, schedule = _around(6)
    algo = lower(instance, schedule, LoweringOptions())
    verify_algo(algo, instance.collective)
    expected = {StepType.COPY: 6, StepType.SEND: 6, StepType.RECV_COPY_SEND: 6 * 4, StepType.RECV: 6}
    assert _types(algo) == expected
    assert _waits(algo) == 0
    assert all(len(gpu.threadblocks) == 2 for gpu in algo.gpus)


def test_in_place_there_is_nothing_to_copy() -> None:
    instance, schedule = _around(6)
    algo = lower(instance, schedule, LoweringOptions(inplace=True))
    verify_algo(algo, instance.collective)
    assert StepType.COPY not in _types(algo)
    assert all(step.src_buffer is Buffer.OUTPUT for _, _, _, step in algo.steps() if step.type is StepType.SEND)


def test_a_ring_reduces_without_storage_on_the_way() -> None:
    instance, schedule = _around(5, name="reduce-scatter")
    algo = lower(instance, schedule, LoweringOptions())
    verify_algo(algo, instance.collective)
    expected = {StepType.SEND: 5, StepType.RECV_REDUCE_SEND: 5 * 3, StepType.RECV_REDUCE_COPY: 5}
    assert _types(algo) == expected
    assert all(gpu.scratch_chunks == 0 for gpu in algo.gpus)
    assert _waits(algo) == 0


def test_the_root_of_a_sum_stores_and_sends_it_in_one_step() -> None:
    instance = graphs.instance_of(graphs.line(3), "allreduce", 1)
    algo = lower(instance, tree_schedule(instance), LoweringOptions())
    verify_algo(algo, instance.collective)
    owner = instance.owner(0)
    types = Counter(step.type for gpu, _, _, step in algo.steps() if gpu.id == owner)
    assert types[StepType.RECV_REDUCE_COPY] + types[StepType.RECV_REDUCE_COPY_SEND] == len(instance.incoming[owner])


@pytest.mark.parametrize(
    ("inplace", "both", "copies"),
    [(False, False, 0), (True, False, 0), (False, True, 5)],
    ids=["apart", "in place", "both"],
)
def test_without_fused_steps_a_ring_receives_and_then_adds(inplace: bool, both: bool, copies: int) -> None:
    """Every rank receives four contributions, the last of which completes its own share.

    That one goes to scratch where the rank's contribution lies in the output: in place, or after a copy if the call may
    be either.
    """
    instance, schedule = _around(5, name="reduce-scatter")
    algo = lower(instance, schedule, LoweringOptions(runtime="rccl", inplace=inplace, both_layouts=both))
    verify_algo(algo, instance.collective, runtime="rccl")
    expected = {StepType.SEND: 20, StepType.RECV: 20, StepType.REDUCE: 20, StepType.COPY: copies}
    assert _types(algo) == Counter(expected)
    assert all(0 < gpu.scratch_chunks < 4 for gpu in algo.gpus)


def test_without_fused_steps_a_ring_forwards_in_two() -> None:
    instance, schedule = _around(6)
    algo = lower(instance, schedule, LoweringOptions(runtime="rccl", inplace=True))
    verify_algo(algo, instance.collective, runtime="rccl")
    assert _types(algo) == {StepType.SEND: 30, StepType.RECV: 30}
    assert _waits(algo) == 6 * 4


@pytest.mark.parametrize("inplace", [False, True])
def test_several_contributions_are_added_in_scratch_and_the_last_in_the_output(inplace: bool) -> None:
    """However the file is called, the output is written last, so that nothing has to be copied first."""
    instance = graphs.instance_of(graphs.full(4), "reduce", 1, root=0)
    options = LoweringOptions(runtime="rccl", inplace=inplace, both_layouts=True)
    algo = lower(instance, tree_schedule(instance), options)
    verify_algo(algo, instance.collective, runtime="rccl")
    root = [step for gpu, _, _, step in algo.steps() if gpu.id == 0 and step.type is not StepType.NOP]
    assert Counter(step.type for step in root) == {StepType.RECV: 3, StepType.REDUCE: 3}
    assert Counter(step.dst_buffer for step in root) == {Buffer.SCRATCH: 4, Buffer.OUTPUT: 2}


def test_sums_are_never_fused_by_the_parsers() -> None:
    """The relay adds to the same scratch again and again, where neighbouring sums would become one."""
    instance = graphs.instance_of(graphs.line(3), "reduce", 30, root=0)
    algo = lower(instance, tree_schedule(instance), LoweringOptions(runtime="rccl", inplace=True, channels=1))
    verify_algo(algo, instance.collective, runtime="rccl")
    relay = next(tb for tb in algo.gpus[1].threadblocks if tb.recv == 2)
    sums = [step for step in relay.steps if step.type is StepType.REDUCE]
    assert len(sums) == 30 > len({step.dst_offset for step in sums})
    assert list(fused_runs(relay)) == []


def test_contiguous_chunks_are_one_step() -> None:
    instance, schedule = _around(3, per_rank=2, together=True)
    algo = lower(instance, schedule, LoweringOptions())
    verify_algo(algo, instance.collective)
    assert {step.count for _, _, _, step in algo.steps()} == {2}


def test_a_step_is_cut_at_the_longest_count() -> None:
    instance = graphs.instance_of(graphs.ring(2), "broadcast", 100, root=0)
    algo = lower(instance, tree_schedule(instance, together=True), LoweringOptions(channels=1))
    verify_algo(algo, instance.collective)
    assert {step.count for _, tb, _, step in algo.steps() if tb.send >= 0} == {71, 29}


def test_a_ring_of_long_messages_is_opened_at_one_rank() -> None:
    """Everybody sends five chunks before receiving any, and a Simple connection holds two."""
    instance, schedule = _around(4, per_rank=5, together=True)
    algo = lower(instance, schedule, LoweringOptions(channels=1))
    verify_algo(algo, instance.collective)
    joint = [sum(tb.send >= 0 and tb.recv >= 0 for tb in gpu.threadblocks) for gpu in algo.gpus]
    assert sorted(joint) == [0, 1, 1, 1]
    roomy = lower(instance, schedule, LoweringOptions(channels=1, protocol="LL"))
    assert all(any(tb.send >= 0 and tb.recv >= 0 for tb in gpu.threadblocks) for gpu in roomy.gpus)


@pytest.mark.parametrize(("own_first", "joint"), [(True, 1), (False, 0)])
def test_a_threadblock_passes_on_what_comes_unless_it_would_hold_somebody_up(own_first: bool, joint: int) -> None:
    """The middle of a line sends its own chunk first, or only after it has passed the other on: then two threadblocks do it."""
    instance = graphs.instance_of(graphs.line(3), "allgather", 1)
    over = {(path.src, path.dst): path.index for path in instance.paths}
    right = [Message((0,), over[0, 1]), Message((0,), over[1, 2])]
    own = [Message((1,), over[1, 2])]
    left = [Message((2,), over[2, 1]), Message((1,), over[1, 0]), Message((2,), over[1, 0])]
    schedule = retime(instance, [*own, *right, *left] if own_first else [*right, *own, *left])
    algo = lower(instance, schedule, LoweringOptions(channels=1))
    verify_algo(algo, instance.collective)
    assert sum((tb.recv, tb.send) == (0, 2) for tb in algo.gpus[1].threadblocks) == joint


def _operation(kind: StepType, position: int, lane: Lane, piece: tuple[int, int]) -> Operation:
    ends = {"pops": piece} if kind is StepType.RECV else {"pushes": piece}
    slot = Slot(Buffer.SCRATCH, position)
    return Operation(0, (position, 0), kind, (position,), lane, src=slot, dst=slot, **ends)


def test_threadblocks_that_wait_for_each_other_are_found() -> None:
    """A receive that waits for a send that nobody takes until it is received."""
    push = _operation(StepType.SEND, 0, Lane(0, -1, 1), (0, 0))
    pop = _operation(StepType.RECV, 1, Lane(0, 1, -1), (1, 0))
    here = {push.lane: [push], pop.lane: [pop]}
    both = Lane(0, 1, 1)
    other = [_operation(StepType.RECV, 0, Lane(0, 0, -1), (0, 0)), _operation(StepType.SEND, 1, Lane(0, -1, 0), (1, 0))]
    there = {Lane(0, 0, 0): list(other)}
    assert find_splits([here, there], [{}, {}], 2) == frozenset()
    assert find_splits([{both: [pop, push]}, there], [{}, {}], 2) == {Owner(0, both)}
    circle = {push.position: (pop.position,), pop.position: (push.position,)}
    assert find_splits([here, there], [circle, {}], 2) is None


@pytest.mark.parametrize(("chunks", "parted"), [(1, True), (2, False), (3, False), (9, False)])
def test_how_many_chunks_a_transfer_holds_says_what_fits_a_connection(chunks: int, parted: bool) -> None:
    """Two ranks send three chunks each before they receive: three transfers fill two slots, two do not."""
    programs = [
        {
            Lane(0, other, other): [
                _operation(StepType.SEND, 0, Lane(0, other, other), (0, 0))._replace(chunks=(0, 1, 2)),
                _operation(StepType.RECV, 1, Lane(0, other, other), (1, 0))._replace(chunks=(3, 4, 5)),
            ]
        }
        for other in (1, 0)
    ]
    splits = find_splits(programs, [{}, {}], 2, chunks)
    assert splits == ({Owner(0, Lane(0, 1, 1))} if parted else frozenset())


def test_waits_that_others_imply_are_left_out() -> None:
    collective = graphs.instance_of(graphs.ring(2), "allgather").collective
    slot = Slot(Buffer.SCRATCH, 0)
    first, second, third = Lane(0, 1, -1), Lane(0, -1, 1), Lane(1, 1, -1)
    write = Operation(0, (0, 0), StepType.RECV, (0,), first, dst=slot, pops=(0, 0))
    read = Operation(0, (1, 0), StepType.SEND, (0,), second, src=slot, pushes=(1, 0))
    rewrite = Operation(0, (2, 0), StepType.RECV, (1,), third, dst=slot, pops=(2, 0))
    program = {first: [write], second: [read], third: [rewrite]}
    waits = find_waits(program, [Layout(collective, False)])
    assert waits == {read.position: (write.position,), rewrite.position: (read.position,)}


def _hop(index: int, src: int, dst: int, start: float, arrive: float) -> Hop:
    return Hop(index, End(src, dst, (index,)), End(dst, src, (index,)), 0, False, start, arrive)


def test_pushes_and_pops_stand_at_their_times_as_far_as_slots_allow() -> None:
    hops = [_hop(k, 0, 1, float(k), 10.0 + k) for k in range(4)]
    roomy = global_order(hops, capacity=8)
    assert roomy.events == tuple((k, False) for k in range(4)) + tuple((k, True) for k in range(4))
    tight = global_order(hops, capacity=2)
    assert all(tight.push_at[k + 2] > tight.pop_at[k] for k in range(2))
    assert order_as_sent(roomy).events == tuple((k, pop) for k in range(4) for pop in (False, True))
    assert order_as_sent(roomy).pop_at == (1, 3, 5, 7)
