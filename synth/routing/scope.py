"""What the routing program ranges over: deciding chunks, the paths that each may use, and the times that bound them."""

from __future__ import annotations

from dataclasses import dataclass

from synth.instance import Demand, Instance
from synth.ir import Routing
from synth.paths import Path
from synth.routing.orbit import Action, action_of
from synth.routing.relaxed import distances_us, routing_of, shortest_routing, tree_of

#: Times that differ by less than this share are equal (sums of a few hundred doubles keep 1e-13).
ROUNDING = 1e-9


@dataclass(frozen=True)
class Scope:
    """What the program ranges over: deciding demands, the paths each may use, and the times that bound everything."""

    instance: Instance
    action: Action
    allowed: dict[int, tuple[Path, ...]]
    """By deciding chunk: paths that may carry it, in order of index."""
    distance: list[dict[int, float]]
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
    distance = distances_us(instance)
    allowed = {demand.chunk: _within(instance, distance, demand, stretch) for demand in action.deciding}
    start = _symmetric_start(instance, action, allowed, warm_start)
    limit = start.relaxed_us * (1 + ROUNDING)
    for demand in action.deciding:
        paths = allowed[demand.chunk]
        allowed[demand.chunk] = tuple(path for path in paths if _detour_us(instance, distance, demand, path) <= limit)
    return Scope(instance, action, allowed, distance, start)


def _within(instance: Instance, distance: list[dict[int, float]], demand: Demand, stretch: float) -> tuple[Path, ...]:
    limit = stretch * max(distance[demand.source][dest] for dest in demand.dests) * (1 + ROUNDING)
    return tuple(
        path
        for path in instance.paths
        if path.dst != demand.source and _detour_us(instance, distance, demand, path) <= limit
    )


def _detour_us(instance: Instance, distance: list[dict[int, float]], demand: Demand, path: Path) -> float:
    """Latency of the shortest way from the demand's source over the path to whichever destination is nearest then."""
    onward = min(distance[path.dst][dest] for dest in demand.dests)
    return distance[demand.source][path.src] + path.latency_us(instance.chunk_bytes) + onward


def _symmetric_start(
    instance: Instance, action: Action, allowed: dict[int, tuple[Path, ...]], warm_start: Routing | None
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
        if all(tree <= {path.index for path in allowed[chunk]} for chunk, tree in trees.items()):
            starts.append(routing_of(instance, action.expand(trees)))
    return min(starts, key=lambda routing: routing.relaxed_us)
