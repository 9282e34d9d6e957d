"""What to solve for a request, at all sizes and in turn."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from synth.candidates import Candidate
from synth.candidates.sizes import anchors
from synth.paths import Path
from synth.plan.asked import Asked
from synth.plan.at_size import AtSize
from synth.plan.known import Known
from synth.plan.traits import Traits
from synth.request import Request


@dataclass(frozen=True)
class Planned:
    """The candidates of a request, before they are put into waves."""

    at_size: AtSize

    @classmethod
    def of(cls, request: Request, paths: tuple[Path, ...]) -> Planned:
        """What is planned for a request over the machine's paths."""
        return cls(AtSize(Traits(Asked(request, paths))))

    def by_time(self) -> Planned:
        """The same as if times decided, which makes no difference to the limit."""
        request = replace(self.asked.request, objective="time")
        return Planned(AtSize(Traits(Asked(request, self.asked.paths, self.asked.bound))))

    @property
    def traits(self) -> Traits:
        """What the machine is like."""
        return self.at_size.traits

    @property
    def asked(self) -> Asked:
        """What was asked for, over the machine's paths."""
        return self.traits.asked

    @cached_property
    def known(self) -> Known:
        """Others' algorithms."""
        return Known(self.traits)

    @cached_property
    def candidates(self) -> tuple[Candidate, ...]:
        """What to solve, in this order: what equal boxes do best at the largest size and at the smallest, others' algorithms,
        which serve all sizes at once, then in turn the first candidate of each size to solve at, the second of each, and so
        on: wherever time runs out, all sizes have had about the same.
        """
        request = self.asked.request
        sizes = anchors(request.min_bytes, request.max_bytes)
        by_size = [self.at_size.candidates(position, sizes) for position in reversed(range(len(sizes)))]
        turns = [*filter(None, itertools.chain.from_iterable(itertools.zip_longest(*by_size)))]
        ends = (by_size[0], by_size[-1])
        boxed = [each[0] for each in ends if each and (each[0].boxed or each[0].chained)]
        return _once([*boxed, *self.known.candidates(sizes), *turns], apart=request.single_size)


def _once(planned: Sequence[Candidate], *, apart: bool) -> tuple[Candidate, ...]:
    """Each candidate once, and over equal boxes each cut once: what is solved at one size there serves all, unless those for several
    sizes are to be kept `apart`.
    """
    kept: dict[object, Candidate] = {}
    for each in planned:
        kept.setdefault((each.strategy, each.count, each.in_rounds) if each.boxed and not apart else each, each)
    return tuple(kept.values())
