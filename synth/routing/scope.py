"""What the routing program ranges over: deciding chunks, the paths that each may use, and the times that bound them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from synth.instance import Demand, Instance
from synth.ir import Routing
from synth.paths import Path
from synth.routing.orbit import Action, action_of
from synth.routing.relaxed import distances_us, routing_of, shortest_routing, tree_of

#: Times that differ by less than this share are equal (sums of a few hundred doubles keep 1e-13).
ROUNDING = 1e-9
#: Up to so many binaries the start's cost is worked out to count them: it takes longer than the count where there are more.
_FEW = 1024

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]


@dataclass(frozen=True)
class Scope:
    """What the program ranges over: deciding demands, the paths each may use, and the times that bound everything."""

    instance: Instance
    action: Action
    allowed: dict[int, tuple[Path, ...]]
    """By deciding chunk: paths that may carry it, in order of index."""
    distance: list[list[float]]
    start: Routing
    """A symmetric routing within `allowed`; `start.relaxed_us` is the horizon."""

    @property
    def horizon_us(self) -> float:
        return self.start.relaxed_us * (1 + ROUNDING)

    @property
    def num_uses(self) -> int:
        return sum(map(len, self.allowed.values()))

    def into(self, chunk: int, rank: int) -> list[Path]:
        """The allowed paths that bring the chunk to the rank."""
        return [path for path in self.allowed[chunk] if path.dst == rank]

    def reachable(self, chunk: int) -> list[int]:
        """The ranks, in order, that an allowed path brings the chunk to."""
        return sorted({path.dst for path in self.allowed[chunk]})

    def latency_us(self, path: Path) -> float:
        return path.latency_us(self.instance.chunk_bytes)


def scope_of(instance: Instance, stretch: float, warm_start: Routing | None) -> Scope:
    """Symmetries, pruned paths and a symmetric start for the program.

    A path stays for a chunk if the shortest way over it to some destination is at most `stretch` times the way to
    the farthest destination (shortest ways always stay), and no longer than the start's cost, beyond which nothing
    better lies.
    """
    action = action_of(instance)
    detours = Detours.of(instance)
    near = {demand.chunk: detours.within(demand, stretch) for demand in action.deciding}
    start = _symmetric_start(instance, action, near, warm_start)
    allowed = {}
    for demand in action.deciding:
        kept = near[demand.chunk] & detours.up_to(demand, start.relaxed_us)
        allowed[demand.chunk] = tuple(instance.paths[path] for path in sorted(kept))
    return Scope(instance, action, allowed, detours.distance, start)


def count_uses(instance: Instance, stretch: float) -> int:
    """How many binaries the program has: exact where there are few, else before the start's cost has pruned any."""
    detours = Detours.of(instance)
    action = action_of(instance)
    total = sum(len(detours.within(demand, stretch)) for demand in action.deciding)
    return total if total > _FEW else scope_of(instance, stretch, None).num_uses


@dataclass(frozen=True)
class Detours:
    """Latencies of the shortest ways over given paths, as arrays over all paths: one row operation a demand."""

    distance: list[list[float]]
    between: Floats
    """(R, R): `distance` as a matrix."""
    src: Whole
    dst: Whole
    latency_us: Floats

    @classmethod
    def of(cls, instance: Instance) -> Detours:
        """The detours of an instance at its chunk size."""
        distance = distances_us(instance)
        return cls(
            distance,
            np.array(distance),
            np.array([path.src for path in instance.paths]),
            np.array([path.dst for path in instance.paths]),
            np.array([path.latency_us(instance.chunk_bytes) for path in instance.paths]),
        )

    def shortest_us(self, demand: Demand) -> Floats:
        """For each path: the shortest way from the demand's source over it to whichever destination is nearest then.

        Infinite for paths back into the source.
        """
        onward = self.between[:, sorted(demand.dests)].min(axis=1)
        lengths = self.between[demand.source, self.src] + self.latency_us + onward[self.dst]
        return np.where(self.dst == demand.source, np.inf, lengths)

    def within(self, demand: Demand, stretch: float) -> frozenset[int]:
        """The paths whose shortest way is at most `stretch` times the way to the farthest destination."""
        farthest = float(self.between[demand.source, sorted(demand.dests)].max())
        return self.up_to(demand, stretch * farthest)

    def up_to(self, demand: Demand, limit_us: float) -> frozenset[int]:
        """The paths whose shortest way is no longer than `limit_us`."""
        return frozenset(np.flatnonzero(self.shortest_us(demand) <= limit_us * (1 + ROUNDING)).tolist())


def _symmetric_start(
    instance: Instance, action: Action, allowed: dict[int, frozenset[int]], warm_start: Routing | None
) -> Routing:
    """The cheaper of shortest paths and the warm start, each made symmetric from its deciding chunks."""
    given = [shortest_routing(instance)] + ([warm_start] if warm_start is not None else [])
    starts = []
    for routing in given:
        used: dict[int, list[int]] = {demand.chunk: [] for demand in action.deciding}
        for transfer in routing.transfers:
            if transfer.chunk in used:
                used[transfer.chunk].append(transfer.path)
        trees = {demand.chunk: tree_of(instance, demand, used[demand.chunk]) for demand in action.deciding}
        if all(tree <= allowed[chunk] for chunk, tree in trees.items()):
            starts.append(routing_of(instance, action.expand(trees)))
    return min(starts, key=lambda routing: routing.relaxed_us)
