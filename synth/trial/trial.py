"""The trial of one request's candidates at its sizes.

The exact schedule is what a machine allows, the simulation what the interpreter makes of it. A contender is a candidate's schedule
under a protocol in one shape (how many channels, how many instances). At sizes along the range the most promising contenders
are simulated, then other shapes of the best; elsewhere a contender's own estimate, scaled to its simulated times, stands in.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from synth.baselines import RIVALS
from synth.candidates import Candidate
from synth.candidates.candidate import JOINT
from synth.candidates.transfers import ways_of
from synth.choice import Segment
from synth.search import Scored
from synth.trial.contender import Contender, Runs
from synth.trial.prices import Prices
from synth.trial.ranking import Ranking
from synth.trial.running import Running
from synth.trial.shapes import Shapes

#: Candidates at one size that go to the simulator at most.
_MOST_AT_A_SIZE = 6
#: And so many more where trees go over all paths and over some: estimates do not know how much these are better.
_MORE_APART = 2
#: So many times the fastest at a size is simulated at the sizes beside it.
_MOST_SPREADS = 3
#: So many times what is chosen for a range is simulated where it was not, and the choice made again.
_MOST_CHOICES = 8
#: What all simulations may be as work (`Running.work`).
_MOST_WORK = 400_000
#: Of that, what may go to candidates as they are; other shapes of the best get the rest.
_OPENING_SHARE = 0.5
#: Work that may go to shapes which are seldom best, each time, for one size and for many.
_LITTLE_WORK = 100_000
_LITTLE_WORK_OF_A_RANGE = 40_000
#: To rings and trees in between, whose programs are made in less time than their many chunks say.
_RIVALS_WORK = 800_000
#: And to programs for the smaller of a range's buffers.
_SMALLER_WORK = 150_000
#: The same for other shapes of what is promising, where latency counts.
_SMALL_SHAPES_WORK = 40_000
#: Contenders that are simulated at a size of a range since they are likely to be this near the best there, and the work of all.
_MOST_BETWEEN = 12
_NEAR_THE_BEST = 1.15
_WORK_BETWEEN = 250_000
#: Ranks up to which rings are looked at before an answer is given if they were not yet.
_MOST_OVERTAKEN_RANKS = 16
#: Pieces, which take seven to ten times as long as what comes before them, are in time while so much of it is left; three times as
#: long where what all boxes do alike is simulated for one.
_EARLY_ENOUGH, _EARLY_ENOUGH_ALIKE = 7 / 8, 3 / 4
#: Of the time limit, when simulations have to be over, of a range by kind: those of the most promising candidates, those of others,
#: those between the sizes of these, and those of what is chosen. Files are still to be made and verified then.
_OPENED_BY, _TRIED_BY, _FILLED_IN_BY, _CHOSEN_BY = 0.9, 0.75, 0.85, 0.95
#: Where there is no time for more, what takes so many times as long as the most promising is good enough.
_GOOD_ENOUGH = 1.5


class Trial(Running):
    """What more evidence to find: `look_at` candidates as they come, then ask for the `segments`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.shapes = Shapes(self)
        self.prices = Prices(self)
        self.ranking = Ranking(self, self.shapes, self.prices)
        self.shapes_work = 0
        """of the work, what went to other shapes"""
        self._allow(_OPENED_BY)
        self.looks = 0
        """waves of candidates that were looked at"""

    def look_at(self, scored: Sequence[Scored], *, more: bool = False) -> None:
        """Simulate the most promising of the candidates, which begin with those of earlier calls, and other shapes of the best.

        Where `more` can be had and none of these is likely to be near enough to the limit, nothing is simulated yet, or not in other
        shapes; nor where pieces are left and there is time for them, unless something may be so near that they are not worth it.
        """
        self.close()  # processes know the candidates of earlier calls alone
        self.looks += 1
        self.more = more
        copies = self.request.instances or 1
        for position in range(len(self.scored), len(scored)):
            self.contenders.append(Contender(position, 0, copies))
            if scored[position].wide_us and scored[position].is_low:
                self.contenders.append(Contender(position, 0, scored[position].copies))
        self.scored = scored
        for entry in scored:
            for size in entry.times_us:
                self.best_us[size] = min(self.best_us.get(size, math.inf), entry.schedules_us[size])
        if more and not self.request.by_time:
            if not all(map(self.is_scheduled, self.sizes)):
                return
            more = False
        if more and not (all(map(self.may_close, self.sizes)) and self._may_end_so):
            return
        self._look_at_candidates()
        if more and not all(map(self.is_nearly_near, self.sizes)):
            return
        if not more:
            self.carry_out(self._planned(self.shapes.over_boxes), may_end=True)
        self._look_at_shapes()
        if not more or self.closed:
            self._look_at_last()

    @property
    def has_answers(self) -> bool:
        """Whether all sizes that candidates are compared at have an answer that a runtime holds."""
        return all(map(self.is_answered, self.plan.looked_at))

    def is_answered(self, size: int) -> bool:
        """Whether something was simulated at a size or, if there is no time for that, at others, and serves it nearly as well as
        anything promises to.
        """
        if self.timed(size) or self.left_to_try_s() > 0:
            return bool(self.timed(size))
        made_us = min((self.prices.costs(each).get(size, math.inf) for each in self.contenders), default=math.inf)
        hopeful = (self.estimates(each).get(size, math.inf) for each in self.contenders if each not in self.refusals)
        return made_us < math.inf and made_us <= _GOOD_ENOUGH * min(hopeful, default=math.inf)

    @property
    def closed(self) -> bool:
        """Whether all sizes have an answer that is as near to the proved limit as is worth another wave."""
        if self.request.by_time:
            # Of few ranks in one box what is finer is soon made.
            is_near = self.is_near_both_ways if self.plan.is_quick and self.plan.boxes is None else self.is_near
            near = all(self.is_closed(size) or is_near(size) for size in self.sizes)
            return near and not self._gains_by_finer
        if all(map(self.is_closed, self.sizes)):
            # What is soon made may be nearer still.
            first = {entry.candidate for entry in self.scored}.issubset(self.plan.waves[0])
            return not (first and self.plan.is_quick) or all(map(self.is_at_limit, self.sizes))
        if all(map(self.is_kept, self.sizes)) and all(map(self.is_kept_up_with, self.sizes)):
            return True
        return all(map(self.is_scheduled, self.sizes)) and not self._is_early

    @property
    def rivals_left(self) -> list[Candidate]:
        """Rings and trees that were not looked at and may be faster than the answer to a large buffer: over equal boxes they are
        planned for last. Trees may be where roots are free, or ways meet over boxes and nothing is close to the limit. Those of many
        ranks, which are many messages, never were.
        """
        known = [each for each in self.plan.candidates() if each.strategy in RIVALS]
        many = self.request.topology.num_ranks > _MOST_OVERTAKEN_RANKS
        if len(self.sizes) > 1 or many or not self.in_any_shape or not known:
            return []
        (size,) = self.sizes
        tried = {entry.candidate.strategy for entry in self.scored}
        likely = {"ring"} if self.shapes.is_overtaking(self._around_rings_us(size), size) else set()
        meeting = self.plan.is_crowded and self.plan.boxes is not None and not self.is_close(size)
        likely |= {"tree"} if (JOINT in tried and not self.is_reached(size)) or meeting else set()
        return [each for each in known if each.strategy in likely - tried]

    def _around_rings_us(self, size: int) -> float:
        """How long links are busy at least with what goes around the machine's rings, of each of which a rank gets its share."""
        collective = self.plan.collective(1)
        ways, ranks = ways_of(collective), collective.num_ranks
        rings_GBps = sum(ring.GBps for ring in self.plan.machine.rings)
        return ways * size * (ranks - 1) / ranks / (rings_GBps * 1e3) if rings_GBps else math.inf

    @property
    def _gains_by_finer(self) -> bool:
        """Whether nothing is near to the limit by schedule, too, and there are finer cuts that were not tried. Pieces are for what
        is not near by time.
        """
        near = self.is_close if self._are_pieces_left else self.is_near_both_ways
        return self._is_finer_left and not all(map(near, self.sizes))

    @property
    def _may_end_so(self) -> bool:
        """Whether finer cuts that were not tried may not be worth their time: schedules and estimates are near to the limit where
        finer ones may be; where these come in pieces, estimates allow that an answer is near by time, or so much time is gone that
        there has to be an answer before them.
        """
        if not self._are_pieces_left:
            return not self._is_finer_left or all(map(self._may_be_fine, self.sizes))
        alike = any(self.alike(position) > 1 for position in range(len(self.scored)))
        if self._left_s() < self.request.time_limit_s * (_EARLY_ENOUGH_ALIKE if alike else _EARLY_ENOUGH):
            return True
        return all(
            any(self._goal.may_be_close(size, entry.times_us.get(size, math.inf)) for entry in self.scored)
            for size in self.sizes
        )

    def _may_be_fine(self, size: int) -> bool:
        """Whether the best schedule of a size is near to the limit, and an estimate, too."""
        estimated = (self._goal.may_be_fine(size, entry.times_us.get(size, math.inf)) for entry in self.scored)
        return self._goal.is_scheduled(size, self.best_us[size]) and any(estimated)

    @property
    def _are_pieces_left(self) -> bool:
        """Whether finer cuts over equal boxes that were not tried come in pieces."""
        return self._is_finer_left and any(each.pieces for each in self.plan.finer_cuts)

    @property
    def _is_finer_left(self) -> bool:
        """Whether there are finer cuts that were not tried: those of the second wave."""
        return self.looks == 1 and not set(self.plan.finer_cuts).issubset(self.plan.waves[0])

    @property
    def _is_early(self) -> bool:
        """Whether schedules of large buffers decide, and something is left to try but what an interpreter keeps up with least."""
        if not self.plan.opens_interpreted:
            return False
        seen = {entry.candidate for entry in self.scored}
        return seen.issubset(self.plan.kept_up_with) or not seen.issuperset(self.plan.finest_kept_up_with)

    def segments(self, max_files: int) -> list[Segment]:
        """Which contender (by its index in `contenders`) serves which sizes; empty where `max_files` files cannot serve all.

        Between the sizes that were simulated a contender's estimate stands in, and may flatter it: what is chosen is simulated where
        it serves, and the choice made again, until it stands, or there is no time left.
        """
        self._allow(_FILLED_IN_BY)
        self._look_between()
        self._allow(_CHOSEN_BY)
        known: dict[Contender, list[int]] = {}
        segments = self.prices.split(known, max_files)
        for _ in range(_MOST_CHOICES):
            if not self._refine(segments, known):
                return segments
            segments = self.prices.split(known, max_files)
        self._refine(segments, known)
        return self.prices.split(known, max_files, alone=True)

    def _look_at_candidates(self) -> None:
        """Simulate at every size looked at what rules out others, the candidate that seems best there, then the next ones, while
        there is work left.
        """
        self._allow(_OPENED_BY)
        ranked = {size: self.ranking.ranked(size) for size in self.plan.looked_at}
        quick: Runs = {}
        for size in self.plan.looked_at:
            for contender in self.ranking.known_at_once(ranked[size].all, size):
                self.spend(quick, contender, size, math.inf)
        self.carry_out(quick, may_end=True)
        self.carry_out(self._planned(self.shapes.wide_rivals), may_end=True)
        first: Runs = {}
        for size in self.plan.looked_at:
            for contender in self.ranking.openers(ranked[size], size) if not self.is_reached(size) else ():
                self.spend(first, contender, size, math.inf)
        self.carry_out(first, may_end=True)
        self._allow(_TRIED_BY)
        self.carry_out(
            {
                replace(each, instances=self.request.instances or 1): first[each]
                for each in first
                if self._is_too_wide(each)
            },
            may_end=True,
        )
        others: Runs = {}
        apart = any(entry.candidate.apart for entry in self.scored)
        for turn in range(1, _MOST_AT_A_SIZE + (_MORE_APART if apart else 0)):
            for size in reversed(self.plan.looked_at):
                for contender in ranked[size].promising[turn : turn + 1]:
                    if self.ranking.is_worth_it(contender, size):
                        self.spend(others, contender, size, _MOST_WORK * _OPENING_SHARE + self.shapes_work)
        self.carry_out(others, may_end=True)
        for size in self.plan.looked_at:
            # What a runtime cannot hold says so only now: the next one gets its chance.
            for contender in ranked[size].all:
                if not self.is_answered(size):
                    self.carry_out({contender: [size]})

    def _allow(self, share: float) -> None:
        """Let simulations of a range go on until so much of the time limit is gone."""
        self.share = _CHOSEN_BY if self.request.single_size else share

    def _is_too_wide(self, contender: Contender) -> bool:
        """Whether an opener may do better on fewer threadblocks: no runtime holds it on many, or it comes in rounds, whose messages
        get too short when instances part them, and is not near the limit.
        """
        if contender.instances == (self.request.instances or 1):
            return False
        paced = self.entry(contender).candidate.in_rounds
        return contender in self.refusals or (paced and not all(map(self.is_near, self.known_us(contender))))

    def _look_at_shapes(self) -> None:
        """Simulate the best of LL on fewer threadblocks, and what is coarse on many; the best at every size, the smallest first,
        which are least work, in other shapes, while there is work left; and what more threadblocks have helped on still more.
        """
        self.carry_out(self._planned(self.shapes.halved), may_end=True)
        coarse = self._planned(self.shapes.coarse)
        self.carry_out(coarse, may_end=True)
        refused = [contender for contender in coarse if contender in self.refusals]
        halved = {replace(contender, instances=contender.instances // 2): coarse[contender] for contender in refused}
        self.carry_out(halved, may_end=True)
        self.shapes.wide.update(coarse, halved)
        runs: Runs = {}
        before, small = self.work, 0
        for size in self.plan.looked_at:
            for leader in self.shapes.leaders(size) if not self.is_closed(size) else ():
                if not self.ranking.is_worth_it(leader, size):
                    continue
                matters = self.shapes.matter(leader, size)
                for shaped in self.shapes.of(leader, size):
                    work = self.spend(runs, shaped, size, _MOST_WORK if matters else before + _SMALL_SHAPES_WORK)
                    self.shapes_work += work
                    small += 0 if matters else work
        self.work -= small
        rivals = self._planned(self.shapes.rivals, _MOST_WORK) if self.in_any_shape else {}
        largest = self._planned(self.shapes.largest, _LITTLE_WORK)
        # What is planned together keeps all processes busy.
        self.carry_out(largest | runs | rivals, may_end=True)
        self.carry_out(self._planned(self.shapes.crossing), may_end=True)
        rivals = self._planned(self.shapes.further_rivals, _RIVALS_WORK) if self.in_any_shape else {}
        self.carry_out(self._planned(self.shapes.further) | rivals, may_end=True)
        self.carry_out(self._planned(self.shapes.for_smaller, _SMALLER_WORK), may_end=True)
        for _ in range(_MOST_SPREADS):
            self.carry_out(self._planned(self.shapes.neighbours), may_end=True)

    def _look_at_last(self) -> None:
        """Before an answer is given simulate what is not close to the limit on other threadblocks, where that may be better, then
        rings and trees that may still be, since nobody should be worse off than with what a library runs.
        """
        for shapes in (self.shapes.spread, self.shapes.overtaking) if self.in_any_shape else ():
            runs: Runs = {}
            before = self.work
            for size in self.plan.looked_at:
                for contender in shapes(size):
                    self.spend(runs, contender, size, before + _LITTLE_WORK)
            self.work = before
            self.carry_out(runs, may_end=True)

    def _planned(self, shapes: Callable[[int], Iterable[Contender]], work: int | None = None) -> Runs:
        """The shapes of every size that nothing has closed yet, the largest first, as far as so much work goes (None: a little),
        which is not taken from that of others.
        """
        runs: Runs = {}
        before = self.work
        most = before + (work or (_LITTLE_WORK if self.request.single_size else _LITTLE_WORK_OF_A_RANGE))
        for size in reversed(self.plan.looked_at):
            for contender in shapes(size) if not self.is_closed(size) else ():
                if self.ranking.is_worth_it(contender, size):
                    self.spend(runs, contender, size, most)
        self.work = before
        return runs

    def _look_between(self) -> None:
        """Simulate at every size of a range what is likely to be near the best there, the likeliest of every size first, while a
        little work is left: between the sizes that candidates are compared at, one protocol overtakes another.
        """
        if self.request.single_size:
            return
        costs = {each: self.prices.costs(each) for each in self.contenders if self.known_us(each)}
        ranked = {size: self._likely(size, costs) for size in self.sizes}
        runs: Runs = {}
        before = self.work
        for turn in range(_MOST_BETWEEN):
            for size, contenders in ranked.items():
                for contender in contenders[turn : turn + 1]:
                    self.spend(runs, contender, size, before + _WORK_BETWEEN)
        self.work = before
        self.carry_out(runs, may_end=True)

    def _likely(self, size: int, costs: Mapping[Contender, Mapping[int, float]]) -> list[Contender]:
        """What is near the best at a size by what it is likely to cost there, or at the next smaller or larger one that candidates
        are compared at by what it takes: estimates alone do not say where one overtakes another. What fell short at both falls short
        between them.
        """
        looked_at = self.plan.looked_at
        beside = (*looked_at[: bisect_left(looked_at, size)][-1:], *looked_at[bisect_right(looked_at, size) :][:1])
        here = {each: served[size] for each, served in costs.items() if size in served}
        behind: dict[Contender, float] = {}
        for taken_us in (here, *map(self.timed, beside)):
            least_us = min(taken_us.values(), default=0.0)
            for contender in taken_us.keys() & here.keys():
                behind[contender] = min(taken_us[contender] / least_us, behind.get(contender, _NEAR_THE_BEST))
        near = [
            contender
            for contender, times in behind.items()
            if times < _NEAR_THE_BEST and not all(self.ranking.fell_short(contender, other) for other in beside)
        ]
        return sorted(near, key=lambda each: (behind[each], each.position, each.channels, each.instances))

    def _refine(self, segments: Sequence[Segment], known: dict[Contender, list[int]]) -> bool:
        """Simulate the chosen over their own segments and a size beyond on either side, and note them as `known` there; whether
        any was not.
        """
        wanted: Runs = {}
        for segment in segments:
            contender = self.contenders[segment.candidate]
            served = self.prices.costs(contender)
            near = [size for size in self.sizes[max(0, segment.first - 1) : segment.last + 2] if size in served]
            own, before = self.sizes[segment.first : segment.last + 1], known.get(contender, [])
            if not set(own).issubset(before):
                thinned, ends = self.is_thinned(contender), (near[0], near[-1])
                known[contender] = sorted({*before, *near})
                kept = [size for size in near if not thinned or size in self.plan.looked_at or size in ends]
                wanted[contender] = sorted({*wanted.get(contender, []), *kept})
        self.carry_out(wanted, may_end=True)
        return bool(wanted)
