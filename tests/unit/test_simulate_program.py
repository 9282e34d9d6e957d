"""What the parser of a runtime makes of a file at a size: transfers, tiles, waits, fused reductions."""

from __future__ import annotations

import pytest

from msccl_xml.model import Algo, Gpu, StepType, Threadblock
from synth.errors import InputError
from synth.simulate.program import Wait, compile_algo
from tests.algos import I, O, S, algo_of, all_pairs_allreduce, ring_allreduce, step, with_step

TILE = 2 << 20


def local(*tbs: tuple) -> Algo:
    """One GPU whose threadblocks only work for themselves."""
    blocks = tuple(Threadblock(number, -1, -1, 0, steps) for number, steps in enumerate(tbs))
    return algo_of("custom", 4, [Gpu(0, 4, 4, 4, blocks)], "Simple", inplace=True, outofplace=True)


def send(count: int, chunks: int) -> Algo:
    tbs = (
        (Threadblock(0, 1, -1, 0, (step("s", count=count),)),),
        (Threadblock(0, -1, 0, 0, (step("r", count=count),)),),
    )
    gpus = [Gpu(rank, chunks, chunks, 0, tbs[rank]) for rank in range(2)]
    return algo_of("custom", chunks, gpus, "Simple", inplace=True, outofplace=True)


@pytest.mark.parametrize(
    ("size", "transfers"),
    [
        (64 << 20, [1] * 8),  # a chunk of 8 MB is more than a tile
        (16 << 20, [1] * 8),  # a chunk is a tile
        (8 << 20, [2, 2, 2, 2]),  # two fit
        (6 << 20, [2, 2, 2, 2]),
        (5 << 20, [3, 3, 2]),
        (1 << 10, [8]),
    ],
)
def test_a_count_is_split_by_how_many_chunks_fit_a_tile(size: int, transfers: list[int]) -> None:
    program = compile_algo(send(8, 8), size, TILE)
    assert [operation.chunks for operation in program.blocks[0].operations] == transfers


@pytest.mark.parametrize("count", [-1, 72, 10**18])
def test_a_count_that_no_runtime_loads_is_refused(count: int) -> None:
    with pytest.raises(InputError, match=rf"gpu 0 tb 0 step 0: cnt: {count}, expected 0 to 71"):
        compile_algo(send(count, 1), 72, TILE)


@pytest.mark.parametrize(
    ("chunk", "tiles", "last"), [(1, 1, 1), (TILE, 1, TILE), (TILE + 1, 2, 1), (3 * TILE - 8, 3, TILE - 8)]
)
def test_the_last_tile_holds_the_rest(chunk: int, tiles: int, last: int) -> None:
    program = compile_algo(send(1, 4), 4 * chunk, TILE)
    assert (program.tiles, program.bytes_of(program.tiles - 1)) == (tiles, last)
    assert sum(program.bytes_of(tile) for tile in range(tiles)) == chunk


def test_nops_are_waits_of_the_next_step() -> None:
    program = compile_algo(all_pairs_allreduce(3), 3 << 10, TILE)
    adder = program.blocks[2]
    (one,) = adder.operations
    assert (one.type, one.sources) == (StepType.REDUCE, 2)
    assert one.waits == (Wait(0, 2), Wait(1, 2))


def test_a_wait_is_for_the_first_flag_at_or_after_the_step() -> None:
    flagged = (step("cpy"), step("cpy", hasdep=True), step("cpy", hasdep=True))
    program = compile_algo(local(flagged, (step("cpy", wait=(0, 0)),)), 16, TILE)
    assert program.blocks[1].operations[0].waits == (Wait(0, 2),)


def test_the_flag_of_a_nop_is_lost() -> None:
    flagged = (step("cpy", hasdep=False), step("nop", hasdep=True), step("cpy", hasdep=False))
    with pytest.raises(InputError, match=r"gpu 0 tb 1: depid 0, deps 0: 'no flag'"):
        compile_algo(local(flagged, (step("cpy", wait=(0, 0)),)), 16, TILE)


def test_a_wait_for_a_threadblock_that_is_not_there_is_refused() -> None:
    with pytest.raises(InputError, match="depid 7"):
        compile_algo(local((step("cpy", wait=(7, 0)),)), 16, TILE)


def test_reductions_into_one_place_are_one_operation() -> None:
    adds = tuple(step("re", (S, k), (I, 0), hasdep=k == 2) for k in range(3))
    program = compile_algo(local(adds, (step("cpy", wait=(0, 2)),)), 16, TILE)
    (one,) = program.blocks[0].operations
    assert (one.sources, one.chunks) == (3, 1)
    assert program.blocks[1].operations[0].waits == (Wait(0, 1),)


@pytest.mark.parametrize(
    "second", [step("re", (S, 1), (I, 1)), step("re", (S, 1), (I, 0), wait=(1, 0)), step("re", (I, 1), (I, 0))]
)
def test_other_reductions_stay_apart(second) -> None:
    program = compile_algo(
        local((step("re", (S, 0), (I, 0)), second), (step("cpy", (I, 2), (O, 2), hasdep=True),)), 16, TILE
    )
    assert [operation.sources for operation in program.blocks[0].operations] == [1, 1]


def test_two_threadblocks_on_one_end_of_a_connection_are_refused() -> None:
    algo = ring_allreduce(2)
    twice = algo.gpus[0].threadblocks[0]
    gpus = (Gpu(0, 2, 2, 0, (twice, Threadblock(1, twice.send, twice.recv, 0, twice.steps))), algo.gpus[1])
    broken = algo_of("allreduce", 2, list(gpus), "Simple", inplace=True, outofplace=True)
    with pytest.raises(InputError, match="tb 1: chan: 0, expected one threadblock only that sends to gpu 1"):
        compile_algo(broken, 1024, TILE)


def test_a_step_whose_threadblock_has_no_peer_is_refused() -> None:
    with pytest.raises(InputError, match="gpu 0 tb 0: send: -1"):
        compile_algo(local((step("s"),)), 16, TILE)


def test_no_chunks_at_all_are_refused() -> None:
    algo = local((step("cpy"),))
    broken = Algo(**{**{name: getattr(algo, name) for name in algo.__slots__}, "nchunksperloop": 0})
    with pytest.raises(InputError, match="nchunksperloop"):
        compile_algo(broken, 16, TILE)


def test_a_step_of_no_chunks_still_waits_and_publishes() -> None:
    algo = with_step(local((step("cpy"), step("cpy", hasdep=True))), 0, 0, 1, count=0)
    program = compile_algo(algo, 16, TILE)
    assert [operation.chunks for operation in program.blocks[0].operations] == [1, 0]
