from __future__ import annotations

from dataclasses import replace

import pytest

from msccl_xml.model import Algo, Gpu, StepType, Threadblock
from synth.collective import Collective, CollectiveName
from synth.errors import SynthError
from synth.verify import VerifyError, verify_algo
from tests.algos import (
    RIGHT,
    I,
    O,
    S,
    algo_of,
    all_pairs_allreduce,
    alltoall,
    collective_of,
    direct_gather,
    direct_reduce_scatter,
    relay_broadcast,
    ring_allgather,
    ring_allreduce,
    step,
    with_step,
    with_steps,
    with_tb,
)


def refusal(algo: Algo, collective: Collective | None = None, **options: object) -> VerifyError:
    with pytest.raises(VerifyError) as caught:
        verify_algo(algo, collective or collective_of(algo), **options)  # type: ignore[arg-type]
    return caught.value


@pytest.mark.parametrize("name", RIGHT)
def test_right_algorithms_are_accepted(name: str) -> None:
    algo, root = RIGHT[name]
    verify_algo(algo, collective_of(algo, root))


@pytest.mark.parametrize("n", [4, 8])
@pytest.mark.parametrize("proto", ["Simple", "LL", "LL128"])
def test_larger_ones_too(n: int, proto: str) -> None:
    for algo in (ring_allgather(n, proto), ring_allreduce(n, proto), all_pairs_allreduce(n, proto)):
        verify_algo(algo, collective_of(algo))
    verify_algo(direct_reduce_scatter(n, proto), collective_of(direct_reduce_scatter(n, proto)))


