"""The search: candidates through the stages, each scored at the sizes and protocols that it could serve."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from synth.baselines import BASELINES, Machine
from synth.build import build_instance
from synth.candidates import (
    JOINT,
    LATENCY_BOUND_BYTES,
    Candidate,
    anchors,
    candidates,
    interpreted_candidates,
    joint_candidates,
    transfers_of,
    worthwhile_counts,
)
from synth.chunks import chunk_counts, divides, range_sizes
from synth.collective import ROOTED, SHARED, Collective
from synth.constants import Constants
from synth.errors import NoAnswerError
from synth.instance import Instance
from synth.interpreted import as_described, as_interpreted
from synth.ir import Routing
from synth.known import known_counts, known_solution
from synth.milp import SolveOptions
from synth.ordering import Ordering
from synth.paths import Path
from synth.protocols import ll128_is_safe
from synth.request import Progress, Request
from synth.routing.milp import MilpRouting
from synth.scheduling import MilpScheduling, Scheduling
from synth.solve import Solution, Stages, Strategy
from synth.strategies import AUTO_MILP_BINARIES, MILP_BINARIES, StrategyOptions, strategy
from synth.timing import Replay, check_schedule, messages_of, retime
from synth.units import format_size
from synth.workers import in_parallel

#: A candidate is judged at sizes up to this factor from the one it was solved at.
_REACH = 1 << 8
#: Of the time limit, what the search may take; the rest is for simulating what it found.
_SEARCH_SHARE = 0.6
#: Transfers of all candidates together from which on the search is spread over processes: below, it ends within a second.
_WORTH_A_PROCESS = 4_000
#: Buffers above this are bandwidth-bound on every machine of the catalogue: LL, which halves the bandwidth, is not tried.
_LARGEST_LL_BYTES = 4 << 20


@dataclass(frozen=True)
class Scored:
    """A solution under a protocol, and what it takes at each size that it can serve, in us by bytes: `times_us` as the
    protocol has it (an estimate: trial.py simulates), `schedules_us` as the machine alone does (cost level 2).
    """

    solution: Solution
    candidate: Candidate
    protocol: str
    times_us: dict[int, float]
    schedules_us: dict[int, float]

    def joined(self, other: Scored) -> Scored:
        """Of one solution under one protocol, what is known at the sizes of both."""
        return replace(
            self, times_us=self.times_us | other.times_us, schedules_us=self.schedules_us | other.schedules_us
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
    """One request's search over the machine's paths. `run` gives what can be chosen from; `notes` says what was cut short."""

    request: Request
    paths: tuple[Path, ...]
    ledger: Ledger
    progress: Callable[[Progress], None]
    notes: list[str] = field(default_factory=list)

    def run(self) -> list[Scored]:
        """Every candidate solved and scored, in a fixed order. Where time runs out, at least one of them."""
        plan = self._plan()
        scored: list[Scored] = []
        best: dict[int, float] = {}
        self.ledger.rest()
        answers = in_parallel(self._jobs(plan), _solved, self, plan)
        for number, candidate in enumerate(plan):
            if scored and self.ledger.elapsed_s() > self.request.time_limit_s * _SEARCH_SHARE:
                self.notes.append(
                    f"--time-limit ended the search after {number} of {len(plan)} candidates; "
                    "another run may end at another"
                )
                break
            size = candidate.anchor_bytes
            detail = f"{candidate.strategy}, {candidate.count} chunks, {format_size(size)}"
            self.progress(Progress("search", detail, number / len(plan), best.get(size)))
            found, seconds = next(answers)
            self.ledger.add(seconds)
            for entry in found:
                best[size] = min(best.get(size, math.inf), entry.solution.schedule.makespan_us)
            scored += found
        answers.close()
        served = set[int]().union(*(entry.times_us for entry in scored))
        if left := [size for size in self.sizes() if size not in served]:
            # Time ran out before anything was solved nearer: an answer made for other sizes is better than none.
            scored = [entry.joined(self._scored_under(entry, left)) for entry in scored]
        return scored

    def _jobs(self, plan: Sequence[Candidate]) -> int:
        """Processes for the plan: one where it is so little work that starting others takes longer."""
        transfers = sum(transfers_of(self.collective(candidate.count)) for candidate in plan)
        return self.request.jobs if transfers > _WORTH_A_PROCESS else 1

    def _scored_under(self, entry: Scored, sizes: Sequence[int]) -> Scored:
        """The entry's solution under its protocol, at other sizes."""
        scored = self._score(entry.candidate, entry.solution, sizes)
        return next(other for other in scored if other.protocol == entry.protocol)

    def _worth_scoring(self, candidate: Candidate) -> Sequence[int]:
        """The sizes near the one that the candidate was solved at; all, where sizes did not matter to it."""
        anchor_bytes = candidate.anchor_bytes
        if candidate.strategy in BASELINES:
            return self.sizes()
        return [size for size in self.sizes() if anchor_bytes <= size * _REACH and size <= anchor_bytes * _REACH]

    @cached_property
    def stages(self) -> Stages:
        """The stages after routing, with the solver that was asked for."""
        limits = SolveOptions(solver=self.request.solver, node_limit=200, seed=self.request.seed)  # type: ignore[arg-type]
        exact = MilpScheduling(solve=limits, max_binaries=80)
        return Stages(scheduling=Scheduling(exact=exact), watch=self.ledger.enter)

    @cached_property
    def _quick_stages(self) -> Stages:
        """For an interpreter, which is known only roughly: fewer orders are tried, and none is solved exactly."""
        ordering = Ordering(keys=("longest-path-to-go", "in-turns"))
        never = Scheduling(exact=MilpScheduling(max_binaries=0))
        return Stages(ordering=ordering, scheduling=never, watch=self.ledger.enter)

    def collective(self, count: int) -> Collective:
        """The request's collective cut by `count` (per rank where ranks have shares)."""
        request, ranks = self.request, self.request.topology.num_ranks
        root = (request.root or 0) if request.collective in ROOTED else None
        shared = ranks if request.collective in SHARED else 1
        return Collective(request.collective, ranks, count * shared, root)

    def sizes(self) -> tuple[int, ...]:
        """The sizes that the answer has to serve, ascending."""
        return range_sizes(self.request.min_bytes, self.request.max_bytes)

    def asked_count(self) -> int | None:
        """The chunk count that the user asks for, on the command line or in a sketch."""
        if self.request.chunks is not None:
            return self.request.chunks
        sketch = self.request.sketch
        if sketch is None or sketch.chunks_per_rank is None:
            return None
        return sketch.chunks_per_rank * (1 if self.request.collective in SHARED else self.request.topology.num_ranks)

    def _plan(self) -> list[Candidate]:
        """What to solve, in this order: others' algorithms, which serve all sizes at once, then in turn the first candidate of each
        size to solve at, the second of each, and so on: wherever time runs out, all sizes have had about the same.
        """
        sizes = anchors(self.request.min_bytes, self.request.max_bytes)
        by_size = [self._plan_at(position, sizes) for position in reversed(range(len(sizes)))]
        turns = itertools.chain.from_iterable(itertools.zip_longest(*by_size))
        return list(dict.fromkeys([*self._known(sizes[-1]), *filter(None, turns)]))

    def _plan_at(self, position: int, sizes: Sequence[int]) -> list[Candidate]:
        request, size = self.request, sizes[position]
        low = request.min_bytes if position == 0 else sizes[position - 1]
        counts = self._counts(low if len(sizes) > 1 else size)
        instance = self._instance(counts[0], size)
        thorough = len(sizes) == 1
        if request.strategy == "milp":
            return [Candidate("milp", count, size) for count in self._milp_counts(instance, counts, size)]
        plan = candidates(instance, request.strategy, counts, size, thorough=thorough)
        if request.by_time:
            plan += interpreted_candidates(instance, request.strategy, counts, size, thorough=thorough)
        if size == sizes[-1] and request.strategy in ("auto", "trees", "flow"):
            plan += [Candidate(plan[0].strategy, count, size) for count in _largest_counts(instance, counts, size)]
        if size == sizes[-1] and size > LATENCY_BOUND_BYTES and request.strategy in ("auto", "trees"):
            plan += joint_candidates(instance, counts, size)
        if request.strategy == "auto" and self._milp_fits(instance, AUTO_MILP_BINARIES):
            plan.append(Candidate("milp", counts[0], size))
        return plan

    def _known(self, size: int) -> list[Candidate]:
        """What libraries would run: the same for every size, so solved once, and only where no sketch says what to use."""
        request = self.request
        if request.strategy != "auto" or request.sketch is not None:
            return []
        counts = self._counts(request.min_bytes)
        return [
            Candidate(name, count, size)
            for name in BASELINES
            for count in known_counts(name, self._machine, self.collective(1), counts)
        ]

    @cached_property
    def _machine(self) -> Machine:
        return Machine(self.request.topology, self.paths)

    def _milp_counts(self, instance: Instance, counts: Sequence[int], size: int) -> list[int]:
        """The coarsest cut, and the finest for which the program can still be solved to the end."""
        tried = [count for count in worthwhile_counts(instance, counts, size, 5) if count != counts[0]]
        fitting = [count for count in tried if self._milp_fits(self._instance(count, size), MILP_BINARIES)]
        return [counts[0], *fitting[-1:]]

    def _counts(self, low_bytes: int) -> tuple[int, ...]:
        """Admissible chunk counts for buffers from `low_bytes` up, each still admissible times `instances`."""
        asked = self.asked_count()
        if asked is not None:
            return (asked,)
        request = self.request
        counts = chunk_counts(request.collective, request.topology.num_ranks, low_bytes, request.max_bytes)
        copies = request.instances or 1
        return tuple(count // copies for count in counts if count % copies == 0) or (1,)

    def _milp_fits(self, instance: Instance, binaries: int) -> bool:
        return MilpRouting().estimate_size(instance) <= binaries

    def _instance(self, count: int, size_bytes: int) -> Instance:
        request = self.request
        return build_instance(request.topology, self.collective(count), size_bytes, request.sketch, self.paths)

    def solve(self, candidate: Candidate) -> Solution | None:
        """The candidate through the stages; None where it is one of others' algorithms and the machine has no such."""
        if candidate.strategy in BASELINES:
            self.ledger.enter("baselines")
            try:
                collective = self.collective(candidate.count)
                return known_solution(candidate.strategy, self._machine, collective, candidate.anchor_bytes)
            except NoAnswerError:
                return None
        self.ledger.enter("topology")
        instance = self._instance(candidate.count, candidate.anchor_bytes)
        left = max(1.0, self.request.time_limit_s - self.ledger.elapsed_s())
        options = StrategyOptions(seed=self.request.seed, solver=self.request.solver, time_limit_s=left)
        if candidate.strategy == JOINT:
            joint = self.stages.joint(instance)
            self.ledger.enter("scoring")
            return joint
        chosen = strategy(candidate.strategy, options)
        whole = candidate.view is None
        solution = self.stages(instance, chosen) if whole else self._for_interpreter(instance, candidate, chosen)
        self.ledger.enter("scoring")
        return solution

    def _for_interpreter(self, instance: Instance, candidate: Candidate, chosen: Strategy) -> Solution:
        """Made for the connections of an interpreter, and timed on the links as they are. Packings know links alone."""
        assert candidate.view is not None
        viewed = as_interpreted(instance, candidate.view)
        routed = (lambda shown: chosen(as_described(shown))) if candidate.strategy in ("trees", "flow") else chosen
        solution = self._quick_stages(viewed, routed)
        schedule = retime(instance, messages_of(solution.schedule))
        check_schedule(instance, schedule, Routing(solution.schedule.transfers()))
        return replace(solution, instance=instance, schedule=schedule, bound_us=None)

    def score(self, candidate: Candidate, solution: Solution) -> list[Scored]:
        """A solution under every protocol, at the sizes that it is for."""
        return self._score(candidate, solution, self._worth_scoring(candidate))

    def _score(self, candidate: Candidate, solution: Solution, sizes: Sequence[int]) -> list[Scored]:
        served = [size for size in sizes if self._serves(candidate.count, size)]
        scored = []
        clock = Clock(solution)
        schedules = {size: clock.time_us(size) for size in served}
        for protocol in self._protocols(candidate):
            usable = [size for size in served if protocol != "LL" or self.request.protocol or size <= _LARGEST_LL_BYTES]
            times = {size: clock.estimate_us(size, protocol) for size in usable}
            scored.append(Scored(solution, candidate, protocol, times, schedules))
        return scored

    def _serves(self, count: int, size: int) -> bool:
        """Whether runtimes would use a file of `count` chunks (and the instances asked for) at a size; yes if it was asked for."""
        if self.asked_count() is not None:
            return True
        request = self.request
        return divides(request.collective, request.topology.num_ranks, count * (request.instances or 1), size)

    def _protocols(self, candidate: Candidate) -> Sequence[str]:
        anchor_bytes = self.request.min_bytes if candidate.strategy in BASELINES else candidate.anchor_bytes
        if self.request.protocol is not None:
            return (self.request.protocol,)
        protocols = ["LL"] if anchor_bytes <= _LARGEST_LL_BYTES else []
        if ll128_is_safe(self.request.topology, self.paths):
            protocols.append("LL128")
        return (*protocols, "Simple")


def _largest_counts(instance: Instance, counts: Sequence[int], size: int) -> list[int]:
    """Chunk counts for the largest buffers, where long messages last long enough for several to be in flight: the two finest, and
    one a good deal coarser, which leaves a threadblock few steps.
    """
    finest = worthwhile_counts(instance, counts, size, 2)
    coarse = [count for count in counts if 8 * count <= finest[-1]]
    return [*coarse[-1:], *finest]


def _solved(search: Search, candidate: Candidate) -> tuple[list[Scored], dict[str, float]]:
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
        self.replay = Replay(solution.instance, messages_of(solution.schedule))
        self.interpreted: dict[str, tuple[Instance, Replay]] = {}

    def time_us(self, size_bytes: int) -> float:
        """What a buffer of `size_bytes` takes on the links as they are."""
        instance = self.solution.instance.with_chunk_bytes(self.solution.chunk_bytes(size_bytes))
        return self.replay.makespan_us(instance)

    def estimate_us(self, size_bytes: int, protocol: str) -> float:
        """What an interpreter would take for it, launch included: an estimate, for choosing what to simulate."""
        if protocol not in self.interpreted:
            used = {send.path for send in self.solution.schedule.sends}
            instance = as_interpreted(self.solution.instance, protocol, used)
            self.interpreted[protocol] = (instance, self.replay.on(instance))
        instance, replay = self.interpreted[protocol]
        launch_us = Constants.for_topology(self.solution.instance.topology).of(protocol).launch_us
        return launch_us + replay.makespan_us(instance.with_chunk_bytes(self.solution.chunk_bytes(size_bytes)))
