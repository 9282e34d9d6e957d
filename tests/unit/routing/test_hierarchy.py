"""The hierarchy's program and its routing: loads by hand, trees of boxes, and what it refuses."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace

import pytest

from synth.build import Builder
from synth.collective import Collective, CollectiveName
from synth.errors import NoAnswerError
from synth.hierarchical import hierarchical, over_boxes
from synth.inputs.load import load_topology
from synth.instance import Instance
from synth.ir import Routing
from synth.paths import Path
from synth.reductions.fold import Fold
from synth.routing.box import Box
from synth.routing.hierarchy import HierarchyRouting
from synth.routing.patterns import TO_ALL
from synth.solve import Stages
from synth.timing import check_routing, check_schedule, link_loads_us
from synth.topology import Device, DeviceKind, replicate
from tests.folding import boxed, cluster, unfolded
from tests.graphs import both_ways, dgx1, from_pairs, full, star

GB = 1e9


def busiest_us(instance: Instance, paths: list[int]) -> float:
    return max(link_loads_us(instance, paths).values())


@pytest.mark.parametrize("pattern", TO_ALL)
@pytest.mark.parametrize("nodes", [2, 3, 6])
def test_every_rank_gets_every_chunk_once(pattern: str, nodes: int) -> None:
    instance, answer = boxed(cluster(dgx1(), nodes, ((0, 12.0), (5, 12.0))), "allgather", 2, GB, pattern)
    routing, _ = HierarchyRouting(pattern)(answer.instance, answer.boxes)
    whole = unfolded(answer, routing)
    check_routing(instance, whole)
    into = Counter((transfer.chunk, instance.paths[transfer.path].dst) for transfer in whole.transfers)
    assert set(into.values()) == {1}
    assert len(into) == 2 * 8 * nodes * (8 * nodes - 1)


def test_nics_of_equal_rate_carry_equal_shares() -> None:
    """Four boxes of four GPUs, two NICs of 10 GB/s: each brings three boxes' eight chunks, one half of them."""
    instance, answer = boxed(cluster(star(4, GBps=200.0), 4, ((0, 10.0), (3, 10.0))), "allgather", 1, GB)
    routing, packing = HierarchyRouting()(answer.instance, answer.boxes)
    whole = unfolded(answer, routing)
    by_hand_us = 3 * 2 * (GB / 16) / 10e3
    assert packing.load_us == pytest.approx(by_hand_us)
    assert busiest_us(instance, [transfer.path for transfer in whole.transfers]) == pytest.approx(by_hand_us)


def test_nics_of_unequal_rate_carry_what_they_can() -> None:
    """A NIC of 30 GB/s beside one of 10: three of every four chunks."""
    _, answer = boxed(cluster(star(4, GBps=200.0), 3, ((0, 30.0), (1, 10.0))), "allgather", 1, GB)
    routing, packing = HierarchyRouting()(answer.instance, answer.boxes)
    box, place = answer.boxes.box_of, answer.boxes.place_of
    crossing = [answer.instance.paths[t.path] for t in routing.transfers]
    sent = Counter(place[path.src] for path in crossing if box[path.src] != box[path.dst])
    assert sent == {0: 2 * 3, 1: 2 * 1}
    assert packing.load_us == pytest.approx(2 * 3 * (GB / 12) / 30e3)


def test_trees_inside_go_both_ways_round_a_ring() -> None:
    """What comes in over one NIC is spread over both links of its GPU; whole chunks get within a quarter of the program."""
    box = from_pairs("square", 4, [(0, 1), (1, 2), (2, 3), (3, 0)])
    instance, answer = boxed(cluster(box, 3, ((0, 5.0),)), "allgather", 1, GB)
    routing, packing = HierarchyRouting()(answer.instance, answer.boxes)
    whole = unfolded(answer, routing)
    check_routing(instance, whole)
    assert busiest_us(instance, [t.path for t in whole.transfers]) <= packing.load_us * 1.25


def entered(routing: Routing, answer: Fold) -> Counter[tuple[int, int]]:
    """Over how many gates each of the first box's chunks enters every other box."""
    box, paths = answer.boxes.box_of, answer.instance.paths
    ends = [
        (transfer.chunk, box[paths[transfer.path].src], box[paths[transfer.path].dst]) for transfer in routing.transfers
    ]
    return Counter((chunk, there) for chunk, here, there in ends if here != there)


