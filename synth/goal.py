"""When an answer is near enough to the proved limit for the search to end.

Only where one size is asked for and nothing thorough: over a range the sizes share what is tried. Where schedules decide, the best
of all usual cuts is looked for, and only finer ones are left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from synth.candidates.sizes import CONNECTION_BOUND_BYTES
from synth.candidates.transfers import direct
from synth.plan import Plan

#: What takes no longer than the limit, times this, is near enough to it if its schedule is as near as the other factor says.
_CLOSED = 1.035
_SCHEDULE_CLOSED = 1.01
#: Where schedules of large buffers decide: what is as near to the limit as this is at it; what is as near to the best as the second
#: factor says is near enough. Where no schedule is near to the limit and nobody asked for the best of them, what is no farther
#: behind than the last may be taken for it, at a price (Prices.price), and what is no farther behind than the third ends the search.
_AT_THE_LIMIT = 1.001
_BESIDE_THE_BEST = 1.005
_WORTH_A_TRADE = 1.02
_WORTH_A_PRICE = 1.05
#: And so near that nothing else gains by it, if no schedule is nearer to the limit than the other factor says.
_REACHED = 1.004
_SCHEDULE_FAR = 1.05
#: After the first wave this is near enough for what copies, for what sums, the same over equal boxes of many ranks, where the first
#: cut is about as fine as a runtime reads, and for what one rank sends or gets through all boxes, whose last chunk has a long way to
#: go, the most where they are very many: finer cuts take several times the work and gain a percent or two.
_NEAR_COPIES = 1.053
_NEAR_SUMS = 1.075
_NEAR_SUMS_OVER_BOXES = 1.12
_NEAR_CHAINED = 1.115
_NEAR_CHAINED_FAR = 1.2
#: Other shapes seldom make anything faster by more.
_SHAPED = 1.1
#: What copies and is estimated at more, times the limit, does not turn out to be so near; rounds take less than they say where few
#: messages come right after another.
_FAR = 1.15
_FAR_IN_ROUNDS = 1.25
#: What is estimated at more, times what is near enough by itself, does not turn out to be so near in rounds over equal boxes (seen:
#: 1.016).
_NOT_CLOSE = 1.02
#: What is estimated at more, times the limit, gains by finer cuts where these are left, which justified schedules do not say.
_FINE = 1.02


@dataclass(frozen=True)
class Goal:
    """How near the answers of a plan have to come to the limit, by size in bytes; all times are in us."""

    plan: Plan

    def is_met(self, size: int, time_us: float, schedule_us: float, best_us: float) -> bool:
        """Whether nothing else is worth a trial at a size: `best_us` is the best of all schedules. Where those of large buffers
        decide, an answer is near by schedule, and by time as near as is worth several times the work.
        """
        if self.plan.opens_interpreted:
            limit_us = self.plan.bound.time_us(size)
            nearest_us = min(limit_us * _SCHEDULE_CLOSED, best_us * _BESIDE_THE_BEST)
            # Of few ranks finer cuts are made in seconds, of sums, too.
            near = min(self._near, _NEAR_COPIES) if self.plan.is_soon_finest else self._near
            return time_us <= limit_us * near and schedule_us <= nearest_us
        limit_us = self._limit_us(size)
        return self.is_close(size, time_us) and schedule_us <= limit_us * _SCHEDULE_CLOSED

    def is_scheduled(self, size: int, schedule_us: float) -> bool:
        """Where schedules decide, whether one is near enough to the limit."""
        return schedule_us <= self.plan.bound.time_us(size) * _SCHEDULE_CLOSED

    def as_scheduled_us(self, size: int, best_us: float) -> float:
        """Where schedules of large buffers decide, what takes no longer may be taken for the best of these if an interpreter is
        faster with it: what is near to the limit or next to the best; where nothing is near, and nobody asked for the best schedule,
        what is not far behind it.
        """
        near_us = self.plan.bound.time_us(size) * _SCHEDULE_CLOSED
        traded = self.plan.request.objective == "auto" and best_us > near_us
        return max(near_us, best_us * (_WORTH_A_PRICE if traded else _BESIDE_THE_BEST))

    def is_kept(self, size: int, schedule_us: float, best_us: float) -> bool:
        """Whether a schedule may be taken for the best, `best_us`, and for whatever is found but what is near to the limit."""
        traded = self.plan.request.objective == "auto"
        kept_us = min(best_us, self.plan.bound.time_us(size) * _SCHEDULE_CLOSED) * _WORTH_A_TRADE
        return traded and schedule_us <= kept_us

    def is_kept_up_with(self, size: int, time_us: float) -> bool:
        """Where schedules of large buffers decide, whether an interpreter takes little enough."""
        return time_us <= self.plan.bound.time_us(size) * self._near

    def is_at_limit(self, size: int, schedule_us: float) -> bool:
        """Whether no schedule is better by more than counts."""
        return schedule_us <= self.plan.bound.time_us(size) * _AT_THE_LIMIT

    def is_reached(self, size: int, time_us: float, schedule_us: float, best_us: float) -> bool:
        """Whether nothing can be faster by half a percent, nor has a schedule that matters more: `best_us` is the best of all."""
        limit_us = self._limit_us(size)
        as_good = schedule_us <= best_us * _SCHEDULE_CLOSED or best_us > limit_us * _SCHEDULE_FAR
        return as_good and time_us <= limit_us * _REACHED

    def is_close(self, size: int, time_us: float) -> bool:
        """Whether so little time is near enough to the limit by itself."""
        return time_us <= self._limit_us(size) * _CLOSED

    def may_be_close(self, size: int, estimate_us: float) -> bool:
        """Whether what comes in rounds over equal boxes may, with such an estimate, be near enough to the limit by itself."""
        return self.is_close(size, estimate_us / _NOT_CLOSE)

    def may_be_fine(self, size: int, estimate_us: float) -> bool:
        """Whether what is estimated so leaves finer cuts hardly anything to gain."""
        return estimate_us <= self._limit_us(size) * _FINE

    def is_near(self, size: int, time_us: float) -> bool:
        """Whether a large buffer takes as little as can be had without several times the work."""
        return size > CONNECTION_BOUND_BYTES and time_us <= self._limit_us(size) * self._near

    def may_get_near(self, size: int, time_us: float) -> bool:
        """Whether what takes so long may, in another shape, end the search."""
        near = self._near if size > CONNECTION_BOUND_BYTES else _CLOSED
        return time_us <= self._limit_us(size) * near * _SHAPED

    def may_be_met(self, size: int, estimate_us: float, *, said: bool = False) -> bool:
        """Whether a candidate with such an estimate may be near. Those of large sums do not say, since more threadblocks help them,
        but for those in rounds (`said`), nor those of what goes through all boxes, since tiles do so sooner than chunks.
        """
        unsaid = (self._sums or self._chained) and not said and size > CONNECTION_BOUND_BYTES and estimate_us < math.inf
        return unsaid or estimate_us <= self._limit_us(size) * (_FAR_IN_ROUNDS if said else _FAR)

    @property
    def _near(self) -> float:
        """How many times the limit is near enough after the first wave."""
        if self._chained:
            return _NEAR_CHAINED_FAR if self.plan.has_very_many_ranks else _NEAR_CHAINED
        if not self._sums:
            return _NEAR_COPIES
        many = not self.plan.is_soon_finest
        boxed = many and any(each.boxed for each in self.plan.waves[0])
        return _NEAR_SUMS_OVER_BOXES if boxed else _NEAR_SUMS

    @property
    def _chained(self) -> bool:
        """Whether it is one rank that sends or gets all, and equal boxes are there to pass it on."""
        return not direct(self.plan.collective(1)) and any(each.chained for each in self.plan.waves[0])

    @property
    def _sums(self) -> bool:
        return self.plan.collective(1).combining

    def _limit_us(self, size: int) -> float:
        return self.plan.bound.time_us(size) if self.plan.ends else 0.0
