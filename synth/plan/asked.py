"""What is asked for: which sizes, in which cuts, and whether an answer that is near enough ends the search."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from synth.baselines import Machine
from synth.bounds import Bound, bound_of
from synth.build import Builder
from synth.chunks import chunk_counts, range_sizes
from synth.collective import SHARED, Collective
from synth.instance import Instance
from synth.paths import Path
from synth.request import Request

#: Of the sizes of a long range every so many are looked at for the choice; what is between them is read off a line.
_STRIDE = 2
_LONG_RANGE = 6
#: Latency counts at sizes where bandwidth alone takes no more than so many times the latency.
_LATENCY_COUNTS = 10
#: The sums and copies of free roots follow one another, so their way is twice as long, and they are cut so many times finer.
FINER_JOINT = 2
#: And so many times finer are sums that come in pieces.
FINER_PIECES = 8


@dataclass(frozen=True)
class Asked:
    """One request over the machine's paths."""

    request: Request
    paths: tuple[Path, ...]
    known_bound: Bound | None = None
    """The bound where somebody else has it; None: found when it is asked for."""

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The sizes that the answer has to serve, ascending."""
        return range_sizes(self.request.min_bytes, self.request.max_bytes)

    @cached_property
    def looked_at(self) -> tuple[int, ...]:
        """The sizes at which candidates are compared, ascending."""
        stride = _STRIDE if len(self.sizes) > _LONG_RANGE else 1
        return tuple(sorted({*self.sizes[::stride], self.sizes[-1]}))

    @cached_property
    def builder(self) -> Builder:
        """Makes the instances."""
        return Builder(self.request.topology, self.request.sketch, self.paths)

    @cached_property
    def machine(self) -> Machine:
        """The machine as baselines see it."""
        return Machine(self.request.topology, self.paths)

    @cached_property
    def bound(self) -> Bound:
        """What no algorithm can beat on the machine."""
        return self.known_bound or bound_of(self.request.topology, self.collective(1), self.paths)

    @cached_property
    def asked_count(self) -> int | None:
        """The chunk count that the user asks for, on the command line or in a sketch."""
        if self.request.chunks is not None:
            return self.request.chunks
        sketch = self.request.sketch
        if sketch is None or sketch.chunks_per_rank is None:
            return None
        return sketch.chunks_per_rank * (1 if self.request.collective in SHARED else self.request.topology.num_ranks)

    @property
    def ends(self) -> bool:
        """Whether an answer that is near enough to the limit ends the search: one size alone is asked for, by time."""
        return self.request.single_size and self.request.by_time and not self.request.thorough

    def collective(self, count: int) -> Collective:
        """The request's collective cut by `count` (per rank where ranks have shares)."""
        return self.request.cut(count)

    def instance(self, count: int, size_bytes: int) -> Instance:
        """The request's instance cut by `count` for a buffer size."""
        return self.builder.instance(self.collective(count), size_bytes)

    def counts(self, low_bytes: int, finer: int = 1) -> tuple[int, ...]:
        """Admissible chunk counts for buffers from `low_bytes` up, each still admissible times `instances`; `finer` as in
        chunk_counts.
        """
        if self.asked_count is not None:
            return (self.asked_count,)
        request = self.request
        ranks = request.topology.num_ranks
        counts = chunk_counts(request.collective, ranks, low_bytes, request.max_bytes, finer=finer)
        copies = request.instances or 1
        return tuple(count // copies for count in counts if count % copies == 0) or (1,)

    def latency_counts(self, size: int) -> bool:
        """Whether latency counts beside bandwidth at a size."""
        return self.bound.us_per_byte * size <= _LATENCY_COUNTS * self.bound.latency_us
