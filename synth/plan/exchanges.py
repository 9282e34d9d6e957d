"""An allreduce in exchanges, in which every rank adds up for itself (synth.exchange): few hops, and more to move than others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from synth.candidates import Candidate
from synth.candidates.sizes import LATENCY_BOUND_BYTES
from synth.candidates.transfers import readable_counts
from synth.collective import CollectiveName
from synth.exchange import Slices
from synth.exchanged import shortest, shortest_in_slices
from synth.instance import Instance
from synth.lowering import LoweringOptions
from synth.plan.asked import FINER_JOINT, Asked
from synth.request import Request
from synth.routing.exchange import ExchangeRouting

#: An allreduce in exchanges moves more than others and takes fewer hops: buffers up to this, and ranks up to which pairs are few.
_LARGEST_EXCHANGED = 256 << 10
_MOST_EXCHANGED_RANKS = 256
#: The same for a range, whose sizes share the time.
_MOST_OF_A_RANGE = 64
#: The same for those in slices, where schedules decide: these have as many times the messages.
_MOST_SLICED_RANKS = 64
#: Where schedules decide, so many exchanges are tried in few slices and in many, each of which takes a threadblock up to four steps.
_EXCHANGES_CUT = 4
_FEW_SLICES = 8
_MOST_SLICES = 32
_STEPS_OF_A_SLICE = 4
#: Exchanges that cross from box to box between gates alone, beside the others.
_EXCHANGES_WITH_GATES = 2


@dataclass(frozen=True)
class Exchanges:
    """The machine's exchanges, and which of them are tried."""

    asked: Asked

    @property
    def request(self) -> Request:
        """What was asked for."""
        return self.asked.request

    def of(self, size: int) -> dict[str, Slices]:
        """The machine's exchanges for a buffer size by name, in few slices and in many: of an allreduce of all ranks. Over several
        nodes larger buffers have paths of their own.
        """
        ranks, low = self.request.topology.num_ranks, self.request.min_bytes
        if self.asked.instance(ranks, low).paths != self.asked.instance(ranks, size).paths:
            low = LATENCY_BOUND_BYTES + 1
        if low not in self._found:
            found = ExchangeRouting()(self.asked.instance(ranks, low))
            cut = (each.cut(count) for count in self._slices for each in found)
            self._found[low] = {each.name: each for each in (*found, *cut)}
        return self._found[low]

    @cached_property
    def _found(self) -> dict[int, dict[str, Slices]]:
        """Those that are known, by the smallest buffer that has their paths."""
        return {}

    @cached_property
    def _slices(self) -> tuple[int, int]:
        """Few and many slices, of which the runtime reads all steps."""
        steps = LoweringOptions(runtime=self.request.runtime).limits.steps  # type: ignore[arg-type]
        return _FEW_SLICES, min(_MOST_SLICES, steps // _STEPS_OF_A_SLICE)

    def _are_tried(self, size: int) -> bool:
        """Whether an allreduce takes few hops at a size, and nothing says that it may not."""
        request = self.request
        return (
            request.collective is CollectiveName.ALLREDUCE
            and request.strategy == "auto"
            and request.sketch is None
            and request.group is None
            and (size <= _LARGEST_EXCHANGED or (not request.by_time and self.asked.latency_counts(size)))
            and request.topology.num_ranks <= (_MOST_EXCHANGED_RANKS if request.single_size else _MOST_OF_A_RANGE)
        )

    def candidates(self, instance: Instance, low_bytes: int, size: int) -> list[Candidate]:
        """What to solve at one size in few hops, for buffers from `low_bytes` up: the shortest of the machine's exchanges there and
        at the size, for an interpreter and on the links as they are.
        """
        if not self._are_tried(size):
            return []
        request = self.request
        by_time = request.by_time
        counts = self.asked.counts(low_bytes, 1 if by_time else FINER_JOINT)
        counts = tuple(readable_counts(instance, counts))
        exchanges = self.of(size)
        cuts = {name: count for name, each in exchanges.items() if (count := _coarsest(each, counts))}
        fitting = [exchanges[name] for name in cuts]
        whole = [each for each in fitting if each.count == 1 and not each.has_gates]
        gated = [each for each in fitting if each.count == 1 and each.has_gates]
        turned = [each for each in fitting if each.count == len(each.exchanges) > 1]
        found = shortest(instance, whole, None, 1)
        if by_time:
            found = [*shortest(instance, whole, "LL", 2), *found, *shortest(instance, turned, "LL", 2)]
            found += shortest(instance, gated, "LL", _EXCHANGES_WITH_GATES)
            if low_bytes < size:
                smallest = instance.with_chunk_bytes(instance.collective.chunk_bytes(low_bytes))
                found += shortest(smallest, [*whole, *gated], "LL", 1)
        else:
            best = shortest_in_slices(instance, [*whole, *turned], _EXCHANGES_CUT)
            best += shortest_in_slices(instance, gated, _EXCHANGES_WITH_GATES)
            slices = self._slices if request.topology.num_ranks <= _MOST_SLICED_RANKS else ()
            found += [each.cut(count) for each in best for count in (1, *slices)]
        return [
            Candidate(name, cuts[name], size) for name in dict.fromkeys(each.name for each in found) if name in cuts
        ]


def _coarsest(slices: Slices, counts: Sequence[int]) -> int:
    """The coarsest of the cuts in which every part of every slice has its chunks, evenly or nearly so; 0 where there is none."""
    for count in counts:
        if count % slices.count == 0 and (count % slices.parts == 0 or count >= 2 * slices.parts):
            return count
    return 0
