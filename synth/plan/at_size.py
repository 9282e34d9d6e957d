"""What to solve at one buffer size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from synth.candidates import Candidate
from synth.candidates.apart import apart_candidates, apart_rounds
from synth.candidates.candidate import CHAINED, JOINT, LARGE_VIEW, PACKINGS, VIEW
from synth.candidates.chained import chained_candidates
from synth.candidates.cuts import worthwhile_counts
from synth.candidates.hierarchy import hierarchy_candidates, packed_candidates
from synth.candidates.joint import joint_candidates
from synth.candidates.lean import lean_candidates
from synth.candidates.pieces import pieced_sums
from synth.candidates.scheduled import candidates, interpreted_candidates, largest_candidates
from synth.candidates.sizes import CONNECTION_BOUND_BYTES, LATENCY_BOUND_BYTES, PACED_BEYOND_BYTES
from synth.candidates.turns import TurnedOver, may_go_around, turned_candidates
from synth.collective import SHARED, CollectiveName
from synth.instance import Instance
from synth.ordering import JOINT_ROUNDS, Rounds
from synth.plan.asked import FINER_JOINT, FINER_PIECES, Asked
from synth.plan.central import Central
from synth.plan.exchanges import Exchanges
from synth.plan.traits import MOST_PACKED_RANKS, Traits
from synth.request import Request
from synth.routing.milp import MilpRouting
from synth.strategies import AUTO_MILP_BINARIES, LEAN_MILP_BINARIES, MILP_BINARIES

#: What one rank sends to all, or gets from all, is a vector whose parts wait for each other hop after hop: the finer, the less.
_FINER_TREES = 4
#: And so many times finer what follows rings in turns.
_FINER_TURNS = 8
#: So many times finer are the shares of an allreduce in a list over paths that keep apart.
_FINER_APART = 4
#: Where times decide, one message for every rank's share has been the best for buffers up to this.
_LARGEST_MILP = 4 << 20


@dataclass(frozen=True)
class AtSize:
    """The candidates of one size of a request."""

    traits: Traits

    @property
    def asked(self) -> Asked:
        """What was asked for, over the machine's paths."""
        return self.traits.asked

    @property
    def request(self) -> Request:
        """What was asked for."""
        return self.traits.request

    @cached_property
    def exchanges(self) -> Exchanges:
        """The machine's exchanges."""
        return Exchanges(self.asked)

    @cached_property
    def central(self) -> Central:
        """The middle of the machine."""
        return Central(self.asked)

    def candidates(self, position: int, sizes: Sequence[int]) -> list[Candidate]:
        """What to solve at one of the sizes, ascending, for buffers from the one before it up."""
        request, size = self.request, sizes[position]
        low = size if request.single_size else request.min_bytes if position == 0 else sizes[position - 1]
        counts = self.traits.counts(low, _FINER_TREES if request.collective in CHAINED else 1)
        instance = self.asked.instance(counts[0], size)
        if request.strategy == "milp":
            return [Candidate("milp", count, size) for count in self._milp_counts(instance, counts, size)]
        boxed = self.over_boxes(instance, counts, size)
        turned = self._turned(instance, low, size)
        if boxed and (request.strategy == "hierarchy" or self.traits.has_very_many_ranks or self._are_alone(boxed)):
            return [*self.exchanges.candidates(instance, low, size), *(each for each in turned if each.chained), *boxed]
        inside = any(each.in_rounds for each in boxed) and self.traits.is_held_up_inside(size)
        if inside:
            boxed = []
        few_hops = self.exchanges.candidates(instance, low, size)
        plan = self._usual(instance, counts, size, boxes=bool(boxed), inside=inside, exchanged=bool(few_hops))
        packed = self.asked.ends and size > CONNECTION_BOUND_BYTES and any(each.strategy == "trees" for each in plan)
        if boxed and packed and self.traits.is_packed_over_boxes:
            plan = [each for each in plan if each.strategy != "trees"]
            shared = request.collective is CollectiveName.ALLREDUCE
            boxed = packed_candidates(instance, counts, boxed, self.traits.counts(low, FINER_JOINT if shared else 1))
        joint = self._joint(instance, low, size) if size == sizes[-1] else []
        plan = self._kept_apart(plan, instance, low, size) if not joint else plan
        plan = [*few_hops, *plan, *self.central.candidates(plan, instance, counts, size)]
        if joint and self.asked.ends and request.strategy == "auto" and size <= CONNECTION_BOUND_BYTES:
            # Equal shares lose to free roots there however finely they are cut, and finer cuts take long.
            coarsest = min((each.count for each in plan if each.strategy == "trees"), default=0)
            plan = [each for each in plan if each.strategy != "trees" or each.count == coarsest]
        plan += joint
        most = AUTO_MILP_BINARIES if request.thorough else LEAN_MILP_BINARIES
        # Where bandwidth alone counts, a coarse cut is far from the limit, however well it is routed.
        coarse = size <= _LARGEST_MILP or request.thorough or not request.by_time
        if request.strategy == "auto" and coarse and self._milp_fits(instance, most):
            plan.append(Candidate("milp", counts[0], size))
        return turned + boxed + plan

    def _turned(self, instance: Instance, low: int, size: int) -> list[Candidate]:
        """What to solve in turns at one size, for buffers from `low` bytes up. In a range lists are as good over boxes with NICs
        enough, and made in less time.
        """
        request, traits = self.request, self.traits
        if request.collective not in CHAINED:
            return []
        if not request.single_size and traits.boxes is not None and traits.has_nics:
            return []
        counts = self.asked.counts(low, _FINER_TURNS)
        boxes, by_time, single = traits.boxes is not None, request.by_time, request.single_size
        over = TurnedOver(boxes, traits.has_nics, by_time, single=single)
        if may_go_around(instance, over):  # rings take seconds to find on large clusters
            over = over._replace(rings=traits.has_rings)
        return turned_candidates(instance, request.strategy, counts, size, over)

    def over_boxes(self, instance: Instance, counts: Sequence[int], size: int) -> list[Candidate]:
        """What to solve at one size for the machine's equal boxes, or through them, where it has such."""
        boxes, strategy, by_time = self.traits.boxes, self.request.strategy, self.request.by_time
        if boxes is None:
            return []
        boxed = hierarchy_candidates(instance, strategy, counts, size, by_time=by_time, single=self.request.single_size)
        if boxed and self.asked.ends and self.request.collective is CollectiveName.ALLREDUCE:
            boxed += pieced_sums(instance, self.traits.counts(size, FINER_PIECES), boxed)
        if boxed:
            return boxed
        chained = chained_candidates(instance, boxes, strategy, counts, size, by_time=by_time)
        any_protocol = size <= CONNECTION_BOUND_BYTES or self.traits.takes_ll128
        return [each for each in chained if any_protocol or each.view != VIEW]

    def _are_alone(self, boxed: Sequence[Candidate]) -> bool:
        """Whether what is made for boxes leaves nothing else worth its time: where many ranks pass large buffers on, and for one
        size below those, in rounds and in lists, where boxes have NICs enough.
        """
        first, many = boxed[0], self.request.topology.num_ranks > MOST_PACKED_RANKS
        if first.anchor_bytes > CONNECTION_BOUND_BYTES:
            return first.chained and many and not self.request.thorough
        return first.in_rounds and self.asked.ends and self.traits.has_nics

    def _usual(
        self, instance: Instance, counts: Sequence[int], size: int, *, boxes: bool, inside: bool, exchanged: bool
    ) -> list[Candidate]:
        """What to solve at one size besides what is made for equal `boxes` where there are, and what is `exchanged`."""
        request, single = self.request, self.request.single_size
        if request.strategy == "auto" and request.by_time and not request.thorough:
            plan = lean_candidates(
                instance, counts, size, single=single, boxes=boxes, inside=inside, exchanged=exchanged
            )
        else:
            thorough, latency_counts = request.thorough, self.asked.latency_counts(size)
            plan = candidates(
                instance,
                request.strategy,
                counts,
                size,
                single=single,
                thorough=thorough,
                latency_counts=latency_counts,
                exchanged=exchanged,
            )
            if request.by_time:
                plan += interpreted_candidates(instance, request.strategy, counts, size, single=single)
            if size == request.max_bytes and request.strategy in ("auto", *PACKINGS):
                plan += largest_candidates(plan[0].strategy, instance, counts, size, by_time=request.by_time)
        return plan

    def _kept_apart(self, planned: Sequence[Candidate], instance: Instance, low: int, size: int) -> list[Candidate]:
        """What is planned at one size, for buffers from `low` bytes up, with trees over paths that keep apart where several meet:
        before those over all paths for large buffers, beside what is made for an interpreter for smaller ones if there are no
        boxes. Where latency is all that counts, trees are as shallow over all paths, and hold nobody up.
        """
        packed = [each for each in planned if each.strategy == "trees"]
        large = size > CONNECTION_BOUND_BYTES
        small = size <= LATENCY_BOUND_BYTES or (self.traits.boxes is not None and not large)
        if not packed or small or not self.traits.apart:
            return list(planned)
        if large and self.request.by_time:
            finer = self.asked.counts(low, 1 if self.request.collective in SHARED else _FINER_APART)
            return [*apart_candidates(instance, finer, size, self.traits.apart, Rounds(LARGE_VIEW).most), *planned]
        viewed = [each for each in packed if each.view is not None or not self.request.by_time]
        return [*planned, *(replace(each, apart=True) for each in viewed)]

    def _joint(self, instance: Instance, low_bytes: int, size: int) -> list[Candidate]:
        """What to solve at the largest size for an allreduce whose roots are free, in cuts for buffers from `low_bytes` up."""
        if size <= LATENCY_BOUND_BYTES or self.request.strategy not in ("auto", "trees"):
            return []
        counts = self.asked.counts(low_bytes, FINER_JOINT)
        joint = joint_candidates(instance, counts, size)
        if not joint or not self.traits.roots_matter:
            return []
        apart = self.traits.apart_free if size > PACED_BEYOND_BYTES else None
        paced = [apart_rounds(JOINT, instance, counts, size, apart, JOINT_ROUNDS.most)] if apart else []
        return [*paced, *joint]

    def _milp_counts(self, instance: Instance, counts: Sequence[int], size: int) -> list[int]:
        """The coarsest cut, and the finest for which the program can still be solved to the end."""
        tried = [count for count in worthwhile_counts(instance, counts, size, 5) if count != counts[0]]
        fitting = [count for count in tried if self._milp_fits(self.asked.instance(count, size), MILP_BINARIES)]
        return [counts[0], *fitting[-1:]]

    def _milp_fits(self, instance: Instance, binaries: int) -> bool:
        return MilpRouting().estimate_size(instance.as_copies) <= binaries
