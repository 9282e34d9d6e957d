"""Work spread over processes: the same answer as in one, sooner. Tasks are pure functions of the state that workers start with.

Workers are forks, so that the state (a machine, its paths, a request) is shared and not sent; where a system cannot fork, all work
is done here. Results come in the order of the tasks.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar, cast

State = TypeVar("State")
Task = TypeVar("Task")
Answer = TypeVar("Answer")

#: How far tasks that nobody waits for give way: to a quarter of a core that another process wants as well.
_NICENESS = 5

_CAN_FORK = "fork" in multiprocessing.get_all_start_methods()

_gives_way = False
_begun_with: tuple[Callable[[Any, Any], Any], Any] | None = None


def available_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_parallel(
    jobs: int,
    function: Callable[[State, Task], Answer],
    state: State,
    tasks: Sequence[Task],
) -> Generator[Answer, None, None]:
    """`function(state, task)` for every task, in order, on up to `jobs` processes.

    Closing the generator early ends the workers. What a task raises is raised here, at its place. Answers have to be picklable.
    """
    processes = jobs if min(jobs, len(tasks)) > 1 else 0
    answers = in_time(processes, function, state, tasks, left_s=lambda: math.inf, certain=len(tasks))
    return cast(Generator[Answer, None, None], answers)  # all are certain to come


def in_time(
    processes: int,
    function: Callable[[State, Task], Answer],
    state: State,
    tasks: Sequence[Task],
    *,
    left_s: Callable[[], float],
    certain: int = 0,
    urgent: int | None = None,
    meanwhile: Callable[[], object] | None = None,
) -> Generator[Answer | None, None, None]:
    """As `in_parallel`, but an answer that is not there when no seconds are left is None; of the tasks so many are `certain` to be
    waited for.

    In other processes a task that has begun is given up, too; with 0 `processes` all is done here, where it ends.

    Of the tasks so many are `urgent` (None: all). The others are done while the caller has not asked for their answers yet, too, and
    leave cores to what the caller does then. Where others work this process would wait: it does `meanwhile` first.
    """
    if processes < 1 or not tasks or not _CAN_FORK:
        for number, task in enumerate(tasks):
            yield function(state, task) if number < certain or left_s() > 0 else None
        return
    urgent = len(tasks) if urgent is None else urgent
    with multiprocessing.get_context("fork").Pool(min(processes, len(tasks)), _begin, (function, state)) as pool:
        answers = [pool.apply_async(_do, ((task, number >= urgent),)) for number, task in enumerate(tasks)]
        if meanwhile is not None:
            meanwhile()
        for number, answer in enumerate(answers):
            if number >= certain:
                answer.wait(max(0.0, left_s()))
            yield answer.get() if number < certain or answer.ready() else None


def _begin(function: Callable[[Any, Any], Any], state: Any) -> None:
    """In a worker: it ends with the pool, and leaves Ctrl-C to the process that started it."""
    global _begun_with
    _begun_with = (function, state)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _do(planned: tuple[Any, bool]) -> Any:
    global _gives_way
    assert _begun_with is not None
    task, gives_way = planned
    if gives_way and not _gives_way:
        os.nice(_NICENESS)  # for good: tasks come in their order, and all later ones give way, too
        _gives_way = True
    function, state = _begun_with
    return function(state, task)
