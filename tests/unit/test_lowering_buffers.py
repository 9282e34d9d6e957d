"""Where chunks live: names of memory, scratch and its reuse, local copies."""

from __future__ import annotations

import pytest

from msccl_xml.model import Buffer
from synth.collective import ROOTED, Collective, CollectiveName
from synth.instance import Instance
from synth.ir import Message, Schedule
from synth.lowering import LoweringOptions, lower, lowered_collective
from synth.lowering.buffers import Layout, Slot, own_copies, slots_in_row
from synth.lowering.storage import ScratchPool
from synth.timing import retime
from synth.verify import verify_algo
from tests import graphs
from tests.schedules import tree_schedule

I, O, S = Buffer.INPUT, Buffer.OUTPUT, Buffer.SCRATCH


@pytest.mark.parametrize(
    ("name", "root", "rank", "slot", "expected"),
    [
        ("allgather", None, 2, Slot(I, 1), Slot(O, 5)),
        ("allgather", None, 2, Slot(O, 3), Slot(O, 3)),
        ("reduce-scatter", None, 2, Slot(O, 1), Slot(I, 5)),
        ("allreduce", None, 2, Slot(I, 3), Slot(O, 3)),
        ("reduce", 0, 2, Slot(I, 3), Slot(I, 3)),
        ("reduce", 2, 2, Slot(I, 3), Slot(O, 3)),
        ("broadcast", 0, 2, Slot(O, 3), Slot(O, 3)),
        ("gather", 1, 1, Slot(I, 1), Slot(O, 3)),
        ("scatter", 1, 1, Slot(O, 1), Slot(I, 3)),
        ("allgather", None, 2, Slot(S, 1), Slot(S, 1)),
    ],
)
def test_in_place_one_memory_has_one_name(name: str, root: int | None, rank: int, slot: Slot, expected: Slot) -> None:
    collective = Collective(CollectiveName(name), 4, 8, root)
    assert Layout(collective, True).canonical(rank, slot) == expected
    assert Layout(collective, False).canonical(rank, slot) == slot


def test_a_custom_call_in_place_has_one_pointer() -> None:
    collective = Collective(CollectiveName.GATHER, 4, 8, 1)
    assert Layout(collective, True, custom=True).canonical(1, Slot(I, 1)) == Slot(O, 1)


@pytest.mark.parametrize("group", [None, (0, 2, 3)])
@pytest.mark.parametrize("name", CollectiveName)
def test_a_buffers_chunks_are_those_that_have_a_place_in_it(
    name: CollectiveName, group: tuple[int, ...] | None
) -> None:
    collective = Collective(name, 4, 8, 2 if name in ROOTED else None, group)
    chunks = range(collective.num_chunk_ids)
    for rank in range(4):
        for row, offset_of in (
            (collective.inputs(rank), collective.input_offset),
            (collective.outputs(rank), collective.output_offset),
        ):
            offsets = {chunk: offset_of(chunk, rank) for chunk in chunks}
            assert list(row.items()) == [(chunk, offset) for chunk, offset in offsets.items() if offset is not None]


@pytest.mark.parametrize("instances", [1, 3])
@pytest.mark.parametrize("buffer", Buffer)
def test_a_row_of_slots_breaks_where_one_does_not_follow(buffer: Buffer, instances: int) -> None:
    layout = Layout(Collective(CollectiveName.ALLGATHER, 4, 12), False, instances=instances)
    for start in range(5):
        row = slots_in_row(Slot(buffer, start), 7)
        assert row == [Slot(buffer, start + place) for place in range(7)]
        broken = [place for place in range(1, 7) if not layout.follows(row[place], row[place - 1])]
        assert list(layout.breaks(row[0], 7)) == broken


def test_scratch_takes_the_slot_that_was_free_longest_and_only_after_a_rest() -> None:
    pool = ScratchPool(cooling=2)
    assert [pool.allocate(1, 0) for _ in range(3)] == [0, 1, 2]
    pool.release(2, now=1)
    pool.release(0, now=2)
    assert pool.allocate(1, now=2) == 3
    assert pool.allocate(1, now=4) == 2
    assert pool.allocate(1, now=4) == 0


