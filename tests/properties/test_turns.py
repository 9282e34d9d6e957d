"""Laws of chunks that follow each other in turns, on random routings from one rank and to one."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.instance import Instance
from synth.ir import Routing, Send, causes
from synth.lowering import LoweringOptions, lower
from synth.ordering import Turns
from synth.solve import Stages
from synth.strategies import StrategyOptions, over_fewest_ways, strategy
from synth.timing import busiest_link_us, check_schedule
from synth.topology import Topology
from synth.verify import verify_algo
from tests.graphs import full, instance_of, line, mesh, ring, star, two_boxes, unequal_ring
from tests.schedules import random_schedule

MACHINES = (line(3), ring(4), full(4), mesh(2, 3), star(4), two_boxes(ring(3)), two_boxes(star(2), (0, 1)))
ROOTED = ("broadcast", "reduce")
TREES = strategy("trees", StrategyOptions())


def instances(names: tuple[str, ...] = ROOTED) -> st.SearchStrategy[Instance]:
    return st.builds(
        lambda machine, name, chunks, size: instance_of(machine, name, chunks, size, root=0),
        st.sampled_from(MACHINES),
        st.sampled_from(names),
        st.sampled_from([1, 2, 3, 8, 16]),
        st.sampled_from([16.0, 4e5, 4e6]),
    )


def routing_of(instance: Instance, seed: int) -> Routing:
    return Routing(tuple(sorted(random_schedule(instance, random.Random(seed)).transfers())))


@settings(max_examples=60)
@given(
    instance=instances(),
    seed=st.integers(0, 99),
    adding_us=st.sampled_from([0.0, 1e-4]),
    most=st.sampled_from([1, 2, 512]),
)
def test_nothing_is_due_before_what_it_waits_for(instance: Instance, seed: int, adding_us: float, most: int) -> None:
    instance, routing = replace(instance, reduce_us_per_byte=adding_us), routing_of(instance, seed)
    schedule = Turns(most)(instance, routing)
    sends = schedule.sends
    assert sorted(schedule.transfers()) == sorted(routing.transfers)
    for send, before in zip(sends, causes(instance, sends), strict=True):
        assert send.start_us >= max((sends[other].arrive_us for other in before), default=0.0) - 1e-6


@settings(max_examples=60)
@given(instance=instances(), seed=st.integers(0, 99))
def test_what_is_added_to_one_sum_comes_one_after_another(instance: Instance, seed: int) -> None:
    adding_us = 1e-3 * instance.chunk_bytes
    slow, routing = replace(instance, reduce_us_per_byte=1e-3), routing_of(instance, seed)
    sums: dict[tuple[int, int], list[float]] = defaultdict(list)
    for send in Turns()(slow, routing).sends:
        if send.reduce:
            sums[send.chunks[0], slow.paths[send.path].dst].append(send.arrive_us)
    for arrivals in map(sorted, sums.values()):
        assert all(later - sooner >= adding_us * (1 - 1e-9) - 1e-6 for sooner, later in pairwise(arrivals))


@settings(max_examples=40)
@given(instance=instances(), seed=st.integers(0, 99))
def test_chunks_of_one_way_follow_each_other_evenly(instance: Instance, seed: int) -> None:
    routing = routing_of(instance, seed)
    due: dict[int, list[Send]] = defaultdict(list)
    for send in Turns()(instance, routing).sends:
        due[send.chunks[0]].append(send)
    ways: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for chunk, sends in sorted(due.items()):
        ways[tuple(sorted(send.path for send in sends))].append(chunk)
    load_us = busiest_link_us(instance, routing.transfers)
    for chunks in ways.values():
        for one, other in pairwise(chunks):
            apart = {
                round(b.start_us - a.start_us, 6) for a, b in zip(*map(by_path, (due[one], due[other])), strict=True)
            }
            assert apart == {round(load_us / len(chunks), 6)}


def by_path(sends: list[Send]) -> list[Send]:
    return sorted(sends, key=lambda send: send.path)


@settings(max_examples=30)
@given(instance=instances())
def test_a_solution_in_turns_is_checked_and_becomes_a_program(instance: Instance) -> None:
    solution = Stages().in_turns(instance, over_fewest_ways(TREES), Turns())
    check_schedule(instance, solution.schedule, Routing(solution.schedule.transfers()))
    assert solution.schedule.makespan_us >= busiest_link_us(instance, solution.schedule.transfers()) * (1 - 1e-9)
    algo = lower(instance, solution.lowered, LoweringOptions(inplace=True))
    verify_algo(algo, instance.collective)


@pytest.mark.parametrize("machine", [*MACHINES, unequal_ring()], ids=lambda machine: machine.name)
@pytest.mark.parametrize("chunks", [1, 6, 64])
def test_the_fewest_ways_load_links_as_evenly_as_many(machine: Topology, chunks: int) -> None:
    instance = instance_of(machine, "broadcast", chunks, 4e5, root=0)
    few, many = over_fewest_ways(TREES)(instance), TREES(instance)
    load_us, many_us = (busiest_link_us(instance, each.routing.transfers) for each in (few, many))
    assert load_us <= many_us * 1.005 + 1e-6
    assert len(ways_of(few.routing)) <= max(len(ways_of(many.routing)), machine.num_ranks)


def ways_of(routing: Routing) -> set[tuple[int, ...]]:
    paths: dict[int, list[int]] = defaultdict(list)
    for transfer in routing.transfers:
        paths[transfer.chunk].append(transfer.path)
    return {tuple(sorted(taken)) for taken in paths.values()}


def test_one_way_down_a_line_ends_as_soon_as_any_can() -> None:
    # 64 chunks over three hops: all of them over the first link, and the last one over two more.
    instance = instance_of(line(4), "broadcast", 64, 4e5, root=0)
    solution = Stages().in_turns(instance, over_fewest_ways(TREES), Turns())
    busy_us, latency_us = instance.paths[0].busy_us(4e5)[0], instance.paths[0].latency_us(4e5)
    assert solution.schedule.makespan_us == pytest.approx(63 * busy_us + 3 * latency_us)


def test_a_way_has_no_more_messages_than_it_may() -> None:
    instance = instance_of(line(4), "broadcast", 64, 4e5, root=0)
    order = Turns(24)(instance, over_fewest_ways(TREES)(instance).routing)
    over_first = [send.chunks for send in order.sends if send.path == order.sends[0].path]
    assert over_first == [(*range(first, min(first + 3, 64)),) for first in range(0, 64, 3)]
