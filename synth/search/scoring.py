"""Scores: what a solution would take at the sizes and under the protocols that it could serve."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from synth.baselines import BASELINES, RIVALS
from synth.candidates import Candidate
from synth.candidates.candidate import LARGE_VIEW, STAR
from synth.candidates.hierarchy import LARGEST_STARRED
from synth.candidates.sizes import CONNECTION_BOUND_BYTES
from synth.chunks import divides
from synth.ir import Message
from synth.lowering import MAX_CHANNELS, LoweringOptions, stream_width, threadblocks_needed
from synth.plan import Plan
from synth.search.clock import Clock
from synth.solve import Solution
from synth.timing import messages_of

#: A candidate is judged at sizes up to this factor from the one it was solved at.
_REACH = 1 << 10
#: Buffers above this are bandwidth-bound on every machine of the catalogue: LL, which halves the bandwidth, is not tried.
_LARGEST_LL_BYTES = 4 << 20
#: Instances that are looked at for it, and for what has no more messages than this: few long ones leave threadblocks waiting.
_COPIES = (2, 3, 4, 6, 8, 9)
_COARSE_SENDS = 1_000
#: The same for rings: of larger buffers their messages fill connections, so that threadblocks part, and trees are better.
_LARGEST_RING_BYTES = 128 << 20


@dataclass(frozen=True)
class Scored:
    """A solution under a protocol, and what it takes at each size that it can serve, in us by bytes: `times_us` as the
    protocol has it (an estimate: trial.py simulates), `schedules_us` as the machine alone does (cost level 2). Sizes that are
    not looked at for a choice have what lies between those that are. `wide_us` is `times_us` with `copies` instances, where that
    many are likely to be better, else empty.
    """

    solution: Solution
    candidate: Candidate
    protocol: str
    times_us: dict[int, float]
    schedules_us: dict[int, float]
    copies: int = 1
    wide_us: dict[int, float] = field(default_factory=dict)

    @property
    def is_low(self) -> bool:
        """Whether the protocol is LL, whose threadblocks move a tenth of the others': what many of them take is estimated well."""
        return self.protocol == "LL"

    def joined(self, other: Scored) -> Scored:
        """Of one solution under one protocol, what is known at the sizes of both."""
        return replace(
            self,
            times_us=self.times_us | other.times_us,
            schedules_us=self.schedules_us | other.schedules_us,
            wide_us=self.wide_us | other.wide_us,
        )


