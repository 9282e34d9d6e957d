"""The search: candidates through the stages, each scored at the sizes and protocols that it could serve."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from synth.build import build_instance
from synth.candidates import Candidate, anchors, candidates, worthwhile_counts
from synth.chunks import chunk_counts, divides, range_sizes
from synth.collective import ROOTED, SHARED, Collective
from synth.instance import Instance
from synth.milp import SolveOptions
from synth.paths import Path
from synth.protocols import under_protocol
from synth.request import Progress, Request
from synth.routing.milp import MilpRouting
from synth.scheduling import MilpScheduling, Scheduling
from synth.solve import Solution, Stages
from synth.strategies import AUTO_MILP_BINARIES, MILP_BINARIES, StrategyOptions, strategy
from synth.timing import Replay, messages_of
from synth.units import format_size

#: A candidate is judged at sizes up to this factor from the one it was solved at.
_REACH = 1 << 8
#: Buffers above this are bandwidth-bound on every machine of the catalogue: LL, which halves the bandwidth, is not tried.
_LARGEST_LL_BYTES = 4 << 20
#: Protocol latencies are estimates here, the schedule is exact; the simulator has the last word (trial.py).
_SAY_OF_PROTOCOL = 0.1


@dataclass(frozen=True)
class Scored:
    """A solution under a protocol, and what it takes at each size that it can serve, in us by bytes: `times_us` as the
    protocol has it, `schedules_us` as the machine alone does (cost level 2).
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

    def scores(self) -> dict[int, float]:
        """How promising the candidate is before anything is simulated: the exact schedule, with a tenth of the say (in
        logarithms) for the protocol's estimate.
        """
        return {
            size: self.schedules_us[size] ** (1 - _SAY_OF_PROTOCOL) * taken**_SAY_OF_PROTOCOL
            for size, taken in self.times_us.items()
        }


class Ledger:
    """Seconds by stage; entering a stage ends the one before."""

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
        solved: list[tuple[Candidate, Solution]] = []
        scored: list[Scored] = []
        best: dict[int, float] = {}
        for number, candidate in enumerate(plan):
            if scored and self.ledger.elapsed_s() > self.request.time_limit_s:
                self.notes.append(
                    f"--time-limit ended the search after {number} of {len(plan)} candidates; "
                    "another run may end at another"
                )
                break
            size = candidate.anchor_bytes
            detail = f"{candidate.strategy}, {candidate.count} chunks, {format_size(size)}"
            self.progress(Progress("search", detail, number / len(plan), best.get(size)))
            solution = self._solve(candidate)
            best[size] = min(best.get(size, float("inf")), solution.schedule.makespan_us)
            solved.append((candidate, solution))
            scored += self._score(candidate, solution, self._near(size))
        served = set[int]().union(*(entry.times_us for entry in scored))
        if left := [size for size in self.sizes() if size not in served]:
            # Time ran out before anything was solved nearer: an answer made for other sizes is better than none.
            more = [entry for pair in solved for entry in self._score(*pair, left)]
            scored = [entry.joined(far) for entry, far in zip(scored, more, strict=True)]
        return scored

    def _near(self, anchor_bytes: int) -> list[int]:
        return [size for size in self.sizes() if anchor_bytes <= size * _REACH and size <= anchor_bytes * _REACH]

    @cached_property
    def stages(self) -> Stages:
        """The stages after routing, with the solver that was asked for."""
        limits = SolveOptions(solver=self.request.solver, node_limit=200, seed=self.request.seed)  # type: ignore[arg-type]
        exact = MilpScheduling(solve=limits, max_binaries=80)
        return Stages(scheduling=Scheduling(exact=exact), watch=self.ledger.enter)

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
        request = self.request
        sizes = anchors(request.min_bytes, request.max_bytes)
        plan: list[Candidate] = []
        for position, size in enumerate(sizes):
            low = request.min_bytes if position == 0 else sizes[position - 1]
            counts = self._counts(low if len(sizes) > 1 else size)
            instance = self._instance(counts[0], size)
            if request.strategy == "milp":
                plan += [Candidate("milp", count, size) for count in self._milp_counts(instance, counts, size)]
            else:
                plan += candidates(instance, request.strategy, counts, size, thorough=len(sizes) == 1)
                if size == sizes[-1] and request.strategy in ("auto", "trees"):
                    plan += [Candidate("trees", count, size) for count in worthwhile_counts(instance, counts, size, 2)]
            if request.strategy == "auto" and self._milp_fits(instance, AUTO_MILP_BINARIES):
                plan.append(Candidate("milp", counts[0], size))
        return list(dict.fromkeys(plan))

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

    def _solve(self, candidate: Candidate) -> Solution:
        self.ledger.enter("topology")
        instance = self._instance(candidate.count, candidate.anchor_bytes)
        left = max(1.0, self.request.time_limit_s - self.ledger.elapsed_s())
        options = StrategyOptions(seed=self.request.seed, solver=self.request.solver, time_limit_s=left)
        solution = self.stages(instance, strategy(candidate.strategy, options))
        self.ledger.enter("scoring")
        return solution

    def _score(self, candidate: Candidate, solution: Solution, sizes: Sequence[int]) -> list[Scored]:
        served = [size for size in sizes if self._serves(candidate.count, size)]
        scored = []
        clock = Clock(solution)
        schedules = {size: clock.time_us(size) for size in served}
        for protocol in self._protocols(candidate.anchor_bytes):
            usable = [size for size in served if protocol != "LL" or self.request.protocol or size <= _LARGEST_LL_BYTES]
            times = {size: clock.time_us(size, protocol) for size in usable}
            scored.append(Scored(solution, candidate, protocol, times, schedules))
        return scored

    def _serves(self, count: int, size: int) -> bool:
        if self.asked_count() is not None:
            return True
        request = self.request
        return divides(request.collective, request.topology.num_ranks, count * (request.instances or 1), size)

    def _protocols(self, anchor_bytes: int) -> Sequence[str]:
        if self.request.protocol is not None:
            return (self.request.protocol,)
        return ("LL", "Simple") if anchor_bytes <= _LARGEST_LL_BYTES else ("Simple",)


class Clock:
    """Times a solution's messages, in their order, at other buffer sizes (cost level 2)."""

    def __init__(self, solution: Solution) -> None:
        self.instance = solution.instance
        self.replay = Replay(self.instance, messages_of(solution.schedule))

    def time_us(self, size_bytes: int, protocol: str | None = None) -> float:
        """What a buffer of `size_bytes` takes; as the protocol sees the machine where one is given."""
        instance = self.instance.with_chunk_bytes(self.instance.collective.chunk_bytes(size_bytes))
        return self.replay.makespan_us(under_protocol(instance, protocol) if protocol else instance)
