"""Every strategy on drawn instances of every collective, before one oracle: the checkers, the bounds, and itself again."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from networkx import DiGraph, transitive_closure

from synth.bounds import ingress_bound
from synth.bounds.used import used_links
from synth.collective import ROOTED, CollectiveName
from synth.instance import Instance
from synth.ir import Routing
from synth.milp import SolveOptions
from synth.paths import find_paths
from synth.scheduling import MilpScheduling, Scheduling
from synth.solve import Solution, Stages
from synth.strategies import StrategyOptions, strategy
from synth.timing import TOLERANCE_US, busiest_link_us, check_routing, check_schedule
from synth.topology import Topology
from tests.graphs import full, groups, instance_of, line, loose, mesh, ring, star, two_boxes

SMALL = (line(2), ring(3), line(3), star(3), full(3), two_boxes(line(1)), two_boxes(line(2)), ring(4))
LARGER = (*SMALL, line(5), mesh(2, 3), star(6), full(5), two_boxes(full(3)), two_boxes(star(2), (0, 1)), ring(6))
NAMES = tuple(CollectiveName)
#: Strategy, machines it is tried on, most chunks, and how many instances are drawn for each collective.
TABLE = (("greedy", LARGER, 3, 8), ("trees", LARGER, 3, 8), ("milp", SMALL, 1, 3))

#: The scheduling program is tried where it ends at once: its own tests see to the rest.
STAGES = Stages(scheduling=Scheduling(exact=MilpScheduling(solve=SolveOptions(node_limit=50), max_binaries=60)))


@st.composite
def instances(draw: st.DrawFn, name: CollectiveName, machines: tuple[Topology, ...], most_chunks: int) -> Instance:
    """The collective on one of the machines, with chunks from all alpha to all bandwidth."""
    topology = draw(st.sampled_from(machines))
    group = draw(groups(topology.num_ranks))
    root = draw(st.sampled_from(group or range(topology.num_ranks))) if name in ROOTED else None
    chunk_bytes = draw(st.sampled_from([16.0, 1e4, 3e5, 4e6]))
    return instance_of(topology, name, draw(st.integers(1, most_chunks)), chunk_bytes, root=root, group=group)


def check(solution: Solution) -> None:
    """The oracle: feasible, no sooner than anything can be, and grouping lost no time."""
    instance, schedule = solution.instance, solution.schedule
    routing = Routing(tuple(sorted(set(schedule.transfers()))))
    check_routing(instance, routing)
    check_schedule(instance, schedule, routing)
    buffer_bytes = instance.chunk_bytes * instance.collective.chunks
    bound = ingress_bound(instance.topology, instance.collective, instance.paths)
    assert schedule.makespan_us >= bound.time_us(buffer_bytes) * (1 - 1e-9)
    assert schedule.makespan_us >= busiest_link_us(instance, routing.transfers) * (1 - 1e-9)
    assert schedule.makespan_us <= solution.ordered_us + TOLERANCE_US
    if solution.bound_us is not None and instance.collective.name is not CollectiveName.ALLREDUCE:
        assert schedule.makespan_us >= solution.bound_us * (1 - 1e-6)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("which", "machines", "most_chunks", "examples"), TABLE, ids=[row[0] for row in TABLE])
def test_every_strategy_satisfies_the_oracle(
    which: str, machines: tuple[Topology, ...], most_chunks: int, examples: int, name: CollectiveName
) -> None:
    @settings(max_examples=examples)
    @given(instance=instances(name, machines, most_chunks))
    def run(instance: Instance) -> None:
        chosen = strategy(which, StrategyOptions(milp_nodes=200))
        solution = STAGES(instance, chosen)
        check(solution)
        assert solution.strategy == which
        assert STAGES(instance, chosen).schedule == solution.schedule

    run()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("which", ["greedy", "trees", "milp"])
def test_every_strategy_does_without_ways_that_nothing_takes(which: str, name: CollectiveName) -> None:
    @settings(max_examples=6)
    @given(drawn=loose(name), per_rank=st.integers(1, 2 if which != "milp" else 1))
    def run(drawn: tuple[Topology, int | None, tuple[int, ...]], per_rank: int) -> None:
        topology, root, group = drawn
        instance = instance_of(topology, name, per_rank, 3e5, root=root, group=group)
        check(STAGES(instance, strategy(which, StrategyOptions(milp_nodes=200))))

    run()


@settings(max_examples=60)
@given(data=st.data(), name=st.sampled_from(NAMES))
def test_paths_left_are_those_that_lead_from_a_sender_to_a_receiver(data: st.DataObject, name: CollectiveName) -> None:
    topology, root, group = data.draw(loose(name))
    collective = instance_of(topology, name, root=root, group=group).collective
    links = [(topology.by_id[link.src].rank, topology.by_id[link.dst].rank) for link in topology.links]
    reach = transitive_closure(DiGraph(links), reflexive=True)
    useful = [
        (a, b)
        for a, b in links
        if any(reach.has_edge(rank, a) for rank in collective.senders)
        and any(reach.has_edge(b, rank) for rank in collective.receivers)
    ]
    assert [(path.src, path.dst) for path in find_paths(topology, collective)] == sorted(useful)
    used = [links[link] for link in used_links(topology, collective)]
    assert sorted(used) == sorted(useful)


def test_stages_are_told_as_they_begin() -> None:
    seen: list[str] = []
    Stages(watch=seen.append)(instance_of(ring(3), "allreduce"), strategy("greedy", StrategyOptions()))
    assert seen[0] == "routing"
    assert seen[-1] == "scheduling"
    assert "ordering" in seen


def test_another_seed_is_another_run_of_the_greedy() -> None:
    instance = instance_of(full(5), "alltoall", 2)
    first, second = (strategy("greedy", StrategyOptions(seed=seed))(instance).schedule for seed in (0, 1))
    assert first != second
