"""The waves where schedules decide, the finest cuts last; of a range, or where time is no matter, all in one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial

from synth.candidates import Candidate
from synth.candidates.candidate import JOINT, LARGE_VIEW
from synth.candidates.finer import finer_candidates
from synth.candidates.hierarchy import gated_candidates
from synth.candidates.links import is_crowded, is_uneven
from synth.candidates.pieces import finest_pieces
from synth.collective import CollectiveName
from synth.plan.asked import FINER_JOINT, Asked
from synth.plan.by_time import ByTime
from synth.plan.in_time import in_time, is_time_for, waves_in_time
from synth.plan.planned import Planned
from synth.plan.traits import Traits

#: Where schedules decide, an interpreter may make of the best what it will for buffers up to this: beyond, what it keeps up with is
#: most often as good.
_LARGEST_BY_SCHEDULE = 16 << 20
#: The finest rounds are tried before coarser ones if there is time for so many of them: they are made beside another candidate, and
#: have to be looked at and verified, too.
_MADE_AT_ONCE = 4


@dataclass(frozen=True)
class BySchedule:
    """What is planned for a request, finer cuts last."""

    planned: Planned

    @property
    def traits(self) -> Traits:
        """What the machine is like."""
        return self.planned.traits

    @property
    def asked(self) -> Asked:
        """What was asked for, over the machine's paths."""
        return self.planned.asked

    @cached_property
    def waves(self) -> list[list[Candidate]]:
        """The waves if time did not matter. Where schedules decide the finest cuts come early, unless ranks are many, or so few that
        it does not matter: what is made for an interpreter is often so near to the limit then that all else is not worth its time.
        """
        planned, finest = self._usual, [*self.finest_kept_up_with]
        early = self.traits.is_soon_finest and not self.traits.is_quick
        return [self._opening, *([finest, planned] if early else [planned, finest]), self._finer]

    @property
    def _usual(self) -> list[Candidate]:
        """What is tried unless the opening is near. Of many ranks whose roots are free nothing coarser than the rounds in it: that
        is far behind, and takes seconds.
        """
        paced = (each.count for each in self._opening if each.strategy == JOINT and each.in_rounds)
        if self.traits.is_soon_finest or not self.opens_interpreted or not (finest := max(paced, default=0)):
            return [*self.planned.candidates]
        trees = ("trees", JOINT)
        return [each for each in self.planned.candidates if each.strategy not in trees or each.count >= finest]

    @property
    def _is_refined(self) -> bool:
        """Whether an answer that is near enough to the limit ends the search, and else finer ones are looked for: one size alone is
        asked for, by schedule.
        """
        request = self.asked.request
        alone = request.single_size and not request.by_time and not request.thorough
        return alone and not self.traits.has_very_many_ranks

    @cached_property
    def _opening(self) -> list[Candidate]:
        """The first wave where schedules decide."""
        return self._over_gates() or self._interpreted() or self._finest_with_free_roots() or self._finest_greedy()

    @property
    def opens_interpreted(self) -> bool:
        """Whether schedules of large buffers decide, and what is made for an interpreter is tried first."""
        return self.asked.request.max_bytes > _LARGEST_BY_SCHEDULE and bool(self._opening)

    def _over_gates(self) -> list[Candidate]:
        """What is tried first where schedules decide, over equal boxes in which many GPUs share a NIC: what is made for one of these
        is as good as what is made for all ranks, since the NICs are what limits, and found in a fraction of the time. Not where ways
        inside meet in PCIe, or some are wider than others that cross several links: more than the NICs limits there.
        """
        traits = self.traits
        if not any(each.boxed for each in self.planned.candidates) or traits.has_nics or not self._is_refined:
            return []
        if (is_uneven(traits.within) and not traits.is_direct_within) or is_crowded(traits.within):
            return []
        size = self.asked.request.max_bytes
        counts = self.asked.counts(size)
        gated = gated_candidates(self.asked.instance(counts[0], size), self.asked.request.strategy, counts, size)
        if size > _LARGEST_BY_SCHEDULE:
            gated += [replace(each, view=LARGE_VIEW) for each in gated]
        return gated

    def _interpreted(self) -> list[Candidate]:
        """What is tried first where schedules decide, of one large buffer: what is made for an interpreter. Most often its messages
        are as near to the limit, and an interpreter keeps up with them.
        """
        if not self._is_refined or self.asked.request.max_bytes <= _LARGEST_BY_SCHEDULE:
            return []
        by_time = ByTime(self.planned.by_time())
        first = list(waves_in_time(by_time.traits, by_time.waves)[0])
        return first if self.traits.is_soon_finest else self._listed_finest(first)

    def _listed_finest(self, first: list[Candidate]) -> list[Candidate]:
        """With the finest list of trees in place of coarser ones: of many ranks one is made as soon as the other, and is nearer.
        Without boxes the finest rounds, too, and with free roots, where an interpreter keeps up with these alone.
        """
        finest = [each for each in self._finer if _is_listed(each)][-1:]
        coarser = [each for each in first if _is_listed(each) and finest and each.count < finest[0].count]
        if not coarser:
            return first
        if self.traits.boxes is None and not any(each.strategy == JOINT for each in finest):
            paced = [replace(each, view=LARGE_VIEW, in_rounds=True) for each in finest]
            # What is made for an interpreter takes longer, unless runs of ranks do alike.
            listed = [replace(each, view=LARGE_VIEW if self.traits.rotates(each.count) else None) for each in finest]
            return [*(each for each in first if each not in coarser), *paced, *listed]
        paced = [each for each in self._finer if each.strategy == JOINT and each.in_rounds][-1:]
        paced = [each for each in paced if is_time_for(self.traits, each, _MADE_AT_ONCE)]
        coarser += [each for each in first if paced and each.strategy == JOINT and each.in_rounds]
        return [each for each in first if each not in coarser] + paced + finest

    def _finest_with_free_roots(self) -> list[Candidate]:
        """What is tried first of many ranks where roots are free: the finest list, beside the finest of the usual ones. Others are
        not near, and would take what time there is.
        """
        if self.traits.is_soon_finest:
            return []
        waves = (self.planned.candidates, self._finer)
        usual, finest = ([each for each in wave if _is_listed(each) and each.strategy == JOINT] for wave in waves)
        return [*finest[-1:], *usual[:1]] if finest else []

    def _finest_greedy(self) -> list[Candidate]:
        """What is tried first of many ranks where latency counts: the greedy in its finest cuts, which take seconds and are far
        ahead of coarser ones.
        """
        if self.traits.is_soon_finest or self.asked.request.max_bytes > _LARGEST_BY_SCHEDULE:
            return []
        return [each for each in self._finer if each.strategy == "greedy"]

    @cached_property
    def finest_kept_up_with(self) -> tuple[Candidate, ...]:
        """Of the finest cuts for a large buffer where schedules decide, what an interpreter keeps up with: rounds, and what is made
        for one box.
        """
        kept = (each for each in self._finer if each.in_rounds or each.boxed)
        return tuple(map(partial(in_time, self.traits), kept)) if self.opens_interpreted else ()

    @cached_property
    def _finer(self) -> list[Candidate]:
        """The last wave where schedules decide."""
        if not self._is_refined:
            return []
        asked, request = self.asked, self.asked.request
        size, boxes = request.max_bytes, self.traits.boxes
        joint = any(each.strategy == JOINT for each in self.planned.candidates)
        twice = request.collective is CollectiveName.ALLREDUCE
        counts = asked.counts(size, FINER_JOINT if twice else 1)
        instance = asked.instance(counts[0], size)
        finer = finer_candidates(
            instance,
            request.strategy,
            counts,
            size,
            boxes=boxes is not None,
            joint=joint,
            latency_counts=asked.latency_counts(size),
        )
        pieces = [] if boxes else finest_pieces(instance, request.strategy, asked.counts(size, 2), size)
        return [*finer, *pieces, *self.planned.at_size.central.candidates(finer, instance, counts, size)]


def _is_listed(candidate: Candidate) -> bool:
    """Whether a candidate is of trees over all ranks, ordered in a list."""
    return candidate.strategy in ("trees", JOINT) and candidate.ordered == "list" and not candidate.boxed
