"""Which candidates are worth a simulation at a size, and which come first."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from synth.candidates.candidate import FEW_HOPS, RING
from synth.candidates.sizes import CONNECTION_BOUND_BYTES
from synth.candidates.transfers import direct
from synth.trial.contender import Contender
from synth.trial.evidence import Evidence
from synth.trial.prices import SCHEDULE_SLACK, Prices
from synth.trial.shapes import FILLING_BYTES, NEAR_LEADER, Shapes

#: What is estimated at no more than this, times the best, is worth a simulation.
_PROMISING = 1.35
#: The same where bandwidth alone counts: estimates err little there, and simulations take longest. (They err where every pair of
#: ranks has but a few messages: links share these.)
_PROMISING_LARGE = 1.06
#: A schedule is not far behind the best if it takes so many times as long at most.
_NOT_FAR_BEHIND = 1.15
#: What comes in rounds that are this much shorter than what is estimated of all else is simulated however far it is from the limit.
_MUCH_BETTER = 1.2
#: From `FILLING_BYTES` on what LL128 takes is hardly ever less than this, times its estimate.
_LEAST_OF_LL128 = 0.97
#: And what is on as many threadblocks as there are no less than this, times what is estimated of it there: none of a thousand that
#: were estimated at more than the best so far over this was better.
_LEAST_OF_WIDE = 0.75
#: Along another pattern of boxes what is estimated at no more than this, times the best, may be better.
_PATTERNS_APART = 2.5
#: Of what comes in rounds, what is alike in all boxes is taken if its rounds take no longer than this, times those of the best.
_AS_FEW_ROUNDS = 1.01


class Ranked(NamedTuple):
    """Contenders at a size, the most promising first; so many of them are worth a simulation."""

    all: list[Contender]
    worth: int

    @property
    def promising(self) -> list[Contender]:
        return self.all[: self.worth]


class _Kind(NamedTuple):
    """What estimates do not compare; `way` tells apart what goes through boxes, and around rings."""

    in_rounds: bool
    boxed: bool
    links_alone: bool
    paths_apart: bool = False
    way: tuple[str | int, ...] | None = None


@dataclass(frozen=True)
class Ranking:
    """Ranks contenders by what is known of them so far."""

    evidence: Evidence
    shapes: Shapes
    prices: Prices

    def ranked(self, size: int) -> Ranked:
        """The candidates that serve a size: the most promising of every protocol, since estimates are not equally right for all
        protocols, then the second of every one, and so on; then the others, the most promising first.
        """
        sure = size > CONNECTION_BOUND_BYTES and not direct(self.evidence.plan.collective(1))
        by_time, interpreted = self.evidence.request.by_time, self.evidence.plan.opens_interpreted
        factor = (_PROMISING_LARGE if sure else _PROMISING) if by_time else 1 + SCHEDULE_SLACK
        promise: dict[Contender, tuple[float, float]] = {}
        for contender in self.evidence.contenders:
            if (estimate_us := self.evidence.estimates(contender).get(size)) is not None:
                judged_us = estimate_us if by_time else self.evidence.entry(contender).schedules_us[size]
                promise[contender] = (judged_us, estimate_us)
        best = {contender for contender in promise if self._is_best_shape(contender, size)}
        ranked = sorted(promise, key=lambda contender: (contender not in best, promise[contender], contender.position))
        limit = promise[ranked[0]][0] * factor if ranked else 0.0
        if interpreted and ranked:
            limit = self.evidence.as_scheduled_us(size)
        apart = {contender for contender in ranked if self.evidence.in_any_shape and self.evidence.is_rival(contender)}
        worth = [each for each in ranked if each in best and each not in apart and promise[each][0] <= limit]
        estimates_us = {contender: estimate_us for contender, (_, estimate_us) in promise.items()}
        if by_time:
            worth = self._in_turns(worth, estimates_us)
        elif interpreted:
            worth.sort(key=lambda each: (estimates_us[each] * self.prices.price(each, size), each.position))
        return Ranked(list(dict.fromkeys((*worth, *ranked))), len(worth))

    def known_at_once(self, ranked: Sequence[Contender], size: int) -> list[Contender]:
        """Where every chunk has one destination, the best of others' algorithms for large buffers alone if its schedule is not far
        behind: all ranks do the same in it, which takes next to no time to simulate, and it may be all that there is to gain.
        """
        if not (self.evidence.plan.ends and size > CONNECTION_BOUND_BYTES and direct(self.evidence.plan.collective(1))):
            return []
        known = [contender for contender in ranked if self.evidence.is_known(contender)]
        return [
            one
            for one in known[:1]
            if self.evidence.entry(one).schedules_us[size] <= self.evidence.best_us[size] * _NOT_FAR_BEHIND
        ]

    def openers(self, ranked: Ranked, size: int) -> list[Contender]:
        """What is simulated first at a size: the most promising; where one size alone is asked for the next one, beside it, and what
        comes in rounds and in turns, as it takes less than it says, and of large buffers the first of every kind (`_kind`), as their
        estimates are not equally right, some on more threadblocks (`_opens_wide`).
        """
        if not (self.evidence.request.single_size and self.evidence.request.by_time):
            return ranked.all[:1]
        if size <= CONNECTION_BOUND_BYTES:
            candidates = {contender: self.evidence.entry(contender).candidate for contender in ranked.all}
            paced = [contender for contender, each in candidates.items() if each.in_rounds]
            turned = [contender for contender, each in candidates.items() if each.in_turns]
            patterns = self._first_of_patterns(ranked.all, size)
            first = dict.fromkeys((*ranked.all[:1], *ranked.promising[:2], *paced[:1], *turned[:1], *patterns))
            return [contender for contender in first if not self.fell_short(contender, size)]
        behind = self._fell_behind(size)
        kinds = self._first_of_kinds(ranked.all, size)
        leaders = [leader for kind, leader in kinds.items() if kind not in behind and self._is_hopeful(leader, size)]
        if self.evidence.request.instances is not None:
            return leaders
        return [(self._opens_wide(leader, size) and self.shapes.wider(leader, size)) or leader for leader in leaders]

    def _opens_wide(self, leader: Contender, size: int) -> bool:
        """Whether a large buffer is on more threadblocks from the start: sums are held up by what a threadblock adds, and boxes that
        pass it on by the first of its chunks, which several have in parts, and by few chunks in small tiles.
        """
        if self.evidence.plan.collective(1).combining or self.shapes.chains_tiles(leader, size):
            return True
        candidate = self.evidence.entry(leader).candidate
        return candidate.chained and candidate.in_turns

    def _first_of_patterns(self, ranked: Sequence[Contender], size: int) -> list[Contender]:
        """Over equal boxes, of what is routed for one of them, the most promising along every pattern of boxes, unless it is far
        behind: estimates say little of how many connections share a NIC, and one box is soon simulated.
        """
        patterns: dict[str, Contender] = {}
        limit_us = min((self.evidence.estimates(each)[size] for each in ranked), default=0.0) * _PATTERNS_APART
        for contender in ranked:
            candidate = self.evidence.entry(contender).candidate
            if not candidate.boxed or candidate.exchanged or self.evidence.is_known(contender):
                continue
            patterns.setdefault(candidate.strategy, contender)
        return [leader for leader in patterns.values() if self.evidence.estimates(leader)[size] <= limit_us]

    def is_worth_it(self, contender: Contender, size: int) -> bool:
        """Whether to simulate what is not the most promising: where nothing is near enough to the limit, and others' algorithms
        where these may be what is best. Besides what comes in rounds nothing is likely to be nearer.
        """
        paced = any(entry.candidate.in_rounds for entry in self.evidence.scored)
        if self.evidence.is_reached(size):
            return False
        if self.evidence.is_closed(size) or (paced and self.evidence.is_near(size)):
            known = self.evidence.is_known(contender)
            return known and (size <= CONNECTION_BOUND_BYTES or self.shapes.passes_tiles_on(contender, size))
        return self._is_hopeful(contender, size)

    def _is_hopeful(self, contender: Contender, size: int) -> bool:
        """Whether a candidate in rounds may be near the limit, or promises much more than what is not (of very many ranks, where
        hardly anything is near, and of what passes few boxes, anything more); and other ones may be better than what was simulated.
        """
        entry = self.evidence.entry(contender)
        if self.fell_short(contender, size):
            return False
        if not entry.candidate.in_rounds or not self.evidence.plan.ends:
            return True
        if self.evidence.plan.has_very_many_ranks or entry.candidate.strategy == FEW_HOPS:
            return entry.times_us.get(size, math.inf) < min(self.evidence.timed(size).values(), default=math.inf)
        others = (each.times_us.get(size, math.inf) for each in self.evidence.scored if not each.candidate.in_rounds)
        much_better = entry.times_us.get(size, math.inf) * _MUCH_BETTER <= min(others, default=math.inf)
        return much_better or self.evidence.may_be_near(entry, size)

    def fell_short(self, contender: Contender, size: int) -> bool:
        """Whether the estimate says for certain that something which was simulated at a size is better."""
        entry = self.evidence.entry(contender)
        best_us = min(self.evidence.timed(size).values(), default=math.inf)
        if self._is_wide(contender, size) and entry.wide_us[size] * _LEAST_OF_WIDE > best_us:
            return True
        if not self.evidence.request.by_time or self.evidence.is_known(contender):
            return False
        if size < FILLING_BYTES or entry.protocol != "LL128" or entry.candidate.in_rounds:
            return False
        if self.shapes.chains_tiles(contender, size):
            return self.evidence.link_us(contender, size) >= best_us
        return self.evidence.estimates(contender).get(size, 0.0) * _LEAST_OF_LL128 > best_us

    def _is_wide(self, contender: Contender, size: int) -> bool:
        """Whether a contender is on as many threadblocks as there are, of which there is an estimate, and one size is asked for."""
        entry, request = self.evidence.entry(contender), self.evidence.request
        asked = request.by_time and request.single_size
        return asked and size in entry.wide_us and contender.instances == entry.copies > (request.instances or 1)

    def _in_turns(self, ranked: Sequence[Contender], estimates_us: Mapping[Contender, float]) -> list[Contender]:
        """The first of every protocol, the second of every one, and so on; what has the same estimate as one before it comes last,
        since it is likely to be the same but for the cut.
        """
        turns: Counter[str] = Counter()
        seen: set[tuple[str, str]] = set()
        turn: dict[Contender, tuple[bool, int]] = {}
        for contender in ranked:
            protocol = self.evidence.entry(contender).protocol
            same = (protocol, f"{estimates_us[contender]:.6g}")
            turn[contender] = same in seen, turns[protocol]
            turns[protocol] += same not in seen
            seen.add(same)
        return sorted(ranked, key=turn.__getitem__)

    def _is_best_shape(self, contender: Contender, size: int) -> bool:
        """Whether a contender is the better at a size of the two that are expected to differ: plain, and with LL's threadblocks
        many times.
        """
        entry = self.evidence.entry(contender)
        if contender.channels or not entry.wide_us or not entry.is_low:
            return True
        wide_is_better = entry.wide_us.get(size, math.inf) < entry.times_us[size]
        return wide_is_better if contender.instances == entry.copies else contender.instances > 1 or not wide_is_better

    def _first_of_kinds(self, ranked: Sequence[Contender], size: int) -> dict[_Kind, Contender]:
        """The most promising of every kind; others' algorithms only if none is more so. Of what comes in rounds that take about as
        long, what is alike in all boxes: it does no less than it says, and is simulated in a fraction of the time; of that the
        finest, whose first and last messages are short.
        """
        kinds: dict[_Kind, Contender] = {}
        for contender in ranked:
            if contender is not ranked[0] and self.evidence.is_known(contender):
                continue
            kind, entry = self._kind(contender), self.evidence.entry(contender)
            leader = kinds.setdefault(kind, contender)
            ahead = self.evidence.entry(leader)
            as_good = entry.times_us[size] <= ahead.times_us[size] * _AS_FEW_ROUNDS
            finer = not ahead.candidate.boxed or entry.candidate.count >= ahead.candidate.count
            if kind.in_rounds and entry.candidate.boxed and as_good and finer and not entry.candidate.pieces:
                kinds[kind] = contender
        return kinds

    def _kind(self, contender: Contender) -> _Kind:
        """Whether it is ordered in rounds, and if not whether it was made for one of several equal boxes, and beside such ones
        whether for links alone; sums that were, are far behind. Every routing in turns is a kind, for links or not. And whether it
        goes over paths that keep apart. Every pattern of boxes but the ring is a kind of its own, and of very many ranks that, too.
        """
        candidate = self.evidence.entry(contender).candidate
        if candidate.boxed and (self.evidence.plan.has_very_many_ranks or candidate.strategy != RING):
            return _Kind(candidate.in_rounds, True, candidate.view is None, way=(candidate.strategy,))
        if candidate.in_rounds:
            return _Kind(True, False, False, candidate.apart, way=(candidate.strategy,) if candidate.looped else None)
        if candidate.in_turns:
            return _Kind(False, False, candidate.view is None, way=(candidate.strategy, candidate.ordered))
        if candidate.chained:
            way = candidate.strategy, candidate.count, self.evidence.entry(contender).protocol
            return _Kind(False, False, False, way=way)
        copied = not self.evidence.plan.collective(1).combining
        beside = copied and any(entry.candidate.boxed for entry in self.evidence.scored)
        return _Kind(False, candidate.boxed, beside and candidate.view is None, candidate.apart)

    def _fell_behind(self, size: int) -> set[_Kind]:
        """The kinds that were well behind another at a size in an earlier wave."""
        best: dict[_Kind, float] = {}
        for contender, taken in self.evidence.timed(size).items():
            best.setdefault(self._kind(contender), taken)
        limit_us = min(best.values(), default=math.inf) * NEAR_LEADER
        return {kind for kind, taken in best.items() if taken > limit_us}
