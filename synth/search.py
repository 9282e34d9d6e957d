"""The search: candidates through the stages, each scored at the sizes and protocols that it could serve."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from statistics import fmean

import numpy as np

from synth.baselines import BASELINES, RIVALS
from synth.boxes import Boxes
from synth.candidates import Candidate
from synth.candidates.candidate import CHAINS, HIERARCHIES, JOINT, LARGE_VIEW, STAR
from synth.candidates.chained import WAYS_OF_A_PLACE
from synth.candidates.hierarchy import LARGEST_STARRED
from synth.candidates.sizes import CONNECTION_BOUND_BYTES, LATENCY_BOUND_BYTES
from synth.candidates.transfers import direct, transfers_of
from synth.chunks import divides
from synth.constants import Constants
from synth.errors import NoAnswerError
from synth.exchanged import exchanged
from synth.hierarchical import chained, hierarchical, hierarchical_in_rounds, without_surplus
from synth.instance import Instance
from synth.interpreted import as_described, as_interpreted
from synth.ir import Message, Routing
from synth.known import known_solution
from synth.lowering import MAX_CHANNELS, LoweringOptions, stream_width, threadblocks_needed
from synth.milp import SolveOptions
from synth.ordering import RULES, Ordering, Rounds
from synth.plan import Plan
from synth.protocols import ll128_is_safe, under_protocol
from synth.reductions.padding import pad
from synth.request import Progress, Request
from synth.routing.across import AcrossRouting
from synth.routing.central import added_up_at
from synth.routing.hierarchy import HierarchyRouting
from synth.routing.patterns import DIRECT
from synth.scheduling import Justification, MilpScheduling, Scheduling
from synth.solve import Solution, Stages, Strategy
from synth.strategies import StrategyOptions, over_few_ways, strategy
from synth.timing import Replay, check_schedule, messages_of, retime
from synth.units import format_size
from synth.workers import in_time

#: A candidate is judged at sizes up to this factor from the one it was solved at.
_REACH = 1 << 10
#: Of the time limit, what the search may take; the rest is for simulating what it found.
_SEARCH_SHARE = 0.6
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
#: A round is no shorter than a message's latency and this share of what a threadblock takes for it: the rest overlaps.
_ROUND_SHARE = 0.5
#: What pieces are tried at: other paces hardly ever take less, and they are many.
_TURNS_OF_PIECES = (1 / 5, 1 / 12)
#: Rounds for both halves of an allreduce as one: chains are long there, so that their ends cost more than what short rounds do.
_JOINT_ROUNDS = Rounds(LARGE_VIEW, slack=0.55, most=512)
#: Runs of the greedy where estimates decide: one for each patience. More of them hardly ever find a better one.
_LEAN_GREEDY_RUNS = 5
#: Transfers of all candidates together from which on the search is left to other processes: below, it ends within a second.
_WORTH_A_PROCESS = 4_000
#: Schedules that take so many times as long as others gain too little by finer cuts.
_FAR_BEHIND = 1.1
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


class Ledger:
    """Seconds by stage, of all processes together; entering a stage ends the one before."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.seconds: dict[str, float] = {}
        self._current: tuple[str, float] | None = None

    def enter(self, stage: str) -> None:
        now = time.perf_counter()
        if self._current is not None:
            name, since = self._current
            self.seconds[name] = self.seconds.get(name, 0.0) + now - since
        self._current = (stage, now)

    def rest(self) -> None:
        """End the stage without entering another: other processes do the work."""
        self.enter("")
        self._current = None

    def add(self, seconds: Mapping[str, float]) -> None:
        """Add what another process spent."""
        for stage, spent in seconds.items():
            self.seconds[stage] = self.seconds.get(stage, 0.0) + spent

    def elapsed_s(self) -> float:
        """Seconds since the job began."""
        return time.perf_counter() - self.began


