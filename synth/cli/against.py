"""Baselines beside a file: how long each takes at a size, and where it leaves nothing to gain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from synth.constants import PROTOCOLS
from synth.errors import InputError, NoAnswerError, UsageError
from synth.units import format_size

if TYPE_CHECKING:
    from msccl_xml.model import Algo
    from synth.bounds import Bound
    from synth.cli.simulate_text import SizeRow
    from synth.collective import Collective
    from synth.paths import Path
    from synth.simulate import Constants
    from synth.simulate.routes import Paths
    from synth.topology import Topology

#: A speed-up below this is within what the simulator can tell.
WORTH = 1.05
#: Parallel copies that are tried: a library, too, runs its algorithm on as many channels as help. Not where programs get too long.
_INSTANCES = (1, 2, 4, 8)
_MOST_STEPS = 6_000
#: A variant this much slower than the best, and losing further ground as sizes grow, is not timed at larger ones.
_HOPELESS = 2.0


def names_of(text: str | None) -> tuple[str, ...]:
    """The baselines of `ring,tree`, each once, in order; UsageError for one that does not exist."""
    from synth.baselines import BASELINES

    names = tuple(dict.fromkeys(part.strip() for part in text.split(","))) if text is not None else ()
    for name in names:
        if name not in BASELINES:
            raise UsageError(f"--against: {name!r}, expected names of {', '.join(BASELINES)}, joined by commas")
    return names


@dataclass(frozen=True)
class Rivals:
    """The baselines of one collective on one machine, under the same constants as the file."""

    names: tuple[str, ...]
    topology: Topology
    collective: Collective
    paths: tuple[Path, ...]
    by_pair: Paths
    constants: Constants

    def times_us(self, sizes: Sequence[int]) -> list[dict[str, float]]:
        """The time of each baseline at each of the sizes (ascending), in its best protocol on the best number of channels.

        Raises NoAnswerError where one does not exist for the collective or the machine.
        """
        by_name = {name: self._best_us(name, sizes) for name in self.names}
        return [{name: times[position] for name, times in by_name.items()} for position in range(len(sizes))]

    def _best_us(self, name: str, sizes: Sequence[int]) -> list[float]:
        from synth.simulate import Simulator

        variants = self._variants(name, (sizes[0], sizes[-1]))
        running = [Simulator(algo, self.topology, self.constants, paths=self.by_pair) for algo in variants]
        best: list[float] = []
        before: list[float] = []
        for size in sizes:
            times = [simulator.time_us(size) for simulator in running]
            best.append(min(times))
            if before:
                gained = best[-1] - best[-2]
                hopeful = [
                    position
                    for position, time_us in enumerate(times)
                    if time_us <= _HOPELESS * best[-1] or time_us - before[position] < gained
                ]
                running, times = [running[position] for position in hopeful], [times[position] for position in hopeful]
            before = times
        return best

    def _variants(self, name: str, sizes: Sequence[int]) -> list[Algo]:
        """The baseline in every protocol and number of copies, built for the smallest and the largest size."""
        variants: list[Algo] = []
        refusal: Exception | None = None
        for protocol in PROTOCOLS:
            steps = 0
            for instances in _INSTANCES:
                if steps * instances > _MOST_STEPS:
                    break
                try:
                    built = [self._build(name, size, protocol, instances) for size in dict.fromkeys(sizes)]
                except (NoAnswerError, InputError) as error:
                    refusal = refusal or error
                    break
                steps = steps or max(sum(1 for _ in algo.steps()) for algo in built)
                variants += [algo for algo in built if algo not in variants]
        if refusal is not None and not variants:
            raise refusal
        return variants

    def _build(self, name: str, size_bytes: int, protocol: str, instances: int) -> Algo:
        from synth.baselines import BaselineOptions, build

        options = BaselineOptions(
            protocol=protocol,  # type: ignore[arg-type]
            instances=instances,
            root=self.collective.root or 0,
            max_bytes=max(size_bytes, 1),
        )
        return build(name, self.topology, self.collective.name, size_bytes, options, self.paths).algo


def remarks(rows: Sequence[SizeRow], bound: Bound | None) -> list[str]:
    """One sentence for each baseline that leaves nothing to gain at some sizes, with the reason where the bound has it."""
    told = []
    for name in rows[0].against if rows else ():
        idle = [row for row in rows if row.against[name] < WORTH * row.time_us]
        if not idle:
            continue
        where = "any size" if len(idle) == len(rows) else _ranges(rows, idle)
        sentence = f"no gain over {name} is to be expected at {where}"
        last = idle[-1]
        if bound is not None and last is rows[-1]:
            share = bound.time_us(last.bytes) / last.against[name]
            sentence += f": at {format_size(last.bytes)} it reaches {share:.0%} of the bound"
        told.append(sentence)
    return told


def _ranges(rows: Sequence[SizeRow], idle: Sequence[SizeRow]) -> str:
    """`1KB to 64KB and 1GB`: runs of neighbouring sizes."""
    runs: list[list[SizeRow]] = []
    for row in rows:
        if row not in idle:
            runs.append([])
        elif runs and runs[-1]:
            runs[-1].append(row)
        else:
            runs.append([row])
    words = [
        format_size(run[0].bytes) + (f" to {format_size(run[-1].bytes)}" if len(run) > 1 else "") for run in runs if run
    ]
    return " and ".join(words)
