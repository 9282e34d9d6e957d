"""Tables of a plan, places of a call and slots of a connection, by example."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from msccl_xml.model import Algo, Buffer, Gpu, Step, StepType, Threadblock
from synth.collective import Collective, CollectiveName
from synth.errors import InputError
from synth.execute.cuda.abi import (
    BLOCK_COLUMNS,
    PARAMS,
    STEP_COLUMNS,
    STEP_TYPES,
    DataType,
    ReduceOp,
    data_type,
    header,
)
from synth.execute.cuda.build import sources
from synth.execute.cuda.call import Call, check_places
from synth.execute.cuda.figures import moved_bytes
from synth.execute.cuda.geometry import Geometry, lay_out
from synth.execute.cuda.plan import Plan, compile_plan
from tests.algos import (
    I,
    S,
    all_pairs_allreduce,
    collective_of,
    direct_reduce_scatter,
    relay_broadcast,
    ring_allgather,
    ring_allreduce,
    step,
    with_step,
    with_tb,
)


def plan_of(algo: Algo, root: int | None = None) -> Plan:
    return compile_plan(algo, collective_of(algo, root))


def rows(plan: Plan, rank: int, tb: int) -> list[dict[str, int]]:
    """The steps of a threadblock by column."""
    for block in plan.blocks.tolist():
        told = dict(zip(BLOCK_COLUMNS, block, strict=True))
        if (told["rank"], told["tb"]) == (rank, tb):
            chosen = plan.steps[told["first_step"] : told["first_step"] + told["num_steps"]]
            return [dict(zip(STEP_COLUMNS, row, strict=True)) for row in chosen.tolist()]
    raise AssertionError(f"no gpu {rank} tb {tb}")


def test_a_ring_has_one_connection_to_every_next_rank() -> None:
    plan = plan_of(ring_allreduce(3))
    assert [(one.src, one.dst) for one in plan.connections] == [(0, 1), (2, 0), (1, 2)]
    sends, recvs = plan.blocks[:, BLOCK_COLUMNS.index("send")], plan.blocks[:, BLOCK_COLUMNS.index("recv")]
    assert [(int(a), int(b)) for a, b in zip(sends, recvs, strict=True)] == [(0, 1), (2, 0), (1, 2)]


def test_steps_keep_their_order_types_and_places() -> None:
    plan = plan_of(ring_allgather(3))
    told = [(STEP_TYPES[row["type"]], row["dst_buffer"], row["dst_offset"]) for row in rows(plan, 1, 0)]
    assert told == [
        (StepType.COPY, 1, 1),
        (StepType.SEND, 1, 0),
        (StepType.RECV_COPY_SEND, 1, 0),
        (StepType.RECV, 1, 2),
    ]


def test_nops_become_waits_and_runs_of_reductions_one_step() -> None:
    plan = plan_of(all_pairs_allreduce(4))
    (reduction,) = rows(plan, 0, 3)
    assert (reduction["num_sources"], reduction["num_waits"], reduction["publishes"]) == (3, 3, 1)
    assert reduction["number"] == 2, "the file's number: two nops stand before it"
    first = reduction["first_source"]
    assert plan.sources[first : first + 3].tolist() == [0, 1, 2]
    waits = plan.waits[reduction["first_wait"] :][:3].tolist()
    assert waits == [[0, 2], [1, 2], [2, 2]], "every other threadblock has done its second step"


def test_a_wait_is_for_the_first_flag_at_or_after_the_step() -> None:
    algo = with_step(all_pairs_allreduce(3), 0, 0, 2, depid=2, deps=0)
    (wait,) = (row for row in rows(plan_of(algo), 0, 0) if row["num_waits"])
    assert plan_of(algo).waits[wait["first_wait"]].tolist() == [2, 1]


def test_reductions_of_other_counts_or_with_a_flag_between_are_not_fused() -> None:
    reduction = step("re", (S, 0), (I, 0))
    for other in (
        reduction._replace(count=2),
        reduction._replace(dst_offset=1),
        reduction._replace(type=StepType.COPY),
    ):
        assert len(_reductions(reduction, other)) == 2
    assert len(_reductions(reduction._replace(hasdep=True), reduction)) == 2
    assert len(_reductions(reduction, step("nop", wait=(1, 0)), reduction)) == 2
    assert len(_reductions(reduction, reduction)) == 1


def _reductions(*steps: Step) -> list[dict[str, int]]:
    other = Threadblock(1, -1, -1, 0, (step("cpy", hasdep=True),))
    gpu = Gpu(0, 4, 4, 4, (Threadblock(0, -1, -1, 0, steps), other))
    algo = Algo("test", "allreduce", "LL", 1, 1, 4, (gpu,), inplace=True)
    return rows(compile_plan(algo, Collective(CollectiveName.ALLREDUCE, 1, 4)), 0, 0)


@pytest.mark.parametrize(
    ("algo", "field"),
    [
        (replace(ring_allreduce(3), proto="LL256"), "proto"),
        (replace(ring_allreduce(3), gpus=ring_allreduce(3).gpus[:2]), "gpu"),
        (with_step(ring_allreduce(3), 0, 0, 0, count=72), "cnt"),
        (with_tb(ring_allreduce(3), 0, 0, send=-1), "send"),
        (with_tb(ring_allreduce(3), 0, 0, recv=0), "recv"),
        (with_tb(ring_allreduce(3), 0, 0, recv=3), "recv"),
        (with_tb(all_pairs_allreduce(3), 0, 1, send=1), "chan"),
        (with_tb(all_pairs_allreduce(3), 0, 1, id=0), "tb"),
        (with_step(all_pairs_allreduce(3), 0, 2, 1, depid=0, deps=3), "deps 3"),
        (with_step(all_pairs_allreduce(3), 0, 2, 1, depid=9, deps=0), "depid 9"),
    ],
)
def test_what_no_run_could_carry_out_is_refused_by_name(algo: Algo, field: str) -> None:
    with pytest.raises(InputError, match=field):
        plan_of(algo)


def test_other_ranks_or_chunks_than_the_collectives_are_refused() -> None:
    for collective in (Collective(CollectiveName.ALLREDUCE, 4, 3), Collective(CollectiveName.ALLREDUCE, 3, 6)):
        with pytest.raises(InputError, match="expected"):
            compile_plan(ring_allreduce(3), collective)


def test_a_share_need_not_be_a_multiple_of_its_chunks() -> None:
    call = Call(collective_of(ring_allgather(3, c=2)), 7)
    assert call.chunk == 4
    assert [call.input_elements(rank) for rank in range(3)] == [7, 7, 7]
    assert [call.output_elements(rank) for rank in range(3)] == [21, 21, 21]
    assert call.buffer_bytes == 84


def test_in_place_an_allgather_gives_from_its_place_in_the_output() -> None:
    collective = collective_of(ring_allgather(3))
    assert Call(collective, 5, in_place=True).offsets(2) == (10, 0, 15)
    assert Call(collective, 5, in_place=True, one_pointer=True).offsets(2) == (0, 0, 15)
    assert Call(collective, 5).offsets(2) == (0, 0, 0)
    reduced = collective_of(direct_reduce_scatter(3))
    assert Call(reduced, 5, in_place=True).offsets(2) == (0, 10, 15)


def test_there_is_no_call_of_nothing_and_no_alltoall_in_place() -> None:
    with pytest.raises(InputError, match="one element"):
        Call(Collective(CollectiveName.ALLREDUCE, 2, 2), 0)
    with pytest.raises(InputError, match="in-place"):
        Call(Collective(CollectiveName.ALLTOALL, 2, 2), 1, in_place=True)


@pytest.mark.parametrize(("field", "value"), [("dst_offset", 3), ("dst_offset", -1), ("count", 2), ("dst_buffer", S)])
def test_a_step_beyond_the_buffers_is_named(field: str, value: int | Buffer) -> None:
    algo = with_step(ring_allgather(3), 1, 0, 3, **{field: value})
    check_places(ring_allgather(3), Call(collective_of(algo), 4))
    with pytest.raises(InputError, match="gpu 1 tb 0 step 3: dstoff"):
        check_places(algo, Call(collective_of(algo), 4))


def test_in_place_either_name_reaches_both_buffers() -> None:
    algo = with_step(ring_allgather(3), 0, 0, 3, dst_buffer=I, dst_offset=1)
    check_places(algo, Call(collective_of(algo), 4, in_place=True))
    with pytest.raises(InputError, match="dstoff"):
        check_places(algo, Call(collective_of(algo), 4))


@pytest.mark.parametrize("protocol", ["Simple", "LL", "LL128"])
@pytest.mark.parametrize("tile", [16, 48, 4096, 576_000])
def test_a_slot_holds_the_largest_slice(protocol: str, tile: int) -> None:
    """Chunks begin on units of their own, so that many small ones take the most room."""
    geometry = replace(Geometry.of(protocol), tile_bytes=tile)
    for chunk_bytes in (1, 2, 3, 7, 8, 9, 15, 17, 100, tile - 1, tile):
        chunks = geometry.most_chunks(chunk_bytes)
        per_chunk = min(chunk_bytes, tile)
        if protocol == "Simple":
            packs = chunks * -(-per_chunk // 16)
            needed = 16 * min(packs, max(-(-packs // geometry.slices), geometry.smallest_slice))
        elif protocol == "LL":
            needed = 16 * chunks * -(-per_chunk // 8)
        else:
            needed = 128 * -(-(chunks * -(-per_chunk // 8)) // 15)
        assert needed <= geometry.slot_bytes


def test_connections_hold_what_the_runtimes_hold() -> None:
    assert (Geometry.of("Simple").slots, Geometry.of("Simple").in_flight) == (4, 2)
    assert (Geometry.of("LL").slots, Geometry.of("LL128").slots) == (8, 8)


def test_no_two_pieces_of_a_connection_overlap() -> None:
    plan, geometry = plan_of(all_pairs_allreduce(4)), Geometry.of("LL")
    arenas = lay_out(plan, geometry)
    for rank in range(4):
        used: list[tuple[int, int]] = []
        for number, connection in enumerate(plan.connections):
            if connection.dst == rank:
                used += [(arenas.tails[number], 128), (arenas.slots[number], geometry.slots * geometry.slot_bytes)]
            if connection.src == rank:
                used.append((arenas.heads[number], 128))
        used.sort()
        assert len(used) == 9
        assert all(one + size <= other for (one, size), (other, _) in pairwise(used))
        assert sum(used[-1]) == arenas.size_bytes[rank]


@pytest.mark.parametrize("tile", [0, 8, 24])
def test_tiles_are_multiples_of_sixteen_bytes(tile: int) -> None:
    with pytest.raises(InputError, match="--tile"):
        replace(Geometry.of("LL"), tile_bytes=tile)


def test_moved_bytes_are_those_of_every_step() -> None:
    """Rank 0 of two: s reads and writes, rrcs reads two and writes two, r reads and writes; chunks of 40 bytes."""
    algo = ring_allreduce(2)
    assert moved_bytes(plan_of(algo), Call(collective_of(algo), 20)) == 2 * (2 + 4 + 2) * 40
    fused = all_pairs_allreduce(3)
    call = Call(collective_of(fused), 3, DataType.FLOAT64)
    # A rank's two threadblocks each s, r, s, r, and one reduction of two sources into one place: it reads three and writes one.
    assert moved_bytes(plan_of(fused), call) == 3 * (2 * 4 * 2 + 4) * 8


def test_blocks_of_a_rank_stand_together_whatever_the_order_of_the_file() -> None:
    algo = relay_broadcast()
    plan = plan_of(replace(algo, gpus=algo.gpus[::-1]), 0)
    assert [plan.blocks_of(rank) for rank in range(3)] == [range(1), range(1, 4), range(4, 5)]
    assert plan.scratch_chunks == (0, 2, 0)


def test_names_of_types() -> None:
    assert data_type("half") is DataType.FLOAT16
    assert data_type("int8") is DataType.INT8
    with pytest.raises(InputError, match="--dtype"):
        data_type("fp8")


def test_the_header_tells_every_parameter_that_the_interpreter_reads() -> None:
    told, used = header(), "".join(text for name, text in sources().items() if name != "abi.h")
    for name in PARAMS:
        assert f"long long {name};" in told
        assert f".{name}" in used or f"->{name}" in used, f"{name} is told and never read"
    for op in ReduceOp:
        assert f"OP_{op.name}" in told


def test_tables_are_of_32_bit_integers() -> None:
    plan = plan_of(ring_allreduce(3))
    assert {table.dtype for table in (plan.blocks, plan.steps, plan.waits, plan.sources)} == {np.dtype(np.int32)}
    assert plan.types == {
        StepType.SEND,
        StepType.RECV_REDUCE_SEND,
        StepType.RECV_REDUCE_COPY_SEND,
        StepType.RECV_COPY_SEND,
        StepType.RECV,
    }