def test_on_several_processes_the_verdict_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first error in the order of the checks is the one that is told, whichever process is done first."""
    monkeypatch.setattr("synth.verify.verify._WORTH_A_PROCESS", 0)
    algo = ring_allreduce(4, "Simple")
    verify_algo(algo, collective_of(algo), jobs=3)
    outside = with_step(algo, 0, 0, 0, src_buffer=S, src_offset=0)
    wrong = with_step(algo, 0, 0, 0, src_offset=1)
    for broken in (outside, wrong):
        alone, spread = refusal(broken, collective_of(algo)), refusal(broken, collective_of(algo), jobs=3)
        assert (str(spread), spread.problem) == (str(alone), alone.problem)


def test_a_gather_of_the_executor() -> None:
    verify_algo(direct_gather(3, 1), collective_of(direct_gather(3, 1), 1), runtime="executor")
    assert (
        "does not exist when called out of place"
        in refusal(direct_gather(3, 1), collective_of(direct_gather(3, 1), 0), runtime="executor").problem
    )


def test_the_error_is_one_of_the_input() -> None:
    error = refusal(replace(ring_allgather(2), proto="LL64"))
    assert isinstance(error, SynthError)
    assert error.exit_code == 1


def test_a_structural_error_keeps_its_place_and_its_neighbours() -> None:
    error = refusal(with_step(ring_allgather(3), 1, 0, 2, dst_offset=7))
    assert error.problem == "gpu 1 threadblock 0 step 2: o[7..7] is outside buffer o of 3 chunks"
    assert "  > 2: rcs -> o[7] x1" in error.witness


def test_the_limits_are_those_of_the_runtime() -> None:
    algo = with_steps(ring_allgather(2), 0, 0, (step("cpy"),) * 70 + ring_allgather(2).gpus[0].threadblocks[0].steps)
    verify_algo(algo, collective_of(algo))
    assert "beyond what executor takes: gpu 0 threadblock 0: 73 steps" in refusal(algo, runtime="executor").problem
    assert "runtime is 'nccl'" in refusal(algo, runtime="nccl").problem


def test_the_collective_must_have_the_ranks_and_chunks_of_the_file() -> None:
    algo = ring_allgather(2)
    assert "ngpus is 2" in refusal(algo, Collective(CollectiveName.ALLGATHER, 4, 4)).problem
    assert "nchunksperloop is 2" in refusal(algo, Collective(CollectiveName.ALLGATHER, 2, 4)).problem


def test_a_ring_that_fills_its_slots_before_it_forwards_deadlocks() -> None:
    """Two chunks a message are two transfers where buffers are large; rcs pops only once it can push."""
    error = refusal(ring_allgather(3, "Simple", 2))
    assert error.problem.startswith("deadlock")
    assert len(error.witness) == 3
    assert "waits for a free slot, which is freed by gpu 1 threadblock 0 step 2: rcs" in error.witness[0]
    verify_algo(ring_allgather(3, "LL", 2), collective_of(ring_allgather(3, "LL", 2)))


def test_receiving_first_everywhere_deadlocks() -> None:
    algo = ring_allgather(2)
    for rank in range(2):
        copy, send, receive = algo.gpus[rank].threadblocks[0].steps
        algo = with_steps(algo, rank, 0, (copy, receive, send))
    error = refusal(algo)
    assert error.problem == "deadlock: these steps wait for each other"
    assert [line.split("\n")[0] for line in error.witness] == [
        "  gpu 0 threadblock 0 step 1: r -> o[1] x1",
        "    which comes after",
        "  gpu 1 threadblock 0 step 1: r -> o[0] x1",
        "    which comes after",
    ]


def test_waiting_for_oneself_deadlocks() -> None:
    algo = with_step(ring_allgather(2), 0, 0, 1, depid=0, deps=1, hasdep=True)
    assert refusal(algo).problem.startswith("deadlock")


def test_a_later_flag_releases_too() -> None:
    """The flag of step 1 serves who waits for step 0, and only it, for step 0 has none."""
    relay = relay_broadcast("LL", 1)
    more = with_steps(relay, 1, 0, (step("r", dst=(S, 0)), step("cpy", (S, 0), (O, 0), hasdep=True)))
    verify_algo(with_steps(more, 1, 2, (step("cpy", (O, 0), (O, 0), wait=(0, 0)),)), collective_of(more, 0))


def test_a_race_shows_both_accesses() -> None:
    error = refusal(with_step(relay_broadcast(), 1, 2, 0, depid=-1, deps=-1), collective_of(relay_broadcast(), 0))
    assert error.problem == "data race when called out of place: nothing orders these accesses of s[0] on gpu 1"
    assert set(error.witness) == {
        "  gpu 1 threadblock 0 step 0: r -> s[0] x2, hasdep",
        "  gpu 1 threadblock 2 step 0: cpy s[0] -> o[0] x2",
    }


def test_a_copy_onto_itself_conflicts_only_with_writes() -> None:
    algo = relay_broadcast("LL", 1)
    tb = Threadblock(1, -1, -1, 0, (step("cpy", (I, 0), (O, 0)),))
    root = replace(algo.gpus[0], threadblocks=(with_steps(algo, 0, 0, (step("s"),)).gpus[0].threadblocks[0], tb))
    verify_algo(replace(algo, gpus=(root, *algo.gpus[1:])), collective_of(algo, 0))


def test_aliasing_makes_a_race_of_its_own() -> None:
    """In place the copy to o[0] writes i[0], which the other threadblock sends; out of place they are apart."""
    sends = Threadblock(0, 1, -1, 0, (step("s", (I, 0)), step("s", (I, 1))))
    copies = Threadblock(
        1, -1, -1, 0, (step("cpy", (I, 0), (O, 0)), step("cpy", (I, 0), (O, 1)), step("cpy", (I, 1), (O, 1)))
    )
    leaf = Threadblock(0, -1, 0, 0, (step("r", dst=(O, 0)), step("r", dst=(O, 1))))
    gpus = [Gpu(0, 2, 2, 0, (sends, copies)), Gpu(1, 2, 2, 0, (leaf,))]
    algo = algo_of("broadcast", 2, gpus, "LL", inplace=False, outofplace=True)
    verify_algo(algo, collective_of(algo, 0))
    error = refusal(replace(algo, inplace=True), collective_of(algo, 0))
    assert error.problem == "data race when called in place: nothing orders these accesses of i[1]=o[1] on gpu 0"
    assert "has no in-place call" in refusal(replace(alltoall(2), inplace=True)).problem


def test_reading_what_nobody_wrote_is_refused() -> None:
    algo = with_step(relay_broadcast("LL", 1), 1, 0, 0, dst_buffer=O)
    error = refusal(algo, collective_of(algo, 0))
    assert error.problem == "gpu 1 reads s[0], which nobody wrote when called out of place"


@pytest.mark.parametrize(
    ("algo", "problem", "witness"),
    [
        (
            with_step(ring_allgather(3), 0, 0, 2, dst_offset=1),
            "gpu 0 must end with chunk 2 of rank 2 in o[2]",
            "it holds nothing (it was never written)",
        ),
        (
            with_step(ring_allreduce(3), 0, 0, 1, src_offset=1),
            "gpu 0 must end with chunk 2 of ranks 0..2 in o[2]",
            "it holds a wrong sum: chunks 1 and 2 were added at gpu 0 threadblock 0 step 1: rrs i[1] x1",
        ),
        (
            with_step(ring_allreduce(3), 1, 0, 1, type=StepType.RECV_COPY_SEND),
            "gpu 0 must end with chunk 0 of ranks 0..2 in o[0]",
            "it holds chunk 0 of ranks 0,2",
        ),
    ],
)
def test_a_wrong_result_says_what_is_there_instead(algo: Algo, problem: str, witness: str) -> None:
    error = refusal(algo)
    assert problem in error.problem
    assert witness in error.witness[0]


def test_adding_twice_is_told() -> None:
    tbs = direct_reduce_scatter(2).gpus[0].threadblocks
    algo = direct_reduce_scatter(2)
    algo = with_steps(algo, 0, 0, (*tbs[0].steps, step("re", (I, 0), (O, 0))))
    assert "the contribution of rank 0 was added twice" in refusal(replace(algo, inplace=False)).witness[0]


def test_strict_keeps_the_send_buffer_of_out_of_place_calls() -> None:
    algo = ring_allgather(2)
    algo = with_steps(algo, 0, 0, (*algo.gpus[0].threadblocks[0].steps, step("cpy", (O, 0), (I, 0))))
    assert refusal(algo).problem == "writes the send buffer of an out-of-place call"
    verify_algo(algo, collective_of(algo), strict=False)


def one_shot_allreduce(n: int, proto: str, own_first: bool, fused: bool = False) -> Algo:
    """Everyone sends its chunk to everyone and adds by itself: in the order of ranks, or beginning with its own."""
    gpus = []
    for r in range(n):
        peers = [p for p in range(n) if p != r]
        tbs = [Threadblock(k, p, p, 0, (step("s"), step("r", dst=(S, p), hasdep=True))) for k, p in enumerate(peers)]
        adds = [step("nop", wait=(k, 1)) for k in range(n - 2)]
        first, *others = [r, *peers] if own_first else range(n)
        own = step("cpy", (I, 0), (S, r), wait=(n - 2, 1), hasdep=True)
        adds += [own, step("cpy", (S, first), (O, 0), hasdep=True)]
        adds += [step("re", (S, p), (O, 0), hasdep=not fused) for p in others]
        tbs.append(Threadblock(n - 1, -1, -1, 0, tuple(adds)))
        gpus.append(Gpu(r, 1, 1, n, tuple(tbs)))
    return algo_of("allreduce", 1, gpus, proto, inplace=False, outofplace=True)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("proto", ["LL", "Simple"])
def test_strict_asks_for_the_same_bits_everywhere(proto: str, fused: bool) -> None:
    in_order, own_first = (one_shot_allreduce(4, proto, own_first, fused) for own_first in (False, True))
    verify_algo(in_order, collective_of(in_order))
    verify_algo(own_first, collective_of(own_first), strict=False)
    assert refusal(own_first).problem.startswith("gpu 0 and gpu 2 add the contributions to chunk 0 in different orders")


def test_addition_commutes_but_a_fused_run_of_simple_adds_its_own_last() -> None:
    """Ranks 0 and 1 begin with their own: (0 + 1) + 2 is (1 + 0) + 2, but fused (1 + 2) + 0 is not (0 + 2) + 1."""
    for fused, proto, right in ((False, "Simple", True), (True, "LL", True), (True, "Simple", False)):
        both = one_shot_allreduce(3, proto, True, fused)
        in_order = one_shot_allreduce(3, proto, False, fused)
        algo = replace(both, gpus=(*both.gpus[:2], in_order.gpus[2]))
        if right:
            verify_algo(algo, collective_of(algo))
        else:
            assert "in different orders" in refusal(algo).problem


def test_another_channel_needs_its_counterpart() -> None:
    algo = replace(ring_allgather(2), nchannels=2)
    assert "no counterpart" in refusal(with_tb(algo, 0, 0, channel=1)).problem
