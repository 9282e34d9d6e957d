"""The routing strategies by name, each as one call from an instance to a `Routed` in broadcast form."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from synth.boxes import Boxes
from synth.choices import STRATEGIES
from synth.errors import InputError
from synth.instance import Instance
from synth.ir import Routing, Transfer
from synth.milp import SolveOptions, Status
from synth.routing.greedy import GreedyRouting
from synth.routing.milp import MilpRouting
from synth.routing.packing import Packing
from synth.routing.relaxed import relaxed_cost
from synth.routing.trees import TreesRouting
from synth.solve import Routed, Strategy
from synth.timing import busiest_link_us

#: Binaries up to which `auto` tries the MILP beside the others: it then ends in seconds, in a tenth of one up to the smaller.
AUTO_MILP_BINARIES = 400
LEAN_MILP_BINARIES = 60
#: Binaries up to which `--strategy milp` cuts finer than it must: HiGHS ended such programs in seconds in trials.
MILP_BINARIES = 1_000
#: Few ways are as good as many if the busiest link carries no more than this share more.
AS_EVEN = 5e-3
#: Ways that are tried for what one rank sends or gets, for every rank: more hardly ever load links more evenly.
_MOST_WAYS_OF_A_RANK = 4
#: Routes the first box's chunks on an instance that is folded onto it.
Route = Callable[[Instance, Boxes], Routed]


@dataclass(frozen=True)
class StrategyOptions:
    """What the strategies take from the command line; `milp_nodes` is the work limit of one solve."""

    seed: int = 0
    solver: str = "auto"
    milp_nodes: int = 2_000
    time_limit_s: float = 30.0
    greedy_runs: int | None = None
    """Runs of the greedy at most; None for its own default."""
    paths: Collection[int] | None = None
    """Those that trees may go over; None: all."""


def strategy(name: str, options: StrategyOptions) -> Strategy:
    """The strategy called `name` (one of STRATEGIES but `auto`, which is a choice among the others)."""
    match name:
        case "greedy":
            return lambda instance: _greedy(instance, options)
        case "trees":
            return lambda instance: _trees(instance, options.paths)
        case "flow":
            return _flow
        case "milp":
            return lambda instance: _milp(instance, options)
        case "hierarchy":
            expected = "another strategy: this machine is no cluster of equal boxes, or not all of them get every chunk"
            raise InputError("--strategy", "", name, expected)
        case _:
            raise InputError("--strategy", "", name, " or ".join(STRATEGIES))


def rotated(name: str) -> Route:
    """The packing called `name` of the first box's chunks on a folded instance (synth.reductions.fold), whose images are those of
    the others.
    """

    def routed(folded: Instance, boxes: Boxes) -> Routed:
        routing, packing = TreesRouting()(folded, sources=boxes.ranks[0])
        loaded = replace(routing, relaxed_us=busiest_link_us(folded, routing.transfers))
        return Routed(name, loaded, None, _how_good(packing), packing.bound_us)

    return routed


def over_few_ways(strategy: Strategy, whole: int | None = None) -> Strategy:
    """The strategy for `whole` chunks (one a rank if not given), whose parts then take the same way one after another, where that
    loads links as evenly as many ways do: what repeats is the easier to keep in step.
    """

    def routed(instance: Instance) -> Routed:
        found = strategy(instance)
        count = whole or instance.num_ranks
        parts, left = divmod(instance.collective.chunks, count)
        if left or parts == 1:
            return found
        few = _in_parts(strategy, instance, count)
        even_us = busiest_link_us(instance, found.routing.transfers) * (1 + AS_EVEN)
        return found if busiest_link_us(instance, few.routing.transfers) > even_us else few

    return routed


def over_fewest_ways(strategy: Strategy) -> Strategy:
    """The strategy for as few chunks of one rank, doubled from two on, as load links evenly, whose parts then take the
    same way one after another; or for all chunks as they are, if that takes fewer ways or none of these is as even.
    """

    def routed(instance: Instance) -> Routed:
        chunks, ranks = instance.collective.chunks, instance.num_ranks
        tried: list[tuple[float, Routed]] = []
        even_us, count = math.inf, 2
        while chunks % count == 0 and count <= min(_MOST_WAYS_OF_A_RANK * ranks, chunks // 2):
            if _least_us(instance) / count <= even_us:
                few = _in_parts(strategy, instance, count)
                tried.append((busiest_link_us(instance, few.routing.transfers), few))
                even_us = (few.bound_us or math.inf) * (1 + AS_EVEN)
                if tried[-1][0] <= even_us < math.inf:
                    break
            count *= 2
        if not tried or tried[-1][0] > even_us or _number_of_ways(tried[-1][1]) > ranks:
            found = strategy(instance)
            tried.append((busiest_link_us(instance, found.routing.transfers), found))
        even_us = min(load_us for load_us, _ in tried) * (1 + AS_EVEN)
        return min((each for load_us, each in tried if load_us <= even_us), key=_number_of_ways)

    return routed


def _least_us(instance: Instance) -> float:
    """What all chunks of a rank take if they leave it over one path: a way of so many takes its share of that."""
    source, all_bytes = instance.demands[0].source, instance.collective.chunks * instance.chunk_bytes
    return min(max(path.busy_us(all_bytes)) for path in instance.paths if path.src == source)


def _number_of_ways(routed: Routed) -> int:
    """How many different ways its chunks take."""
    ways: dict[int, list[int]] = defaultdict(list)
    for chunk, path, _ in routed.routing.transfers:
        ways[chunk].append(path)
    return len({tuple(way) for way in ways.values()})


def _in_parts(strategy: Strategy, instance: Instance, count: int) -> Routed:
    """The strategy for so many chunks, each of which is then cut, so that the instance has as many as it should.

    Chunks are numbered by owner, so that the parts of one are neighbours.
    """
    parts = instance.collective.chunks // count
    collective = replace(instance.collective, chunks=count)
    few = strategy(replace(instance, collective=collective, chunk_bytes=instance.chunk_bytes * parts))
    transfers = sorted(
        Transfer(chunk * parts + part, path, reduce)
        for chunk, path, reduce in few.routing.transfers
        for part in range(parts)
    )
    return replace(few, routing=replace(few.routing, transfers=tuple(transfers)), schedule=None)


def _greedy(instance: Instance, options: StrategyOptions) -> Routed:
    greedy = GreedyRouting(seed=options.seed)
    if options.greedy_runs is not None:
        greedy = replace(greedy, seeds=options.greedy_runs)
    routing, schedule = greedy(instance)
    return Routed("greedy", _costed(instance, routing), schedule)


def _trees(instance: Instance, paths: Collection[int] | None = None) -> Routed:
    """The packing; over some of the paths it proves nothing of the machine."""
    routing, packing = TreesRouting()(instance, paths=paths)
    if paths is not None:
        return Routed("trees", _costed(instance, routing), None, "packing over some of the paths")
    return Routed("trees", _costed(instance, routing), None, _how_good(packing), packing.bound_us)


def _how_good(packing: Packing) -> str:
    """What is proved of a packing, in words."""
    close = packing.load_us <= packing.bound_us * (1 + TreesRouting().packing.gap)
    return "optimal packing" if close else "packing"


def _flow(instance: Instance) -> Routed:
    """The packing where every chunk has one destination: its trees are paths, and its program the concurrent flow, by paths."""
    if any(len(demand.dests) > 1 for demand in instance.demands):
        name = instance.collective.name
        raise InputError(
            "--strategy", "", "flow", f"trees: {name} has chunks for several ranks, and a flow has one end each"
        )
    return replace(_trees(instance), strategy="flow")


def _costed(instance: Instance, routing: Routing) -> Routing:
    """The routing with its cost at level 1."""
    return Routing(routing.transfers, relaxed_cost(instance, routing))


def _milp(instance: Instance, options: StrategyOptions) -> Routed:
    """The MILP, warm-started by the greedy; where a limit ends it before it finds anything, the greedy's routing."""
    start, schedule = GreedyRouting(seed=options.seed)(instance)
    limits = SolveOptions(
        solver=options.solver,  # type: ignore[arg-type]
        node_limit=options.milp_nodes,
        time_limit_s=options.time_limit_s,
        seed=options.seed,
    )
    routing, report = MilpRouting(solve=limits)(instance, start)
    kept = schedule if set(routing.transfers) == set(start.transfers) else None
    return Routed("milp", routing, kept, report.status.value, report.bound if report.status in _BOUNDED else None)


_BOUNDED = (Status.OPTIMAL, Status.FEASIBLE, Status.TIMED_OUT)
