"""Candidates on trial: those whose schedule is as good as any are lowered and simulated, and the simulation decides.

The exact schedule is what a machine allows, the simulation what the interpreter makes of it. At sizes along the range, candidates
within `_SLACK` of the best schedule go to the simulator; it tells protocols apart, which share a schedule, and chunk counts whose
schedules are nearly equal. Elsewhere a candidate's own estimate, scaled to its simulated times, stands in, at a price.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from msccl_xml.model import Algo
from synth.choice import Segment
from synth.collective import CollectiveName
from synth.errors import NoAnswerError
from synth.lowering import LoweringOptions, lower
from synth.request import Progress, Request
from synth.search import Ledger, Scored
from synth.simulate import Simulator, paths_by_pair
from synth.simulate.routes import Paths
from synth.units import format_size

#: Schedules that differ by less count as equal: half a percent, as much as two good roundings of one packing differ.
_SLACK = 0.005
#: What a schedule that is worse than that by 1 % costs, as a share of its time: the simulator has not looked at it there.
_PRICE = 50.0
#: Candidates that go to the simulator at one size.
_MOST_AT_A_SIZE = 3
#: Of the sizes of a long range every so many are looked at for the choice; times are still simulated at all of them.
_STRIDE = 3
_LONG_RANGE = 6
#: Steps of a program, over all ranks, up to which it is simulated; above, seconds a size would be lost.
_MOST_STEPS = 25_000
#: Threadblocks of a GPU unless asked otherwise: they all have to be resident beside the training job's own kernels, and one RCCL
#: build takes no more.
DEFAULT_THREADBLOCKS = 64
_IN_PLACE_BY_DEFAULT = frozenset({CollectiveName.ALLREDUCE, CollectiveName.REDUCE, CollectiveName.BROADCAST})


@dataclass
class Trial:
    """The trial of one request's candidates at its sizes. `refusals` holds why candidates were dropped, by position."""

    request: Request
    sizes: Sequence[int]
    scored: Sequence[Scored]
    ledger: Ledger
    progress: Callable[[Progress], None]
    refusals: dict[int, NoAnswerError] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._algos: dict[int, Algo] = {}
        self._times: dict[tuple[int, int], float] = {}

    def costs(self) -> list[dict[int, float]]:
        """For each candidate what it costs at each size that it can serve: us where it was simulated, else us and a price."""
        chosen = self._shortlist()
        costs: list[dict[int, float]] = [{} for _ in self.scored]
        simulated = sorted({position for positions in chosen.values() for position in positions})
        for number, position in enumerate(simulated):
            entry = self.scored[position]
            detail = f"{entry.candidate.strategy}, {entry.candidate.count} chunks, {entry.protocol}"
            self.progress(Progress("simulation", detail, number / len(simulated), None))
            known = {size: self.time_us(position, size) for size, there in chosen.items() if position in there}
            costs[position] = self._filled(entry, known)
        return costs

    def refined(self, segments: Sequence[Segment]) -> list[dict[int, float]]:
        """Costs of the chosen candidates alone, all simulated: over their own segments and a few sizes beyond."""
        costs: list[dict[int, float]] = [{} for _ in self.scored]
        for segment in segments:
            entry = self.scored[segment.candidate]
            for size in self.sizes[max(0, segment.first - _STRIDE + 1) : segment.last + _STRIDE]:
                if size in entry.times_us:
                    costs[segment.candidate][size] = self.time_us(segment.candidate, size) * self._price(entry, size)
        return costs

    def algo(self, position: int) -> Algo:
        """The candidate's program, lowered once. Raises NoAnswerError where no runtime could hold it."""
        if position in self.refusals:
            raise self.refusals[position]
        if position not in self._algos:
            self.ledger.enter("lowering")
            entry = self.scored[position]
            try:
                self._algos[position] = lower(entry.solution.instance, entry.solution.schedule, self._options(entry))
            except NoAnswerError as refusal:
                self.refusals[position] = refusal
                raise
        return self._algos[position]

    def time_us(self, position: int, size: int) -> float:
        """What the candidate takes at a size: simulated, or its own estimate where its program is too large for that."""
        if (position, size) not in self._times:
            algo = self.algo(position)
            self.ledger.enter("simulation")
            entry = self.scored[position]
            if self.is_simulated(position):
                simulator = Simulator(algo, self.request.topology, paths=self._paths)
                self._times[position, size] = simulator.time_us(size)
            else:
                self._times[position, size] = entry.times_us[size]
        return self._times[position, size]

    def is_simulated(self, position: int) -> bool:
        """Whether the candidate's program is small enough to be simulated."""
        algo = self.algo(position)
        return sum(len(tb.steps) for gpu in algo.gpus for tb in gpu.threadblocks) <= _MOST_STEPS

    @cached_property
    def best_us(self) -> dict[int, float]:
        """The best schedule at each size."""
        best: dict[int, float] = {}
        for entry in self.scored:
            for size in entry.times_us:
                best[size] = min(best.get(size, float("inf")), entry.schedules_us[size])
        return best

    @cached_property
    def _paths(self) -> Paths:
        return paths_by_pair(self.request.topology)

    def _shortlist(self) -> dict[int, list[int]]:
        """For sizes along the range the positions of the candidates to simulate; all of them can be lowered."""
        chosen: dict[int, list[int]] = {}
        stride = _STRIDE if len(self.sizes) > _LONG_RANGE else 1
        for size in sorted({*self.sizes[::stride], self.sizes[-1]}):
            ranked = sorted(
                (entry.scores()[size], position) for position, entry in enumerate(self.scored) if size in entry.times_us
            )
            self.progress(Progress("simulation", f"programs for {format_size(size)}", None, None))
            chosen[size] = self._lowered(size, [position for _, position in ranked])
        return chosen

    def _lowered(self, size: int, ranked: Sequence[int]) -> list[int]:
        """The first few of `ranked` that are close to the best schedule which some runtime can hold."""
        kept: list[int] = []
        limit_us = float("inf")
        for position in ranked:
            schedule_us = self.scored[position].schedules_us[size]
            if len(kept) < _MOST_AT_A_SIZE and schedule_us <= limit_us:
                try:
                    self.algo(position)
                except NoAnswerError:
                    continue
                kept.append(position)
                limit_us = min(limit_us, schedule_us * (1 + _SLACK))
        return kept

    def _filled(self, entry: Scored, known: dict[int, float]) -> dict[int, float]:
        """Costs at every size that the candidate can serve, from its simulated times at some."""
        costs = dict(known)
        for size, estimate_us in entry.times_us.items():
            if size not in known:
                near = min(known, key=lambda other: (abs(other.bit_length() - size.bit_length()), other))
                costs[size] = estimate_us * known[near] / entry.times_us[near] * self._price(entry, size)
        return costs

    def _price(self, entry: Scored, size: int) -> float:
        """What a time counts for: more than itself where some other schedule is better."""
        return 1 + _PRICE * max(0.0, entry.schedules_us[size] / self.best_us[size] - 1 - _SLACK)

    def _options(self, entry: Scored) -> LoweringOptions:
        request = self.request
        in_place = request.inplace if request.inplace is not None else request.collective in _IN_PLACE_BY_DEFAULT
        return LoweringOptions(
            runtime=request.runtime,  # type: ignore[arg-type]
            protocol=entry.protocol,  # type: ignore[arg-type]
            inplace=in_place,
            both_layouts=request.inplace is None,
            instances=request.instances or 1,
            max_threadblocks=request.max_threadblocks or DEFAULT_THREADBLOCKS,
            name=f"synth-{request.collective}-{request.topology.name}",
        )