def test_scratch_for_several_chunks_is_one_piece() -> None:
    pool = ScratchPool(cooling=0)
    assert pool.allocate(4, 0) == 0
    for slot in (0, 2, 3):
        pool.release(slot, now=1)
    assert pool.allocate(2, now=1) == 2
    assert pool.allocate(2, now=1) == 4
    assert pool.allocate(1, now=1) == 0
    assert pool.allocate(1, now=1) == 6


def test_a_long_line_reuses_scratch() -> None:
    instance = graphs.instance_of(graphs.line(3), "gather", 30, root=0)
    far = [chunk for chunk in range(90) if chunk >= 60]
    over = {(path.src, path.dst): path.index for path in instance.paths}
    messages = [Message((chunk,), over[1, 0]) for chunk in range(30, 60)]
    for chunk in far:
        messages += [Message((chunk,), over[2, 1]), Message((chunk,), over[1, 0])]
    algo = lower(instance, retime(instance, sorted(messages, key=lambda m: m.chunks[0] < 60)), LoweringOptions())
    # A slot rests for two pushes and two pops of either connection, so that nobody waits for who read it last.
    assert 4 <= algo.gpus[1].scratch_chunks < len(far) / 2
    assert algo.gpus[0].scratch_chunks == algo.gpus[2].scratch_chunks == 0


def test_instances_never_share_scratch() -> None:
    instance = graphs.instance_of(graphs.line(4), "gather", 2, root=0)
    schedule = tree_schedule(instance)
    one = lower(instance, schedule, LoweringOptions())
    two = lower(instance, schedule, LoweringOptions(instances=2))
    assert [gpu.scratch_chunks for gpu in two.gpus] == [2 * gpu.scratch_chunks for gpu in one.gpus]


@pytest.mark.parametrize("name", ["allgather", "alltoall", "allreduce", "reduce-scatter"])
def test_instances_do_the_same_with_their_part_of_every_share(name: str) -> None:
    instance = graphs.instance_of(graphs.ring(3), name, 6)
    schedule = tree_schedule(instance)
    per_rank, copies = instance.collective.per_rank, 3

    def moved(offset: int, copy: int) -> int:
        share, place = divmod(offset, per_rank)
        return (share * copies + copy) * per_rank + place

    one = lower(instance, schedule, LoweringOptions())
    many = lower(instance, schedule, LoweringOptions(instances=copies))
    verify_algo(many, lowered_collective(instance.collective, LoweringOptions(instances=copies)))
    for gpu, wide in zip(one.gpus, many.gpus, strict=True):
        assert len(wide.threadblocks) == copies * len(gpu.threadblocks)
        for number, tb in enumerate(wide.threadblocks):
            copy, first = divmod(number, len(gpu.threadblocks))
            base = gpu.threadblocks[first]
            assert (tb.send, tb.recv, len(tb.steps)) == (base.send, base.recv, len(base.steps))
            for step, of_one in zip(tb.steps, base.steps, strict=True):
                assert (step.type, step.count, step.deps) == (of_one.type, of_one.count, of_one.deps)
                for buffer, offset, before in (
                    (step.src_buffer, step.src_offset, of_one.src_offset),
                    (step.dst_buffer, step.dst_offset, of_one.dst_offset),
                ):
                    scratch = buffer is Buffer.SCRATCH
                    there = copy * gpu.scratch_chunks + before if scratch else moved(before, copy)
                    assert offset == (there if before >= 0 else -1)


def _nothing(instance: Instance) -> dict[int, list[tuple[int, Slot, Slot]]]:
    return own_copies(Layout(instance.collective, True), [], instance.num_ranks)


def test_a_rank_with_its_result_in_place_copies_nothing_but_has_a_threadblock() -> None:
    instance = graphs.instance_of(graphs.from_pairs("one", 1, []), "allreduce", 2)
    assert _nothing(instance) == {}
    algo = lower(instance, Schedule(()), LoweringOptions(inplace=True))
    assert len(algo.gpus[0].threadblocks) == len(algo.gpus[0].threadblocks[0].steps) == 1
    apart = lower(instance, Schedule(()), LoweringOptions())
    assert [(step.src_buffer, step.dst_buffer, step.count) for _, _, _, step in apart.steps()] == [(I, O, 2)]
