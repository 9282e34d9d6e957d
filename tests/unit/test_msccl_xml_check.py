from __future__ import annotations

from dataclasses import replace

import pytest

from msccl_xml.check import check_structure, fused_runs
from msccl_xml.errors import AlgoError
from msccl_xml.model import Algo, Step, Threadblock
from tests.algos import (
    RIGHT,
    I,
    O,
    S,
    all_pairs_allreduce,
    relay_broadcast,
    ring_allgather,
    step,
    with_step,
    with_steps,
    with_tb,
)

RING = ring_allgather(3)
PAIRS = all_pairs_allreduce(3)
RELAY = relay_broadcast()


@pytest.mark.parametrize("name", RIGHT)
def test_right_algorithms_are_well_formed(name: str) -> None:
    check_structure(RIGHT[name][0])


def _two_ends() -> Algo:
    gpu = RING.gpus[0]
    twin = replace(gpu, threadblocks=(*gpu.threadblocks, replace(gpu.threadblocks[0], id=1)))
    return replace(RING, gpus=(twin, *RING.gpus[1:]))


@pytest.mark.parametrize(
    ("algo", "problem", "place"),
    [
        (replace(RING, proto="simple"), "proto is 'simple'", (-1, -1, -1)),
        (replace(RING, nchunksperloop=0), "nchunksperloop is 0", (-1, -1, -1)),
        (replace(RING, ngpus=4), "gpu ids must be 0..3", (-1, -1, -1)),
        (replace(RING, gpus=(*RING.gpus, RING.gpus[0])), "gpu ids must be 0..2", (-1, -1, -1)),
        (replace(RING, gpus=(replace(RING.gpus[0], threadblocks=()), *RING.gpus[1:])), "no threadblock", (0, -1, -1)),
        (with_tb(RING, 1, 0, id=1), "threadblock ids must be 0..0", (1, -1, -1)),
        (with_tb(RING, 1, 0, channel=1), "chan is 1, expected 0..0", (1, 0, -1)),
        (with_tb(RING, 1, 0, send=1), "send is 1, expected -1 or another gpu's id", (1, 0, -1)),
        (with_tb(RING, 1, 0, recv=3), "recv is 3, expected -1 or another gpu's id", (1, 0, -1)),
        (_two_ends(), "send peer 1 on channel 0 belongs to threadblock 0 already", (0, 1, -1)),
        (with_tb(RING, 1, 0, send=-1), "s in a threadblock that has no send peer", (1, 0, 1)),
        (with_tb(RING, 1, 0, recv=-1), "rcs in a threadblock that has no recv peer", (1, 0, 2)),
        (with_step(RING, 2, 0, 0, count=0), "cnt is 0", (2, 0, 0)),
        (with_step(RING, 2, 0, 0, count=2), "i[0..1] is outside buffer i of 1 chunks", (2, 0, 0)),
        (with_step(RING, 2, 0, 2, dst_offset=-1), "o[-1..-1] is outside", (2, 0, 2)),
        (with_step(RING, 2, 0, 2, dst_offset=3), "o[3..3] is outside", (2, 0, 2)),
        (with_step(RELAY, 1, 0, 0, hasdep=False), "neither that step nor a later one has hasdep", (1, 1, 0)),
        (with_step(RELAY, 1, 1, 0, depid=3), "waits for 3:0, which does not exist", (1, 1, 0)),
        (with_step(RELAY, 1, 1, 0, deps=1), "waits for 0:1, which does not exist", (1, 1, 0)),
        (with_step(RELAY, 2, 0, 0, count=1), "receives 1 chunks where gpu 1 sends 2 (its step 1:0)", (2, 0, 0)),
        (with_steps(RELAY, 2, 0, ()), "sends 1 times to gpu 2 on channel 0, which receives 0 times", (1, 1, 0)),
        (with_steps(RELAY, 1, 1, ()), "sends 0 times to gpu 2 on channel 0, which receives 1 times", (2, 0, 0)),
        (with_tb(with_steps(RELAY, 2, 0, ()), 2, 0, recv=-1), "gpu 2 has no threadblock with recv=1", (1, 1, -1)),
        (with_tb(with_steps(RELAY, 1, 1, ()), 1, 1, send=-1), "gpu 1 has none with send=2", (2, 0, -1)),
        (with_step(PAIRS, 0, 2, 0, depid=-1), "a nop without dependence", (0, 2, 0)),
        (with_step(PAIRS, 0, 2, 1, depid=-1), "a step after a nop must itself have a dependence", (0, 2, 1)),
        (with_steps(RELAY, 1, 2, (step("cpy"), step("nop", wait=(0, 0)))), "a nop at the end", (1, 2, 1)),
        (with_step(RELAY, 1, 2, 0, dst_buffer=S, dst_offset=0, src_offset=1, count=1), "", None),
    ],
)
def test_what_is_ill_formed_is_refused_where_it_is(
    algo: Algo, problem: str, place: tuple[int, int, int] | None
) -> None:
    if place is None:
        check_structure(algo)
        return
    with pytest.raises(AlgoError) as caught:
        check_structure(algo)
    assert problem in caught.value.problem
    assert (caught.value.gpu, caught.value.tb, caught.value.step) == place


