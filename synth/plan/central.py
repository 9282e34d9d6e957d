"""An allreduce that is reduced at ranks in the middle of the machine (synth.routing.central)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from synth.candidates import Candidate
from synth.candidates.candidate import CENTRAL
from synth.candidates.lean import few_long_messages
from synth.candidates.sizes import LATENCY_BOUND_BYTES
from synth.collective import CollectiveName
from synth.instance import Instance
from synth.plan.asked import Asked
from synth.routing.central import central_ranks

#: Cuts that are tried with sums in the middle of the machine.
_CENTRAL_CUTS = 2


@dataclass(frozen=True)
class Central:
    """The ranks in the middle of the machine, and what is tried there."""

    asked: Asked

    @cached_property
    def ranks(self) -> dict[str, tuple[int, ...]]:
        """By strategy, the ranks in the middle of the machine that could reduce all of an allreduce."""
        instance = self.asked.instance(1, self.asked.request.min_bytes)
        return {f"{CENTRAL}{len(ranks)}": ranks for ranks in central_ranks(instance)}

    def candidates(
        self, planned: Sequence[Candidate], instance: Instance, counts: Sequence[int], size: int
    ) -> list[Candidate]:
        """An allreduce reduced in the middle of the machine: where latency counts, these ranks are nearer to all than those of equal
        shares. Where schedules decide, in the finest cuts `planned` for the greedy, else in coarse ones for small buffers.
        """
        request = self.asked.request
        sought = (
            request.collective is CollectiveName.ALLREDUCE and request.strategy == "auto" and request.sketch is None
        )
        if not sought or (request.by_time and size > LATENCY_BOUND_BYTES) or not self.asked.latency_counts(size):
            return []
        if request.by_time:
            cuts = few_long_messages(instance, counts, size)
        else:
            greedy = [each for each in planned if each.strategy == "greedy" and each.view is None]
            cuts = sorted(greedy, key=lambda each: each.count)[-_CENTRAL_CUTS:]
        return [
            replace(each, strategy=name)
            for each in cuts
            for name, ranks in self.ranks.items()
            if each.count >= len(ranks)
        ]
