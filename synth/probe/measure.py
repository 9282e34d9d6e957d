"""Measured links: alpha and beta between GPUs from timed peer copies, alone and where several share a link.

Whoever can time copies is a `Timer` (`synth.probe.torch_timer` on a real machine); everything else here is pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from synth.errors import SynthError
from synth.paths import Path, find_paths
from synth.topology import Topology
from synth.units import bandwidth_GBps, format_size

#: Copies of 4 KB to 64 MB: the small ones tell alpha, the large ones beta.
SIZES = tuple(4096 * 4**power for power in range(8))
#: Pairs that copy at once over one link: more do not load it further, and each needs its buffers.
_MOST_AT_ONCE = 8
Pair = tuple[int, int]


class Timer(Protocol):
    """Times copies between the GPUs of this machine, which have the numbers of the topology's ranks."""

    def copy_us(self, pairs: Sequence[Pair], size_bytes: int) -> tuple[float, ...]:
        """The median time in us of a copy of `size_bytes` from src to dst for each (src, dst), all pairs at once.

        A pair (g, g) is a copy within one GPU.
        """


@dataclass(frozen=True, slots=True)
class Fit:
    """A line through timed copies: t = alpha_us + size/GBps; `off` is its largest relative distance from one of them."""

    alpha_us: float
    GBps: float
    off: float


@dataclass(frozen=True, slots=True)
class Together:
    """Pairs that copied at once because they share a link, with the GB/s that each of them had."""

    pairs: tuple[Pair, ...]
    GBps: tuple[float, ...]


@dataclass(frozen=True)
class Measurement:
    """`local` is a copy within each GPU, by rank; `alone` a pair with the machine to itself; `together` pairs that share."""

    local: tuple[Fit, ...]
    alone: dict[Pair, Fit]
    together: tuple[Together, ...] = ()

    def alpha_us(self, pair: Pair) -> float:
        """The latency of the way between two GPUs: that of a copy less that of one that goes nowhere, its launch."""
        return max(0.0, self.alone[pair].alpha_us - self.local[pair[0]].alpha_us)


def fit(samples: Sequence[tuple[int, float]]) -> Fit:
    """The line of least squares through (bytes, us), each distance relative to its time, so that small copies count as well.

    A line that would begin below 0 begins at 0. Raises SynthError for fewer than two sizes, and where time does not grow
    with size.
    """
    if len({size for size, _ in samples}) < 2 or any(size <= 0 or time <= 0 for size, time in samples):
        raise SynthError("measuring: copies of two sizes at least, each taking time, are needed for alpha and beta")
    sizes = np.array([size for size, _ in samples], dtype=float)
    times = np.array([time for _, time in samples], dtype=float)
    columns = np.stack([1 / times, sizes / times], axis=1)
    alpha, beta = (float(value) for value in np.linalg.lstsq(columns, np.ones(len(times)), rcond=None)[0])
    if alpha < 0:
        alpha, beta = 0.0, float(np.sum(columns[:, 1]) / np.sum(columns[:, 1] ** 2))
    if beta <= 0:
        raise SynthError("measuring: copies of larger sizes take no longer: no bandwidth can be told")
    off = float(np.max(np.abs(alpha + beta * sizes - times) / times))
    return Fit(alpha, 1 / beta / 1e3, off)


def measure(timer: Timer, topology: Topology, tell: Callable[[str], None]) -> Measurement:
    """Time every GPU, every pair that has a way of its own, and the pairs that share a link; `tell` hears what is being timed.

    Raises SynthError where the times make no sense.
    """
    local: list[Fit] = []
    for rank in range(topology.num_ranks):
        tell(f"copies within gpu{rank}")
        local.append(_timed_fit(timer, (rank, rank)))
    alone: dict[Pair, Fit] = {}
    paths = find_paths(topology)
    for pair in dict.fromkeys((path.src, path.dst) for path in paths):
        tell(f"gpu{pair[0]} -> gpu{pair[1]}")
        alone[pair] = _timed_fit(timer, pair)
    together: list[Together] = []
    for pairs in sharing(paths):
        tell(f"{len(pairs)} pairs at once")
        times = timer.copy_us(pairs, SIZES[-1])
        rates = (_rate_GBps(time, alone[pair]) for pair, time in zip(pairs, times, strict=True))
        together.append(Together(pairs, tuple(rates)))
    return Measurement(tuple(local), alone, tuple(together))


def _rate_GBps(time_us: float, alone: Fit) -> float:
    """GB/s of a copy of the largest size, less the launch that it has when alone."""
    return bandwidth_GBps(SIZES[-1], max(time_us - alone.alpha_us, time_us / 2))


def _timed_fit(timer: Timer, pair: Pair) -> Fit:
    return fit([(size, timer.copy_us([pair], size)[0]) for size in SIZES])


def sharing(paths: Sequence[Path]) -> tuple[tuple[Pair, ...], ...]:
    """For each link that several pairs cross: pairs that load it and, as far as there are such, no other link at their ends.

    Each set once, in the order of the links; pairs with several equal paths are left out, as their load is not known.
    """
    crossing: dict[int, list[Path]] = {}
    for path in paths:
        if path.variants == 1:
            for link in path.links:
                crossing.setdefault(link, []).append(path)
    found: dict[tuple[Pair, ...], None] = {}
    for link in sorted(crossing):
        ends: set[int] = set()
        chosen: list[Pair] = []
        for path in crossing[link]:
            own = {path.links[0], path.links[-1]} - {link}
            if not own & ends and len(chosen) < _MOST_AT_ONCE:
                chosen.append((path.src, path.dst))
                ends |= own
        if len(chosen) > 1:
            found[tuple(chosen)] = None
    return tuple(found)


def lines_of(measurement: Measurement) -> list[str]:
    """What was measured, a line for each GPU, pair and set of pairs."""
    lines = [
        f"gpu{rank}: copies within it {local.GBps:.1f} GB/s, {local.alpha_us:.2f} us to launch"
        for rank, local in enumerate(measurement.local)
    ]
    for pair, alone in measurement.alone.items():
        alpha = measurement.alpha_us(pair)
        lines.append(
            f"gpu{pair[0]} -> gpu{pair[1]}: {alone.GBps:.1f} GB/s, {alpha:.2f} us beside launch (fits within {alone.off:.0%})"
        )
    for group in measurement.together:
        names = ", ".join(f"{src}->{dst}" for src, dst in group.pairs)
        lines.append(f"at once, {format_size(SIZES[-1])}: {names}: {sum(group.GBps):.1f} GB/s together")
    return lines
