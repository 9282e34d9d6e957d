"""Shapes: on how many channels, and how many times over, what is promising is tried, too."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from synth.candidates.candidate import JOINT, LARGE_VIEW, RINGS, Candidate
from synth.candidates.sizes import CONNECTION_BOUND_BYTES
from synth.candidates.transfers import MOST_READ_TRANSFERS
from synth.candidates.turns import most_chunks
from synth.collective import ROOTED
from synth.constants import Constants
from synth.trial.contender import Contender
from synth.trial.evidence import Evidence

#: The best at a size that are tried in other shapes, if they are this near the best of them.
_LEADERS = 2
NEAR_LEADER = 1.05
#: Buffers from which on threadblocks fill their links most of the time.
FILLING_BYTES = 16_000_000
#: Rings whose threadblocks part in larger buffers are programs of their own up to here.
_LARGEST_JOINED_BYTES = 16 << 20
#: And this near the best of all: another shape gains no more, and less from `FILLING_BYTES` on.
_GAIN = 1.15
_FILLING_GAIN = 1.1
#: These shapes: (channels of every path, instances).
_SHAPES = ((4, 1), (0, 2))
#: The same where bandwidth alone counts: as many channels as that needs are there already.
_LARGE_SHAPES = ((0, 2),)
#: The same for LL, whose threadblocks move a tenth of the others': it takes many to fill a link, so other shapes may gain much where
#: instances are few.
_LL_SHAPES = ((0, 4), (0, 8), (4, 2), (0, 3), (0, 6), (0, 9))
_GAIN_OF_FEW_LL = 2.5
_GAIN_LL = 1.25
_MANY_INSTANCES = 4
#: Small tiles through boxes come on twice their threadblocks at once; of more ranks than this on so many times these, simulated in
#: half the time, and on twice only if there is time left.
_RANKS_TILED_TWICE, _TILED_WIDER = 128, 4
#: Where the best of LL takes no longer than this, times the best, another protocol overtakes it about there.
_OVERTAKEN = 1.5
#: And these where time is no matter.
_MORE_SHAPES = ((3, 1), (6, 1), (0, 3), (0, 4))
#: Where a GPU has few threadblocks, more of them are no burden, and may be what is short.
_WIDE_SHAPES = ((0, 4), (6, 1))
_FEW_THREADBLOCKS = 12
#: Programs of few long messages that are tried on many threadblocks at a size, and over a range others' algorithms of these: for one
#: size they are hardly ever the best.
_COARSE_ONES = 3
_COARSE_KNOWN = 2
#: Rings and trees that are estimated at no more than this, times the best, are tried: what few threadblocks take is estimated at up
#: to 1.6 times what it is.
_NEAR_RIVAL = 1.7
#: On as many threadblocks as there are they come first: so near the best once over may be better, and of LL what is in between.
_NEAR_RIVAL_ALONE = 1.4
#: Pieces that follow each other from or to a root are hurt most by being cut shorter in large buffers.
_NEAR_PIPELINE_ALONE = 2.0
_NEAR_RIVAL_LL = 1.2
_NEAR_RIVAL_OF_A_RANGE = 1.1
_BETWEEN = (2, 4)
#: So are those that were to be so near the best on as many threadblocks as there are.
_PROMISED = 1.1
#: So near the best something may be better on as many threadblocks as it was not on.
_NEAR_SPREAD = 1.15
#: Rings and trees whose busiest link takes so much less than the best are tried, rings the first of so many times over that is.
_OVERTAKING = 1.005
_OVERTAKING_TIMES = (4, 2, 1)
#: Programs of LL on many threadblocks that are tried on half of these, and how near the best they are.
_HALVED_ONES = 5
_NEAR_HALVED = 1.15
#: What threadblocks that part take may be so much more than what joined ones do.
_NEAR_PARTED = 1.15
#: Lists for one of equal boxes that are tried whatever is estimated of them, of those for the size and of those for more.
_LISTED_OVER_BOXES = 2
#: Instances that what is best so far may come to.
_MOST_INSTANCES = 8
#: Buffers from which on other shapes are tried even if that is much work; below, it is latency that counts.
_SHAPED_BYTES = 1_000_000
#: A program that takes no longer than its schedule and a launch, times this, has nothing to gain from another shape.
_AS_SCHEDULED = 1.02


@dataclass(frozen=True)
class Shapes:
    """The shapes that may be worth a simulation; `wide` is what is coarse, on many threadblocks."""

    evidence: Evidence
    wide: set[Contender] = field(default_factory=set)

    def leaders(self, size: int) -> list[Contender]:
        """Of what was simulated at a size, what is worth another shape: the best few, the best of LL, and where one size is all what
        is coarse, if that is the best. Rings and trees are not where they come in all shapes anyway (`rivals`).
        """
        timed = self.evidence.timed(size)
        order = list(timed)
        if self.evidence.in_any_shape:
            order = [contender for contender in order if not self.evidence.is_rival(contender)]
        wide = [contender for contender in order[:1] if contender in self.wide and self.evidence.request.single_size]
        usual = [contender for contender in order if contender not in self.wide]
        near = [contender for contender in usual[:_LEADERS] if timed[contender] <= timed[usual[0]] * NEAR_LEADER]
        low = [contender for contender in usual if self.evidence.entry(contender).is_low][:1]
        best_us = min(timed.values(), default=math.inf)
        hopeful = [each for each in (*near, *low) if timed[each] <= best_us * self._most_gain(each, size)]
        return list(dict.fromkeys((*wide, *hopeful)))

    def _most_gain(self, leader: Contender, size: int) -> float:
        """How far behind the best at a size a contender may be for another shape of it to overtake that."""
        if self.evidence.request.thorough:
            return math.inf
        if self.evidence.entry(leader).is_low:
            return _GAIN_OF_FEW_LL if leader.instances < _MANY_INSTANCES else _GAIN_LL
        return _GAIN if size < FILLING_BYTES else _FILLING_GAIN

    def matter(self, leader: Contender, size: int) -> bool:
        """Whether other shapes are worth much work: where bandwidth counts, and where few threadblocks may be what is short."""
        if self.evidence.request.thorough or self._is_narrow(leader):
            return True
        return self.evidence.request.by_time and size >= _SHAPED_BYTES

    def of(self, leader: Contender, size: int) -> Iterator[Contender]:
        """The contender in the other shapes that were not asked to be otherwise and that runtimes would use at the size."""
        entry = self.evidence.entry(leader)
        thorough = self.evidence.request.thorough
        if not self.evidence.is_simulated(leader) or _is_full(entry.candidate):
            return
        if self.chains_tiles(leader, size):
            if leader.instances == _TILED_WIDER:
                yield from self._shaped(leader, _LARGE_SHAPES, size)
            return
        launch_us = Constants.for_topology(self.evidence.request.topology).of(entry.protocol).launch_us
        tile_by_tile = entry.candidate.chained or entry.candidate.looped
        if (
            not tile_by_tile
            and self.evidence.time_us(leader, size) <= (entry.schedules_us[size] + launch_us) * _AS_SCHEDULED
        ):
            return
        # Rounds and turns are for the channels that bandwidth needs: with more, threadblocks fall out of step.
        paced = entry.candidate.in_rounds or entry.candidate.in_turns
        large = paced or (size > CONNECTION_BOUND_BYTES and not tile_by_tile)
        usual = _LL_SHAPES if entry.is_low else _LARGE_SHAPES if large else _SHAPES
        more = _MORE_SHAPES if thorough else _WIDE_SHAPES if self._is_narrow(leader) else ()
        # A leader that has more instances already may be better without them, but for LL, of which both are estimated.
        plain = () if entry.wide_us and entry.is_low else ((0, 1),)
        yield from self._shaped(leader, dict.fromkeys((*plain, *usual, *more)), size)

    def wider(self, leader: Contender, size: int) -> Contender | None:
        """The contender with more threadblocks, if it can have them, and is small enough to be read and simulated then."""
        ((channels, instances),) = _LARGE_SHAPES
        if self.chains_tiles(leader, size) and self.evidence.request.topology.num_ranks > _RANKS_TILED_TWICE:
            instances = _TILED_WIDER
        divided = self.evidence.divides(self.evidence.entry(leader), instances, size)
        candidate = self.evidence.entry(leader).candidate
        if _is_full(candidate):
            return None
        if candidate.strategy == JOINT and candidate.in_rounds:
            # Free roots are for direct links, which one threadblock fills.
            return None
        effort = self.evidence.effort(leader.position)
        # Around rings so many chunks go together that messages are few.
        transfers = instances * (effort.sends if candidate.looped else effort.transfers)
        read = transfers <= MOST_READ_TRANSFERS * self.evidence.request.topology.num_ranks
        # A receive and a send each: what is too large to be simulated could not be compared.
        if divided and read and self.evidence.may_be_simulated(leader.position, 2 * transfers):
            return Contender(leader.position, channels, instances)
        return None

    def coarse(self, size: int) -> list[Contender]:
        """The most promising at a size of what has few long messages, on as many threadblocks as there are: on few they wait. Rings
        and trees are among them whatever they promise: NCCL would run them.
        """
        wide = {
            Contender(position, 0, entry.copies): entry.wide_us[size]
            for position, entry in enumerate(self.evidence.scored)
            if size in entry.wide_us and not entry.is_low
        }
        ranked = sorted(wide, key=lambda contender: (wide[contender], contender.position))
        rivals = [contender for contender in ranked if self.evidence.is_rival(contender)]
        known = [] if self.evidence.request.single_size else list(filter(self.evidence.is_known, ranked))
        return list(dict.fromkeys((*rivals, *ranked[:_COARSE_ONES], *known[:_COARSE_KNOWN])))

    def halved(self, size: int) -> Iterator[Contender]:
        """Where one size is asked for the best of LL on half as many threadblocks, and what was to be better than it: on very many
        these share a link's latency, and wait for each other, of which estimates say nothing.
        """
        timed = self.evidence.timed(size)
        if not self.evidence.request.single_size or self.evidence.request.instances is not None:
            return
        best_us = min(timed.values(), default=0.0)
        low = [
            contender
            for contender, taken_us in timed.items()
            if (taken_us <= best_us * _NEAR_HALVED or self._promised(contender, size, best_us))
            and contender.instances >= _MANY_INSTANCES
            and self.evidence.entry(contender).is_low
        ]
        for contender in low[:_HALVED_ONES]:
            yield from self._times_over(contender, (contender.instances // 2,), size)

    def _promised(self, contender: Contender, size: int, best_us: float) -> bool:
        """Whether what was made for one of equal boxes was estimated at less than what turned out to be the best."""
        return self.evidence.entry(contender).candidate.boxed and self.evidence.estimates(contender)[size] < best_us

    def wide_rivals(self, size: int) -> list[Contender]:
        """Of what is coarse, the rings and trees, where they come first of all: what is estimated well they rule out."""
        if size < FILLING_BYTES or not self.evidence.in_any_shape:
            return []
        return list(filter(self.evidence.is_rival, self.coarse(size)))

    def over_boxes(self, size: int) -> Iterator[Contender]:
        """Of what is made in a list for one of equal boxes, the first cuts made for the one size asked for, and for more, once
        and twice: simulated for one box that is little work, and estimates say nothing of how their messages meet.
        """
        if not (self.evidence.in_any_shape and self.evidence.request.single_size):
            return
        listed: dict[bool, list[Contender]] = {True: [], False: []}
        for position, entry in enumerate(self.evidence.scored):
            candidate = entry.candidate
            if candidate.boxed and candidate.view == LARGE_VIEW == entry.protocol and not candidate.in_rounds:
                listed[candidate.anchor_bytes > size].append(Contender(position))
        for plain in (*listed[True][:_LISTED_OVER_BOXES], *listed[False][:_LISTED_OVER_BOXES]):
            yield plain
            yield from self._times_over(plain, (2,), size)

    def largest(self, size: int) -> Iterator[Contender]:
        """At the end of a range of large buffers what is made for it and promises about as much as what leads, twice over, whatever
        smaller ones have left of the work: it has to serve most of those sizes, so that the coarsest comes first.
        """
        if size <= CONNECTION_BOUND_BYTES or size < self.evidence.sizes[-1] or self.evidence.request.single_size:
            return
        for leader in self.leaders(size)[:1] if self.evidence.in_any_shape else ():
            best = self.evidence.entry(leader)
            alike = {
                position: self.evidence.effort(position).sends
                for position, entry in enumerate(self.evidence.scored)
                if (entry.candidate.anchor_bytes, entry.protocol) == (size, best.protocol)
                and not (entry.candidate.in_rounds or self.evidence.is_known(Contender(position)))
                and entry.times_us.get(size, math.inf) <= best.times_us[size] * NEAR_LEADER
            }
            for position in sorted(alike, key=lambda position: (alike[position], position)):
                yield from self._times_over(Contender(position), (2,), size)

    def further(self, size: int) -> Iterator[Contender]:
        """The best at a size with twice its instances, where these have helped it."""
        fastest = [*self.evidence.timed(size)][:1]
        if not fastest or size > CONNECTION_BOUND_BYTES or self.evidence.request.instances is not None:
            return
        (best,) = fastest
        instances = 2 * best.instances
        if best.instances == 1 or instances > _MOST_INSTANCES:
            return
        yield from self._times_over(best, (instances,), size)

    def rivals(self, size: int) -> Iterator[Contender]:
        """Rings and trees that may be the best at a size, on as many threadblocks as NCCL may run them; and once over, if that may
        be better. Of large buffers the best that passes tiles on, too, whatever is estimated of it.
        """
        tiled = self._tiled(size)
        limit_us = min(self.evidence.timed(size).values(), default=math.inf) * _NEAR_RIVAL
        for contender in self.evidence.contenders:
            entry = self.evidence.entry(contender)
            if not self.evidence.is_rival(contender) or contender != Contender(contender.position):
                continue
            promising = min(times.get(size, math.inf) for times in (entry.times_us, entry.wide_us)) <= limit_us
            if promising or contender == tiled:
                yield from self._times_over(contender, (entry.copies,), size)
        yield from self._fewer_rivals(size, (1,), self._near_alone(size))

    def spread(self, size: int) -> Iterator[Contender]:
        """Where ways meet in one box and nothing is close to the limit, what was simulated of a large buffer and is not far behind,
        on few threadblocks if it was on many, and the other way round: estimates do not say which are less in each other's way.
        """
        plan, single = self.evidence.plan, self.evidence.request.single_size
        if size < FILLING_BYTES or not (plan.is_crowded_box and single) or self.evidence.is_close(size):
            return
        timed = self.evidence.timed(size)
        limit_us = min(timed.values(), default=0.0) * _NEAR_SPREAD
        for contender, taken_us in timed.items():
            made = not self.evidence.is_known(contender) and self.evidence.entry(contender).solution.written is None
            if made and not contender.otherwise and taken_us <= limit_us:
                yield replace(contender, otherwise=True)

    def overtaking(self, size: int) -> Iterator[Contender]:
        """Rings and trees whose busiest link lets them be better in a large buffer than all that was simulated: estimates have
        their ranks wait for whole messages. Rings on as many threadblocks as help one, trees, whose pieces are short, on few.
        """
        for position, entry in enumerate(self.evidence.scored):
            contender = Contender(position)
            if not self.evidence.is_rival(contender) or size not in entry.times_us:
                continue
            if self.is_overtaking(self.evidence.link_us(contender, size), size):
                wide = [*self._times_over(contender, _OVERTAKING_TIMES, size)][:1]
                yield from wide if entry.candidate.strategy == "ring" else self._times_over(contender, (1, 2), size)

    def is_overtaking(self, link_us: float, size: int) -> bool:
        """Whether what keeps links busy for so long may be better in a large buffer than all that was simulated."""
        best_us = min(self.evidence.timed(size).values(), default=0.0)
        return size >= FILLING_BYTES and link_us * _OVERTAKING <= best_us

    def chains_tiles(self, contender: Contender, size: int) -> bool:
        """Whether a contender takes a large buffer through many boxes in the small tiles of LL128."""
        entry = self.evidence.entry(contender)
        return size > CONNECTION_BOUND_BYTES and entry.candidate.chained and entry.protocol == "LL128"

    def passes_tiles_on(self, contender: Contender, size: int) -> bool:
        """Whether LL128, whose ranks pass on a tile while the next one comes, keeps a candidate's busiest link for less time than
        anything takes that was simulated at a size: estimates have every rank wait for whole messages, of which chains are long.
        """
        if self.evidence.entry(contender).protocol != "LL128" or contender.instances > 1:
            return False
        return self.evidence.link_us(contender, size) < min(self.evidence.timed(size).values(), default=0.0)

    def _tiled(self, size: int) -> Contender | None:
        """Of the rings and trees that pass tiles on in large buffers the one of the shortest schedule, if there is any."""
        if size <= CONNECTION_BOUND_BYTES:
            return None
        tiled = [
            each
            for each in self.evidence.contenders
            if self.evidence.is_rival(each)
            and size in self.evidence.entry(each).schedules_us
            and self.passes_tiles_on(each, size)
        ]
        return min(tiled, key=lambda each: self.evidence.entry(each).schedules_us[size], default=None)

    def further_rivals(self, size: int) -> Iterator[Contender]:
        """These once over, if that may be better still; and of what is nearly the best what is in between, and of LL, which needs
        several threadblocks to fill a link.
        """
        yield from self._fewer_rivals(size, (1,), self._near_alone(size))
        yield from self._fewer_rivals(size, _BETWEEN, _NEAR_RIVAL_LL, low=True)
        near = NEAR_LEADER if self.evidence.request.single_size else _NEAR_RIVAL_OF_A_RANGE
        yield from self._fewer_rivals(size, _BETWEEN, near)

    def _near_alone(self, size: int) -> float:
        """How near the best rings and trees have to come on many threadblocks to be tried once over, as a factor."""
        pipelined = self.evidence.request.collective in ROOTED and size >= FILLING_BYTES
        return _NEAR_PIPELINE_ALONE if pipelined else _NEAR_RIVAL_ALONE

    def _fewer_rivals(
        self, size: int, numbers: Sequence[int], near: float, *, low: bool = False
    ) -> Iterator[Contender]:
        """Rings and trees, those of LL (`low`) or all others, that were simulated with other instances, if they took no longer than
        so many times the best, or were to take less than that. Of LL128 in large buffers, whose tiles follow each other, more than
        one gain nothing.
        """
        timed = self.evidence.timed(size)
        best_us = min(timed.values(), default=0.0)
        best: dict[int, Contender] = {}
        for contender in filter(self.evidence.is_rival, timed):
            best.setdefault(contender.position, contender)
        for contender in best.values():
            entry = self.evidence.entry(contender)
            if size > CONNECTION_BOUND_BYTES and entry.protocol == "LL128" and contender.instances == 1:
                continue
            promised_us = entry.wide_us.get(size, math.inf)
            if entry.is_low is low and (timed[contender] <= best_us * near or promised_us <= best_us * _PROMISED):
                yield from self._times_over(contender, numbers, size)

    def for_smaller(self, size: int) -> Iterator[Contender]:
        """Rings that are near the best at a size of a range, as programs for buffers up to `_LARGEST_JOINED_BYTES` alone, if their
        threadblocks have parted for larger ones.
        """
        if size > _LARGEST_JOINED_BYTES or self.evidence.request.single_size or not self.evidence.request.by_time:
            return
        timed = self.evidence.timed(size)
        limit_us = min(timed.values(), default=0.0) * _NEAR_PARTED
        for contender in filter(self.evidence.is_rival, timed):
            near = contender.up_to_bytes is None and timed[contender] <= limit_us
            if near and self.evidence.has_parted(contender):
                yield replace(contender, up_to_bytes=_LARGEST_JOINED_BYTES)

    def crossing(self, size: int) -> Iterator[Contender]:
        """The best of LL at a size where other protocols overtake it, under these: its routes and order are right for the size, and
        estimates say little of what a threadblock more or less does there.
        """
        timed = self.evidence.timed(size)
        low = {contender: us for contender, us in timed.items() if self.evidence.entry(contender).is_low}
        best_us = min(low.values(), default=math.inf)
        if size < _SHAPED_BYTES or not low or best_us > min(timed.values()) * _OVERTAKEN:
            return
        near = [
            contender
            for contender, us in low.items()
            if us <= best_us * NEAR_LEADER and not self.evidence.is_known(contender)
        ]
        for candidate in [*dict.fromkeys(self.evidence.entry(each).candidate for each in near)][:_LEADERS]:
            for position, entry in enumerate(self.evidence.scored):
                if entry.candidate == candidate and not entry.is_low and size in entry.times_us:
                    plain = Contender(position, 0, self.evidence.request.instances or 1)
                    yield plain
                    yield from self._shaped(plain, _SHAPES, size)

    def neighbours(self, size: int) -> Iterator[Contender]:
        """What is fastest at the next larger and the next smaller size that candidates are compared at: it may be so here, too."""
        looked_at = self.evidence.plan.looked_at
        place = looked_at.index(size)
        for other in (*looked_at[place + 1 : place + 2], *looked_at[max(0, place - 1) : place]):
            for contender in [*self.evidence.timed(other)][:1]:
                if size in self.evidence.estimates(contender):
                    yield contender

    def _shaped(self, leader: Contender, shapes: Iterable[tuple[int, int]], size: int) -> Iterator[Contender]:
        """The contender in such of the shapes as are others, and were not asked to be otherwise."""
        entry = self.evidence.entry(leader)
        for channels, instances in shapes:
            if channels and entry.solution.written is not None:
                continue  # it has channels of its own
            if instances > 1 and not entry.solution.is_worth_parting(size, instances):
                continue
            shaped = Contender(
                leader.position, channels, instances if self.evidence.request.instances is None else leader.instances
            )
            if not self.evidence.is_same(leader, shaped):
                yield shaped

    def _times_over(self, contender: Contender, numbers: Iterable[int], size: int) -> Iterator[Contender]:
        """The contender so many times, as far as its chunks can be parted."""
        entry = self.evidence.entry(contender)
        for instances in numbers:
            if entry.solution.is_worth_parting(size, instances):
                yield replace(contender, instances=instances)

    def _is_narrow(self, contender: Contender) -> bool:
        """Whether its GPUs have few threadblocks each."""
        return self.evidence.extent(contender).threadblocks <= _FEW_THREADBLOCKS


def _is_full(candidate: Candidate) -> bool:
    """Whether a candidate has as many messages as a program holds: what comes in turns, but large buffers around rings, or through
    boxes, of so many ranks that they are cut coarser, whose parts follow each other as more chunks would.
    """
    in_a_row = candidate.strategy == RINGS or candidate.chained
    coarse = in_a_row and 2 * candidate.count <= most_chunks(candidate.strategy)
    return candidate.in_turns and not (coarse and candidate.anchor_bytes > CONNECTION_BOUND_BYTES)