@dataclass
class Search:
    """One plan carried out, wave by wave: `scored` is what can be chosen from."""

    plan: Plan
    ledger: Ledger
    progress: Callable[[Progress], None]
    scored: list[Scored] = field(default_factory=list)
    is_over: bool = field(default=False, init=False)
    """whether the time for the search is up"""
    _done: int = field(default=0, init=False)
    """candidates that there was time for"""

    @property
    def request(self) -> Request:
        """What is asked for."""
        return self.plan.request

    @property
    def notes(self) -> tuple[str, ...]:
        """What was cut short, in words."""
        notes = []
        if self.plan.is_hurried:
            notes.append(
                "--time-limit is short for this machine, so that what is large is cut coarser; a longer one finds better"
            )
        if self.is_over:
            ended = f"after {self._done} of {sum(map(len, self.plan.waves))} candidates"
            notes.append(f"--time-limit ended the search {ended}; another run may end at another")
        return tuple(notes)

    def run(self) -> list[Scored]:
        """All waves, as far as there is time: every candidate solved and scored."""
        for _ in self.waves():
            if self.is_over:
                break
        return self.scored

    def waves(self) -> Generator[list[Scored], None, None]:
        """After each wave of the plan all that was found so far, in a fixed order; what an earlier wave found keeps its place.

        Of the first wave at least one candidate is solved, whatever the time. So it is of later ones when time is up: whoever asks
        for one then has no answer yet. Where the first wave hardly ever ends the search, later ones are begun while it is looked at.
        """
        tried = 0
        ahead = self._begun_ahead
        for waves in (self.plan.waves[:ahead], *((wave,) for wave in self.plan.waves[ahead:])):
            hopeful = [self._hopeful(planned) for planned in waves]
            with closing(self._answers(hopeful)) as answers:
                for planned in hopeful:
                    self._carry_out(planned, answers, tried)
                    tried += len(planned)
                    yield self.scored

    @property
    def _begun_ahead(self) -> int:
        """How many waves are begun at once: of small buffers all, of large ones what comes in pieces, which takes as long as what
        comes before it takes to be simulated.
        """
        plan, request = self.plan, self.request
        if not plan.ends or request.jobs == 1:
            return 1
        if request.max_bytes <= CONNECTION_BOUND_BYTES:
            return len(plan.waves)
        return 2 if any(each.pieces for wave in plan.waves[1:2] for each in wave) else 1

    def _answers(self, waves: Sequence[Sequence[Candidate]]) -> Generator[_Answer | None, None, None]:
        """What the candidates come to, wave by wave; None for what there is no time for."""
        listed = [candidate for planned in waves for candidate in planned]
        certain = 0 if self.scored else self.plan.fewest(waves[0])
        processes, urgent = self._processes(listed), len(waves[0])
        # Whoever looks at what is found asks for the bound.
        meanwhile = (lambda: self.plan.bound) if self.request.jobs > 1 else None
        return in_time(
            processes, _solved, self, listed, left_s=self._left_s, certain=certain, urgent=urgent, meanwhile=meanwhile
        )

    def _left_s(self) -> float:
        """Seconds that the search may still take."""
        return self.request.time_limit_s * _SEARCH_SHARE - self.ledger.elapsed_s()

    def _hopeful(self, planned: Sequence[Candidate]) -> list[Candidate]:
        """Without finer cuts of free roots where what an earlier wave made of these was far behind: they take longest, and gain
        little.
        """
        taken: dict[bool, float] = {}
        for entry in self.scored if not self.request.by_time else ():
            joint = entry.candidate.strategy == JOINT
            taken[joint] = min([taken.get(joint, math.inf), *entry.schedules_us.values()])
        behind = taken.get(True, 0.0) > taken.get(False, math.inf) * _FAR_BEHIND
        return [each for each in planned if not (behind and each.strategy == JOINT)]

    def _carry_out(self, planned: Sequence[Candidate], answers: Iterator[_Answer | None], tried: int) -> None:
        """Take one wave's answers, after so many candidates of earlier ones."""
        scored: list[Scored] = []
        best: dict[int, float] = {}
        self.ledger.rest()
        total = sum(map(len, self.plan.waves))
        late: list[Candidate] = []
        for number, candidate in enumerate(planned):
            size = candidate.anchor_bytes
            detail = f"{candidate.strategy}, {candidate.count} chunks, {format_size(size)}"
            self.progress(Progress("search", detail, (tried + number) / total, best.get(size)))
            answer = next(answers)
            if answer is None:
                late.append(candidate)
                continue
            found, seconds = answer
            self.ledger.add(seconds)
            for entry in found:
                best[size] = min(best.get(size, math.inf), entry.solution.schedule.makespan_us)
            scored += found
        wanted = self.is_over or not self.scored
        while late and wanted and not scored:
            found, seconds = _solved(self, late.pop(0))
            self.ledger.add(seconds)
            scored += found
        self._done += len(planned) - len(late)
        self.is_over |= bool(late)
        self.scored = _merged([*self.scored, *scored])
        served = set[int]().union(*(entry.times_us for entry in self.scored))
        if left := [size for size in self.plan.sizes if size not in served]:
            # Time ran out before anything was solved nearer: an answer made for other sizes is better than none.
            self.scored = [entry.joined(self._scored_under(entry, left)) for entry in self.scored]

    def _processes(self, planned: Sequence[Candidate]) -> int:
        """Processes for the plan: none where it is so little work that starting one takes longer."""
        transfers = sum(transfers_of(self.plan.collective(candidate.count)) for candidate in planned)
        return self.request.jobs if transfers > _WORTH_A_PROCESS else 0

    def _scored_under(self, entry: Scored, sizes: Sequence[int]) -> Scored:
        """The entry's solution under its protocol, at other sizes."""
        scored = self._score(entry.candidate, entry.solution, sizes)
        return next(other for other in scored if other.protocol == entry.protocol)

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

    @cached_property
    def stages(self) -> Stages:
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
            return self.stages
        return self._quick_stages

    def _listing(self, stages: Stages, candidate: Candidate) -> Stages:
        """The stages as they list a candidate: of one size alone exact times say what goes first where ways meet, to an interpreter,
        too; and where chunks have one destination each, so that nobody waits for any order.
        """
        meet = self.request.single_size and not candidate.boxed and self.plan.is_crowded
        if candidate.anchor_bytes <= _UNJUSTIFIED_BYTES or not (meet or direct(self.plan.collective(1))):
            return stages
        return replace(stages, scheduling=replace(stages.scheduling, justification=Justification()))

    def solve(self, candidate: Candidate) -> Solution | None:
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
        self.ledger.enter("topology")
        if candidate.boxed or candidate.chained:
            return self._over_boxes(candidate)
        instance = self.plan.instance(candidate.count, candidate.anchor_bytes)
        left = max(1.0, self.request.time_limit_s - self.ledger.elapsed_s())
        options = StrategyOptions(
            seed=self.request.seed,
            solver=self.request.solver,
            time_limit_s=left,
            greedy_runs=_LEAN_GREEDY_RUNS if self.request.by_time and not self.request.thorough else None,
            paths=self.plan.apart if candidate.apart else None,
        )
        if candidate.strategy == JOINT:
            return self._joint(instance, candidate)
        if candidate.central:
            instance = added_up_at(instance, self.plan.central[candidate.strategy])
        chosen = strategy("greedy" if candidate.central else candidate.strategy, options)
        if candidate.in_rounds:
            solution = self._in_rounds(instance, candidate, chosen)
        elif candidate.view is None:
            solution = self._listing(self._stages_at(candidate.anchor_bytes), candidate)(instance, chosen)
        else:
            solution = self._for_interpreter(instance, candidate, chosen)
        self.ledger.enter("scoring")
        return solution

    def _joint(self, instance: Instance, candidate: Candidate) -> Solution | None:
        """Both halves of an allreduce as one; None where rounds of it would have too many messages."""
        try:
            stages = self._listing(self.stages, candidate)
            return stages.joint(instance, self._rounds(candidate) if candidate.in_rounds else None)
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
        way = AcrossRouting() if pattern == DIRECT else HierarchyRouting(pattern, several=several)
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
        if candidate.view is None:
            return self._stages_at(candidate.anchor_bytes)(instance, chosen)
        return self._for_interpreter(instance, candidate, chosen)

    def _in_rounds(self, instance: Instance, candidate: Candidate, chosen: Strategy) -> Solution | None:
        """Made for the connections of an interpreter, in rounds; None where one of them would have too many messages."""
        try:
            rounds = self._rounds(candidate)
            return self._quick_stages.in_rounds(instance, over_few_ways(chosen), rounds, candidate.pieces)
        except NoAnswerError:
            return None

    def _rounds(self, candidate: Candidate) -> Rounds:
        """The rounds that a candidate is made in, for threadblocks of as many steps as the runtime takes."""
        assert candidate.view is not None
        rounds = _JOINT_ROUNDS if candidate.strategy == JOINT else Rounds(candidate.view)
        if candidate.pieces:
            rounds = replace(rounds, turns=_TURNS_OF_PIECES, abreast=())
        limits = LoweringOptions(runtime=self.request.runtime).limits  # type: ignore[arg-type]
        return replace(rounds, steps=limits.steps)

    def _for_interpreter(self, instance: Instance, candidate: Candidate, chosen: Strategy) -> Solution:
        """Made for the connections of an interpreter, and timed on the links as they are. Packings know links alone."""
        assert candidate.view is not None
        viewed = as_interpreted(instance, candidate.view)
        packed = candidate.chained or candidate.strategy in ("trees", "flow")
        routed = (lambda shown: chosen(as_described(shown))) if packed else chosen
        stages = self._listing(self._large_stages if candidate.view == LARGE_VIEW else self._quick_stages, candidate)
        if candidate.chained:
            # Their estimates say little of which key is the best, so the others are not worth their time.
            ordering = replace(stages.ordering, work=Ordering().work)
            stages = replace(stages, ordering=ordering, reordering=ordering)
        solution = stages(viewed, routed)
        schedule = retime(instance, messages_of(solution.schedule))
        check_schedule(instance, schedule, Routing(solution.schedule.transfers()))
        return replace(solution, instance=instance, schedule=schedule, bound_us=None, interpreted=solution.schedule)

    def score(self, candidate: Candidate, solution: Solution) -> list[Scored]:
        """A solution under every protocol, at the sizes that it is for."""
        return self._score(candidate, solution, self._worth_scoring(candidate))

    def _score(self, candidate: Candidate, solution: Solution, sizes: Sequence[int]) -> list[Scored]:
        served = [size for size in sizes if self._serves(candidate.count, size)]
        scored = []
        clock = Clock(solution)
        schedules = self._curve(served, clock.time_us)
        for protocol in self._protocols(candidate):
            usable = [size for size in served if protocol != "LL" or self.request.protocol or size <= _LARGEST_LL_BYTES]
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
        request = self.request
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
        request = self.request
        return divides(request.collective, request.topology.num_ranks, count * (request.instances or 1), size)

    def _protocols(self, candidate: Candidate) -> Sequence[str]:
        anchor_bytes = self._worth_scoring(candidate)[0] if candidate.strategy in BASELINES else candidate.anchor_bytes
        if self.request.protocol is not None:
            return (self.request.protocol,)
        protocols = ["LL"] if anchor_bytes <= _LARGEST_LL_BYTES else []
        if ll128_is_safe(self.request.topology, self.plan.paths):
            protocols.append("LL128")
        protocols.append("Simple")
        if candidate.chained and anchor_bytes > CONNECTION_BOUND_BYTES:
            # Simulations of LL128's small tiles take longest, and pay where boxes are many: a candidate of its own.
            return [protocol for protocol in protocols if protocol == candidate.view or candidate.view is None]
        return protocols


