"""One instance through the stages: routing, ordering, contiguity and exact scheduling, each checked before the next begins.

Combining collectives go through the same stages in broadcast form and come back by reversal and composition.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from msccl_xml.model import Algo
from synth.boxes import Boxes
from synth.candidates.transfers import direct
from synth.collective import Collective, CollectiveName
from synth.instance import Instance
from synth.ir import Routing, Schedule
from synth.lowering import Drafts, LoweringOptions, lower
from synth.ordering import Ordering, in_pieces
from synth.reductions.compose import compose_routings, compose_schedules
from synth.reductions.fold import merged
from synth.reductions.mirror import mirror_routing, mirror_schedule, twin_paths
from synth.reductions.reverse import reverse_routing, reverse_schedule
from synth.routing.joint import JointRouting
from synth.scheduling import Justification, Scheduling
from synth.timing import check_routing, check_schedule

#: What a message of an instance has to move at least: with less, more threadblocks gain nothing.
_LEAST_PART_BYTES = 128


@dataclass(frozen=True)
class Routed:
    """A routing in broadcast form, the schedule in which it was found if it came with one, and what is proved of it."""

    strategy: str
    routing: Routing
    schedule: Schedule | None = None
    status: str = "heuristic"
    bound_us: float | None = None


Strategy = Callable[[Instance], Routed]
#: Orders a routing in rounds, a message for every chunk or for every one of some pieces: the schedule, and how many rounds there are
#: (synth.ordering.rounds).
Pacing = Callable[[Instance, Routing, Sequence[tuple[int, ...]] | None], tuple[Schedule, int]]


@dataclass(frozen=True)
class Written:
    """A program that is no set of trees, and so written down instead of lowered: the program for given options; for each message of
    its schedule, since trees' rule (eq. 2) does not say, the places of those that it waits for; and the threadblocks of its busiest
    rank, those that an instance needs.
    """

    program: Callable[[LoweringOptions], Algo]
    waits: tuple[tuple[int, ...], ...]
    threadblocks: int


@dataclass(frozen=True)
class Folded:
    """The schedule of one box's chunks where all boxes do the same: the whole takes as long, at every size."""

    boxes: Boxes
    schedule: Schedule
    interpreted: Schedule | None = None
    """As in `Solution`."""

    def instance(self, instance: Instance) -> Instance:
        """The instance on which this schedule is timed, from the whole one or a view of it, whose first symmetry is the rotation."""
        return merged(instance, replace(self.boxes, rotation=instance.symmetries[0]))


@dataclass(frozen=True)
class Solution:
    """A checked schedule of an instance and how it came about."""

    instance: Instance
    schedule: Schedule
    strategy: str
    rule: str
    status: str
    ordered_us: float
    relaxed_us: float
    bound_us: float | None
    scheduled_by: str
    written: Written | None = None
    folded: Folded | None = None
    interpreted: Schedule | None = None
    """The same messages as an interpreter would carry them out, where they were made for one: when it does what."""
    rounds: int = 0
    """How many rounds `interpreted` has, where it was made in rounds (synth.ordering.rounds)."""
    in_exact_order: bool = False
    """Whether the program has its messages in the order of `schedule` all the same."""

    @property
    def collective(self) -> Collective:
        """What the program computes."""
        return self.instance.collective

    @property
    def lowered(self) -> Schedule:
        """The schedule that the program carries out."""
        return self.schedule if self.in_exact_order else self.interpreted or self.schedule

    def chunk_bytes(self, size_bytes: float) -> float:
        """Bytes of a chunk of the schedule for a buffer of `size_bytes`."""
        return self.collective.chunk_bytes(size_bytes)

    def is_worth_parting(self, size_bytes: float, instances: int) -> bool:
        """Whether so many instances, each with its part of every message of a buffer, have enough to move for that to gain."""
        return self.chunk_bytes(size_bytes) * self._fewest >= _LEAST_PART_BYTES * instances

    @cached_property
    def _fewest(self) -> int:
        """Chunks of the message that has the fewest."""
        return min((len(send.chunks) for send in self.lowered.sends), default=1)

    def program(self, options: LoweringOptions, drafts: Drafts | None = None) -> Algo:
        """The program; NoAnswerError where it does not fit the limits. `drafts` of this solution are looked up and added to."""
        if self.written:
            return self.written.program(options)
        # Which slot is free when differs between boxes: with a slot for each chunk, all boxes do the same.
        apart = self.folded is not None and direct(self.collective)
        return lower(self.instance, self.lowered, replace(options, reuses_scratch=not apart), drafts)