def test_an_error_shows_the_step_among_its_neighbours() -> None:
    with pytest.raises(AlgoError) as caught:
        check_structure(with_step(ring_allgather(8), 2, 0, 4, dst_offset=8))
    assert str(caught.value) == (
        "gpu 2 threadblock 0 step 4: o[8..8] is outside buffer o of 8 chunks\n"
        "    1: s i[0] x1\n"
        "    2: rcs -> o[1] x1\n"
        "    3: rcs -> o[0] x1\n"
        "  > 4: rcs -> o[8] x1\n"
        "    5: rcs -> o[6] x1\n"
        "    6: rcs -> o[5] x1\n"
        "    7: rcs -> o[4] x1"
    )


def _local(steps: list[Step]) -> Algo:
    gpu = replace(RING.gpus[0], scratch_chunks=20, threadblocks=(Threadblock(0, -1, -1, 0, tuple(steps)),))
    return replace(RING, ngpus=1, gpus=(gpu,))


def _reduce(k: int, **changes: object) -> Step:
    return step("re", (S, k), (O, 0))._replace(**changes)  # type: ignore[arg-type]


def test_fused_reductions_must_agree_in_count() -> None:
    with pytest.raises(AlgoError, match="one cnt would be used for all"):
        check_structure(_local([_reduce(0, count=2), _reduce(2)]))
    check_structure(_local([_reduce(0, count=2, hasdep=True), _reduce(2)]))


def test_a_fused_reduction_does_not_read_what_its_run_writes() -> None:
    same = _reduce(1, dst_buffer=S, dst_offset=0)
    with pytest.raises(AlgoError, match="reads what the run itself writes"):
        check_structure(_local([same, same._replace(src_offset=0)]))


@pytest.mark.parametrize(
    ("steps", "runs"),
    [
        ([_reduce(0), _reduce(1), _reduce(2)], [range(3)]),
        ([_reduce(0), _reduce(1, hasdep=True), _reduce(2)], [range(2)]),
        ([_reduce(0), _reduce(1, depid=0, deps=0), _reduce(2)], [range(1, 3)]),
        ([_reduce(0), step("cpy"), _reduce(2)], []),
        ([_reduce(0), _reduce(1, dst_offset=1), _reduce(2)], []),
        ([_reduce(0), _reduce(1, src_buffer=I)], []),
        ([], []),
    ],
)
def test_runs_are_fused_as_the_parsers_do(steps: list[Step], runs: list[range]) -> None:
    assert list(fused_runs(Threadblock(0, -1, -1, 0, tuple(steps)))) == runs


def test_overlapping_source_and_destination_are_refused() -> None:
    with pytest.raises(AlgoError, match="source and destination overlap"):
        check_structure(_local([step("cpy", (O, 0), (O, 1), 2)]))
