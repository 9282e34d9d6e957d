"""Mutants of right algorithms: verify refuses just those that an exhaustive interpreter (tests/oracle.py) does."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msccl_xml.check import check_structure
from msccl_xml.errors import AlgoError
from msccl_xml.limits import check_limits
from msccl_xml.model import Algo
from synth.verify import VerifyError, verify_algo
from tests.algos import RIGHT, collective_of, exchange_allgather
from tests.mutants import OPERATORS, mutants
from tests.oracle import TooLargeError, judge

#: Too many states, over all mutants, to visit: single slips in these are left to the smaller ones of their kind.
TOO_LARGE = {"all-pairs-allreduce-3", "alltoall-3"}
SMALL = ("ring-allreduce-2", "all-pairs-allreduce-2", "relay-broadcast-1", "reduce-scatter-2", "alltoall-2x2")
#: Kinds of slips after which none of the small ones is right.
ALWAYS_WRONG = frozenset(
    [
        "drop-dependence",
        "drop-step",
        "drop-message",
        "change-count",
        "change-type",
        "change-peer",
        "exchange-peers",
        "change-channel",
    ]
)


def is_structural(algo: Algo) -> bool:
    """Whether the document alone is refused, before anything is run."""
    try:
        check_structure(algo)
    except AlgoError:
        return True
    return bool(check_limits(algo, "msccl"))


def agree(algo: Algo, root: int | None, what: str) -> str:
    """The oracle's verdict, after asserting that verify has the same."""
    collective = collective_of(algo, root)
    try:
        verify_algo(algo, collective, strict=False)
        refusal = ""
    except VerifyError as error:
        refusal = str(error)
    if refusal and is_structural(algo):
        return "structural"
    verdict = judge(algo, collective)
    assert bool(refusal) == bool(verdict), f"{what}: oracle says {verdict or 'right'}, verify says {refusal or 'right'}"
    return verdict or "right"


@pytest.mark.parametrize("name", RIGHT)
def test_the_originals_are_right(name: str) -> None:
    algo, root = RIGHT[name]
    verify_algo(algo, collective_of(algo, root))
    assert judge(algo, collective_of(algo, root), max_states=200_000) == ""


@pytest.mark.parametrize("name", [name for name in RIGHT if name not in TOO_LARGE])
def test_verify_and_the_interpreter_agree_on_every_single_slip(name: str) -> None:
    algo, root = RIGHT[name]
    verdicts = {agree(mutant, root, what) for what, mutant in mutants(algo)}
    assert "structural" in verdicts
    assert len(verdicts) > 2


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_kind_of_slip_breaks_something(operator: str) -> None:
    """So that none of the kinds is idle; most leave some algorithms right, too."""
    found = set()
    for name in SMALL:
        algo, root = RIGHT[name]
        found |= {agree(mutant, root, what) for what, mutant in OPERATORS[operator](algo)}
    assert found - {"right"}
    assert ("right" in found) == (operator not in ALWAYS_WRONG)


@pytest.mark.parametrize("proto", ["Simple", "LL"])
@pytest.mark.parametrize("c", [1, 2, 3, 8, 9])
def test_as_many_messages_as_slots_fit_before_the_first_receive(proto: str, c: int) -> None:
    algo = exchange_allgather(proto, c)
    assert agree(algo, None, f"{proto} {c}") == ("right" if c <= {"Simple": 2, "LL": 8}[proto] else "deadlock")


@pytest.mark.parametrize("name", ["ring-allgather-2", "ring-allreduce-2", "relay-broadcast-1", "reduce-scatter-2"])
def test_one_tile_decides_for_more(name: str) -> None:
    """The claim of synth/verify/graph.py: what is right on one tile is right on two, in any interleaving."""
    algo, root = RIGHT[name]
    for what, mutant in mutants(algo):
        if not is_structural(mutant):
            collective = collective_of(mutant, root)
            assert bool(judge(mutant, collective)) == bool(judge(mutant, collective, tiles=2)), what


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_verify_and_the_interpreter_agree_on_two_slips(data: st.DataObject) -> None:
    algo, root = RIGHT[data.draw(st.sampled_from(sorted(RIGHT)))]
    for _ in range(2):
        what, algo = data.draw(st.sampled_from(list(mutants(algo))))
    try:
        agree(algo, root, what)
    except TooLargeError:
        return
