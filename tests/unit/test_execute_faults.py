"""What goes wrong while an algorithm runs: hangs, races, ranks that die. Every test ends with no process left."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("torch")

from msccl_xml.model import Algo, Gpu, Threadblock
from synth.errors import CheckError, SynthError
from synth.execute import HangError, LostError, Pool, measure
from synth.verify import VerifyError, verify_algo
from tests import execute_jobs
from tests.algos import (
    I,
    O,
    S,
    algo_of,
    all_pairs_allreduce,
    collective_of,
    exchange_allgather,
    relay_broadcast,
    ring_allreduce,
    step,
    with_step,
    with_tb,
)
from tests.mutants import drop_dependence
from tests.pools import job, pool_of, run

PATIENCE_S = 1.0


def assert_gone(pids: list[int]) -> None:
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def hang_of(algo: Algo, root: int | None = None) -> HangError:
    with Pool(algo.ngpus, patience_s=PATIENCE_S) as pool:
        with pytest.raises(HangError) as caught:
            pool.run(measure, job(algo, collective_of(algo, root), 6000))
        assert pool.broken
    assert_gone(pool.pids)
    return caught.value


def test_full_connections_that_wait_for_each_other_are_a_hang() -> None:
    """Two slots, three sends before the first receive: right with LL's eight slots, a deadlock with Simple's two."""
    hang = hang_of(exchange_allgather("Simple", 3))
    assert hang.waits == (
        "gpu 0 tb 0 step 3 (s) tile 0 waits for room towards gpu 1",
        "gpu 1 tb 0 step 3 (s) tile 0 waits for room towards gpu 0",
    )
    assert "\n" not in str(hang)


def test_flags_that_wait_for_each_other_are_a_hang_of_one_rank_and_of_who_waits_for_it() -> None:
    relay = relay_broadcast("Simple", 1)
    crossed = with_step(with_step(relay, 1, 1, 0, hasdep=True), 1, 0, 0, depid=1, deps=0)
    hang = hang_of(crossed, 0)
    assert "gpu 1 tb 0 step 0 (r) tile 0 waits for the flag of tb 1 step 0" in hang.waits
    assert "gpu 1 tb 1 step 0 (s) tile 0 waits for the flag of tb 0 step 0" in hang.waits
    assert "gpu 2 tb 0 step 0 (r) tile 0 waits for data of gpu 1" in hang.waits


def test_a_rank_that_dies_is_named_and_the_others_end() -> None:
    with Pool(3, patience_s=30) as pool:
        with pytest.raises(LostError, match="^rank 1 died: killed by SIGKILL$"):
            pool.run(execute_jobs.die, 1)
        assert_gone(pool.pids)
        with pytest.raises(LostError, match="start new ones"):
            pool.run(execute_jobs.ranks)


def test_a_rank_that_no_longer_answers_is_named() -> None:
    with Pool(2, patience_s=0.1) as pool, pytest.raises(LostError, match="rank 1 has not answered"):
        pool.run(execute_jobs.freeze, 1)
    assert_gone(pool.pids)


def test_a_slip_of_ours_on_one_rank_is_told_with_its_traceback_and_ends_all() -> None:
    with Pool(2) as pool, pytest.raises(CheckError, match="rank 1: KeyError: 'slip'") as caught:
        pool.run(execute_jobs.stumble, 1)
    assert caught.value.exit_code == 3
    assert_gone(pool.pids)


def test_what_all_ranks_refuse_alike_costs_no_process() -> None:
    pool = pool_of(2)
    for _ in range(2):
        with pytest.raises(SynthError, match="^file.xml: field: 1, expected 2$"):
            pool.run(execute_jobs.refuse)
        assert pool.run(execute_jobs.ranks) == [[0, 1], [0, 1]]


def test_leaving_the_pool_ends_its_processes() -> None:
    with Pool(2) as pool:
        assert len(set(pool.pids)) == 2
    assert_gone(pool.pids)


def test_a_file_for_other_ranks_is_refused() -> None:
    algo = ring_allreduce(3)
    with pytest.raises(SynthError, match="ngpus: 3, expected 2, the number of processes"):
        pool_of(2).run(measure, job(algo, collective_of(algo), 600))


def shown_to_fail(algo: Algo, root: int | None) -> bool:
    """Whether some run of an algorithm that verify refuses gives wrong elements or is refused; threadblocks dawdle."""
    for seed in range(12):
        try:
            [row] = pool_of(algo.ngpus).run(measure, job(algo, collective_of(algo, root), 1500, shake=seed))[0]
        except HangError:
            raise
        except SynthError:
            return True
        if any(half.wrong for half in (row.out_of_place, row.in_place) if half is not None):
            return True
    return False


def _dropped() -> list[tuple[str, Algo, int | None]]:
    found = []
    for name, algo, root in (
        ("all-pairs-allreduce-3", all_pairs_allreduce(3), None),
        ("relay-broadcast", relay_broadcast("LL", 1), 0),
    ):
        found += [(f"{name} {what}", mutant, root) for what, mutant in drop_dependence(algo)]
    # A step's wait after a nop's makes the document ill-formed where it is dropped; all others are races.
    return found


@pytest.mark.parametrize(("algo", "root"), [each[1:] for each in _dropped()], ids=[each[0] for each in _dropped()])
def test_a_file_with_a_dependence_dropped_is_refused_by_verify_and_seen_to_fail(algo: Algo, root: int | None) -> None:
    with pytest.raises(VerifyError):
        verify_algo(algo, collective_of(algo, root))
    assert shown_to_fail(algo, root)


def test_messages_in_the_wrong_order_are_seen() -> None:
    """Rank 0 sends its two chunks the other way round: no parser and no flag notices."""
    algo = exchange_allgather("LL", 2)
    steps = algo.gpus[0].threadblocks[0].steps
    wrong = with_tb(algo, 0, 0, steps=(steps[0], steps[2], steps[1], *steps[3:]))
    [row] = pool_of(2).run(measure, job(wrong, collective_of(algo), 1600))[0]
    assert row.out_of_place is not None
    assert row.out_of_place.wrong == 400 // 2


def test_ranks_whose_sums_differ_in_their_last_bits_are_told_apart() -> None:
    """Everybody gets both others' vectors and adds them to its own in an order of its own: right, and not equal."""
    gpus = []
    for rank in range(3):
        tbs = []
        for k, peer in enumerate(peer for peer in range(3) if peer != rank):
            steps = (step("s", (I, 0)), step("r", dst=(S, k), hasdep=True))
            tbs.append(Threadblock(k, peer, peer, 0, steps))
        adds = (
            step("cpy", (I, 0), (O, 0)),
            step("re", (S, 0), (O, 0), wait=(0, 1)),
            step("re", (S, 1), (O, 0), wait=(1, 1)),
        )
        tbs.append(Threadblock(2, -1, -1, 0, adds))
        gpus.append(Gpu(rank, 1, 1, 2, tuple(tbs)))
    algo = algo_of("allreduce", 1, gpus, "LL", inplace=False, outofplace=True)
    verify_algo(algo, collective_of(algo), strict=False)
    with pytest.raises(VerifyError, match="different orders"):
        verify_algo(algo, collective_of(algo))
    [row] = run(job(algo, collective_of(algo), 6000, dtype="float"))
    assert row.out_of_place is not None
    assert row.out_of_place.wrong == 0
    assert row.differing
