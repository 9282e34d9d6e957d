"""Strategy `milp`: TACCL's routing program with the relaxed cost, in broadcast form (docs/formulation.md, section 7).

Only one chunk of every orbit under the instance's symmetries is decided; the others are its images, so symmetric
variables are the same variable rather than equal ones. Times are microseconds; keys are (chunk, path) or (chunk,
rank), in that order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from synth.errors import CheckError
from synth.instance import Demand, Instance
from synth.ir import Routing
from synth.milp import Model, Solution, SolveOptions, SolveReport, linear_sum, solve, weighted_sum
from synth.milp.model import Variable
from synth.paths import Path
from synth.routing.relaxed import link_margins_us, relaxed_cost, routing_of, tree_of
from synth.routing.scope import ROUNDING, Scope, count_uses, scope_of

#: What all transfers together may add to the objective, as a share of the least time possible: enough to prefer
#: fewer transfers among equals, and no more than the gap at which a solve ends.
TIE_SHARE = 1e-3


class Use(NamedTuple):
    """Binary: the chunk crosses the path."""

    chunk: int
    path: int
    what: str = "use"


class Arrival(NamedTuple):
    """When the chunk is at the rank; any time where it never is."""

    chunk: int
    rank: int
    what: str = "arrival"


class Finish(NamedTuple):
    """The relaxed cost."""

    what: str = "finish"


@dataclass(frozen=True)
class MilpRouting:
    """Options: the solve's limits, and how far beyond the farthest destination's distance a detour may take a
    chunk.
    """

    solve: SolveOptions = field(default_factory=SolveOptions)
    stretch: float = 2.0

    def __call__(self, instance: Instance, warm_start: Routing | None = None) -> tuple[Routing, SolveReport]:
        """A routing of the instance's demands and how the solve went; never worse at level 1 than `warm_start`.

        Optimal (report) means: among routings that respect the symmetries, within the stretch. Raises SolverError
        where no solver can be used.
        """
        scope = scope_of(instance, self.stretch, warm_start)
        model = build(scope)
        suggest(model, scope)
        solution = solve(model, self.solve)
        best = _routing(scope, solution) if solution.found else scope.start
        if warm_start is not None:
            given = relaxed_cost(instance, warm_start)
            if given < best.relaxed_us * (1 - ROUNDING):
                best = Routing(warm_start.transfers, given)
        return best, solution.report.restated(best.relaxed_us, TIE_SHARE * model.variables[Finish()].lowBound)

    def estimate_size(self, instance: Instance) -> int:
        """How many binaries the program has, without building it (an upper bound where there are over a thousand)."""
        return count_uses(instance, self.stretch)


def build(scope: Scope) -> Model:
    """The whole program, eq. 18 to 24."""
    model = Model("routing")
    _variables(model, scope)
    for demand in scope.action.deciding:
        receive_once(model, scope, demand)
        forward_what_was_received(model, scope, demand)
        enter_every_box(model, scope, demand)
        arrive_in_order(model, scope, demand)
        finish_after_arrivals(model, scope, demand)
    finish_after_loads(model, scope)
    minimise_finish(model, scope)
    return model


def _variables(model: Model, scope: Scope) -> None:
    """One use per deciding chunk and allowed path, one arrival per rank that the chunk may come to, and
    the finish.
    """
    least = 0.0
    for demand in scope.action.deciding:
        distance = scope.distance[demand.source]
        least = max(least, *(distance[dest] for dest in demand.dests))
        for path in scope.allowed[demand.chunk]:
            model.binary(Use(demand.chunk, path.index))
        for rank in scope.reachable(demand.chunk):
            model.continuous(Arrival(demand.chunk, rank), distance[rank], scope.horizon_us)
        model.continuous(Arrival(demand.chunk, demand.source), 0.0, 0.0)
    model.continuous(Finish(), least, scope.horizon_us)


def receive_once(model: Model, scope: Scope, demand: Demand) -> None:
    """Eq. 18: every destination receives the chunk exactly once, every other rank at most once."""
    for rank in scope.reachable(demand.chunk):
        received = linear_sum(_use(model, demand, path) for path in scope.into(demand.chunk, rank))
        model.add("receive-once", received == 1 if rank in demand.dests else received <= 1)


def forward_what_was_received(model: Model, scope: Scope, demand: Demand) -> None:
    """Eq. 19: a rank other than the source forwards the chunk only if a third rank brought it."""
    for path in scope.allowed[demand.chunk]:
        if path.src != demand.source:
            brought = [other for other in scope.into(demand.chunk, path.src) if other.src != path.dst]
            received = linear_sum(_use(model, demand, other) for other in brought)
            model.add("forward-what-was-received", _use(model, demand, path) <= received)


def enter_every_box(model: Model, scope: Scope, demand: Demand) -> None:
    """Eq. 20 (implied, tightens the relaxation): the chunk leaves its source, and enters each other box that
    wants it.
    """
    node_of = scope.instance.topology.node_of
    leaving = [path for path in scope.allowed[demand.chunk] if path.src == demand.source]
    model.add("leave-source", linear_sum(_use(model, demand, path) for path in leaving) >= 1)
    for node in sorted({node_of(dest) for dest in demand.dests} - {node_of(demand.source)}):
        entering = [p for p in scope.allowed[demand.chunk] if node_of(p.dst) == node != node_of(p.src)]
        model.add("enter-box", linear_sum(_use(model, demand, path) for path in entering) >= 1)


def arrive_in_order(model: Model, scope: Scope, demand: Demand) -> None:
    """Eq. 21: over a path that is used, the chunk arrives a latency after it was at the path's start."""
    for path in scope.allowed[demand.chunk]:
        before = model.variables[Arrival(demand.chunk, path.src)]
        arrival = model.variables[Arrival(demand.chunk, path.dst)]
        unused = 1 - _use(model, demand, path)
        model.add_unless("arrive-in-order", unused, before + scope.latency_us(path) - arrival)


