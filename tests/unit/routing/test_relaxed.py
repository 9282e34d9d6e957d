"""The relaxed cost: latency along trees, loads with their margins, and trees cut out of what was used."""

from __future__ import annotations

import pytest

from synth.errors import CheckError
from synth.ir import Routing, Transfer
from synth.routing.relaxed import distances_us, link_margins_us, relaxed_cost, shortest_routing, tree_of
from synth.timing import check_routing
from tests.graphs import dgx1, instance_of, line, mesh, ring, star


def test_latency_decides_small_chunks_and_load_large_ones() -> None:
    small = instance_of(star(4), "allgather", 1, 10.0)
    assert relaxed_cost(small, shortest_routing(small)) == pytest.approx(3 * 0.001 + 2.0)
    chain = instance_of(line(4), "broadcast", 1, 1e6, root=0)
    assert relaxed_cost(chain, shortest_routing(chain)) == pytest.approx(3 * 101.0)


def test_margins_hold_what_comes_before_and_after_a_link() -> None:
    chain = instance_of(line(3), "broadcast", 4, 1e6, root=0)
    margins = link_margins_us(chain)
    by_ends = {(link.src, link.dst): margins[index] for index, link in enumerate(chain.topology.links)}
    assert by_ends["gpu0", "gpu1"] == pytest.approx(1.0)
    assert by_ends["gpu1", "gpu2"] == pytest.approx(101.0 + 1.0)
    assert shortest_routing(chain).relaxed_us == pytest.approx(400.0 + 102.0)


def test_distances_are_shortest_latencies() -> None:
    assert distances_us(instance_of(ring(4), "allgather", 1, 1e6))[0] == pytest.approx([0, 101, 202, 101])


@pytest.mark.parametrize("name", ["allgather", "alltoall"])
@pytest.mark.parametrize("topology", [ring(5), mesh(2, 3), star(4), dgx1()], ids=lambda topology: topology.name)
def test_shortest_routing_is_a_routing(topology, name) -> None:  # type: ignore[no-untyped-def]
    instance = instance_of(topology, name, 2, 1e5)
    routing = shortest_routing(instance)
    check_routing(instance, routing)
    assert routing.relaxed_us == relaxed_cost(instance, routing)


def test_tree_drops_circles_second_ways_and_dead_ends() -> None:
    instance = instance_of(ring(4), "scatter", 1, 1e6, root=0)
    demand = next(demand for demand in instance.demands if demand.dests == {1})
    by_ends = {(path.src, path.dst): path.index for path in instance.paths}
    assert tree_of(instance, demand, by_ends.values()) == {by_ends[0, 1]}
    way_round = [by_ends[0, 3], by_ends[3, 2], by_ends[2, 1], by_ends[2, 3]]
    assert tree_of(instance, demand, way_round) == {by_ends[0, 3], by_ends[3, 2], by_ends[2, 1]}
    with pytest.raises(CheckError, match="does not reach rank 1"):
        tree_of(instance, demand, [by_ends[0, 3], by_ends[2, 1]])


def test_cost_refuses_what_is_no_tree() -> None:
    instance = instance_of(ring(3), "broadcast", 1, 1e6, root=0)
    every_path = Routing(tuple(Transfer(0, path.index) for path in instance.paths if path.dst))
    with pytest.raises(CheckError, match="not routed along a tree"):
        relaxed_cost(instance, every_path)
