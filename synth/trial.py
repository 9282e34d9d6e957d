"""Candidates on trial: they become programs, the programs are simulated, and the simulation decides.

The exact schedule is what a machine allows, the simulation what the interpreter makes of it. A contender is a candidate's schedule
under a protocol in one shape (how many channels, how many instances). At sizes along the range the most promising contenders
are simulated, then other shapes of the best; elsewhere a contender's own estimate, scaled to its simulated times, stands in.
What a trial may cost is counted in simulated steps, so that the same request gives the same answer on any machine.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from msccl_xml.model import Algo
from synth.baselines import BASELINES
from synth.candidates import CONNECTION_BOUND_BYTES, JOINT, LARGE_VIEW, MOST_READ_TRANSFERS, direct
from synth.choice import Segment, split_range
from synth.chunks import divides
from synth.collective import Collective, CollectiveName
from synth.constants import Constants
from synth.errors import NoAnswerError
from synth.goal import Goal
from synth.lowering import LoweringOptions, lowered_collective, threadblocks_needed
from synth.plan import Plan
from synth.request import Progress, Request
from synth.search import Ledger, Scored
from synth.simulate import Simulator, by_pair
from synth.simulate.routes import Paths
from synth.units import format_size
from synth.workers import in_parallel

#: Where schedules decide (Request.objective): schedules that differ by less count as equal, and what 1 % more costs, as a share of
#: the time.
_SCHEDULE_SLACK = 0.0001
_SCHEDULE_PRICE = 50.0
#: Where simulated times decide: what 100 % more of a schedule costs, as a share of the time. The simulator is right within some 15 %
#: (docs/fidelity.md), the schedule exactly, so of two programs that are as fast the one with the better schedule is taken. Where
#: bandwidth alone counts, a schedule leaves less out, and counts more.
_TIME_PRICE = 0.05
_TIME_PRICE_LARGE = 0.12
#: And what each threadblock of a GPU costs, as a share of the time: a job's own kernels go without its multiprocessor.
_THREADBLOCK_PRICE = 0.02 / 64
#: Candidates at one size that go to the simulator: this many, and of those only what is estimated within the factor of the best.
_MOST_AT_A_SIZE = 6
_PROMISING = 1.35
#: The same where bandwidth alone counts: estimates err little there, and simulations take longest. (They err where every pair of
#: ranks has but a few messages: links share these.)
_PROMISING_LARGE = 1.06
#: What a simulation says of an estimate holds for sizes so many doublings away; farther, it does not make it better.
_NEAR_SIZE = 2
#: So many times the fastest at a size is simulated at the sizes beside it.
_MOST_SPREADS = 3
#: So many times what is chosen for a range is simulated where it was not, and the choice made again.
_MOST_CHOICES = 4
#: Steps, over all ranks, of a program that is simulated at all.
_MOST_STEPS = 130_000
#: Messages of all programs that are simulated, times the sizes that they are simulated at, times the links that they cross (what
#: shares links is simulated together), and transfers of those that are made. Messages count as often as there are so many GPUs:
#: the more there are, the more share links.
_MOST_WORK = 400_000
_USUAL_RANKS = 8
#: Of that, what may go to candidates as they are; other shapes of the best get the rest.
_OPENING_SHARE = 0.5
#: A transfer costs this much in the making of a program, a message of it 1 in each simulation.
_LOWERING_WORK = 2
#: A program that is more work is simulated where candidates are compared and at the ends of what it serves, not at every size.
_EVERY_SIZE_WORK = 20_000
#: Work from which on it is spread over processes: below, it ends within a second.
_WORTH_A_PROCESS = 10_000
#: The best at a size that are tried in other shapes if they are this near the best, and these shapes:
#: (channels of every path, instances).
_LEADERS = 2
_NEAR_LEADER = 1.05
#: A schedule is not far behind the best if it takes so many times as long at most.
_NOT_FAR_BEHIND = 1.15
#: Of what comes in rounds, what is alike in all boxes is taken if its rounds take no longer than this, times those of the best.
_AS_FEW_ROUNDS = 1.01
_SHAPES = ((4, 1), (0, 2))
#: The same where bandwidth alone counts: as many channels as that needs are there already.
_LARGE_SHAPES = ((0, 2),)
#: The same for LL, whose threadblocks move a tenth of the others': it takes many to fill a link, and is tried though it is so far
#: behind the best with few.
_LL_SHAPES = ((0, 4), (0, 8), (4, 2), (0, 3), (0, 6), (0, 9))
_NEAR_LEADER_LL = 2.5
_MORE_SHAPES = ((3, 1), (6, 1), (0, 3), (0, 4))
#: Where a GPU has few threadblocks, more of them are no burden, and may be what is short.
_WIDE_SHAPES = ((0, 4), (6, 1))
_FEW_THREADBLOCKS = 12
#: Work that may go to shapes which are seldom best, each time, for one size and for many.
_LITTLE_WORK = 100_000
_LITTLE_WORK_OF_A_RANGE = 40_000
#: Programs of few long messages that are tried on many threadblocks at a size, and others' algorithms of these.
_COARSE_ONES = 3
_COARSE_KNOWN = 2
#: What NCCL runs by itself.
_RIVALS = ("ring", "tree")
#: So many times these are tried first where they are estimated at no more than this, times the best: what few threadblocks take is
#: estimated at up to 1.6 times what it is.
_RIVAL_INSTANCES = (1, 4)
_NEAR_RIVAL = 1.7
#: Instances that what is best so far may come to.
_MOST_INSTANCES = 8
#: Buffers from which on other shapes are tried even if that is much work; below, it is latency that counts, and this much work is
#: enough.
_SHAPED_BYTES = 1 << 20
_SMALL_SHAPES_WORK = 40_000
#: A program that takes no longer than its schedule and a launch, times this, has nothing to gain from another shape.
_AS_SCHEDULED = 1.02
_IN_PLACE_BY_DEFAULT = frozenset({CollectiveName.ALLREDUCE, CollectiveName.REDUCE, CollectiveName.BROADCAST})


@dataclass(frozen=True, slots=True)
class Contender:
    """The candidate at `position` in the shape of so many channels a path (0: what its bandwidth needs) and instances."""

    position: int
    channels: int = 0
    instances: int = 1


@dataclass(frozen=True)
class _Found:
    """What a process found of a contender: its program where that was not known, times at some sizes, and seconds by stage."""

    algo: Algo | None
    times_us: dict[int, float]
    seconds: dict[str, float]


class _Ranked(NamedTuple):
    """Contenders at a size, the most promising first; so many of them are worth a simulation."""

    all: list[Contender]
    worth: int

    @property
    def promising(self) -> list[Contender]:
        return self.all[: self.worth]


_Plan = dict[Contender, list[int]]


class _Effort(NamedTuple):
    """A candidate as work: links that its messages cross, for a simulation; messages and chunks of them, for a program."""

    crossings: int
    sends: int
    transfers: int


class _Kind(NamedTuple):
    """What estimates do not compare; `way` tells apart what goes through boxes."""

    in_rounds: bool
    boxed: bool
    links_alone: bool
    way: tuple[str, int, str] | None = None


@dataclass
class Trial:
    """The trial of one request's candidates at its sizes: `refusals` holds why contenders were dropped, `notes` what was cut."""

    plan: Plan
    ledger: Ledger
    progress: Callable[[Progress], None]
    refusals: dict[Contender, NoAnswerError] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.scored: Sequence[Scored] = ()
        self.best_us: dict[int, float] = {}
        """the best schedule at each size"""
        self.contenders: list[Contender] = []
        self._algos: dict[Contender, Algo] = {}
        self._times: dict[Contender, dict[int, float]] = {}
        self._simulators: dict[Contender, Simulator] = {}
        self._efforts: dict[int, _Effort] = {}
        self._wide: set[Contender] = set()
        """what is coarse, on many threadblocks"""
        self._work = 0
        self._shapes_work = 0
        """of that, what went to other shapes"""

    @property
    def request(self) -> Request:
        """What is asked for."""
        return self.plan.request

    @property
    def sizes(self) -> Sequence[int]:
        """The sizes that the answer has to serve, ascending."""
        return self.plan.sizes

    def look_at(self, scored: Sequence[Scored], *, more: bool = False) -> None:
        """Simulate the most promising of the candidates, which begin with those of earlier calls, and other shapes of the best.

        Where `more` can be had and none of these is likely to be near enough to the limit, nothing is simulated yet.
        """
        copies = self.request.instances or 1
        for position in range(len(self.scored), len(scored)):
            self.contenders.append(Contender(position, 0, copies))
            if scored[position].wide_us and scored[position].is_low:
                self.contenders.append(Contender(position, 0, scored[position].copies))
        self.scored = scored
        for entry in scored:
            for size in entry.times_us:
                self.best_us[size] = min(self.best_us.get(size, math.inf), entry.schedules_us[size])
        if more and not all(map(self._may_close, self.sizes)):
            return
        self._look_at_candidates()
        self._look_at_shapes()

    @property
    def closed(self) -> bool:
        """Whether all sizes have an answer that is as near to the proved limit as is worth another wave."""
        return all(self._is_closed(size) or self._is_near(size) for size in self.sizes)

    def _is_worth_it(self, contender: Contender, size: int) -> bool:
        """Whether to simulate what is not the most promising: where nothing is near enough to the limit, and others' algorithms
        where these may be what is best. Besides what comes in rounds nothing is likely to be nearer.
        """
        paced = any(entry.candidate.in_rounds for entry in self.scored)
        if self._is_reached(size):
            return False
        if self._is_closed(size) or (paced and self._is_near(size)):
            return self._is_known(contender) and size <= CONNECTION_BOUND_BYTES
        return self._is_hopeful(contender, size)

    def _is_known(self, contender: Contender) -> bool:
        """Whether it is one of others' algorithms."""
        return self.entry(contender).candidate.strategy in BASELINES

    def _is_rival(self, contender: Contender) -> bool:
        """Whether it is what a library would run by itself."""
        return self.entry(contender).candidate.strategy in _RIVALS

    def _is_closed(self, size: int) -> bool:
        """Whether something that was simulated at a size meets the goal."""
        return any(
            self._goal.is_met(size, times.get(size, math.inf), self.entry(contender).schedules_us.get(size, math.inf))
            for contender, times in self._times.items()
        )

    def _is_reached(self, size: int) -> bool:
        """Whether what was simulated leaves nothing to gain."""
        return any(
            size in times
            and self._goal.is_reached(size, times[size], self.entry(contender).schedules_us[size], self.best_us[size])
            for contender, times in self._times.items()
        )

    def _is_near(self, size: int) -> bool:
        return any(self._goal.is_near(size, times.get(size, math.inf)) for times in self._times.values())

    def _may_close(self, size: int) -> bool:
        return any(self._may_be_near(entry, size) for entry in self.scored)

    def _may_be_near(self, entry: Scored, size: int) -> bool:
        """Whether the estimate allows that a candidate is near the limit; in rounds it says so, too, where it does not."""
        estimate_us = entry.times_us.get(size, math.inf)
        return self._goal.may_be_met(size, estimate_us, said=entry.candidate.in_rounds)

    def _is_hopeful(self, contender: Contender, size: int) -> bool:
        """Whether a candidate in rounds may be near the limit, or is all there is."""
        entry = self.entry(contender)
        if not entry.candidate.in_rounds or not self.plan.ends or all(e.candidate.in_rounds for e in self.scored):
            return True
        return self._may_be_near(entry, size)

    def segments(self, max_files: int) -> list[Segment]:
        """Which contender (by its index in `contenders`) serves which sizes; empty where `max_files` files cannot serve all.

        Between the sizes that were simulated a contender's estimate stands in, and may flatter it: what is chosen is simulated where
        it serves, and the choice made again, until it stands.
        """
        known: dict[Contender, list[int]] = {}
        segments = self._split(known, max_files)
        for _ in range(_MOST_CHOICES):
            if not self._refine(segments, known):
                return segments
            segments = self._split(known, max_files)
        self._refine(segments, known)
        return self._split(known, max_files, alone=True)

    def entry(self, contender: Contender) -> Scored:
        """The candidate that a contender is a shape of."""
        return self.scored[contender.position]

    def algo(self, contender: Contender) -> Algo:
        """The contender's program, made once. Raises NoAnswerError where no runtime could hold it."""
        if contender in self.refusals:
            raise self.refusals[contender]
        if contender not in self._algos:
            self.ledger.enter("lowering")
            try:
                self._algos[contender] = self.entry(contender).solution.program(self._options(contender))
            except NoAnswerError as refusal:
                self.refusals[contender] = refusal
                raise
        return self._algos[contender]

    def computed(self, contender: Contender) -> Collective:
        """The collective that the contender's program carries out."""
        return lowered_collective(self.entry(contender).solution.collective, self._options(contender))

    def time_us(self, contender: Contender, size: int) -> float:
        """What the contender takes at a size: simulated, or its own estimate where its program is too large for that."""
        known = self._times.setdefault(contender, {})
        if size not in known:
            algo = self.algo(contender)
            self.ledger.enter("simulation")
            if self.is_simulated(contender):
                if contender not in self._simulators:
                    self._simulators[contender] = Simulator(algo, self.request.topology, paths=self._paths)
                known[size] = self._simulators[contender].time_us(size)
            else:
                known[size] = self.entry(contender).times_us[size]
        return known[size]

    def taken_us(self, contender: Contender, size: int) -> float:
        """`time_us` where that is known; else on the line between the nearest sizes where it is."""
        known = self.simulated_us(contender)
        if size in known:
            return known[size]
        return float(np.interp(size, list(known), list(known.values())))

    def is_thinned(self, contender: Contender) -> bool:
        """Whether a chosen contender's times were simulated at some of its sizes only."""
        return self._effort(contender.position).crossings > _EVERY_SIZE_WORK

    def simulated_us(self, contender: Contender) -> dict[int, float]:
        """The times of a contender that are known, by size."""
        return dict(sorted(self._times.get(contender, {}).items()))

    def is_simulated(self, contender: Contender) -> bool:
        """Whether the contender's program is small enough to be simulated: one box's share of it where all do the same."""
        return _steps(self.algo(contender)) <= _MOST_STEPS * self._alike(contender.position)

    @cached_property
    def _goal(self) -> Goal:
        return Goal(self.plan)

    @cached_property
    def _paths(self) -> Paths:
        return by_pair(self.plan.paths)

    def _look_at_candidates(self) -> None:
        """Simulate at every size looked at the candidate that seems best there, then the next ones, while there is work left."""
        ranked = {size: self._ranked(size) for size in self.plan.looked_at}
        quick: _Plan = {}
        for size in self.plan.looked_at:
            for contender in self._known_at_once(ranked[size].all, size):
                self._spend(quick, contender, size, math.inf)
        self._carry_out(quick)
        first: _Plan = {}
        for size in self.plan.looked_at:
            for contender in self._openers(ranked[size].all, size) if not self._is_reached(size) else ():
                self._spend(first, contender, size, math.inf)
        self._carry_out(first)
        # What no runtime holds on many threadblocks it may hold on few.
        plain = self.request.instances or 1
        refused = [contender for contender in first if contender in self.refusals and contender.instances > plain]
        self._carry_out({replace(contender, instances=plain): first[contender] for contender in refused})
        others: _Plan = {}
        for turn in range(1, _MOST_AT_A_SIZE):
            for size in reversed(self.plan.looked_at):
                for contender in ranked[size].promising[turn : turn + 1]:
                    if self._is_worth_it(contender, size):
                        self._spend(others, contender, size, _MOST_WORK * _OPENING_SHARE + self._shapes_work)
        self._carry_out(others, may_end=True)
        for size in self.plan.looked_at:
            # What a runtime cannot hold says so only now: the next one gets its chance.
            for contender in ranked[size].all:
                if not any(size in times for times in self._times.values()):
                    self._carry_out({contender: [size]})

    def _known_at_once(self, ranked: Sequence[Contender], size: int) -> list[Contender]:
        """Where every chunk has one destination, the best of others' algorithms for large buffers alone if its schedule is not far
        behind: all ranks do the same in it, which takes next to no time to simulate, and it may be all that there is to gain.
        """
        if not (self.plan.ends and size > CONNECTION_BOUND_BYTES and direct(self.plan.collective(1))):
            return []
        known = [contender for contender in ranked if self._is_known(contender)]
        return [one for one in known[:1] if self.entry(one).schedules_us[size] <= self.best_us[size] * _NOT_FAR_BEHIND]

    def _openers(self, ranked: Sequence[Contender], size: int) -> list[Contender]:
        """What is simulated first at a size: the most promising; where large buffers alone are asked for the first of every kind
        (`_kind`), as their estimates are not equally right, and sums with more threadblocks: they are held up by what a
        threadblock adds.
        """
        if not (self.request.single_size and self.request.by_time and size > CONNECTION_BOUND_BYTES):
            return list(ranked[:1])
        behind = self._fell_behind(size)
        kinds = self._first_of_kinds(ranked, size)
        leaders = [leader for kind, leader in kinds.items() if kind not in behind and self._is_hopeful(leader, size)]
        if not self.plan.collective(1).combining or self.request.instances is not None:
            return leaders
        return [self._wider(leader, size) or leader for leader in leaders]

    def _estimates(self, contender: Contender) -> dict[int, float]:
        """What is expected of a contender before it is simulated, by size: of most shapes the same as of the plain one."""
        entry = self.entry(contender)
        return entry.times_us | entry.wide_us if contender.instances == entry.copies else entry.times_us

    def _is_best_shape(self, contender: Contender, size: int) -> bool:
        """Whether a contender is the better at a size of the two that are expected to differ: plain, and with LL's threadblocks
        many times.
        """
        entry = self.entry(contender)
        if contender.channels or not entry.wide_us or not entry.is_low:
            return True
        wide_is_better = entry.wide_us.get(size, math.inf) < entry.times_us[size]
        return wide_is_better if contender.instances == entry.copies else contender.instances > 1 or not wide_is_better

    def _first_of_kinds(self, ranked: Sequence[Contender], size: int) -> dict[_Kind, Contender]:
        """The most promising of every kind; others' algorithms only if none is more so. Of what comes in rounds that take about as
        long, what is alike in all boxes: it does no less than it says, and is simulated in a fraction of the time.
        """
        kinds: dict[_Kind, Contender] = {}
        for contender in ranked:
            if contender is not ranked[0] and self._is_known(contender):
                continue
            kind, entry = self._kind(contender), self.entry(contender)
            leader = kinds.setdefault(kind, contender)
            as_good = entry.times_us[size] <= self.entry(leader).times_us[size] * _AS_FEW_ROUNDS
            if kind.in_rounds and entry.candidate.boxed and as_good:
                kinds[kind] = contender
        return kinds

    def _wider(self, leader: Contender, size: int) -> Contender | None:
        """The contender with more threadblocks, if it can have them and is small enough to be read and simulated then."""
        ((channels, instances),) = _LARGE_SHAPES
        divided = self.entry(leader).solution.written is None and self._divides(self.entry(leader), instances, size)
        candidate = self.entry(leader).candidate
        if candidate.strategy == JOINT and candidate.in_rounds:
            # Free roots are for direct links, which one threadblock fills.
            return None
        transfers = instances * self._effort(leader.position).transfers
        read = transfers <= MOST_READ_TRANSFERS * self.request.topology.num_ranks
        # A receive and a send each: what is too large to be simulated could not be compared.
        if divided and read and 2 * transfers <= _MOST_STEPS * self._alike(leader.position):
            return Contender(leader.position, channels, instances)
        return None

    def _kind(self, contender: Contender) -> _Kind:
        """Whether it is ordered in rounds, and if not whether it was made for one of several equal boxes, and beside such ones
        whether for links alone; sums that were, are far behind.
        """
        candidate = self.entry(contender).candidate
        if candidate.in_rounds:
            return _Kind(True, False, False)
        if candidate.chained:
            return _Kind(False, False, False, (candidate.strategy, candidate.count, self.entry(contender).protocol))
        apart = any(entry.candidate.boxed for entry in self.scored) and not self.plan.collective(1).combining
        return _Kind(False, candidate.boxed, apart and candidate.view is None)

    def _fell_behind(self, size: int) -> set[_Kind]:
        """The kinds that were well behind another at a size in an earlier wave."""
        best: dict[_Kind, float] = {}
        for contender, times in self._times.items():
            if size in times:
                kind = self._kind(contender)
                best[kind] = min(best.get(kind, math.inf), times[size])
        limit_us = min(best.values(), default=math.inf) * _NEAR_LEADER
        return {kind for kind, taken in best.items() if taken > limit_us}

    def _spend(self, plan: _Plan, contender: Contender, size: int, most: float) -> int:
        """Plan to simulate the contender at the size if that much work is left; the work that it takes."""
        effort = self._effort(contender.position)
        work = effort.crossings  # equal instances are simulated for one
        if contender not in plan and contender not in self._algos:
            work += _LOWERING_WORK * max(effort.transfers, contender.instances * effort.sends)
        if self._work + work > most or size in self._times.get(contender, {}):
            return 0
        self._work += work
        plan.setdefault(contender, []).append(size)
        return work

    def _effort(self, position: int) -> _Effort:
        """What a candidate is as work."""
        if position not in self._efforts:
            solution = self.scored[position].solution
            sends, paths = solution.schedule.sends, solution.instance.paths
            crossings = sum(len(paths[send.path].links) for send in sends)
            if (alike := self._alike(position)) > 1:
                crossings //= alike
            else:
                crossings *= max(1, self.request.topology.num_ranks // _USUAL_RANKS)
            self._efforts[position] = _Effort(crossings, len(sends), sum(len(send.chunks) for send in sends))
        return self._efforts[position]

    def _alike(self, position: int) -> int:
        """How many boxes a candidate was made for one of: what all of them do is simulated for one, unless receives and sends have
        to share threadblocks, which every rank pairs by the numbers of its peers.
        """
        solution = self.scored[position].solution
        if solution.folded is None:
            return 1
        if direct(solution.collective):
            used = dict.fromkeys((send.path for send in solution.schedule.sends), 1)
            if threadblocks_needed(solution.instance, used, joined=False) > self.request.threadblocks:
                return 1
        return solution.folded.boxes.count

    def _carry_out(self, plan: _Plan, *, may_end: bool = False) -> None:
        """Make the planned programs and simulate them; with `may_end`, only while the time of the request is not up."""
        tasks: list[tuple[Contender, list[int]]] = []
        for contender, sizes in plan.items():
            made = contender in self._algos
            tasks += [(contender, [size]) for size in reversed(sizes)] if made else [(contender, sizes)]
        jobs = self.request.jobs if self._work > _WORTH_A_PROCESS else 1
        self.ledger.rest()
        answers = in_parallel(jobs, _simulated, self, tasks)
        for number, (contender, sizes) in enumerate(tasks):
            if may_end and self.ledger.elapsed_s() > self.request.time_limit_s:
                self.notes.append(
                    f"--time-limit ended the trial with {len(tasks) - number} simulations left; another run may end at another"
                )
                break
            found = next(answers)
            entry = self.entry(contender)
            detail = f"{format_size(sizes[0])}: {entry.candidate.strategy}, {entry.candidate.count} chunks"
            self.progress(Progress("simulation", f"{detail}, {entry.protocol}", number / len(tasks), None))
            if isinstance(found, NoAnswerError):
                self.refusals[contender] = found
            else:
                if contender not in self.contenders:
                    self.contenders.append(contender)
                if found.algo is not None:
                    self._algos[contender] = found.algo
                self._times.setdefault(contender, {}).update(found.times_us)
                self.ledger.add(found.seconds)
        answers.close()

    def _ranked(self, size: int) -> _Ranked:
        """The candidates that serve a size: the most promising of every protocol, since estimates are not equally right for all
        protocols, then the second of every one, and so on; then the others, the most promising first.
        """
        sure = size > CONNECTION_BOUND_BYTES and not direct(self.plan.collective(1))
        factor = (_PROMISING_LARGE if sure else _PROMISING) if self.request.by_time else 1 + _SCHEDULE_SLACK
        promise: dict[Contender, tuple[float, float]] = {}
        for contender in self.contenders:
            if (estimate_us := self._estimates(contender).get(size)) is not None:
                judged_us = estimate_us if self.request.by_time else self.entry(contender).schedules_us[size]
                promise[contender] = (judged_us, estimate_us)
        best = {contender for contender in promise if self._is_best_shape(contender, size)}
        ranked = sorted(promise, key=lambda contender: (contender not in best, promise[contender], contender.position))
        limit = promise[ranked[0]][0] * factor if ranked else 0.0
        apart = {contender for contender in ranked if self._rivals_apart and self._is_rival(contender)}
        worth = [each for each in ranked if each in best and each not in apart and promise[each][0] <= limit]
        if self.request.by_time:
            worth = self._in_turns(worth, {contender: estimate_us for contender, (_, estimate_us) in promise.items()})
        return _Ranked(list(dict.fromkeys((*worth, *ranked))), len(worth))

    def _in_turns(self, ranked: Sequence[Contender], estimates_us: Mapping[Contender, float]) -> list[Contender]:
        """The first of every protocol, the second of every one, and so on; what has the same estimate as one before it comes last,
        since it is likely to be the same but for the cut.
        """
        turns: Counter[str] = Counter()
        seen: set[tuple[str, str]] = set()
        turn: dict[Contender, tuple[bool, int]] = {}
        for contender in ranked:
            protocol = self.entry(contender).protocol
            same = (protocol, f"{estimates_us[contender]:.6g}")
            turn[contender] = same in seen, turns[protocol]
            turns[protocol] += same not in seen
            seen.add(same)
        return sorted(ranked, key=turn.__getitem__)

    def _look_at_shapes(self) -> None:
        """Simulate what is coarse on many threadblocks; the best at every size, the smallest first, which are least work, in other
        shapes, while there is work left; and what more threadblocks have helped on still more of them.
        """
        coarse = self._planned(self._coarse_ones)
        self._carry_out(coarse, may_end=True)
        refused = [contender for contender in coarse if contender in self.refusals]
        halved = {replace(contender, instances=contender.instances // 2): coarse[contender] for contender in refused}
        self._carry_out(halved, may_end=True)
        self._wide |= {*coarse, *halved}
        plan: _Plan = {}
        for size in self.plan.looked_at:
            for leader in self._leaders(size) if not self._is_closed(size) else ():
                if not self._is_worth_it(leader, size):
                    continue
                most = _MOST_WORK if self._shape_matters(leader, size) else _SMALL_SHAPES_WORK
                for shaped in self._shapes(leader, size):
                    self._shapes_work += self._spend(plan, shaped, size, most)
        self._carry_out(plan, may_end=True)
        self._carry_out(self._planned(self._further), may_end=True)
        for shapes in (self._rival_shapes, self._rivals_beside) if self._rivals_apart else ():
            self._carry_out(self._planned(shapes, _MOST_WORK), may_end=True)
        for _ in range(_MOST_SPREADS):
            self._carry_out(self._planned(self._neighbours), may_end=True)

    def _planned(self, shapes: Callable[[int], Iterable[Contender]], work: int | None = None) -> _Plan:
        """The shapes of every size that nothing has closed yet, the largest first, as far as so much work goes (None: a little),
        which is not taken from that of others.
        """
        plan: _Plan = {}
        before = self._work
        most = before + (work or (_LITTLE_WORK if self.request.single_size else _LITTLE_WORK_OF_A_RANGE))
        for size in reversed(self.plan.looked_at):
            for contender in shapes(size) if not self._is_closed(size) else ():
                if self._is_worth_it(contender, size):
                    self._spend(plan, contender, size, most)
        self._work = before
        return plan

    def _further(self, size: int) -> Iterator[Contender]:
        """The best at a size with twice its instances, where these have helped it."""
        fastest = [*self._timed(size)][:1]
        if not fastest or size > CONNECTION_BOUND_BYTES or self.request.instances is not None:
            return
        (best,) = fastest
        entry, instances = self.entry(best), 2 * best.instances
        if best.instances == 1 or instances > _MOST_INSTANCES or entry.solution.written is not None:
            return
        yield from self._times_over(best, (instances,), size)

    @property
    def _rivals_apart(self) -> bool:
        """Whether rings and trees are tried apart from other candidates, in all their shapes. Over a range four files cannot be the
        best everywhere, and what is the best at one size says little of them.
        """
        return self.request.single_size and self.request.by_time and self.request.instances is None

    def _rival_shapes(self, size: int) -> Iterator[Contender]:
        """Rings and trees that may be the best at the one size that is asked for, once and several times, as NCCL may run them."""
        limit_us = min(self._timed(size).values(), default=math.inf) * _NEAR_RIVAL
        rivals = [
            each for each in self.contenders if each.instances == 1 and not each.channels and self._is_rival(each)
        ]
        for plain in rivals:
            entry = self.entry(plain)
            if min(times.get(size, math.inf) for times in (entry.times_us, entry.wide_us)) <= limit_us:
                yield from self._times_over(plain, _RIVAL_INSTANCES, size)

    def _rivals_beside(self, size: int) -> Iterator[Contender]:
        """The best of these of every protocol, twice and half as many times."""
        best: dict[str, Contender] = {}
        for contender in filter(self._is_rival, self._timed(size)):
            best.setdefault(self.entry(contender).protocol, contender)
        for contender in best.values():
            beside = (contender.instances // 2, 2 * contender.instances)
            yield from self._times_over(contender, [each for each in beside if 1 <= each <= _MOST_INSTANCES], size)

    def _times_over(self, contender: Contender, numbers: Iterable[int], size: int) -> Iterator[Contender]:
        """The contender so many times, as far as its chunks can be parted."""
        entry = self.entry(contender)
        for instances in numbers:
            if entry.solution.is_worth_parting(size, instances) and self._divides(entry, instances, size):
                yield replace(contender, instances=instances)

    def _neighbours(self, size: int) -> Iterator[Contender]:
        """What is fastest at the next larger and the next smaller size that candidates are compared at: it may be so here, too."""
        looked_at = self.plan.looked_at
        place = looked_at.index(size)
        for other in (*looked_at[place + 1 : place + 2], *looked_at[max(0, place - 1) : place]):
            for contender in [*self._timed(other)][:1]:
                if size in self._estimates(contender):
                    yield contender

    def _coarse_ones(self, size: int) -> list[Contender]:
        """The most promising at a size of what has few long messages, on as many threadblocks as there are: on few they wait. Rings
        and trees are among them whatever they promise: NCCL would run them.
        """
        wide = {
            Contender(position, 0, entry.copies): entry.wide_us[size]
            for position, entry in enumerate(self.scored)
            if size in entry.wide_us and not entry.is_low
        }
        ranked = sorted(wide, key=lambda contender: (wide[contender], contender.position))
        known = [contender for contender in ranked if self._is_known(contender)]
        rivals = [contender for contender in ranked if self._is_rival(contender)]
        return list(dict.fromkeys((*rivals, *ranked[:_COARSE_ONES], *known[:_COARSE_KNOWN])))

    def _timed(self, size: int) -> dict[Contender, float]:
        """What was simulated at a size, the fastest first."""
        timed = {contender: times[size] for contender, times in self._times.items() if size in times}
        return dict(sorted(timed.items(), key=lambda item: (item[1], item[0].position)))

    def _leaders(self, size: int) -> list[Contender]:
        """Of what was simulated at a size, what is worth another shape: the best few, the best of LL, and where one size is all what
        is coarse, if that is the best.
        """
        timed = self._timed(size)
        order = list(timed)
        wide = [contender for contender in order[:1] if contender in self._wide and self.request.single_size]
        usual = [contender for contender in order if contender not in self._wide]
        near = [contender for contender in usual[:_LEADERS] if timed[contender] <= timed[usual[0]] * _NEAR_LEADER]
        low = [contender for contender in usual if self.entry(contender).is_low][:1]
        low = [contender for contender in low if timed[contender] <= timed[order[0]] * _NEAR_LEADER_LL]
        return list(dict.fromkeys((*wide, *near, *low)))

    def _shape_matters(self, leader: Contender, size: int) -> bool:
        """Whether other shapes are worth much work: where bandwidth counts, and where few threadblocks may be what is short."""
        if self.request.thorough or self._is_narrow(leader):
            return True
        return self.request.by_time and size >= _SHAPED_BYTES

    def _is_narrow(self, contender: Contender) -> bool:
        """Whether its GPUs have few threadblocks each."""
        return self.algo(contender).threadblocks <= _FEW_THREADBLOCKS

    def _shapes(self, leader: Contender, size: int) -> Iterator[Contender]:
        """The contender in the other shapes that were not asked to be otherwise and that runtimes would use at the size."""
        entry = self.entry(leader)
        thorough = self.request.thorough
        if entry.solution.written is not None or not self.is_simulated(leader):
            return
        launch_us = Constants.for_topology(self.request.topology).of(entry.protocol).launch_us
        tile_by_tile = entry.candidate.chained
        if not tile_by_tile and self.time_us(leader, size) <= (entry.schedules_us[size] + launch_us) * _AS_SCHEDULED:
            return
        large = size > CONNECTION_BOUND_BYTES and not tile_by_tile
        usual = _LL_SHAPES if entry.is_low else _LARGE_SHAPES if large else _SHAPES
        more = _MORE_SHAPES if thorough else _WIDE_SHAPES if self._is_narrow(leader) else ()
        # A leader that has more instances already may be better without them, but for LL, of which both are estimated.
        plain = () if entry.wide_us and entry.is_low else ((0, 1),)
        for channels, instances in dict.fromkeys((*plain, *usual, *more)):
            if instances > 1 and not entry.solution.is_worth_parting(size, instances):
                continue
            shaped = Contender(
                leader.position, channels, instances if self.request.instances is None else leader.instances
            )
            if shaped != leader and self._divides(entry, shaped.instances, size):
                yield shaped

    def _divides(self, entry: Scored, instances: int, size: int) -> bool:
        if instances == (self.request.instances or 1):
            return True
        collective = entry.solution.collective
        return not self.request.has_cut and divides(
            collective.name, collective.num_ranks, entry.candidate.count * instances, size
        )

    def _costs(self, contender: Contender) -> dict[int, float]:
        """What the contender costs at every size that it can serve, from its times at some: us and a price."""
        known = self._times.get(contender)
        if not known:
            return {}
        entry = self.entry(contender)
        costs = {}
        estimates = self._estimates(contender)
        for size, estimate_us in estimates.items():
            if not self._divides(entry, contender.instances, size):
                continue
            taken = known.get(size)
            if taken is None:
                near = min(known, key=lambda other: (_apart(other, size), other))
                scale = known[near] / estimates[near]
                taken = estimate_us * (scale if _apart(near, size) <= _NEAR_SIZE else max(scale, 1.0))
            costs[size] = taken * self._price(contender, size)
        return costs

    def _split(self, known: Mapping[Contender, Sequence[int]], max_files: int, *, alone: bool = False) -> list[Segment]:
        """The cheapest split, by times where these are `known`; `alone` among what is known there."""
        costs = [
            {size: self.taken_us(contender, size) * self._price(contender, size) for size in known.get(contender, ())}
            for contender in self.contenders
        ]
        if not alone:
            costs = [self._costs(contender) | sure for contender, sure in zip(self.contenders, costs, strict=True)]
        others: dict[int, float] = {}
        for contender in filter(self._is_rival, self.contenders):
            for size, taken in self._times.get(contender, {}).items():
                priced = taken * self._price(contender, size)
                others[size] = min(others.get(size, math.inf), priced)
        return split_range(self.sizes, costs, max_files, others)

    def _refine(self, segments: Sequence[Segment], known: dict[Contender, list[int]]) -> bool:
        """Simulate the chosen over their own segments and a size beyond on either side, and note them as `known` there; whether
        any was not.
        """
        wanted: _Plan = {}
        for segment in segments:
            contender = self.contenders[segment.candidate]
            served = self._costs(contender)
            near = [size for size in self.sizes[max(0, segment.first - 1) : segment.last + 2] if size in served]
            own, before = self.sizes[segment.first : segment.last + 1], known.get(contender, [])
            if not set(own).issubset(before):
                thinned, ends = self.is_thinned(contender), (near[0], near[-1])
                known[contender] = sorted({*before, *near})
                kept = [size for size in near if not thinned or size in self.plan.looked_at or size in ends]
                wanted[contender] = sorted({*wanted.get(contender, []), *kept})
        self._carry_out(wanted)
        return bool(wanted)

    def _price(self, contender: Contender, size: int) -> float:
        """What a time counts for: more than itself where some other schedule is better, or many threadblocks are kept busy. What is
        passed on chunk by chunk has no schedule that says how its tiles come through.
        """
        entry = self.entry(contender)
        excess = entry.schedules_us[size] / self.best_us[size] - 1
        if entry.candidate.chained and self.request.by_time:
            excess = 0.0
        if not self.request.by_time:
            return 1 + _SCHEDULE_PRICE * max(0.0, excess - _SCHEDULE_SLACK)
        price = _TIME_PRICE_LARGE if size > CONNECTION_BOUND_BYTES else _TIME_PRICE
        return 1 + price * min(1.0, excess) + _THREADBLOCK_PRICE * self.algo(contender).threadblocks

    def _has_few_steps(self, contender: Contender) -> bool:
        """Whether a contender is spread over threadblocks so that each has few steps: all but what is made for large buffers, if it
        is in rounds or adds up, where the fewer share a link the better. Copies wait less with more of them.
        """
        candidate = self.entry(contender).candidate
        return not (candidate.view == LARGE_VIEW and (candidate.in_rounds or self.plan.collective(1).combining))

    def _options(self, contender: Contender) -> LoweringOptions:
        request = self.request
        in_place = request.inplace if request.inplace is not None else request.collective in _IN_PLACE_BY_DEFAULT
        return LoweringOptions(
            runtime=request.runtime,  # type: ignore[arg-type]
            protocol=self.entry(contender).protocol,  # type: ignore[arg-type]
            inplace=in_place,
            both_layouts=request.inplace is None,
            instances=contender.instances,
            max_bytes=request.max_bytes,
            channels=contender.channels or None,
            max_threadblocks=request.threadblocks,
            few_steps=self._has_few_steps(contender),
            name=f"synth-{request.collective}-{request.topology.name}",
        )


def _simulated(trial: Trial, task: tuple[Contender, list[int]]) -> _Found | NoAnswerError:
    """A contender's program and its times at some sizes: in whichever process."""
    contender, sizes = task
    known = contender in trial._algos
    here = copy(trial)
    here.ledger = Ledger()
    try:
        times = {size: here.time_us(contender, size) for size in sizes}
    except NoAnswerError as refusal:
        return refusal
    here.ledger.enter("done")
    return _Found(None if known else here.algo(contender), times, here.ledger.seconds)


def _apart(one: int, other: int) -> int:
    """How many doublings lie between two sizes."""
    return abs(one.bit_length() - other.bit_length())


def _steps(algo: Algo) -> int:
    return sum(len(tb.steps) for gpu in algo.gpus for tb in gpu.threadblocks)
