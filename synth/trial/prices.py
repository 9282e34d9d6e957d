"""What contenders cost at the sizes that they can serve, and the cheapest split of a range into files."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from synth.candidates.sizes import CONNECTION_BOUND_BYTES
from synth.choice import Segment, split_range
from synth.trial.contender import Contender
from synth.trial.evidence import Evidence

#: Where schedules decide (Request.objective): schedules that differ by less count as equal, and what 100 % more costs, as a multiple
#: of the time; of large buffers, whose schedules are all but equal, less.
SCHEDULE_SLACK = 0.0001
_SCHEDULE_PRICE = 50.0
_SCHEDULE_PRICE_LARGE = 10.0
#: Where simulated times decide: what 100 % more of a schedule costs, as a share of the time. The simulator is right within some 15 %
#: (docs/fidelity.md), the schedule exactly, so of two programs that are as fast the one with the better schedule is taken. Where
#: bandwidth alone counts, a schedule leaves less out, and counts more.
_TIME_PRICE = 0.05
_TIME_PRICE_LARGE = 0.12
#: Of what the schedules of others' rings and trees take more for large buffers no more than this counts: their ranks wait for whole
#: shares there, which tiles do not.
_MOST_OF_RIVALS = 0.08
#: And what each threadblock of a GPU costs, as a share of the time: a job's own kernels go without its multiprocessor.
_THREADBLOCK_PRICE = 0.02 / 64
#: Buffers from which on what one more byte takes is about the same.
_FILLING_BYTES = 8_000_000


@dataclass(frozen=True)
class Prices:
    """Prices contenders by what is known of them so far."""

    evidence: Evidence

    def price(self, contender: Contender, size: int) -> float:
        """What a time counts for: more than itself where some other schedule is better, or many threadblocks are kept busy. What is
        passed on chunk by chunk has no schedule that says how its tiles come through, and that of rings says little of it.
        """
        entry = self.evidence.entry(contender)
        excess = entry.schedules_us[size] / self.evidence.best_us[size] - 1
        rival = size > CONNECTION_BOUND_BYTES and self.evidence.is_rival(contender)
        if self.evidence.request.by_time and (entry.candidate.chained or rival):
            excess = 0.0 if entry.candidate.chained else min(excess, _MOST_OF_RIVALS)
        if not self.evidence.request.by_time:
            steep = _SCHEDULE_PRICE_LARGE if self.evidence.plan.opens_interpreted else _SCHEDULE_PRICE
            return 1 + steep * max(0.0, excess - SCHEDULE_SLACK)
        price = _TIME_PRICE_LARGE if size > CONNECTION_BOUND_BYTES else _TIME_PRICE
        return 1 + price * min(1.0, excess) + _THREADBLOCK_PRICE * self.evidence.extent(contender).threadblocks

    def costs(self, contender: Contender) -> dict[int, float]:
        """What the contender costs at every size that it can serve, from its times at some: us and a price."""
        if not self.evidence.is_made(contender):
            return {}
        entry = self.evidence.entry(contender)
        return {
            size: self.evidence.expected_us(contender, size) * self.price(contender, size)
            for size in self.evidence.estimates(contender)
            if self.evidence.divides(entry, contender.instances, size)
        }

    def split(self, known: Mapping[Contender, Sequence[int]], max_files: int, *, alone: bool = False) -> list[Segment]:
        """The cheapest split, by times where these are `known` or simulated; `alone` among what is known so."""
        costs = []
        for contender in self.evidence.contenders:
            served = self.costs(contender)
            sure = served.keys() & {*known.get(contender, ()), *self.evidence.known_us(contender)}
            certain = {
                size: self.evidence.taken_us(contender, size) * self.price(contender, size) for size in sorted(sure)
            }
            costs.append(certain if alone else served | certain)
        return split_range(self.evidence.sizes, costs, max_files, self.rivals())

    def rivals(self) -> dict[int, float]:
        """What rings and trees cost at every size, whether a file of them serves it or not: a library runs them in any case, and
        needs no cut that divides. Beyond the last size of a file that fills its links they take as much more a byte as between
        the last two.
        """
        rivals: dict[int, float] = {}
        for contender in filter(self.evidence.is_rival, self.evidence.contenders):
            costs = self.costs(contender)
            filling = [(size, us) for size, us in self.evidence.known_us(contender).items() if size >= _FILLING_BYTES]
            if len(filling) > 1:
                (before, before_us), (last, last_us) = filling[-2:]
                price = self.price(contender, last)
                for size in self.evidence.sizes[bisect_right(self.evidence.sizes, max(costs)) :]:
                    costs[size] = (last_us + (size - last) * (last_us - before_us) / (last - before)) * price
            for size, cost in costs.items():
                rivals[size] = min(rivals.get(size, math.inf), cost)
        return rivals
