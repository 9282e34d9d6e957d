"""What a bound is: limits, each an inequality that every algorithm obeys, and the cut that is named where there is one."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class Limit:
    """`share` of the buffer has to cross links: those with `delays_us[i]` carry `rates[i]` bytes a us between them.

    What crosses a link is at its start some time after the beginning and at its destination some time after the crossing; a link's
    delay is the sum of the least of the one and the least of the other. So in a time T its links carry at most the sum of
    rate (T - delay), where that is positive (docs/formulation.md, eq. 35). Delays ascend. Rates may be weighted by prices.
    """

    share: float
    rates: tuple[float, ...]
    delays_us: tuple[float, ...]

    @classmethod
    def of(cls, share: float, rates: Iterable[float], delays_us: Iterable[float]) -> Limit:
        """The limit of links with these rates and delays, in any order; equal delays are joined."""
        joined: dict[float, list[float]] = {}
        for rate, delay in zip(rates, delays_us, strict=True):
            if rate > 0:
                joined.setdefault(float(delay), []).append(float(rate))
        ascending = sorted(joined)
        return cls(float(share), tuple(math.fsum(joined[delay]) for delay in ascending), tuple(ascending))

    @property
    def us_per_byte(self) -> float:
        """What a byte of a large buffer takes, delays left out."""
        return self.share / math.fsum(self.rates)

    def time_us(self, buffer_bytes: float) -> float:
        """The least T in which the links carry the share of a buffer."""
        carried = accumulate(self.rates)
        missed = accumulate(rate * delay for rate, delay in zip(self.rates, self.delays_us, strict=True))
        # The sum of the positive parts is the largest over leading delays, so T is the least that serves one of them.
        return min((self.share * buffer_bytes + lost) / rate for rate, lost in zip(carried, missed, strict=True))


@dataclass(frozen=True, slots=True)
class Cut:
    """GPUs on one side, and all links that lead from it (to it, where `into`) to the other: `GBps` between them.

    The side is the smaller of the two.
    """

    gpus: tuple[str, ...]
    links: tuple[str, ...]
    GBps: float
    into: bool


@dataclass(frozen=True, slots=True)
class Bound:
    """A lower bound for any buffer: at least `latency_us`, `us_per_byte` times the buffer as nccl-tests counts it, and every limit.

    `what` says what sets `us_per_byte`, and `cut` which GPUs and links where one cut does. Where that holds for a kind of
    algorithms only (allreduce), `any_us_per_byte` and `any_cut` are what holds for all.
    """

    latency_us: float
    us_per_byte: float
    what: str
    limits: tuple[Limit, ...] = ()
    cut: Cut | None = None
    full: tuple[str, ...] = field(default=())
    """The links that are full in every best answer, where no single cut is what limits."""
    any_us_per_byte: float | None = None
    any_cut: Cut | None = None

    def time_us(self, buffer_bytes: float) -> float:
        """No algorithm takes less for a buffer of `buffer_bytes`."""
        least = max(self.latency_us, self.us_per_byte * buffer_bytes)
        return max(least, max((limit.time_us(buffer_bytes) for limit in self.limits), default=0.0))

    @property
    def algbw_GBps(self) -> float:
        """The bandwidth that no algorithm exceeds on a large buffer; infinite where nothing has to move."""
        return 1e-3 / self.us_per_byte if self.us_per_byte > 0 else math.inf
