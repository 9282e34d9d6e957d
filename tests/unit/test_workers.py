"""Work spread over processes: the same answers in the same order, urgent or not; what is not urgent gives way, and what is late is
given up.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path

import pytest

from synth.workers import in_parallel, in_time


def _scaled(factor: int, value: int) -> int:
    return factor * value


def _niceness(base: int, _: int) -> int:
    return os.nice(0) - base


def _slept(_: None, seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def _waited(path: Path, _: int) -> bool:
    for _ in range(6000):
        if path.exists():
            return True
        time.sleep(0.01)
    return False


def _never() -> float:
    return -1.0


_forking = pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="all work is done here")


@pytest.mark.parametrize("jobs", [1, 2])
def test_answers_come_in_the_order_of_their_tasks(jobs: int) -> None:
    assert list(in_parallel(jobs, _scaled, 3, range(5))) == [0, 3, 6, 9, 12]


@pytest.mark.parametrize("processes", [0, 1, 2, 9])
@pytest.mark.parametrize("urgent", [None, 0, 2, 5])
def test_with_time_left_all_answers_come(processes: int, urgent: int | None) -> None:
    answers = in_time(processes, _scaled, 3, range(5), left_s=lambda: 60.0, urgent=urgent)
    assert list(answers) == [0, 3, 6, 9, 12]


@pytest.mark.parametrize("processes", [0, 1, 2])
def test_what_is_certain_is_waited_for_when_time_is_up(processes: int) -> None:
    answers = list(in_time(processes, _slept, None, [0.01, 0.01, 60.0, 60.0], left_s=_never, certain=2))
    assert answers == [0.01, 0.01, None, None]


@_forking
def test_a_task_that_has_begun_is_given_up() -> None:
    """This test ends only if it is: the task would take an hour."""
    assert list(in_time(2, _slept, None, [0.0, 3600.0, 0.0], left_s=lambda: 0.3, certain=1)) == [0.0, None, 0.0]


def test_nothing_to_do_starts_no_process() -> None:
    assert list(in_time(2, _scaled, 3, [], left_s=_never)) == []


@_forking
def test_what_is_not_urgent_gives_way_to_what_the_caller_does() -> None:
    before = os.nice(0)
    first, second, *later = in_time(2, _niceness, before, range(6), left_s=lambda: 60.0, urgent=2)
    assert (first, second) == (0, 0)
    assert set(later) == {later[0]}
    assert later[0] is not None
    assert later[0] > 0 or before == 19  # nobody is nicer than that
    assert os.nice(0) == before


def test_alone_nothing_gives_way() -> None:
    assert list(in_time(0, _niceness, os.nice(0), range(3), left_s=lambda: 60.0, urgent=1)) == [0, 0, 0]
    assert list(in_parallel(2, _niceness, os.nice(0), range(3))) == [0, 0, 0]


@_forking
def test_who_waits_does_something_meanwhile(tmp_path: Path) -> None:
    """The task ends only once that is done."""
    done = tmp_path / "done"
    answers = in_time(1, _waited, done, [0], left_s=lambda: 60.0, certain=1, meanwhile=done.touch)
    assert list(answers) == [True]


def test_alone_nothing_is_done_meanwhile() -> None:
    answers = in_time(0, _scaled, 3, range(2), left_s=lambda: 60.0, meanwhile=lambda: pytest.fail("who waits?"))
    assert list(answers) == [0, 3]
