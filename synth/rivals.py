"""What rings, trees and others' algorithms take on a machine, each in the best protocol that NCCL would run there, on its best
number of channels; called in place where synth's answers are, so that neither has to copy what it is given.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from msccl_xml.model import Algo
from synth.baselines import BaselineOptions, build
from synth.collective import IN_PLACE_BY_DEFAULT, CollectiveName
from synth.constants import PROTOCOLS, Constants
from synth.errors import InputError, NoAnswerError
from synth.paths import Path, find_paths
from synth.protocols import keeps_lines
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
    """The baselines of one collective on one machine. `constants`, `paths` and `by_pair` are the machine's own where left out."""

    topology: Topology
    collective: CollectiveName
    root: int = 0
    """Of collectives that have one; others do not look at it."""
    constants: Constants | None = None
    paths: tuple[Path, ...] | None = None
    by_pair: Paths | None = None

    def times_us(self, name: str, sizes: Sequence[int]) -> dict[int, float]:
        """The best time of a baseline at each of the sizes (bytes, ascending, at least one).

        Raises NoAnswerError or InputError, with the reason, where it does not exist for the collective or the machine.
        """
        running = {
            number: Simulator(algo, self.topology, self.constants, paths=self._by_pair)
            for number, algo in enumerate(self._variants(name, sizes))
        }
        best: dict[int, float] = {}
        before: dict[int, float] = {}
        for size in sizes:
            times = _times_us(running, size)
            best[size] = min(times.values())
            if before and size >= _LARGE_BYTES:
                gained = best[size] - min(before.values())
                for number in before.keys() & times.keys():
                    if times[number] > _HOPELESS * best[size] and times[number] - before[number] >= gained:
                        del running[number]
            before = times
        return best

    @cached_property
    def _paths(self) -> tuple[Path, ...]:
        return find_paths(self.topology) if self.paths is None else self.paths

    @cached_property
    def _by_pair(self) -> Paths:
        return paths_by_pair(self.topology) if self.by_pair is None else self.by_pair

    @cached_property
    def _protocols(self) -> tuple[str, ...]:
        """Those that NCCL would take: LL128 is not for every machine."""
        return tuple(each for each in PROTOCOLS if each != "LL128" or keeps_lines(self.topology, self._paths))

    def _variants(self, name: str, sizes: Sequence[int]) -> list[Algo]:
        """The baseline in every such protocol and number of copies, built for the smallest and the largest size."""
        variants: list[Algo] = []
        refusals: list[NoAnswerError | InputError] = []
        for protocol in self._protocols:
            try:
                for built in self._copies(name, protocol, (sizes[0], sizes[-1])):
                    variants += [algo for algo in built if algo not in variants]
            except (NoAnswerError, InputError) as refusal:
                refusals.append(refusal)
        if not variants:
            raise refusals[0]
        return variants

    def _copies(self, name: str, protocol: str, sizes: Sequence[int]) -> Iterator[list[Algo]]:
        """The baseline in a protocol at each of the sizes: once, as two copies, and so on until there is none of so many."""
        steps = 0
        for instances in _INSTANCES:
            if steps * instances > _MOST_STEPS:
                return
            built = [self._build(name, size, protocol, instances) for size in dict.fromkeys(sizes)]
            steps = steps or max(sum(1 for _ in algo.steps()) for algo in built)
            yield built

    def _build(self, name: str, size_bytes: int, protocol: str, instances: int) -> Algo:
        options = BaselineOptions(
            protocol=protocol,  # type: ignore[arg-type]
            inplace=self.collective in IN_PLACE_BY_DEFAULT,
            instances=instances,
            root=self.root,
            max_bytes=max(size_bytes, 1),
        )
        return build(name, self.topology, self.collective, size_bytes, options, self._paths).algo


def _times_us(running: Mapping[int, Simulator], size: int) -> dict[int, float]:
    """What each takes, by its number, but for those that are not run, since their links or threadblocks alone take longer."""
    times: dict[int, float] = {}
    least_us = {number: simulator.least_us(size) for number, simulator in running.items()}
    for number in sorted(running, key=least_us.__getitem__):
        if least_us[number] < min(times.values(), default=math.inf):
            times[number] = running[number].time_us(size)
    return times
