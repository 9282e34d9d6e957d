"""Errors come back whole from another process: a worker's refusal is told as if it had happened here."""

from __future__ import annotations

import pickle

import pytest

from synth.errors import CheckError, InputError, NoAnswerError, SynthError
from synth.execute.errors import HangError
from synth.verify import VerifyError
from synth.workers import in_parallel


@pytest.mark.parametrize(
    "error",
    [
        InputError("topo.json", "links[3].GBps", -1, "a number above 0"),
        CheckError("routing", "a transfer happens twice", ((0, 1),)),
        NoAnswerError("gpu3 has no link"),
        VerifyError("the result is wrong", ("gpu0: chunk 1",)),
        HangError(5.0, ["rank 0 waits for rank 1"]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_survives_the_way_between_processes(error: SynthError) -> None:
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert vars(back) == vars(error)


def _refused(source: str, value: int) -> None:
    raise InputError(source, "value", value, "another")


def test_a_workers_refusal_ends_the_work() -> None:
    with pytest.raises(InputError, match="tasks: value: 1, expected another"):
        list(in_parallel(2, _refused, "tasks", [1, 2]))
