"""What rings and trees take on the same machine, in their best protocol on their best number of channels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from msccl_xml.model import Algo
from synth.baselines import BaselineOptions, build
from synth.constants import PROTOCOLS
from synth.errors import InputError, NoAnswerError
from synth.paths import Path, find_paths
from synth.simulate import Simulator, paths_by_pair
from synth.simulate.routes import Paths
from synth.topology import Topology

#: Parallel copies that are tried: a library, too, runs its algorithm on as many channels as help. Not where programs get too long.
_INSTANCES = (1, 2, 4, 8)
_MOST_STEPS = 6_000
#: A variant this much slower than the best at a large size is not timed at larger ones while it falls further behind. At small sizes
#: nothing follows from that: what waits longest there may move most a second.
_HOPELESS = 2.0
_LARGE_BYTES = 16 << 20


@dataclass(frozen=True)
class Rivals:
    """The baselines of one collective on one machine."""

    topology: Topology
    collective: str
    root: int | None = None

    def times_us(self, name: str, sizes: Sequence[int]) -> dict[int, float]:
        """The best time of a baseline at each of the sizes (ascending); empty where it does not exist for the machine."""
        running = [Simulator(algo, self.topology, paths=self._by_pair) for algo in self._variants(name, sizes)]
        best: dict[int, float] = {}
        before: dict[int, float] = {}
        for size in sizes if running else ():
            times = [simulator.time_us(size) for simulator in running]
            gained = min(times) - min(before.values(), default=0.0)
            best[size] = min(times)
            kept = [
                position
                for position, taken in enumerate(times)
                if size < _LARGE_BYTES or taken <= _HOPELESS * best[size] or taken - before.get(position, 0.0) < gained
            ]
            running = [running[position] for position in kept]
            before = {place: times[position] for place, position in enumerate(kept)}
        return best

    @cached_property
    def _paths(self) -> tuple[Path, ...]:
        return find_paths(self.topology)

    @cached_property
    def _by_pair(self) -> Paths:
        return paths_by_pair(self.topology)

    def _variants(self, name: str, sizes: Sequence[int]) -> list[Algo]:
        """The baseline in every protocol and number of copies, built for the smallest and the largest size."""
        variants: list[Algo] = []
        for protocol in PROTOCOLS:
            for built in self._copies(name, protocol, sizes):
                variants += [algo for algo in built if algo not in variants]
        return variants

    def _copies(self, name: str, protocol: str, sizes: Sequence[int]) -> Iterator[list[Algo]]:
        steps = 0
        for instances in _INSTANCES:
            if steps * instances > _MOST_STEPS:
                return
            try:
                built = [self._build(name, size, protocol, instances) for size in {sizes[0]: 0, sizes[-1]: 0}]
            except (NoAnswerError, InputError):
                return
            steps = steps or max(sum(1 for _ in algo.steps()) for algo in built)
            yield built

    def _build(self, name: str, size_bytes: int, protocol: str, instances: int) -> Algo:
        options = BaselineOptions(
            protocol=protocol,  # type: ignore[arg-type]
            instances=instances,
            root=self.root or 0,
            max_bytes=max(size_bytes, 1),
        )
        return build(name, self.topology, self.collective, size_bytes, options, self._paths).algo  # type: ignore[arg-type]