def finish_after_arrivals(model: Model, scope: Scope, demand: Demand) -> None:
    """Eq. 22: the finish comes after every arrival at a destination (eq. 3)."""
    for dest in sorted(demand.dests):
        model.add("finish-after-arrivals", model.variables[Finish()] >= model.variables[Arrival(demand.chunk, dest)])


def finish_after_loads(model: Model, scope: Scope) -> None:
    """Eq. 23: the finish comes after every link's load and margin (eq. 4); of links alike under the symmetries,
    one is enough.
    """
    instance = scope.instance
    terms: dict[int, list[tuple[Variable, float]]] = {}
    for demand in scope.action.deciding:
        for path in scope.allowed[demand.chunk]:
            use = _use(model, demand, path)
            for member in scope.action.members:
                image = instance.paths[member.paths[path.index]]
                for link, busy in zip(image.links, image.busy_us(instance.chunk_bytes), strict=True):
                    terms.setdefault(link, []).append((use, busy))
    margins = link_margins_us(instance)
    for link in sorted(terms):
        if link == min(member.links[link] for member in scope.action.members):
            model.add("finish-after-loads", model.variables[Finish()] >= weighted_sum(terms[link]) + margins[link])


def minimise_finish(model: Model, scope: Scope) -> None:
    """Eq. 24: the finish, and a share of its least value for the load of all transfers on all links together."""
    finish = model.variables[Finish()]
    uses = [
        (_use(model, demand, path), sum(path.busy_us(scope.instance.chunk_bytes)))
        for demand in scope.action.deciding
        for path in scope.allowed[demand.chunk]
    ]
    weight = TIE_SHARE * finish.lowBound / max(sum(load for _, load in uses), finish.lowBound)
    model.minimise(finish + weighted_sum((use, weight * load) for use, load in uses))


def suggest(model: Model, scope: Scope) -> None:
    """Start the solver from the scope's symmetric routing."""
    used = {(transfer.chunk, transfer.path) for transfer in scope.start.transfers}
    for demand in scope.action.deciding:
        arrival = {demand.source: 0.0}
        tree = [path for path in scope.allowed[demand.chunk] if (demand.chunk, path.index) in used]
        while len(arrival) <= len(tree):
            for path in tree:
                if path.src in arrival:
                    arrival[path.dst] = arrival[path.src] + scope.latency_us(path)
        for path in scope.allowed[demand.chunk]:
            model.start(Use(demand.chunk, path.index), float((demand.chunk, path.index) in used))
        for rank in scope.reachable(demand.chunk):
            lowest = scope.distance[demand.source][rank]
            model.start(Arrival(demand.chunk, rank), arrival.get(rank, lowest))
    model.start(Finish(), scope.start.relaxed_us)


def _routing(scope: Scope, solution: Solution) -> Routing:
    """The routing that a solution means, without transfers that lead nowhere."""
    trees = {}
    for demand in scope.action.deciding:
        paths = scope.allowed[demand.chunk]
        used = [path.index for path in paths if solution.values[Use(demand.chunk, path.index)]]
        trees[demand.chunk] = tree_of(scope.instance, demand, used)
    routing = routing_of(scope.instance, scope.action.expand(trees))
    if routing.relaxed_us > scope.horizon_us * (1 + 1e-6):
        raise CheckError(
            "routing", f"the program gave {routing.relaxed_us} us, above its horizon {scope.horizon_us} us"
        )
    return routing


def _use(model: Model, demand: Demand, path: Path) -> Variable:
    return model.variables[Use(demand.chunk, path.index)]
