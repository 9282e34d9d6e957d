"""What the executor makes of a document: operations, waits, parts, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from msccl_xml.model import Buffer
from synth.errors import InputError, SynthError
from synth.execute.layout import check_bounds, cut_chunk, layouts_of, padded_unit, regions_of
from synth.execute.program import Part, Place, Wait, check_algo, compile_program
from tests.algos import (
    I,
    O,
    S,
    all_pairs_allreduce,
    alltoall,
    collective_of,
    direct_gather,
    ring_allgather,
    ring_allreduce,
    step,
    with_step,
    with_steps,
)


def test_nops_hand_their_waits_to_the_next_step_and_reductions_in_a_row_are_one() -> None:
    algo = all_pairs_allreduce(4)
    check_algo(algo)
    blocks = compile_program(algo, 1).ranks[0]
    [reduction] = blocks[-1].operations
    assert reduction.waits == (Wait(0, 1), Wait(1, 1), Wait(2, 1))
    assert reduction.sources == (Place(S, 0), Place(S, 1), Place(S, 2))
    assert (reduction.step, reduction.publishes) == (4, True)


def test_a_step_is_cut_into_what_a_transfer_holds() -> None:
    blocks = compile_program(ring_allgather(3, "LL", 5), 2).ranks[0]
    assert blocks[0].operations[0].parts == (Part(0, 2), Part(2, 2), Part(4, 1))


def test_both_ends_of_a_connection_have_one_number() -> None:
    program = compile_program(ring_allreduce(3), 1)
    for rank, [block] in enumerate(program.ranks):
        assert program.connections[block.send][:2] == (rank, (rank + 1) % 3)
        assert program.connections[block.recv][:2] == ((rank - 1) % 3, rank)


@pytest.mark.parametrize(
    ("algo", "told"),
    [
        (with_step(ring_allgather(3, "LL", 2), 1, 0, 1, count=1), "receives 2 chunks where gpu 1 sends 1"),
        (with_step(all_pairs_allreduce(3), 0, 2, 0, deps=2), "hasdep"),
        (with_step(all_pairs_allreduce(3), 0, 2, 0, depid=7), "does not exist"),
        (with_step(ring_allreduce(3), 0, 0, 0, src_offset=9), "outside"),
        (replace(ring_allreduce(3), proto="LL256"), "proto"),
    ],
)
def test_what_no_interpreter_would_carry_out_is_refused(algo: object, told: str) -> None:
    with pytest.raises(SynthError, match=told):
        check_algo(algo)  # type: ignore[arg-type]


def test_sixteen_reductions_in_a_row_are_refused_where_the_interpreters_lose_one() -> None:
    """16 sources are the most that Simple adds at once, and its own value is one of them."""
    algo = all_pairs_allreduce(2)
    many = tuple(step("re", (S, k), (I, 0), hasdep=k == 15) for k in range(16))
    gpus = tuple(replace(gpu, scratch_chunks=16) for gpu in algo.gpus)
    wide = with_steps(
        replace(algo, gpus=gpus), 0, 1, (step("nop", wait=(0, 1)), many[0]._replace(depid=0, deps=1), *many[1:])
    )
    with pytest.raises(InputError, match="re in a row"):
        check_algo(wide)
    check_algo(replace(wide, proto="LL"))


def test_cuts() -> None:
    cut = cut_chunk(1000, 4, 1024)
    assert (cut.tile, cut.tiles, cut.most) == (256, 4, 1)
    assert [cut.span(tile) for tile in range(4)] == [(0, 256), (256, 256), (512, 256), (768, 232)]
    assert cut_chunk(10, 4, 1024).most == 25
    assert cut_chunk(1, 1, 1 << 21).most == 71
    assert cut_chunk(1000, 4, 1024, most_tiles=2).tiles == 2


def test_padding_goes_to_the_next_multiple_of_a_shares_chunks() -> None:
    collective = collective_of(ring_allgather(3, "LL", 5))
    assert [padded_unit(collective, unit) for unit in (1, 5, 6)] == [5, 5, 10]


def test_in_place_a_share_lies_in_the_whole() -> None:
    algo = ring_allgather(3)
    regions = regions_of(algo, collective_of(algo), 2, in_place=True)
    assert (regions[I].name, regions[I].shift) == (regions[O].name, 2)
    assert regions[O].shift == 0


def test_a_rank_that_only_gives_to_a_gather_holds_its_share_alone() -> None:
    algo = replace(direct_gather(3, root=1), inplace=True)
    regions = regions_of(algo, collective_of(algo, 1), 2, in_place=True)
    assert (regions[I].shift, regions[O].shift, regions[I].chunks) == (0, -2, 1)


def test_layouts_are_those_that_the_file_claims() -> None:
    assert layouts_of(ring_allreduce(2), collective_of(ring_allreduce(2))) == (False, True)
    assert layouts_of(all_pairs_allreduce(2), collective_of(all_pairs_allreduce(2))) == (True,)
    both = replace(alltoall(3), inplace=True)
    assert layouts_of(both, collective_of(both)) == (False,)


def test_a_step_beyond_the_buffers_of_the_call_is_refused() -> None:
    """The file says that its input has three chunks, and the call has one."""
    algo = with_step(ring_allgather(3), 0, 0, 1, src_offset=2)
    algo = replace(algo, gpus=tuple(replace(gpu, input_chunks=3) for gpu in algo.gpus))
    check_algo(algo)
    regions = regions_of(algo, collective_of(algo), 0, in_place=False)
    assert regions[Buffer.INPUT].chunks == 1
    with pytest.raises(InputError, match=r"i\[2\.\.2\]"):
        check_bounds(compile_program(algo, 1), 0, regions, "file.xml")
