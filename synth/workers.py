"""Work spread over processes: the same answer as in one, sooner. Tasks are pure functions of the state that workers start with.

Workers are forks, so that the state (a machine, its paths, a request) is shared and not sent; where a system cannot fork, all work
is done here. Results come in the order of the tasks.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Generator, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from threading import Condition, Thread
from typing import Any, Generic, TypeVar, cast

State = TypeVar("State")
Task = TypeVar("Task")
Answer = TypeVar("Answer")

#: How far tasks that nobody waits for give way: to a quarter of a core that another process wants as well.
_NICENESS = 5

_CAN_FORK = "fork" in multiprocessing.get_all_start_methods()


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
    crew = Crew(min(processes, len(tasks)), function, state)
    try:
        yield from crew.answers(tasks, left_s=left_s, certain=certain, urgent=urgent, meanwhile=meanwhile)
    finally:
        crew.dismiss()


class Crew(Generic[State, Task, Answer]):
    """Up to so many `processes` that do tasks for one caller time and again; with 0, this one does them.

    They start with the state of the first call, and keep what they change in it: so a task finds what one of its kind has made.
    """

    def __init__(self, processes: int, function: Callable[[State, Task], Answer], state: State) -> None:
        self._processes = processes if _CAN_FORK else 0
        self._function, self._state = function, state
        self._workers: list[_Worker] = []

    def answers(
        self,
        tasks: Sequence[Task],
        *,
        left_s: Callable[[], float],
        certain: int = 0,
        urgent: int | None = None,
        meanwhile: Callable[[], object] | None = None,
        kind: Callable[[Task], Hashable] | None = None,
    ) -> Generator[Answer | None, None, None]:
        """As `in_time`. Of tasks that have a `kind` a worker takes first what is of a kind that it or no other has done."""
        if self._processes < 1 or not tasks:
            for number, task in enumerate(tasks):
                yield self._function(self._state, task) if number < certain or left_s() > 0 else None
            return
        while len(self._workers) < self._processes:
            self._workers.append(_Worker(self._function, self._state))
        round_ = _Round(tasks, [None if kind is None else kind(task) for task in tasks], self._workers, urgent)
        threads = [Thread(target=round_.attend, args=(worker,), daemon=True) for worker in self._workers]
        for thread in threads:
            thread.start()
        try:
            if meanwhile is not None:
                meanwhile()
            for number in range(len(tasks)):
                yield round_.answer(number, math.inf if number < certain else max(0.0, left_s()))
        finally:
            lost = round_.give_up()
            for worker in lost:
                worker.stop()
            for thread in threads:
                thread.join()
            for worker in lost:
                worker.end()
                self._workers.remove(worker)

    def dismiss(self) -> None:
        """End the processes: the next call starts others, with the state as it is then."""
        for worker in self._workers:
            worker.end()
        self._workers = []


class _Worker:
    """One process, and the kinds of tasks that it has done."""

    def __init__(self, function: Callable[[Any, Any], Any], state: Any) -> None:
        context = multiprocessing.get_context("fork")
        self._pipe, there = context.Pipe()
        self._process = context.Process(target=_serve, args=(there, function, state), daemon=True)
        self._process.start()
        there.close()  # now its end is the end of the pipe
        self.kinds: set[Hashable] = {None}

    def do(self, task: Any, gives_way: bool) -> _Outcome:
        """The task done there, behind what others want to do if it `gives_way`."""
        try:
            self._pipe.send((task, gives_way))
            return cast(_Outcome, self._pipe.recv())
        except (EOFError, OSError):
            self._process.join()
            code = self._process.exitcode
            return _Outcome(error=RuntimeError(f"a process ended with exit code {code} amid its work: out of memory?"))
        except Exception as error:  # what cannot be sent
            return _Outcome(error=error)

    def stop(self) -> None:
        """Stop what the process does: for sure, whatever it makes of signals that can be handled."""
        self._process.kill()

    def end(self) -> None:
        """End the process, whatever it does."""
        self.stop()
        self._process.join()
        self._pipe.close()


@dataclass(frozen=True)
class _Outcome:
    """What a task came to: an answer, or what it raised."""

    answer: Any = None
    error: Exception | None = None


@dataclass
class _Round:
    """The tasks of one call, taken by workers (each from a thread of its own) and waited for by the caller."""

    tasks: Sequence[Any]
    kinds: Sequence[Hashable]
    """by task; None: of a kind that all have done"""
    workers: Sequence[_Worker]
    urgent: int | None
    outcomes: dict[int, _Outcome] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._left = dict.fromkeys(range(len(self.tasks)))
        self._busy: dict[int, _Worker] = {}
        """by the number of the task"""
        self._changed = Condition()

    def attend(self, worker: _Worker) -> None:
        """Give the worker one task after the other, until none is left."""
        while (number := self._take(worker)) is not None:
            outcome = worker.do(self.tasks[number], self.urgent is not None and number >= self.urgent)
            with self._changed:
                del self._busy[number]
                self.outcomes[number] = outcome
                self._changed.notify_all()

    def _take(self, worker: _Worker) -> int | None:
        """The next task for the worker, waited for if others have done its kind and are at no other; None where none is left."""
        with self._changed:
            self._changed.wait_for(lambda: not self._left or self._next(worker) is not None)
            number = self._next(worker)
            if number is not None:
                del self._left[number]
                self._busy[number] = worker
                worker.kinds.add(self.kinds[number])
                self._changed.notify_all()
            return number

    def _next(self, worker: _Worker) -> int | None:
        """Of the tasks that are left the first of a kind that the worker has done, or else of one that nobody has done who is free
        for it.
        """
        at = {id(busy): self.kinds[number] for number, busy in self._busy.items()}
        free = {kind for other in self.workers for kind in other.kinds if at.get(id(other), kind) == kind}
        own = (number for number in self._left if self.kinds[number] in worker.kinds)
        new = (number for number in self._left if self.kinds[number] not in free)
        return next(own, next(new, None))

    def answer(self, number: int, seconds: float) -> Any:
        """The task's answer, or what it raised; None where it takes more than so many seconds from now."""
        with self._changed:
            self._changed.wait_for(lambda: number in self.outcomes, None if seconds == math.inf else seconds)
            outcome = self.outcomes.pop(number, _Outcome())
        if outcome.error is not None:
            raise outcome.error
        return outcome.answer

    def give_up(self) -> list[_Worker]:
        """Begin no more tasks; those who are at one now."""
        with self._changed:
            self._left.clear()
            self._changed.notify_all()
            return list(self._busy.values())


def _serve(pipe: Connection, function: Callable[[Any, Any], Any], state: Any) -> None:
    """In a worker: do what comes. It ends when it is told to, or nobody is left to tell it, and leaves Ctrl-C to who started it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    gave_way = False
    with suppress(EOFError, BrokenPipeError):
        while True:
            task, gives_way = pipe.recv()
            if gives_way and not gave_way:
                os.nice(_NICENESS)  # for good: tasks come in their order, and all later ones give way, too
                gave_way = True
            try:
                pipe.send(_Outcome(function(state, task)))
            except Exception as error:
                error.add_note("".join(traceback.format_exception(error)))
                pipe.send(_Outcome(error=error))