@dataclass(frozen=True)
class Checks:
    """What stands between two stages, and how a machine is its own reversal: by path the way back, None where it is not."""

    routing: Callable[[Instance, Routing], None] = check_routing
    schedule: Callable[[Instance, Schedule, Routing], None] = check_schedule
    twins: Callable[[Instance], tuple[int, ...] | None] = twin_paths


@dataclass(frozen=True)
class Stages:
    """The stages after routing, with their options; `watch` is told the name of each stage that begins."""

    ordering: Ordering = field(default_factory=Ordering)
    reordering: Ordering = field(default_factory=lambda: Ordering(keys=("longest-path-to-go", "in-turns")))
    """Tried on reversed and composed routings, which come with the order of what they are made of."""
    scheduling: Scheduling = field(default_factory=Scheduling)
    justification: Justification = field(default_factory=Justification)
    """What makes an exact schedule of rounds."""
    in_exact_order: bool = False
    """Whether programs have the messages of rounds in the order of that schedule."""
    watch: Callable[[str], None] = lambda stage: None
    checks: Checks = field(default_factory=Checks)

    def __call__(self, instance: Instance, strategy: Strategy) -> Solution:
        """Route with `strategy`, then order and schedule; CheckError where a stage breaks its contract."""
        if not instance.collective.combining:
            self.watch("routing")
            routed = strategy(instance)
            self.checks.routing(instance, routed.routing)
            return self._finish(instance, routed, routed.routing, self._ordered(instance, routed))
        if instance.collective.name is CollectiveName.ALLREDUCE:
            return self._composed(instance, strategy)
        backwards = instance.reversed()
        self.watch("routing")
        up = strategy(backwards)
        routing = reverse_routing(up.routing)
        self.checks.routing(instance, routing)
        mirrored, rule = self._ordered(backwards, up)
        turned = (reverse_schedule(instance, mirrored), rule + ", reversed")
        return self._finish(instance, up, routing, self.reordering(instance, routing, turned))

    def _composed(self, instance: Instance, strategy: Strategy) -> Solution:
        """allreduce: both halves solved (one, where the machine is its own reversal), composed, and ordered as a whole."""
        self.watch("routing")
        down = strategy(instance)
        down_ordered, rule = self._ordered(instance, down)
        twins = self.checks.twins(instance)
        if twins is not None:
            up_routing = mirror_routing(twins, down.routing)
            ups = [mirror_schedule(twins, down_ordered)]
            if instance.reduce_us_per_byte:
                # Sums take time, which the half that copies knows nothing of.
                ups.append(self.ordering(instance.reversed(), up_routing)[0])
        else:
            self.watch("routing")
            backwards = instance.reversed()
            up = strategy(backwards)
            up_routing = up.routing
            ups = [self._ordered(backwards, up)[0]]
        routing = compose_routings(reverse_routing(up_routing), down.routing)
        self.checks.routing(instance, routing)
        halves = [compose_schedules(instance, reverse_schedule(instance, each), down_ordered) for each in ups]
        composed = (min(halves, key=lambda half: half.makespan_us), rule + ", reversed and composed")
        return self._finish(instance, down, routing, self.reordering(instance, routing, composed))

    def joint(self, instance: Instance, rounds: Pacing | None = None, paths: Collection[int] | None = None) -> Solution:
        """An allreduce whose roots are free: routed as one over `paths` (None: all), and pipelined from its sums to its copies, or
        in `rounds`.
        """
        self.watch("routing")
        joint = JointRouting()(instance, paths)
        routing = Routing(compose_routings(joint.up, joint.down).transfers, joint.load_us)
        self.checks.routing(joint.instance, routing)
        self.watch("ordering")
        routed = Routed("joint", routing, status="optimal roots and trees", bound_us=joint.bound_us)
        if rounds is not None:
            return self._paced(joint.instance, routed, routing, partial(rounds, joint.instance, routing, None))
        pipelining = replace(self.reordering, keys=("pipelined", *self.reordering.keys))
        ordered = pipelining(joint.instance, routing)
        return self._finish(joint.instance, routed, routing, ordered)

    def in_rounds(self, instance: Instance, strategy: Strategy, rounds: Pacing, most: int | None = None) -> Solution:
        """Route with `strategy`, and order the whole in rounds: a message for every chunk, or pieces, as many as `most` for every
        owner of chunks.
        """
        self.watch("routing")
        routed, routing = self._whole(instance, strategy)
        pieces: tuple[tuple[int, ...], ...] | None = None
        if most is not None:
            routing, pieces = in_pieces(instance, routing, most)
        self.checks.routing(instance, routing)
        self.watch("ordering")
        return self._paced(instance, routed, routing, partial(rounds, instance, routing, pieces))

    def in_turns(
        self, instance: Instance, strategy: Strategy, turns: Callable[[Instance, Routing], Schedule]
    ) -> Solution:
        """Route with `strategy`, and make the exact schedule of the order in which transfers are due in `turns`."""
        self.watch("routing")
        routed, routing = self._whole(instance, strategy)
        self.checks.routing(instance, routing)
        self.watch("ordering")
        exact = self.justification.in_order(instance, turns(instance, routing))
        self.checks.schedule(instance, exact, routing)
        return _solution(instance, routed, (exact, "turns"), (exact, "as ordered"))

    def _paced(
        self, instance: Instance, routed: Routed, routing: Routing, rounds: Callable[[], tuple[Schedule, int]]
    ) -> Solution:
        """A routing ordered in `rounds`, of whose order the exact schedule is made."""
        paced, count = rounds()
        exact = self.justification.in_order(instance, paced)
        self.checks.schedule(instance, exact, routing)
        solution = _solution(instance, routed, (exact, "rounds"), (exact, "as ordered"))
        return replace(solution, interpreted=paced, rounds=count, in_exact_order=self.in_exact_order)

    def _whole(self, instance: Instance, strategy: Strategy) -> tuple[Routed, Routing]:
        """What the strategy found in broadcast form, and the routing that comes of it."""
        if not instance.collective.combining:
            routed = strategy(instance)
            return routed, routed.routing
        if instance.collective.name is not CollectiveName.ALLREDUCE:
            routed = strategy(instance.reversed())
            return routed, reverse_routing(routed.routing)
        down = strategy(instance)
        twins = self.checks.twins(instance)
        up = mirror_routing(twins, down.routing) if twins is not None else strategy(instance.reversed()).routing
        return down, compose_routings(reverse_routing(up), down.routing)

    def _ordered(self, instance: Instance, routed: Routed) -> tuple[Schedule, str]:
        """The best ordering of a routing in broadcast form, the one it was found in included."""
        self.watch("ordering")
        known = (routed.schedule, "as routed") if routed.schedule is not None else None
        return self.ordering(instance, routed.routing, known)

    def _finish(self, instance: Instance, routed: Routed, routing: Routing, ordered: tuple[Schedule, str]) -> Solution:
        self.checks.schedule(instance, ordered[0], routing)
        self.watch("scheduling")
        scheduled = self.scheduling(instance, ordered[0])
        self.checks.schedule(instance, scheduled[0], routing)
        return _solution(instance, routed, ordered, scheduled)


def _solution(
    instance: Instance, routed: Routed, ordered: tuple[Schedule, str], scheduled: tuple[Schedule, str]
) -> Solution:
    """The solution that a routing became, with what ordered and what scheduled it."""
    return Solution(
        instance,
        scheduled[0],
        routed.strategy,
        ordered[1],
        routed.status,
        ordered[0].makespan_us,
        routed.routing.relaxed_us,
        routed.bound_us,
        scheduled[1],
    )