def _merged(scored: Sequence[Scored]) -> list[Scored]:
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


#: What a candidate came to, and the seconds that its stages took.
_Answer = tuple[list[Scored], dict[str, float]]


def _solved(search: Search, candidate: Candidate) -> _Answer:
    """One candidate solved and scored, with the seconds that its stages took: in whichever process."""
    ledger = Ledger()
    here = replace(search, ledger=ledger)
    solution = here.solve(candidate)
    scored = here.score(candidate, solution) if solution is not None else []
    ledger.enter("done")
    return scored, ledger.seconds


class Clock:
    """Times a solution's messages, in their order, at other buffer sizes (cost level 2)."""

    def __init__(self, solution: Solution) -> None:
        self.solution = solution
        self.instance = self._timed(solution.instance)
        one = solution.folded or solution
        ordered = one.schedule if solution.rounds else one.interpreted or one.schedule
        waits = solution.written.waits if solution.written else None
        self.replay = Replay(self.instance, messages_of(ordered), waits)
        self.interpreted: dict[tuple[str, int], tuple[Instance, Replay]] = {}

    def time_us(self, size_bytes: int) -> float:
        """What a buffer of `size_bytes` takes on the links as they are."""
        return self.replay.makespan_us(self.instance.with_chunk_bytes(self.solution.chunk_bytes(size_bytes)))

    def estimate_us(self, size_bytes: int, protocol: str, instances: int = 1) -> float:
        """What an interpreter would take for it, launch included: an estimate, for choosing what to simulate."""
        if self.solution.rounds:
            return self._rounds_us(size_bytes, protocol)
        view = protocol, instances
        if view not in self.interpreted:
            used = {send.path for send in self.solution.schedule.sends}
            instance = self._timed(as_interpreted(self.solution.instance, protocol, used, instances=instances))
            self.interpreted[view] = (instance, self.replay.on(instance))
        instance, replay = self.interpreted[view]
        launch_us = Constants.for_topology(self.solution.instance.topology).of(protocol).launch_us
        return launch_us + replay.makespan_us(instance.with_chunk_bytes(self.solution.chunk_bytes(size_bytes)))

    def _rounds_us(self, size_bytes: int, protocol: str) -> float:
        """What the rounds take, launch included: as much longer or shorter as chunks are, and each no less than a message's mean
        latency and part of what its threadblock takes for it.
        """
        solution = self.solution
        assert solution.interpreted is not None
        constants = Constants.for_topology(solution.instance.topology)
        mine, made_for = constants.of(protocol), constants.of(LARGE_VIEW)
        slower = max(made_for.rate_GBps / mine.rate_GBps, made_for.wire / mine.wire)
        chunk_bytes = solution.chunk_bytes(size_bytes)
        scale = chunk_bytes / solution.instance.chunk_bytes
        used = {send.path for send in solution.schedule.sends}
        paths = under_protocol(solution.instance, protocol, used).paths
        hop_us = fmean(paths[send.path].alpha_us for send in solution.schedule.sends)
        round_us = solution.interpreted.makespan_us / solution.rounds
        alone_us = hop_us + _ROUND_SHARE * chunk_bytes / (mine.rate_GBps * 1e3)
        return mine.launch_us + solution.rounds * max(round_us * scale * slower, alone_us)

    def _timed(self, instance: Instance) -> Instance:
        """The instance, or a view of it, as the messages are timed on it: one box, where all do the same."""
        return self.solution.folded.instance(instance) if self.solution.folded else instance
