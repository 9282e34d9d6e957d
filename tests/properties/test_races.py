"""Random programs: verify and an exhaustive interpreter (tests/oracle.py) agree on race, deadlock and result."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from msccl_xml.check import check_structure
from msccl_xml.errors import AlgoError
from msccl_xml.model import Algo, Gpu, Step, Threadblock
from synth.verify import VerifyError, verify_algo
from tests.algos import I, algo_of, collective_of, step
from tests.oracle import judge

CHUNKS = 3


@st.composite
def programs(draw: st.DrawFn) -> Algo:
    """Two ranks in place, all of whose memory is input; threadblock 0 talks to the peer, the others work locally."""
    messages = draw(st.integers(1, 3))
    gpus = []
    for rank in range(2):
        tbs = []
        for t in range(draw(st.integers(1, 3))):
            kinds = (
                draw(st.permutations(["s", "r"] * messages)) if t == 0 else draw(st.lists(st.just("cpy"), max_size=3))
            )
            if t and draw(st.booleans()):
                kinds = ["re" for _ in kinds]
            tbs.append(Threadblock(t, 1 - rank if t == 0 else -1, 1 - rank if t == 0 else -1, 0, draw(_steps(kinds))))
        gpus.append(Gpu(rank, CHUNKS, CHUNKS, 0, tuple(_mended(tb, tbs) for tb in tbs)))
    return algo_of("allreduce", CHUNKS, gpus, draw(st.sampled_from(["Simple", "LL"])), inplace=True, outofplace=False)


def _mended(tb: Threadblock, tbs: list[Threadblock]) -> Threadblock:
    """`tb` without the dependences that nothing would ever release: check_structure refuses those."""
    steps = []
    for one in tb.steps:
        there = tbs[one.depid].steps if 0 <= one.depid < len(tbs) else ()
        released = one.deps < len(there) and any(other.hasdep for other in there[max(0, one.deps) :])
        steps.append(one if released else one._replace(depid=-1, deps=-1))
    return replace(tb, steps=tuple(steps))


def _steps(kinds: list[str]) -> st.SearchStrategy[tuple[Step, ...]]:
    offset = st.integers(0, CHUNKS - 1).map(lambda k: (I, k))
    wait = st.one_of(st.just((-1, -1)), st.just((-1, -1)), st.tuples(st.integers(0, 2), st.integers(0, 3)))
    # Most steps publish, so that most dependences are released.
    hasdep = st.sampled_from([True, True, False])
    each = [st.builds(step, st.just(kind), offset, offset, st.just(1), wait, hasdep) for kind in kinds]
    return st.tuples(*each)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(programs())
def test_verify_and_the_interpreter_agree_on_random_programs(algo: Algo) -> None:
    try:
        check_structure(algo)
    except AlgoError:
        assume(False)
    collective = collective_of(algo)
    verdict = judge(algo, collective)
    problem = "right"
    try:
        verify_algo(algo, collective, strict=False)
    except VerifyError as error:
        problem = error.problem
    if verdict == "race":
        # A program may do both; the interpreter stops at what it meets first.
        assert problem.startswith(("data race", "deadlock"))
    elif verdict == "deadlock":
        assert problem.startswith("deadlock")
    else:
        assert problem.startswith("wrong result") if verdict == "result" else (verdict, problem) == ("", "right")
