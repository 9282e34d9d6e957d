"""The routing program: known optima, starting routings, symmetry, pruning, and both free solvers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from synth.instance import Instance
from synth.ir import Routing, Transfer
from synth.milp import SolveOptions, Status
from synth.reductions.symmetry import find_symmetries
from synth.routing.milp import TIE_SHARE, MilpRouting
from synth.routing.orbit import action_of
from synth.routing.relaxed import relaxed_cost, shortest_routing
from synth.routing.scope import scope_of
from synth.timing import check_routing
from synth.topology import Topology
from tests.graphs import dgx1, full, instance_of, line, mesh, ring, star, two_boxes

EXACT = SolveOptions(gap=0.0)


def symmetric(instance: Instance) -> Instance:
    return replace(instance, symmetries=find_symmetries(instance.topology, instance.paths))


@pytest.mark.parametrize(
    ("topology", "name", "root", "optimum_us"),
    [
        # 1 MB at 10 GB/s is 100 us a link, plus 1 us latency at least once.
        (ring(4), "allgather", None, 202.0),  # the opposite GPU is two hops away
        (line(4), "allgather", None, 303.0),  # three hops end to end
        (star(4), "allgather", None, 302.0),  # three chunks into each port, two links of latency
        (full(4), "alltoall", None, 101.0),
        (line(3), "broadcast", 0, 202.0),
        (star(4), "scatter", 1, 302.0),
        (star(4), "gather", 1, 302.0),
    ],
    ids=lambda value: value.name if isinstance(value, Topology) else None,
)
@pytest.mark.parametrize("with_symmetry", [False, True])
def test_known_optimum(topology: Topology, name: str, root: int | None, optimum_us: float, with_symmetry: bool) -> None:
    instance = instance_of(topology, name, 1, 1e6, root=root)
    routing, report = MilpRouting(EXACT)(symmetric(instance) if with_symmetry else instance)
    check_routing(instance, routing)
    assert routing.relaxed_us == pytest.approx(optimum_us)
    assert report.status is Status.OPTIMAL
    assert report.objective == routing.relaxed_us


def test_slow_direct_link_is_relayed_around() -> None:
    # GPU 0 reaches GPU 2 directly at a tenth of the rate: two fast hops are quicker.
    topology = full(3)
    slow = [replace(link, GBps=1.0) if {link.src, link.dst} == {"gpu0", "gpu2"} else link for link in topology.links]
    instance = instance_of(replace(topology, links=tuple(slow)), "alltoall", 1, 1e6)
    routing, _ = MilpRouting(EXACT)(instance)
    assert routing.relaxed_us == pytest.approx(202.0)
    assert {instance.paths[t.path].dst for t in routing.transfers if t.chunk == 2} == {1, 2}


def test_dgx1_allgather_spreads_over_single_and_double_links() -> None:
    instance = symmetric(instance_of(dgx1(), "allgather", 6, 1e6))
    warm = shortest_routing(instance)
    routing, report = MilpRouting()(instance, warm)
    check_routing(instance, routing)
    # 42 foreign chunks of 1 MB over 6 lanes of 22 GB/s are 318.2 us; shortest paths leave lanes idle.
    assert 318.2 <= routing.relaxed_us <= 318.2 * 1.01
    assert routing.relaxed_us < 0.7 * warm.relaxed_us
    assert report.status is Status.OPTIMAL


def test_two_boxes_send_each_chunk_over_a_slow_network_once() -> None:
    instance = symmetric(instance_of(two_boxes(ring(4), (0, 2), GBps=2.5), "allgather", 1, 1e6))
    routing, _ = MilpRouting(EXACT)(instance)
    check_routing(instance, routing)
    between = [t for t in routing.transfers if _crosses(instance, t)]
    assert len(between) == 8
    # Four chunks over two NICs each way: two chunks of 400 us a NIC.
    assert 800.0 <= routing.relaxed_us <= 1000.0


def _crosses(instance: Instance, transfer: Transfer) -> bool:
    path = instance.paths[transfer.path]
    return instance.topology.node_of(path.src) != instance.topology.node_of(path.dst)


def test_never_worse_than_the_start_even_without_a_search() -> None:
    instance = instance_of(mesh(3, 3), "alltoall", 1, 1e6)
    warm, _ = MilpRouting(SolveOptions(node_limit=20, gap=0.05))(instance)
    routing, _ = MilpRouting(SolveOptions(node_limit=0), stretch=1.0)(instance, warm)
    check_routing(instance, routing)
    assert routing.relaxed_us <= warm.relaxed_us * (1 + TIE_SHARE)


def test_cbc_finds_the_same_optimum_as_highs() -> None:
    instance = symmetric(instance_of(dgx1(), "allgather", 1, 1e6))
    highs, _ = MilpRouting(SolveOptions(solver="highs", gap=0.0))(instance)
    cbc, report = MilpRouting(SolveOptions(solver="cbc", gap=0.0))(instance)
    check_routing(instance, cbc)
    assert report.solver == "cbc"
    assert cbc.relaxed_us == pytest.approx(highs.relaxed_us)


def test_same_input_gives_the_same_routing() -> None:
    instance = symmetric(instance_of(dgx1(), "allgather", 2, 1e5))
    assert MilpRouting()(instance)[0] == MilpRouting()(instance)[0]


def test_symmetry_decides_one_chunk_of_an_orbit() -> None:
    plain = instance_of(dgx1(), "allgather", 2, 1e6)
    action = action_of(symmetric(plain))
    assert len(action.members) == 4
    assert len(action.deciding) == 2 * 2
    images = {member.chunks[demand.chunk] for demand in action.deciding for member in action.members}
    assert images == set(range(16))
    assert MilpRouting().estimate_size(symmetric(plain)) * 4 == MilpRouting().estimate_size(plain)


def test_alltoall_chunks_go_to_chunks_of_the_image_pair() -> None:
    instance = symmetric(instance_of(ring(3), "alltoall", 1, 1e6))
    for member in action_of(instance).members:
        for demand in instance.demands:
            image = next(other for other in instance.demands if other.chunk == member.chunks[demand.chunk])
            ranks = {(path.src, instance.paths[member.paths[path.index]].src) for path in instance.paths}
            rank_of = dict(ranks)
            assert image.source == rank_of[demand.source]
            assert image.dests == {rank_of[dest] for dest in demand.dests}


def test_rooted_collectives_use_no_symmetry_that_moves_the_root() -> None:
    assert len(action_of(symmetric(instance_of(ring(4), "broadcast", 2, root=1))).members) == 1


def test_pruning_keeps_shortest_ways_and_drops_long_ones() -> None:
    instance = instance_of(ring(6), "alltoall", 1, 1e6)
    narrow, wide = scope_of(instance, 1.0, None), scope_of(instance, 5.0, None)
    assert narrow.num_uses < wide.num_uses
    for scope in (narrow, wide):
        assert relaxed_cost(instance, scope.start) == scope.start.relaxed_us
        used = {(transfer.chunk, transfer.path) for transfer in scope.start.transfers}
        assert used <= {(chunk, path.index) for chunk, paths in scope.allowed.items() for path in paths}


def test_given_routing_with_a_detour_is_a_start_all_the_same() -> None:
    instance = instance_of(ring(4), "broadcast", 1, 1e3, root=0)
    way_round = [path.index for path in instance.paths if path.dst == path.src + 1]
    detour = Routing(tuple(Transfer(0, path) for path in way_round))
    routing, _ = MilpRouting(EXACT)(instance, detour)
    assert routing.relaxed_us < relaxed_cost(instance, detour)