@dataclass(frozen=True)
class Scoring:
    """Scores the solutions of a plan's candidates; `again` scores one at sizes that it was not for at first."""

    plan: Plan

    def __call__(self, candidate: Candidate, solution: Solution) -> list[Scored]:
        """A solution under every protocol, at the sizes that it is for."""
        return self._scored(candidate, solution, self._worth_scoring(candidate))

    def again(self, entry: Scored, sizes: Sequence[int]) -> Scored:
        """The entry's solution under its protocol, at other sizes."""
        scored = self._scored(entry.candidate, entry.solution, sizes)
        return next(other for other in scored if other.protocol == entry.protocol)

    def _scored(self, candidate: Candidate, solution: Solution, sizes: Sequence[int]) -> list[Scored]:
        served = [size for size in sizes if self._serves(candidate.count, size)]
        scored = []
        clock = Clock(solution)
        schedules = self._curve(served, clock.time_us)
        for protocol in self._protocols(candidate):
            usable = [
                size for size in served if protocol != "LL" or self.plan.request.protocol or size <= _LARGEST_LL_BYTES
            ]
            times = self._curve(usable, partial(clock.estimate_us, protocol=protocol))
            low = protocol == "LL"
            coarse = candidate.strategy in BASELINES or len(solution.schedule.sends) <= _COARSE_SENDS
            largest = _LARGEST_RING_BYTES if candidate.strategy in RIVALS else CONNECTION_BOUND_BYTES
            near = [size for size in usable if low or size <= largest] if low or coarse else []
            copies, fit = self._copies(candidate, solution, near)
            wide = self._curve(fit, partial(clock.estimate_us, protocol=protocol, instances=copies))
            scored.append(Scored(solution, candidate, protocol, times, schedules, copies, wide))
        return scored

    def _copies(self, candidate: Candidate, solution: Solution, sizes: Sequence[int]) -> tuple[int, list[int]]:
        """Instances that make up for LL's threadblocks, which move a tenth of the others', or for few messages: as many as a GPU has
        threadblocks for, and rings channels, and buffers of some of the sizes divide by; and these sizes.
        """
        request = self.plan.request
        if not sizes or request.instances is not None or request.has_cut or not request.by_time:
            return 1, []
        if candidate.strategy == STAR:
            return 1, []  # its many receives and sends would have to share threadblocks, and wait for each other
        if solution.written is None:
            used = dict.fromkeys((send.path for send in solution.schedule.sends), 1)
            needed = threadblocks_needed(solution.instance, used, joined=True)
            limits = LoweringOptions(runtime=request.runtime).limits  # type: ignore[arg-type]
            width = stream_width(solution.instance.paths, solution.lowered.sends, limits.peers_per_channel)
        else:
            needed, width = solution.written.threadblocks, 1
        most = min(request.threadblocks // max(1, needed), MAX_CHANNELS // width)
        for copies in sorted((copies for copies in _COPIES if copies <= most), reverse=True):
            parted = [size for size in sizes if solution.is_worth_parting(size, copies)]
            if fit := [size for size in parted if self._serves(candidate.count * copies, size)]:
                return copies, fit
        return 1, []

    def _curve(self, sizes: Sequence[int], time_us: Callable[[int], float]) -> dict[int, float]:
        """Times at the sizes, ascending: computed at the ends and where candidates are compared, on the line between elsewhere.

        What messages in a fixed order take is convex in the size and made of straight pieces.
        """
        at = sorted({*sizes[:1], *sizes[-1:], *set(sizes).intersection(self.plan.looked_at)})
        if not at:
            return {}
        lines = np.interp(sizes, at, [time_us(size) for size in at])
        return dict(zip(sizes, lines.tolist(), strict=True))

    def _serves(self, count: int, size: int) -> bool:
        """Whether runtimes would use a file of `count` chunks (and the instances asked for) at a size; yes if it was asked for."""
        if self.plan.asked_count is not None:
            return True
        request = self.plan.request
        return divides(request.collective, request.topology.num_ranks, count * (request.instances or 1), size)

    def _protocols(self, candidate: Candidate) -> Sequence[str]:
        anchor_bytes = self._worth_scoring(candidate)[0] if candidate.strategy in BASELINES else candidate.anchor_bytes
        if self.plan.request.protocol is not None:
            return (self.plan.request.protocol,)
        protocols = ["LL"] if anchor_bytes <= _LARGEST_LL_BYTES else []
        if self.plan.takes_ll128:
            protocols.append("LL128")
        protocols.append("Simple")
        if candidate.in_turns:
            return [LARGE_VIEW]
        if candidate.chained and anchor_bytes > CONNECTION_BOUND_BYTES:
            # Simulations of LL128's small tiles take longest, and pay where boxes are many: a candidate of its own.
            return [protocol for protocol in protocols if protocol == candidate.view or candidate.view is None]
        return protocols

    def _worth_scoring(self, candidate: Candidate) -> Sequence[int]:
        """The sizes near the one that the candidate was solved at; all, where sizes did not matter to it."""
        anchor_bytes = candidate.anchor_bytes
        if candidate.strategy in BASELINES:
            return self.plan.served(candidate)
        if candidate.strategy == STAR:
            return [size for size in self.plan.sizes if size <= LARGEST_STARRED]  # estimates flatter it beyond
        if candidate.boxed:
            return self.plan.sizes
        return [size for size in self.plan.sizes if anchor_bytes <= size * _REACH and size <= anchor_bytes * _REACH]


def merged(scored: Sequence[Scored]) -> list[Scored]:
    """The entries with those that came out the same, made for several sizes, as one: the first."""
    merged: dict[tuple[int, str, int, tuple[Message, ...], tuple[Message, ...]], Scored] = {}
    for entry in scored:
        timed, lowered = (
            tuple(messages_of(schedule)) for schedule in (entry.solution.schedule, entry.solution.lowered)
        )
        known_bytes = entry.candidate.anchor_bytes if entry.candidate.strategy in BASELINES else 0
        key = entry.candidate.count, entry.protocol, known_bytes, timed, lowered
        merged[key] = merged[key].joined(entry) if key in merged else entry
    return list(merged.values())
