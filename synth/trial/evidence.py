"""What is known of contenders: their programs, why there is none, and what these take at some sizes; and how more gets known.

What that may cost is counted in simulated steps, so that the same request gives the same answer on any machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import closing
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from msccl_xml.model import Algo
from synth.baselines import BASELINES, RIVALS
from synth.candidates.candidate import LARGE_VIEW
from synth.chunks import divides
from synth.collective import Collective, CollectiveName
from synth.errors import EffortError, NoAnswerError
from synth.goal import Goal
from synth.lowering import (
    Drafts,
    LoweringOptions,
    Made,
    channels_foreseen,
    lowered_collective,
    may_part,
    threadblocks_needed,
)
from synth.plan import Plan
from synth.request import Progress, Request
from synth.search import Ledger, Scored
from synth.simulate import Simulator, by_pair
from synth.simulate.routes import Paths
from synth.timing import busiest_link_us
from synth.trial.contender import Contender, Runs
from synth.units import format_size
from synth.workers import Crew

#: Steps, over all ranks, of a program that is simulated at all.
_MOST_STEPS = 130_000
#: How often flows may get new rates in a simulation, those of one path together (a quarter of a minute): where thousands share
#: links, each that ends is news for all of them.
_MOST_TOUCHED = 6_000_000
#: Messages count as work once for every so many GPUs: the more there are, the more share links.
_USUAL_RANKS = 8
#: A transfer costs this much in the making of a program, a message of it 1 in each simulation.
_LOWERING_WORK = 2
#: A program that is more work is simulated where candidates are compared and at the ends of what it serves, not at every size.
_EVERY_SIZE_WORK = 20_000
#: Work from which on it is left to other processes: below, it ends within a second.
_WORTH_A_PROCESS = 10_000
#: A schedule that takes no longer than its busiest link is busy, times this, is held up by its routes alone.
_KEPT_BUSY = 1.005
#: Boxes of more GPUs have that many threadblocks for messages in the box already; with more, simulations take several times as long.
_FEW_PEERS = 8
#: Of buffers up to this messages are so short in rounds that threadblocks wait for each other more than for links.
_SHORT_IN_ROUNDS_BYTES = 16 << 20
#: The same for pieces of all ranks' shares, whose messages at either end are the shortest; over equal boxes if a share has so few.
_SHORT_IN_PIECES_BYTES = 512 << 20
_FEW_PIECES = 48
#: Collectives whose result replaces what they are given, unless asked otherwise.
_IN_PLACE_BY_DEFAULT = frozenset({CollectiveName.ALLREDUCE, CollectiveName.REDUCE, CollectiveName.BROADCAST})
#: What a simulation says of an estimate holds for sizes so many doublings away; farther, it does not make it better.
_NEAR_SIZE = 2


class Extent(NamedTuple):
    """How large a program is: threadblocks of the busiest rank, and steps of all."""

    threadblocks: int
    steps: int


@dataclass(frozen=True)
class _Found:
    """What a process found of a contender: how large its program is, the drafts that were made for it (the program itself is made
    from these wherever it is needed, sooner than it is handed over), times at some sizes, whether these are estimates since
    simulating it was given up, and seconds by stage.
    """

    extent: Extent
    made: Sequence[Made]
    times_us: dict[int, float]
    given_up: bool
    seconds: dict[str, float]


class _Task(NamedTuple):
    """A contender to be made a program, with its drafts that were `found` since workers started, and simulated at some sizes (none:
    its program alone is wanted), or only estimated: it was `given_up` before.
    """

    contender: Contender
    sizes: list[int]
    given_up: bool
    found: Sequence[Made]


class Effort(NamedTuple):
    """A candidate as work: links that its messages cross, for a simulation; messages and chunks of them, for a program."""

    crossings: int
    sends: int
    transfers: int


@dataclass
class Evidence:
    """What is known of the candidates of one plan: `refusals` holds why contenders were dropped. What is likely to be the answer is
    `foreseen` while another process simulates the program that it made, and this one would wait.
    """

    plan: Plan
    ledger: Ledger
    progress: Callable[[Progress], None]
    refusals: dict[Contender, NoAnswerError] = field(default_factory=dict)
    foreseen: Callable[[Contender], object] | None = None

    def __post_init__(self) -> None:
        self.scored: Sequence[Scored] = ()
        self.best_us: dict[int, float] = {}
        """the best schedule at each size"""
        self.contenders: list[Contender] = []
        self.work = 0
        """what was planned so far: messages of all programs that are simulated, times the sizes that they are simulated at, times
        the links that they cross (what shares links is simulated together), and transfers of those that are made"""
        self.share = 1.0
        """of the time limit, when simulations of the kind that is at hand have to be over"""
        self.late = 0
        """simulations for which there was no time"""
        self.more = False
        """whether more candidates can be had"""
        self._algos: dict[Contender, Algo] = {}
        self._extents: dict[Contender, Extent] = {}
        self._drafts: dict[int, Drafts] = {}
        """by the first position of their solution"""
        self._times: dict[Contender, dict[int, float]] = {}
        self._simulators: dict[Contender, Simulator] = {}
        self._given_up: set[Contender] = set()
        self._efforts: dict[int, Effort] = {}
        self._crew: Crew[Evidence, _Task, _Found | NoAnswerError] | None = None
        self._known_drafts: dict[int, int] = {}
        """by the first position of their solution, how many drafts the crew started with"""

    def close(self) -> None:
        """End the processes that simulate, if there are any: they know what was known when they were started."""
        if self._crew is not None:
            self._crew.dismiss()
            self._crew = None

    @property
    def request(self) -> Request:
        """What is asked for."""
        return self.plan.request

    @property
    def notes(self) -> tuple[str, ...]:
        """What was cut short, in words."""
        if not self.late:
            return ()
        left = f"with {self.late} simulation{'s' * (self.late > 1)} left"
        return (f"--time-limit ended the trial {left}; another run may end at another",)

    @property
    def sizes(self) -> Sequence[int]:
        """The sizes that the answer has to serve, ascending."""
        return self.plan.sizes

    @property
    def in_any_shape(self) -> bool:
        """Whether candidates are compared by time, in as many instances as are best: then rings and trees are tried apart from other
        candidates, in all their shapes, since nobody should be worse off than with what a library runs.
        """
        return self.request.by_time and self.request.instances is None

    def entry(self, contender: Contender) -> Scored:
        """The candidate that a contender is a shape of."""
        return self.scored[contender.position]

    def is_known(self, contender: Contender) -> bool:
        """Whether it is one of others' algorithms."""
        return self.entry(contender).candidate.strategy in BASELINES

    def is_rival(self, contender: Contender) -> bool:
        """Whether it is what a library would run by itself."""
        return self.entry(contender).candidate.strategy in RIVALS

    def algo(self, contender: Contender) -> Algo:
        """The contender's program, made once. Raises NoAnswerError where no runtime could hold it."""
        if contender in self.refusals:
            raise self.refusals[contender]
        if contender not in self._algos:
            self.ledger.enter("lowering")
            try:
                solution, drafts = self.entry(contender).solution, self._drafts_of(contender)
                algo = self._algos[contender] = solution.program(self._options(contender), drafts)
            except NoAnswerError as refusal:
                self.refusals[contender] = refusal
                raise
            steps = sum(len(tb.steps) for gpu in algo.gpus for tb in gpu.threadblocks)
            self._extents[contender] = Extent(algo.threadblocks, steps)
        return self._algos[contender]

    def extent(self, contender: Contender) -> Extent:
        """How large the contender's program is. Raises NoAnswerError as `algo`."""
        if contender not in self._extents:
            self.algo(contender)
        return self._extents[contender]

    def _drafts_of(self, contender: Contender) -> Drafts:
        """Those of the contender's solution, whatever protocol it is under."""
        return self._drafts.setdefault(self._first_of(contender), Drafts())

    def _first_of(self, contender: Contender) -> int:
        """The first position of the contender's solution."""
        solution = self.entry(contender).solution
        return next(position for position, entry in enumerate(self.scored) if entry.solution is solution)

    def computed(self, contender: Contender) -> Collective:
        """The collective that the contender's program carries out."""
        return lowered_collective(self.entry(contender).solution.collective, self._options(contender))

    def time_us(self, contender: Contender, size: int) -> float:
        """What the contender takes at a size: simulated, or its own estimate where its program is too large for that."""
        known = self._times.setdefault(contender, {})
        if size not in known:
            algo = self.algo(contender)
            self.ledger.enter("simulation")
            try:
                if self.is_simulated(contender):
                    known[size] = self._simulator(contender, algo).time_us(size)
            except EffortError:
                self._given_up.add(contender)
            if size not in known:
                known[size] = self.entry(contender).times_us[size]
        return known[size]

    def _simulator(self, contender: Contender, algo: Algo) -> Simulator:
        if contender not in self._simulators:
            topology = self.request.topology
            self._simulators[contender] = Simulator(algo, topology, paths=self._paths, most_touched=_MOST_TOUCHED)
        return self._simulators[contender]

    def taken_us(self, contender: Contender, size: int) -> float:
        """`time_us` where that is known; else on the line between the nearest sizes where it is, and beyond these as much longer
        or shorter as is estimated.
        """
        known = self.simulated_us(contender)
        if min(known) <= size <= max(known):
            return float(np.interp(size, list(known), list(known.values())))
        return self.expected_us(contender, size)

    def expected_us(self, contender: Contender, size: int) -> float:
        """`time_us` where that is known; else the estimate, and as much more or less as at the nearest size where it is."""
        known, estimates = self._times[contender], self.estimates(contender)
        near = min(known, key=lambda other: (_apart(other, size), other))
        if near == size:
            return known[size]
        scale = known[near] / estimates[near]
        return estimates[size] * (scale if _apart(near, size) <= _NEAR_SIZE else max(scale, 1.0))

    def simulated_us(self, contender: Contender) -> dict[int, float]:
        """The times of a contender that are known, by size."""
        return dict(sorted(self._times.get(contender, {}).items()))

    def timed(self, size: int) -> dict[Contender, float]:
        """What was simulated at a size, the fastest first."""
        timed = {contender: times[size] for contender, times in self._times.items() if size in times}
        return dict(sorted(timed.items(), key=lambda item: (item[1], item[0].position)))

    def is_thinned(self, contender: Contender) -> bool:
        """Whether a chosen contender's times were simulated at some of its sizes only."""
        return self.effort(contender.position).crossings > _EVERY_SIZE_WORK

    def is_made(self, contender: Contender) -> bool:
        """Whether the contender has a program, which took some size's time."""
        return bool(self._times.get(contender))

    def is_simulated(self, contender: Contender) -> bool:
        """Whether the contender's program is small enough to be simulated: one box's share of it where all do the same."""
        return contender not in self._given_up and self.may_be_simulated(
            contender.position, self.extent(contender).steps
        )

    def may_be_simulated(self, position: int, steps: int) -> bool:
        """Whether a program of the candidate with so many steps is small enough."""
        return steps <= _MOST_STEPS * self.alike(position)

    def estimates(self, contender: Contender) -> dict[int, float]:
        """What is expected of a contender before it is simulated, by size: of most shapes the same as of the plain one."""
        entry = self.entry(contender)
        times_us = entry.times_us | entry.wide_us if contender.instances == entry.copies else entry.times_us
        if contender.up_to_bytes is None:
            return times_us
        return {size: us for size, us in times_us.items() if size <= contender.up_to_bytes}

    def divides(self, entry: Scored, instances: int, size: int) -> bool:
        """Whether runtimes would use a candidate in so many instances at a size: their chunks divide it."""
        if instances == (self.request.instances or 1):
            return True
        collective = entry.solution.collective
        return not self.request.has_cut and divides(
            collective.name, collective.num_ranks, entry.candidate.count * instances, size
        )

    @cached_property
    def _goal(self) -> Goal:
        return Goal(self.plan)

    @cached_property
    def _paths(self) -> Paths:
        return by_pair(self.plan.paths)

    def is_closed(self, size: int) -> bool:
        """Whether something that was simulated at a size meets the goal."""
        return any(
            size in times
            and self._goal.is_met(size, times[size], self.entry(contender).schedules_us[size], self.best_us[size])
            for contender, times in self._times.items()
        )

    def is_at_limit(self, size: int) -> bool:
        """Whether the best schedule of a size is at its limit."""
        return self._goal.is_at_limit(size, self.best_us[size])

    def as_scheduled_us(self, size: int) -> float:
        """The longest schedule of a size that may be taken for the best, where schedules of large buffers decide."""
        return self._goal.as_scheduled_us(size, self.best_us[size])

    def is_reached(self, size: int) -> bool:
        """Whether what was simulated leaves nothing to gain."""
        return any(
            size in times
            and self._goal.is_reached(size, times[size], self.entry(contender).schedules_us[size], self.best_us[size])
            for contender, times in self._times.items()
        )

    def is_scheduled(self, size: int) -> bool:
        """Where schedules decide, whether no finer cut is worth a wave: the best is near to the limit, or its busiest link alone
        holds it up and finer cuts, whose routes are a little better, take long. What is known to be more than a runtime holds is no
        answer.
        """
        copies = self.request.instances or 1
        held = [
            entry
            for position, entry in enumerate(self.scored)
            if size in entry.schedules_us and Contender(position, 0, copies) not in self.refusals
        ]
        if not held:
            return False
        best = min(held, key=lambda entry: entry.schedules_us[size])
        if self._goal.is_scheduled(size, best.schedules_us[size]):
            return True
        solution = best.solution
        busiest_us = busiest_link_us(solution.instance, solution.schedule.transfers())
        held_up = solution.schedule.makespan_us <= busiest_us * _KEPT_BUSY
        return held_up and not self.plan.is_soon_finest

    def is_near_both_ways(self, size: int) -> bool:
        """Whether something that was simulated at a size is as near to the limit as `is_near` says, and so is its schedule."""
        return any(
            self._goal.is_near(size, times.get(size, math.inf))
            and self._goal.is_scheduled(size, self.entry(contender).schedules_us.get(size, math.inf))
            for contender, times in self._times.items()
        )

    def is_close(self, size: int) -> bool:
        """Whether what was simulated at a size is as near to the limit as ends the search if schedules do not matter."""
        return any(self._goal.is_close(size, times.get(size, math.inf)) for times in self._times.values())

    def is_near(self, size: int) -> bool:
        """Whether what was simulated at a size is as near to the limit as is worth several times the work."""
        return any(self._goal.is_near(size, times.get(size, math.inf)) for times in self._times.values())

    def is_nearly_near(self, size: int) -> bool:
        """Whether another shape of something that was simulated at a size may end the search."""
        return any(self._goal.may_get_near(size, times.get(size, math.inf)) for times in self._times.values())

    def may_close(self, size: int) -> bool:
        """Whether a candidate may come so near to the limit that the search ends."""
        return any(self.may_be_near(entry, size) for entry in self.scored)

    def may_be_near(self, entry: Scored, size: int) -> bool:
        """Whether the estimate allows that a candidate is near the limit; in rounds it says so, too, where it does not."""
        estimate_us = entry.times_us.get(size, math.inf)
        return self._goal.may_be_met(size, estimate_us, said=entry.candidate.in_rounds)

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
        first = tasks[0] if must and likely is None else likely
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
                self._take(task.contender, found)
                if not task.sizes and likely is not None:
                    self._foresee(task.contender, found)
        if must and first is not None and not any(self._times.values()) and first.contender not in self.refusals:
            self._given_up.add(first.contender)
            self._times[first.contender] = {size: self.entry(first.contender).times_us[size] for size in first.sizes}

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

    def _workers(self) -> Crew[Evidence, _Task, _Found | NoAnswerError]:
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
        if self.is_made(contender):
            return [_Task(contender, [size], given_up, ()) for size in reversed(sizes)]
        known = self._known_drafts.get(self._first_of(contender), 0)
        return [_Task(contender, sizes, given_up, self._drafts_of(contender).made[known:])]

    def _take(self, contender: Contender, found: _Found | NoAnswerError) -> None:
        """Note what was found of a contender."""
        if isinstance(found, NoAnswerError):
            self.refusals[contender] = found
            return
        if contender not in self.contenders:
            self.contenders.append(contender)
        self._extents[contender] = found.extent
        self._drafts_of(contender).add(found.made)
        if found.times_us:
            self._times.setdefault(contender, {}).update(found.times_us)
        if found.given_up:
            self._given_up.add(contender)
        self.ledger.add(found.seconds)

    def left_to_try_s(self) -> float:
        """Seconds that are left for simulations of the kind that is at hand."""
        return self.request.time_limit_s * self.share - self.ledger.elapsed_s()

    def _left_s(self) -> float:
        """Seconds of the request that are left."""
        return self.request.time_limit_s - self.ledger.elapsed_s()

    def is_same(self, contender: Contender, other: Contender) -> bool:
        """Whether two shapes of one candidate have the same channels, and so one program: paths have no more than chunks."""
        solution = self.entry(contender).solution
        if solution.written is not None or contender.instances != other.instances:
            return contender.instances == other.instances  # what is written down has channels of its own
        here, there = (
            channels_foreseen(solution.instance, solution.lowered, self._options(each)) for each in (contender, other)
        )
        return here == there

    def effort(self, position: int) -> Effort:
        """What a candidate is as work."""
        if position not in self._efforts:
            solution = self.scored[position].solution
            sends, paths = solution.schedule.sends, solution.instance.paths
            crossings = sum(len(paths[send.path].links) for send in sends)
            if (alike := self.alike(position)) > 1:
                crossings //= alike
            else:
                crossings *= max(1, self.request.topology.num_ranks // _USUAL_RANKS)
            self._efforts[position] = Effort(crossings, len(sends), sum(len(send.chunks) for send in sends))
        return self._efforts[position]

    def alike(self, position: int) -> int:
        """How many boxes a candidate was made for one of: what all of them do is simulated for one."""
        folded = self.scored[position].solution.folded
        return 1 if folded is None else folded.boxes.count

    def has_parted(self, contender: Contender) -> bool:
        """Whether receives and sends of the contender's program have threadblocks apart that might share them in smaller buffers: it
        has more than they need together, and one for copies.
        """
        solution, options = self.entry(contender).solution, self._options(contender)
        if solution.written is not None or not may_part(solution.collective, solution.lowered, options):
            return False
        foreseen = channels_foreseen(solution.instance, solution.lowered, options)
        together = threadblocks_needed(solution.instance, foreseen, joined=True) + 1
        return self.extent(contender).threadblocks > together * contender.instances

    def _has_few_steps(self, contender: Contender) -> bool:
        """Whether a contender is spread over threadblocks so that each has few steps: all but what is made for large buffers, if it
        is in rounds or adds up, where the fewer share a link the better. Copies wait less with more of them, and so do short
        messages in rounds, and what goes through boxes of few GPUs with NICs enough, where messages to the next one take their time.
        Of pieces, which are short at either end, the others decide: sums of few of them over boxes, and medium ones of all ranks.
        """
        candidate, boxes = self.entry(contender).candidate, self.plan.boxes
        if candidate.pieces:
            few = candidate.boxed and candidate.pieces <= _FEW_PIECES and self.plan.collective(1).combining
            return few or (boxes is None and candidate.anchor_bytes <= _SHORT_IN_PIECES_BYTES)
        small = boxes is not None and boxes.size <= _FEW_PEERS and self.plan.has_nics
        short = candidate.in_rounds and boxes is None and candidate.anchor_bytes <= _SHORT_IN_ROUNDS_BYTES
        if candidate.view != LARGE_VIEW or small or short:
            return True
        return not (candidate.in_rounds or self.plan.collective(1).combining)

    def _most_bytes(self, contender: Contender) -> int:
        """The largest buffer that a file of the contender is for: below the next size that it does not serve."""
        served = max(self.estimates(contender), default=self.request.max_bytes)
        return next((size for size in self.sizes if size > served), self.request.max_bytes)

    def _options(self, contender: Contender) -> LoweringOptions:
        request = self.request
        in_place = request.inplace if request.inplace is not None else request.collective in _IN_PLACE_BY_DEFAULT
        return LoweringOptions(
            runtime=request.runtime,  # type: ignore[arg-type]
            protocol=self.entry(contender).protocol,  # type: ignore[arg-type]
            inplace=in_place,
            both_layouts=request.inplace is None,
            instances=contender.instances,
            max_bytes=self._most_bytes(contender),
            channels=contender.channels or None,
            max_threadblocks=request.threadblocks,
            few_steps=self._has_few_steps(contender),
            name=f"synth-{request.collective}-{request.topology.name}",
        )


def _contender(task: _Task) -> Contender:
    return task.contender


def _apart(one: int, other: int) -> int:
    """How many doublings lie between two sizes."""
    return abs(one.bit_length() - other.bit_length())


def _simulated(evidence: Evidence, task: _Task) -> _Found | NoAnswerError:
    """A contender's program and its times at some sizes: in whichever process."""
    contender = task.contender
    here = copy(evidence)
    here.ledger = Ledger()
    here._given_up = {contender} if task.given_up else set()
    drafts = here._drafts_of(contender)
    drafts.add(task.found)
    before = len(drafts.made)
    try:
        extent = here.extent(contender)
        times = {size: here.time_us(contender, size) for size in task.sizes}
    except NoAnswerError as refusal:
        return refusal
    here.ledger.enter("done")
    return _Found(extent, drafts.made[before:], times, bool(here._given_up), here.ledger.seconds)
