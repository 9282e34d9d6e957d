"""How more gets known of contenders: what is planned is carried out, by other processes where it is worth these.

What that may cost is counted in messages, so that the same request gives the same answer on any machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import closing
from copy import copy
from dataclasses import dataclass
from typing import NamedTuple

from synth.errors import NoAnswerError
from synth.lowering import Made
from synth.request import Progress
from synth.search import Ledger
from synth.trial.contender import Contender, Runs
from synth.trial.evidence import MOST_EVENTS, Evidence
from synth.trial.programs import Extent
from synth.units import format_size
from synth.workers import Crew

#: A transfer costs this much in the making of a program, a message of it 1 in each simulation.
_LOWERING_WORK = 2
#: Work from which on it is left to other processes: below, it ends within a second.
_WORTH_A_PROCESS = 10_000
#: Events of a second of a simulation, about; any that is begun may have so many, however little time is left.
_EVENTS_A_SECOND = 400_000


@dataclass(frozen=True)
class _Found:
    """What a process found of a contender: how large its program is, the drafts that were made for it (the program itself is made
    from these wherever it is needed, sooner than it is handed over), times at some sizes, which of these are estimates, whether
    simulating it was given up, and seconds by stage.
    """

    extent: Extent
    made: Sequence[Made]
    times_us: dict[int, float]
    estimated: set[tuple[Contender, int]]
    given_up: bool
    seconds: dict[str, float]


class _Task(NamedTuple):
    """A contender to be made a program, with its drafts that were `found` since workers started, and simulated at some sizes (none:
    its program alone is wanted) if there are no more events than that, or only estimated: it was `given_up` before.
    """

    contender: Contender
    sizes: list[int]
    given_up: bool
    found: Sequence[Made]
    most_events: int


@dataclass
class Running(Evidence):
    """The evidence, and the work that adds to it. What is likely to be the answer is `foreseen` while another process simulates the
    program that it made, and this one would wait.
    """

    progress: Callable[[Progress], None]
    foreseen: Callable[[Contender], object] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.work = 0
        """what was planned so far: messages of all programs that are simulated, times the sizes that they are simulated at, times
        the links that they cross (what shares links is simulated together), and transfers of those that are made"""
        self.share = 1.0
        """of the time limit, when simulations of the kind that is at hand have to be over"""
        self.late = 0
        """simulations for which there was no time"""
        self.more = False
        """whether more candidates can be had"""
        self._crew: Crew[Running, _Task, _Found | NoAnswerError] | None = None
        self._known_drafts: dict[int, int] = {}
        """by the first position of their solution, how many drafts the crew started with"""

    def close(self) -> None:
        """End the processes that simulate, if there are any: they know what was known when they were started."""
        if self._crew is not None:
            self._crew.dismiss()
            self._crew = None

    @property
    def notes(self) -> tuple[str, ...]:
        """What was cut short, in words."""
        if not self.late:
            return ()
        left = f"with {self.late} simulation{'s' * (self.late > 1)} left"
        return (f"--time-limit ended the trial {left}; another run may end at another",)

    def spend(self, runs: Runs, contender: Contender, size: int, most: float) -> int:
        """Plan to simulate the contender at the size, if it is used there and that much work is left; the work that it takes."""
        if not self.divides(self.entry(contender), contender.instances, size):
            return 0
        effort = self.effort(contender.position)
        work = effort.crossings  # equal instances are simulated for one
        if contender not in runs and not self.is_made(contender):
            work += _LOWERING_WORK * max(effort.transfers, contender.instances * effort.sends)
        if self.work + work > most or size in self._times.get(contender, {}):
            return 0
        self.work += work
        runs.setdefault(contender, []).append(size)
        return work

    def carry_out(self, runs: Runs, *, may_end: bool = False) -> None:
        """Make the planned programs and simulate them; with `may_end`, only while the time of the request allows, unless nothing
        is known so far: then the first is made for certain, and estimated if there is no time to simulate it.
        """
        crew = self._workers()
        tasks = [task for contender, sizes in runs.items() for task in self._tasks(contender, sizes)]
        likely = self._likeliest(tasks)
        must = may_end and bool(tasks) and not any(self._times.values())
        first = self._first(tasks) if must and likely is None else likely
        if first is not None:
            tasks = [first._replace(sizes=[]), *(task._replace(found=()) if task is first else task for task in tasks)]
        self.ledger.rest()
        certain = len(tasks) if not may_end else int(must)
        with closing(crew.answers(tasks, left_s=self.left_to_try_s, certain=certain, kind=_contender)) as answers:
            for number, (task, found) in enumerate(zip(tasks, answers, strict=True)):
                if found is None:
                    self.late += bool(task.sizes)
                    continue
                if task.sizes:
                    entry = self.entry(task.contender)
                    detail = f"{format_size(task.sizes[0])}: {entry.candidate.strategy}, {entry.candidate.count} chunks"
                    self.progress(Progress("simulation", f"{detail}, {entry.protocol}", number / len(tasks), None))
                self._take(task, found)
                if not task.sizes and likely is not None:
                    self._foresee(task.contender, found)
        if must and first is not None and not any(self._times.values()) and first.contender not in self.refusals:
            self._given_up.add(first.contender)
            self._times[first.contender] = {size: self.entry(first.contender).times_us[size] for size in first.sizes}
            self._estimated |= {(first.contender, size) for size in first.sizes}

    def _first(self, tasks: Sequence[_Task]) -> _Task:
        """What is made for certain: the most promising; where a runtime did not hold that, and time is up, the least work."""
        if not self.refusals or self.left_to_try_s() > 0:
            return tasks[0]
        return min(tasks, key=lambda task: self.effort(task.contender.position).transfers)

    def _likeliest(self, tasks: Sequence[_Task]) -> _Task | None:
        """Of what other processes are to make the likeliest answer, if it may be that: its program is wanted before it is simulated,
        to be foreseen meanwhile. Nothing is of a range, whose files are not known yet.
        """
        request = self.request
        if self._crew is None or self.foreseen is None or request.jobs == 1 or not request.single_size:
            return None
        hopeful = [task for task in tasks if self._is_hopeful(task)]
        return min(hopeful, key=lambda task: self.estimates(task.contender)[task.sizes[0]], default=None)

    def _is_hopeful(self, task: _Task) -> bool:
        """Whether a candidate that was not tried in any shape may be the best so far at the sizes of a task, and the answer if
        nothing comes after it, or it may be near enough to the limit.
        """
        if any(tried.position == task.contender.position for tried in self._times):
            return False
        estimates_us = self.estimates(task.contender)
        return all(
            estimates_us.get(size, math.inf) < min(self.timed(size).values(), default=math.inf)
            and (not self.more or self._goal.may_be_close(size, estimates_us[size]))
            for size in task.sizes
        )

    def _foresee(self, contender: Contender, found: _Found | NoAnswerError) -> None:
        """Have a program that another process made here, too, and foreseen, if that is likely to be over when the time of the
        request is: it takes about as long as making it.
        """
        if isinstance(found, NoAnswerError) or self.foreseen is None:
            return
        if self._left_s() > sum(found.seconds.values()):
            self.foreseen(contender)
        self.ledger.rest()

    def _workers(self) -> Crew[Running, _Task, _Found | NoAnswerError]:
        """Who makes programs and simulates them, with what is known now or was when they were started."""
        if self.work <= _WORTH_A_PROCESS:
            return Crew(0, _simulated, self)
        if self._crew is None:
            self._crew = Crew(self.request.jobs, _simulated, self)
            self._known_drafts = {first: len(drafts.made) for first, drafts in self._drafts.items()}
        return self._crew

    def _tasks(self, contender: Contender, sizes: list[int]) -> list[_Task]:
        """What is to be done: all at once where the program has to be made first."""
        given_up = contender in self._given_up or self.left_to_try_s() <= 0
        events = min(MOST_EVENTS, int(max(1.0, self._left_s()) * _EVENTS_A_SECOND))
        if self.is_made(contender):
            return [_Task(contender, [size], given_up, (), events) for size in reversed(sizes)]
        known = self._known_drafts.get(self._first_of(contender), 0)
        return [_Task(contender, sizes, given_up, self._drafts_of(contender).made[known:], events)]

    def _take(self, task: _Task, found: _Found | NoAnswerError) -> None:
        """Note what was found of a contender, and whether it was given up for want of time."""
        contender = task.contender
        if isinstance(found, NoAnswerError):
            self.refusals[contender] = found
            return
        if contender not in self.contenders:
            self.contenders.append(contender)
        self._extents[contender] = found.extent
        self._drafts_of(contender).add(found.made)
        if found.times_us:
            self._times.setdefault(contender, {}).update(found.times_us)
            self._estimated |= found.estimated
        if found.given_up:
            self._given_up.add(contender)
            self.late += not task.given_up and task.most_events < MOST_EVENTS
        self.ledger.add(found.seconds)

    def left_to_try_s(self) -> float:
        """Seconds that are left for simulations of the kind that is at hand."""
        return self.request.time_limit_s * self.share - self.ledger.elapsed_s()

    def _left_s(self) -> float:
        """Seconds of the request that are left."""
        return self.request.time_limit_s - self.ledger.elapsed_s()


def _contender(task: _Task) -> Contender:
    return task.contender


def _simulated(running: Running, task: _Task) -> _Found | NoAnswerError:
    """A contender's program and its times at some sizes: in whichever process."""
    contender = task.contender
    here = copy(running)
    here.ledger = Ledger()
    here._given_up, here._estimated = {contender} if task.given_up else set(), set()
    here.most_events = task.most_events
    drafts = here._drafts_of(contender)
    drafts.add(task.found)
    before = len(drafts.made)
    try:
        extent = here.extent(contender)
        times = {size: here.time_us(contender, size) for size in task.sizes}
    except NoAnswerError as refusal:
        return refusal
    here.ledger.enter("done")
    return _Found(extent, drafts.made[before:], times, here._estimated, bool(here._given_up), here.ledger.seconds)