@pytest.mark.parametrize("pattern", TO_ALL)
@pytest.mark.parametrize("nodes", [2, 3])
@pytest.mark.parametrize("per_rank", [32, 64])
def test_chunks_enter_over_several_gates_where_links_inside_are_what_limits(
    pattern: str, nodes: int, per_rank: int
) -> None:
    """Four GPUs of 100 GB/s with a NIC of 60 GB/s each: a GPU gets all but its own over both, 160 GB/s; over one gate a chunk each
    brings it its share of what comes from other boxes, and the switch has to bring the rest.
    """
    topology = cluster(star(4, GBps=100.0), nodes, tuple((rank, 60.0) for rank in range(4)))
    instance, answer = boxed(topology, "allgather", per_rank, GB, pattern)
    routing, packing = HierarchyRouting(pattern)(answer.instance, answer.boxes)
    whole = unfolded(answer, routing)
    check_routing(instance, whole)
    into = Counter((transfer.chunk, instance.paths[transfer.path].dst) for transfer in whole.transfers)
    assert set(into.values()) == {1}
    others = 4 * nodes - 1
    by_hand_us = others * (GB / (4 * nodes)) / 160e3
    assert packing.load_us == pytest.approx(by_hand_us, rel=2e-3)
    single_us = (others - (nodes - 1)) * (GB / (4 * nodes)) / 100e3
    busiest = busiest_us(instance, [transfer.path for transfer in whole.transfers])
    assert busiest == pytest.approx(by_hand_us)
    assert busiest <= 1.01 * by_hand_us < single_us
    assert set(entered(routing, answer).values()) > {1}
    assert HierarchyRouting(pattern).load_us(answer.instance, answer.boxes) == pytest.approx(packing.load_us)


def test_chunks_enter_over_one_gate_where_more_gain_nothing() -> None:
    """NICs that have no room, and such that have room for less than a whole chunk more."""
    for rate, per_rank, nodes in ((20.0, 32, 4), (25.0, 1, 2)):
        topology = cluster(star(4, GBps=100.0), nodes, tuple((rank, rate) for rank in range(4)))
        _, answer = boxed(topology, "allgather", per_rank, GB)
        routing, packing = HierarchyRouting()(answer.instance, answer.boxes)
        assert set(entered(routing, answer).values()) == {1}
        assert all(len(over) == 1 for over in packing.over)


