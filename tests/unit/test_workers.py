"""Work spread over processes: the same answers in the same order, urgent or not; what is not urgent gives way, and what is late is
given up.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import time
from pathlib import Path

import pytest

from synth.workers import Crew, in_parallel, in_time


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


def _noted(notes: dict[str, list[int]], task: tuple[str, int]) -> tuple[int, list[int]]:
    """Who does the task, and what it has noted of the kind so far."""
    kind, value = task
    notes.setdefault(kind, []).append(value)
    return os.getpid(), notes[kind]


def _kind(task: tuple[str, int]) -> str:
    return task[0]


def _forever() -> float:
    return 60.0


def test_alone_a_crew_keeps_its_state_and_shares_it_with_the_caller() -> None:
    notes: dict[str, list[int]] = {}
    crew = Crew(0, _noted, notes)
    assert [answer[1] for answer in crew.answers([("a", 1)], left_s=_forever) if answer] == [[1]]
    assert [answer[1] for answer in crew.answers([("a", 2)], left_s=_forever) if answer] == [[1, 2]]
    assert notes == {"a": [1, 2]}


@_forking
def test_a_task_finds_what_one_of_its_kind_has_made_until_the_crew_is_dismissed() -> None:
    notes = {"a": [0]}
    crew = Crew(2, _noted, notes)
    # One round after the other, so that nobody is busy when the next begins.
    rounds = [next(iter(crew.answers([("a", value)], left_s=_forever, kind=_kind))) for value in (1, 2, 3)]
    assert [answer[1] for answer in rounds if answer] == [[0, 1], [0, 1, 2], [0, 1, 2, 3]]
    assert len({answer[0] for answer in rounds if answer}) == 1
    assert notes == {"a": [0]}
    crew.dismiss()
    notes["a"] = [7]
    answers = [*crew.answers([("a", 8)], left_s=_forever, kind=_kind)]
    crew.dismiss()
    assert [answer[1] for answer in answers if answer] == [[7, 8]]


@_forking
def test_kinds_are_shared_out_and_done_in_the_order_of_their_tasks_each() -> None:
    crew = Crew(2, _noted, {})
    tasks = [(kind, value) for value in range(20) for kind in "abcd"]
    answers = [answer for answer in crew.answers(tasks, left_s=_forever, kind=_kind) if answer]
    crew.dismiss()
    assert len(answers) == len(tasks)
    done: dict[tuple[int, str], list[int]] = {}
    for (kind, value), (worker, noted) in zip(tasks, answers, strict=True):
        done.setdefault((worker, kind), []).append(value)
        assert noted == done[worker, kind]


@_forking
def test_after_a_task_was_given_up_others_go_on() -> None:
    crew = Crew(2, _slept, None)
    assert list(crew.answers([0.0, 3600.0], left_s=lambda: 0.3, certain=1)) == [0.0, None]
    assert list(crew.answers([0.0, 0.01, 0.02], left_s=_forever)) == [0.0, 0.01, 0.02]
    crew.dismiss()


def _failed(_: None, task: int) -> int:
    if task < 0:
        os._exit(-task)
    if task == 0:
        raise ValueError("nothing")
    return task


@_forking
def test_what_a_task_raises_is_raised_at_its_place() -> None:
    answers = in_parallel(2, _failed, None, [1, 0, 2])
    assert next(answers) == 1
    with pytest.raises(ValueError, match="nothing") as raised:
        next(answers)
    assert "_failed" in "".join(raised.value.__notes__)


@_forking
def test_a_process_that_dies_is_told_of_and_not_waited_for() -> None:
    with pytest.raises(RuntimeError, match="exit code 3"):
        list(in_parallel(2, _failed, None, [1, -3, 2]))


@_forking
@pytest.mark.parametrize("tasks", [[1, lambda: 2], [1, "no"]])
def test_what_cannot_be_sent_is_told_of_and_not_waited_for(tasks: list[object]) -> None:
    """A task or an answer."""
    answers = in_parallel(2, _sent, None, tasks)
    assert next(answers) == 1
    with pytest.raises((AttributeError, pickle.PicklingError, RuntimeError)):
        next(answers)


def _sent(_: None, task: object) -> object:
    return task if task != "no" else lambda: task
