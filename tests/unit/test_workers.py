"""Work spread over processes: the same answers in the same order, urgent or not, and what is not urgent gives way."""

from __future__ import annotations

import multiprocessing
import os

import pytest

from synth.workers import in_parallel


def _scaled(factor: int, value: int) -> int:
    return factor * value


def _niceness(base: int, _: int) -> int:
    return os.nice(0) - base


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("urgent", [None, 0, 2, 5])
def test_answers_come_in_the_order_of_their_tasks(jobs: int, urgent: int | None) -> None:
    assert list(in_parallel(jobs, _scaled, 3, range(5), urgent=urgent)) == [0, 3, 6, 9, 12]


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="all work is done here")
def test_what_is_not_urgent_gives_way_to_what_the_caller_does() -> None:
    before = os.nice(0)
    first, second, *later = in_parallel(2, _niceness, before, range(6), urgent=2)
    assert (first, second) == (0, 0)
    assert set(later) == {later[0]}
    assert later[0] > 0 or before == 19  # nobody is nicer than that
    assert os.nice(0) == before


def test_alone_nothing_gives_way() -> None:
    assert list(in_parallel(1, _niceness, os.nice(0), range(3), urgent=1)) == [0, 0, 0]
    assert list(in_parallel(2, _niceness, os.nice(0), range(3))) == [0, 0, 0]