@pytest.mark.parametrize("rounds", [1, 2, 100])
@pytest.mark.parametrize("several", [False, True])
def test_trees_spread_what_starts_and_comes_in_however_soon_pricing_ends(
    rounds: int, several: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("synth.routing.box_program._ROUNDS", rounds)
    topology = cluster(full(4, GBps=50.0), 3, tuple((rank, 40.0) for rank in range(4)))
    _, answer = boxed(topology, "allgather", 8, GB)
    _, packing = HierarchyRouting(several=several)(answer.instance, answer.boxes)
    spread = sum(sum(trees.values()) for roots, trees in packing.trees.items() if len(roots) == 1)
    entered = sum(amount for over, amount in packing.over.items() if len(over) == 1)
    assert spread == pytest.approx(32 + 2 * entered, abs=1e-3)


def test_gates_between_the_same_places_take_turns() -> None:
    """Two NICs of 30 GB/s for each GPU bring as much as one of 60: each carries as much as the other, or one chunk more."""
    box = star(4, GBps=100.0)
    devices, links = [*box.devices], [*box.links]
    for rank in range(4):
        for number in range(2):
            devices.append(Device(f"nic{rank}.{number}", DeviceKind.NIC, 0))
            links += both_ways(f"gpu{rank}", f"nic{rank}.{number}", 30.0, 1.0)
    topology = replicate(replace(box, devices=tuple(devices), links=tuple(links)), 2)
    instance, answer = boxed(topology, "allgather", 32, GB)
    routing, packing = HierarchyRouting()(answer.instance, answer.boxes)
    assert packing.load_us == pytest.approx(7 * (GB / 8) / 160e3, rel=2e-3)
    loads = link_loads_us(answer.instance, [transfer.path for transfer in routing.transfers])
    chunk_us = GB / 256 / 30e3
    carried = {
        round(loads[index] / chunk_us)
        for index, link in enumerate(instance.topology.links)
        if index in loads and link.src.startswith("gpu") and "nic" in link.dst
    }
    assert max(carried) - min(carried) <= 1
    assert max(carried) * chunk_us <= 1.01 * packing.load_us


def test_doubling_takes_few_hops() -> None:
    """Eight boxes of one GPU each: three hops by doubling, seven round the ring."""
    topology = cluster(star(1), 8, ((0, 10.0),))
    for pattern, hops in (("ring", 7), ("doubling", 3)):
        found = Builder(topology).boxed(Collective(CollectiveName.ALLGATHER, 8, 8), 8.0, pattern)
        assert found is not None
        solution = hierarchical(*found, Stages(), over_boxes(HierarchyRouting(pattern)))
        latency_us = found[0].paths[0].latency_us(1.0)
        assert solution.schedule.makespan_us == pytest.approx(hops * latency_us, rel=1e-3)


@pytest.mark.parametrize("name", ["allgather", "reduce-scatter", "allreduce"])
@pytest.mark.parametrize("pattern", TO_ALL)
def test_all_three_collectives_come_out_checked(name: str, pattern: str) -> None:
    topology = cluster(dgx1(), 3, ((0, 12.0), (5, 12.0)))
    collective = Collective(CollectiveName(name), 24, 48)
    found = Builder(topology).boxed(collective, GB, pattern)
    assert found is not None
    solution = hierarchical(*found, Stages(), over_boxes(HierarchyRouting(pattern)))
    check_schedule(found[0], solution.schedule)
    halves = 2 if name == "allreduce" else 1
    assert len(solution.schedule.transfers()) == halves * 48 * 23
    by_hand_us = halves * (2 / 3) * GB / 24e3
    assert by_hand_us <= solution.schedule.makespan_us <= 1.15 * by_hand_us
    assert solution.folded is not None
    assert solution.folded.schedule.makespan_us == solution.schedule.makespan_us


def test_chunks_for_one_rank_are_refused() -> None:
    _, answer = boxed(cluster(star(2), 2, ((0, 5.0),)), "alltoall", 1, GB)
    with pytest.raises(NoAnswerError, match="not all ranks get"):
        HierarchyRouting()(answer.instance, answer.boxes)


def test_a_count_that_boxes_cannot_share_is_refused() -> None:
    topology = cluster(star(4), 3, ((0, 5.0),))
    found = Builder(topology).boxed(Collective(CollectiveName.ALLREDUCE, 12, 16), GB, "ring")
    assert found is not None
    with pytest.raises(NoAnswerError, match="cannot be rotated"):
        hierarchical(*found, Stages())


def nics_on(folded: Instance, path: Path) -> set[str]:
    """The NICs that a path crosses: those of the first box, which folded links join."""
    links, devices = folded.topology.links, folded.topology.by_id
    ends = {end for link in path.links for end in (links[link].dst, links[link].src)}
    return {end for end in ends if devices[end].kind is DeviceKind.NIC}


@pytest.mark.parametrize("lost", [0, 1])
def test_gates_leave_and_enter_over_one_nic_where_that_can_be(lost: int) -> None:
    """Two GPUs of a DGX A100 share a switch with two NICs: four ways lead to their like, two of them over one NIC alike."""
    _, answer = boxed(replicate(load_topology("dgx-a100"), 3), "allgather", 1, GB)
    instance, boxes = answer.instance, answer.boxes
    alike = [path for path in instance.paths if boxes.box_of[path.dst] == 1 and len(nics_on(instance, path)) == 1]
    gone = {path.links for path in alike[:lost]}
    kept = [path for path in instance.paths if path.links not in gone]
    fewer = replace(instance, paths=tuple(replace(path, index=index) for index, path in enumerate(kept)))
    gates = Box.of(fewer, boxes, (1,)).gates
    mixed = [gate for gate in gates if len(nics_on(fewer, fewer.paths[gate.paths[1]])) > 1]
    # What would leave over the one that is lost enters over the other.
    assert len(gates) == 16 + lost
    assert len(mixed) == 2 * lost
    assert {(gate.src, gate.dst) for gate in mixed} == {(path.src, path.dst - 8) for path in alike[:lost]}


def test_a_gpu_copies_and_adds_up_over_one_nic() -> None:
    _, answer = boxed(replicate(load_topology("dgx-a100"), 4), "allreduce", 4, GB)
    routing, _ = HierarchyRouting()(answer.instance, answer.boxes)
    over: defaultdict[int, set[str]] = defaultdict(set)
    for path in {answer.instance.paths[transfer.path] for transfer in routing.transfers}:
        if answer.boxes.box_of[path.src] != answer.boxes.box_of[path.dst]:
            over[answer.boxes.place_of[path.src]] |= nics_on(answer.instance, path)
    assert [len(nics) for nics in over.values()] == [1] * 8
    assert len(set.union(*over.values())) == 8
