"""From a candidate to its solution: the stages that it goes through, and how much each of them may try.

Where schedules decide, lists are ordered and solved as well as can be; for an interpreter, which is known only roughly, a few
orders are enough, but for the largest buffers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, partial

from synth.baselines import BASELINES, instance_of
from synth.boxes import Boxes
from synth.candidates import Candidate
from synth.candidates.candidate import CHAINS, HIERARCHIES, JOINT, LARGE_VIEW, RINGS
from synth.candidates.chained import WAYS_OF_A_PLACE
from synth.candidates.sizes import CONNECTION_BOUND_BYTES, LATENCY_BOUND_BYTES, PACED_BEYOND_BYTES
from synth.candidates.transfers import FINE, direct, own_chunks
from synth.candidates.turns import MOST_AROUND
from synth.collective import CollectiveName
from synth.errors import NoAnswerError
from synth.exchanged import exchanged
from synth.hierarchical import (
    chained,
    evenly_rotated,
    hierarchical,
    hierarchical_in_rounds,
    over_boxes,
    without_surplus,
)
from synth.instance import Instance
from synth.interpreted import as_described, as_interpreted
from synth.ir import Routing
from synth.known import LOOPS, around_rings, known_solution
from synth.lowering import LoweringOptions
from synth.milp import SolveOptions
from synth.ordering import JOINT_ROUNDS, RULES, Loops, Ordering, Rounds, Turns
from synth.plan import Plan
from synth.reductions.padding import pad
from synth.reductions.rotation import rotations
from synth.request import Request
from synth.routing.across import AcrossRouting
from synth.routing.central import added_up_at
from synth.routing.hierarchy import HierarchyRouting
from synth.routing.patterns import DIRECT
from synth.scheduling import Justification, MilpScheduling, Scheduling
from synth.search.ledger import Ledger
from synth.solve import Routed, Solution, Stages, Strategy
from synth.strategies import StrategyOptions, over_few_ways, over_fewest_ways, rotated, strategy
from synth.timing import check_schedule, messages_of, retime

#: Sort keys that are tried for large buffers on an interpreter.
_LARGE_KEYS = (
    "longest-path-to-go",
    "deep-trees-sooner",
    "trees-abreast",
    "most-transfers-behind",
    "deep-trees-little-sooner",
    "deep-trees-much-sooner",
)
#: Transfers over all runs with these keys: which is the best is hard to tell, and the worst is far from it.
_LARGE_WORK = 200_000
#: What is compared by time stays in the order that it was listed in for buffers up to this: latency and connections count for
#: more than links there.
_UNJUSTIFIED_BYTES = 1 << 20
#: What pieces are tried at: other paces hardly ever take less, and they are many.
_TURNS_OF_PIECES = (1 / 5, 1 / 12)
#: For an interpreter what is due first stays first along trees, and no list is looked at beside it. Around rings nobody waits for
#: several of a chunk, so that exact times say what goes first.
_IN_DUE_ORDER = Justification(idle=math.inf)
#: Runs of the greedy where estimates decide: one for each patience. More of them hardly ever find a better one.
_LEAN_GREEDY_RUNS = 5


@dataclass(frozen=True)
class Making:
    """Makes the candidates of a plan; the ledger is told which stage is at work."""

    plan: Plan
    ledger: Ledger

    @property
    def request(self) -> Request:
        """What is asked for."""
        return self.plan.request

    def __call__(self, candidate: Candidate) -> Solution | None:
        """The candidate through the stages; None where it is one of others' algorithms and the machine has no such."""
        if candidate.strategy in BASELINES:
            self.ledger.enter("baselines")
            try:
                collective = self.plan.collective(candidate.count)
                return known_solution(candidate.strategy, self.plan.machine, collective, candidate.anchor_bytes)
            except NoAnswerError:
                return None
        if candidate.exchanged:
            self.ledger.enter("routing")
            instance = self.plan.instance(candidate.count, candidate.anchor_bytes)
            return exchanged(instance, self.plan.exchanges(candidate.anchor_bytes)[candidate.strategy])
        if candidate.strategy == RINGS:
            return self._around_rings(candidate)
        self.ledger.enter("topology")
        if candidate.boxed or candidate.chained:
            return self._over_boxes(candidate)
        instance = self.plan.instance(candidate.count, candidate.anchor_bytes)
        if candidate.strategy == JOINT:
            return self._joint(instance, candidate)
        left = max(1.0, self.request.time_limit_s - self.ledger.elapsed_s())
        options = StrategyOptions(
            seed=self.request.seed,
            solver=self.request.solver,
            time_limit_s=left,
            greedy_runs=_LEAN_GREEDY_RUNS if self.request.by_time and not self.request.thorough else None,
            paths=self.plan.apart() if candidate.apart else None,
        )
        if candidate.central:
            instance = added_up_at(instance, self.plan.central[candidate.strategy])
        chosen = strategy("greedy" if candidate.central else candidate.strategy, options)
        if candidate.in_turns:
            solution: Solution | None = self._in_turns(instance, candidate, over_fewest_ways(chosen))
        elif candidate.in_rounds:
            solution = self._in_rounds(instance, candidate, chosen)
        elif candidate.view is None:
            solution = self._listing(self._stages_at(candidate.anchor_bytes), candidate)(instance, chosen)
        else:
            solution = self._for_interpreter(instance, candidate, chosen)
        self.ledger.enter("scoring")
        return solution

    @cached_property
    def _best_stages(self) -> Stages:
        """The stages after routing, with the solver that was asked for."""
        limits = SolveOptions(solver=self.request.solver, node_limit=200, seed=self.request.seed)  # type: ignore[arg-type]
        exact = MilpScheduling(solve=limits, max_binaries=80)
        return replace(self._usual_stages, scheduling=Scheduling(self._justification, exact=exact))

    @property
    def _justification(self) -> Justification | None:
        """Only where schedules decide: elsewhere lists stay in the order that an interpreter is to carry them out in."""
        return None if self.request.by_time else Justification()

    @cached_property
    def _quick_stages(self) -> Stages:
        """For an interpreter, which is known only roughly: fewer orders are tried, and none is solved exactly."""
        keys = ("longest-path-to-go", "in-turns") if self.request.thorough else ("longest-path-to-go",)
        ordering = Ordering(keys=keys, rules=tuple(RULES) if self.request.thorough else ("",))
        return self._quick(ordering, ordering)

    @property
    def _usual_stages(self) -> Stages:
        """What all stages have alike: rounds know nothing of links that ways meet in, so that exact times say what goes first."""
        return Stages(in_exact_order=self.plan.is_crowded_box, watch=self.ledger.enter)

    def _quick(self, ordering: Ordering, reordering: Ordering) -> Stages:
        never = Scheduling(self._justification, exact=MilpScheduling(max_binaries=0))
        return replace(self._usual_stages, ordering=ordering, reordering=reordering, scheduling=never)

    @cached_property
    def _large_stages(self) -> Stages:
        """For an interpreter with large buffers: there no key is always the best, but what was ordered before stays so."""
        tried = Ordering(keys=_LARGE_KEYS, rules=("",), work=_LARGE_WORK)
        return self._quick(tried, replace(tried, keys=_LARGE_KEYS[:1]))

    def _stages_at(self, size: int) -> Stages:
        """All stages where schedules decide or a bandwidth is to be reached, the quick ones elsewhere."""
        request = self.request
        if request.thorough or not request.by_time or (size == request.max_bytes and size > LATENCY_BOUND_BYTES):
            return self._best_stages
        return self._quick_stages

    def _listing(self, stages: Stages, candidate: Candidate) -> Stages:
        """The stages as they list a candidate: of one size alone exact times say what goes first where ways meet, to an interpreter,
        too; and where chunks have one destination each, so that nobody waits for any order.
        """
        meet = self.request.single_size and not candidate.boxed and self.plan.is_crowded
        if candidate.anchor_bytes <= _UNJUSTIFIED_BYTES or not (meet or direct(self.plan.collective(1))):
            return stages
        return replace(stages, scheduling=replace(stages.scheduling, justification=Justification()))

    def _joint(self, instance: Instance, candidate: Candidate) -> Solution | None:
        """Both halves of an allreduce as one; None where rounds of it would have too many messages."""
        try:
            stages = self._listing(self._best_stages, candidate)
            rounds = self._rounds(candidate) if candidate.in_rounds else None
            return stages.joint(instance, rounds, self.plan.apart(free_roots=True) if candidate.apart else None)
        except NoAnswerError:
            return None
        finally:
            self.ledger.enter("scoring")

    def _over_boxes(self, candidate: Candidate) -> Solution | None:
        """The candidate over the machine's equal boxes; None where these do not rotate with their chunks, or have no such ways."""
        pattern = (CHAINS if candidate.chained else HIERARCHIES)[candidate.strategy]
        boxed = self.plan.builder.boxed(self.plan.collective(candidate.count), candidate.anchor_bytes, pattern)
        if boxed is None:
            return None
        try:
            if candidate.chained:
                return self._chained(*boxed, candidate, pattern)
            return self._hierarchy(*boxed, candidate, pattern)
        except NoAnswerError:
            return None
        finally:
            self.ledger.enter("scoring")

    def _hierarchy(self, instance: Instance, boxes: Boxes, candidate: Candidate, pattern: str) -> Solution:
        """The candidate solved for one box, as all do the same."""
        padding = pad(instance)
        if padding is not None:
            return without_surplus(self._hierarchy(padding.padded, boxes, candidate, pattern), padding)
        # Smaller buffers wait for every message more, those of a range, too, which are served by what is made for larger ones.
        several = self.request.single_size and self.request.max_bytes > CONNECTION_BOUND_BYTES
        way = over_boxes(AcrossRouting() if pattern == DIRECT else HierarchyRouting(pattern, several=several))
        if not candidate.in_rounds:
            stages = self._listing(self._quick_stages, candidate)
            return hierarchical(instance, boxes, stages, way, candidate.view)
        rounds = self._rounds(candidate)
        return hierarchical_in_rounds(instance, boxes, self._quick_stages, way, rounds, candidate.pieces)

    def _chained(self, instance: Instance, boxes: Boxes, candidate: Candidate, pattern: str) -> Solution:
        """The candidate from the root's box through the others, or the other way round."""
        chosen: Strategy = partial(chained, boxes=boxes, pattern=pattern)
        if not direct(instance.collective):
            chosen = over_few_ways(chosen, WAYS_OF_A_PLACE * boxes.size)
        if candidate.in_turns:
            return self._in_turns(instance, candidate, over_fewest_ways(partial(chained, boxes=boxes, pattern=pattern)))
        if candidate.view is None:
            return self._stages_at(candidate.anchor_bytes)(instance, chosen)
        return self._for_interpreter(instance, candidate, chosen)

    def _around_rings(self, candidate: Candidate) -> Solution:
        """One rank's chunks after each other around the machine's rings, or all ranks' in step."""
        machine = self.plan.machine
        instance = instance_of(machine, self.plan.collective(candidate.count), candidate.anchor_bytes)

        def around(shown: Instance) -> Routed:
            return around_rings(machine if shown is instance else machine.reversed(), shown)

        if candidate.in_rounds:
            stages = replace(self._quick_stages, in_exact_order=False)
            solution = stages.in_rounds(instance, around, Loops(LOOPS[self.request.collective]))
        else:
            solution = self._in_turns(instance, candidate, around)
        self.ledger.enter("scoring")
        return solution

    def _in_turns(self, instance: Instance, candidate: Candidate, few: Strategy) -> Solution:
        """Chunks that follow each other over few ways."""
        stages, turns = self._quick_stages, Turns()
        if candidate.strategy == RINGS:
            turns = Turns(MOST_AROUND)
        elif self.request.by_time:
            stages = replace(stages, justification=_IN_DUE_ORDER)
        if candidate.view is None:
            solution = stages.in_turns(instance, few, turns)
            return replace(solution, bound_us=None) if candidate.chained else solution
        viewed = as_interpreted(instance, candidate.view)
        solution = stages.in_turns(viewed, lambda shown: few(as_described(shown)), turns)
        return self._as_on_links(instance, solution)

    def _in_rounds(self, instance: Instance, candidate: Candidate, chosen: Strategy) -> Solution | None:
        """Made for the connections of an interpreter, in rounds; None where one of them would have too many messages."""
        turned = self._rotating(instance, candidate)
        try:
            rounds = self._rounds(candidate)
            if turned is not None:
                return hierarchical_in_rounds(
                    *turned, self._quick_stages, rotated(candidate.strategy), rounds, candidate.pieces
                )
            return self._quick_stages.in_rounds(instance, over_few_ways(chosen), rounds, candidate.pieces)
        except NoAnswerError:
            return None

    def _rounds(self, candidate: Candidate) -> Rounds:
        """The rounds that a candidate is made in, for threadblocks of as many steps as the runtime takes."""
        assert candidate.view is not None
        rounds = JOINT_ROUNDS if candidate.strategy == JOINT else Rounds(candidate.view)
        if candidate.pieces:
            rounds = replace(rounds, turns=_TURNS_OF_PIECES, abreast=())
        limits = LoweringOptions(runtime=self.request.runtime).limits  # type: ignore[arg-type]
        return replace(rounds, steps=limits.steps)

    def _for_interpreter(self, instance: Instance, candidate: Candidate, chosen: Strategy) -> Solution:
        """Made for the connections of an interpreter, and timed on the links as they are. Packings know links alone."""
        assert candidate.view is not None
        stages = self._listing(self._large_stages if candidate.view == LARGE_VIEW else self._quick_stages, candidate)
        if candidate.chained:
            # Their estimates say little of which key is the best, so the others are not worth their time.
            ordering = replace(stages.ordering, work=Ordering().work)
            stages = replace(stages, ordering=ordering, reordering=ordering)
        if turned := self._rotating(instance, candidate):
            return hierarchical(*turned, stages, rotated(candidate.strategy), candidate.view)
        viewed = as_interpreted(instance, candidate.view)
        packed = candidate.chained or candidate.packed
        routed = (lambda shown: chosen(as_described(shown))) if packed else chosen
        solution = stages(viewed, routed)
        return self._as_on_links(instance, solution)

    def _rotating(self, instance: Instance, candidate: Candidate) -> tuple[Instance, Boxes] | None:
        """The instance with its ranks in runs that do alike, where it has such, for a packing over all paths for an interpreter. Not
        where latency counts as much as bandwidth, of which alone all runs can have the same, nor where ways meet and some keep
        apart, or an allreduce is in a list: what all send at the same time holds itself up there.
        """
        packed = candidate.packed and candidate.anchor_bytes > PACED_BEYOND_BYTES
        twice = self.request.collective is CollectiveName.ALLREDUCE and not candidate.in_rounds
        if not packed or self.plan.apart() or (twice and self.plan.is_crowded):
            return None
        turns = [*rotations(instance)]
        if len(turns) == 1 and own_chunks(instance, candidate.count) >= FINE:
            return turns[0]  # the ways of so many chunks load links evenly
        return evenly_rotated(instance, turns) if turns else None

    def _as_on_links(self, instance: Instance, solution: Solution) -> Solution:
        """What was made for the connections of an interpreter, timed on the links as they are."""
        schedule = retime(instance, messages_of(solution.schedule))
        check_schedule(instance, schedule, Routing(solution.schedule.transfers()))
        return replace(solution, instance=instance, schedule=schedule, bound_us=None, interpreted=solution.schedule)
