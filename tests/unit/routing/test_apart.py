"""Paths that keep apart: fewer of those that meet, over which as much can be carried."""

from __future__ import annotations

from collections import Counter

import pytest

from synth.build import boxes_of
from synth.inputs.load import load_topology
from synth.instance import Instance
from synth.paths import strongly_connected
from synth.routing.apart import PathsApart
from synth.routing.joint import JointMaster, JointRouting
from synth.routing.packing import TreePacking
from synth.topology import Device, DeviceKind, Topology, replicate
from tests.graphs import both_ways, gpus, instance_of, mesh, star

#: What the busiest link may carry more, and what a packing misses of the least load.
LOSS = 1.0 + PathsApart().loss + 2 * TreePacking().gap


def solved(machine: str, name: str) -> tuple[Instance, frozenset[int]]:
    """An instance of a machine of the catalogue, as it is packed, and its paths that keep apart."""
    instance = instance_of(load_topology(machine), name)
    return (instance.reversed() if instance.collective.combining else instance), PathsApart()(instance)


def shared_links(instance: Instance, paths: frozenset[int]) -> int:
    """How many links more than one of the paths crosses."""
    on = Counter(link for path in paths for link in instance.paths[path].links)
    return sum(count > 1 for count in on.values())


@pytest.mark.parametrize("name", ["allgather", "reduce-scatter"])
@pytest.mark.parametrize("machine", ["mi50x8", "a100-pcie6", "pcie-2x2-nvlink"])
def test_no_two_share_a_link_where_as_much_can_be_carried_so(machine: str, name: str) -> None:
    instance, kept = solved(machine, name)
    assert shared_links(instance, kept) == 0 < shared_links(instance, frozenset(range(len(instance.paths))))
    assert TreePacking()(instance, paths=kept).load_us <= TreePacking()(instance).load_us * LOSS


@pytest.mark.parametrize("machine", ["mi100x8", "pcie8-1nic"])
def test_fewer_share_links_where_some_have_to(machine: str) -> None:
    instance, kept = solved(machine, "allgather")
    assert 0 < shared_links(instance, kept) < shared_links(instance, frozenset(range(len(instance.paths)))) / 2
    assert TreePacking()(instance, paths=kept).load_us <= TreePacking()(instance).load_us * LOSS


def test_trees_go_over_the_paths_that_they_may_use() -> None:
    instance, kept = solved("mi50x8", "allgather")
    packing = TreePacking()(instance, paths=kept)
    assert {path for column in packing.columns for path in column.paths} <= kept
    assert sum(column.amount for column in packing.columns) == pytest.approx(instance.num_ranks)


def test_an_allreduce_has_one_set_of_paths_for_its_sums_and_its_copies() -> None:
    instance = instance_of(load_topology("mi50x8"), "allreduce", 8)
    kept = PathsApart()(instance)
    for each in (instance, instance.reversed()):
        assert TreePacking()(each, paths=kept).load_us <= TreePacking()(each).load_us * LOSS
    ends = {(instance.paths[path].src, instance.paths[path].dst) for path in kept}
    assert ends == {(dst, src) for src, dst in ends}


@pytest.mark.parametrize("topology", [mesh(3, 3), star(4)], ids=lambda t: t.name)
def test_every_direct_link_is_kept_and_every_rank_reaches_all(topology: Topology) -> None:
    instance = instance_of(topology, "allgather")
    kept = PathsApart()(instance)
    direct = {path.index for path in instance.paths if len(path.links) == 1}
    assert direct <= kept
    ends = [(instance.paths[path].src, instance.paths[path].dst) for path in kept]
    assert strongly_connected(instance.num_ranks, ends) is None


def test_what_meets_in_a_narrow_link_is_left_to_one_path() -> None:
    """Two pairs of GPUs with NVLinks, all behind one switch each, and a narrow link between the switches."""
    links = both_ways("gpu0", "gpu1", 50.0) + both_ways("gpu2", "gpu3", 50.0) + both_ways("plx0", "plx1", 5.0)
    for rank in range(4):
        links += both_ways(f"gpu{rank}", f"plx{rank // 2}", 20.0)
    switches = (Device("plx0", DeviceKind.PCIE_SWITCH), Device("plx1", DeviceKind.PCIE_SWITCH))
    instance = instance_of(Topology("pairs", (*gpus(4), *switches), tuple(links)), "allgather")
    kept = PathsApart()(instance)
    crossing = [path for path in kept if {instance.paths[path].src // 2, instance.paths[path].dst // 2} == {0, 1}]
    assert len(crossing) == 2
    assert shared_links(instance, kept) == 0


@pytest.mark.parametrize("name", ["allgather", "reduce-scatter", "allreduce"])
def test_turned_boxes_keep_the_same_paths_and_carry_as_much(name: str) -> None:
    topology = replicate(load_topology("mi50x8"), 2)
    instance = instance_of(topology, name, 16 if name == "allreduce" else 1)
    boxes = boxes_of(topology, instance.paths)
    assert boxes is not None
    kept = PathsApart()(instance, boxes.rotation)
    assert kept == {boxes.rotation.paths[path] for path in kept}
    assert shared_links(instance, kept) == 0
    assert len(kept) < len(instance.paths) / 2
    solved = instance.reversed() if instance.collective.combining else instance
    assert TreePacking()(solved, paths=kept).load_us <= TreePacking()(solved).load_us * LOSS


@pytest.mark.parametrize("machine", ["mi100x8", "a100-pcie6"])
def test_what_does_for_all_ranks_alike_does_for_free_roots_if_it_carries_as_much(machine: str) -> None:
    instance = instance_of(load_topology(machine), "allreduce", 24)
    alike = PathsApart()(instance)
    assert JointRouting()(instance, alike).load_us <= JointRouting()(instance).load_us * LOSS
    assert PathsApart().with_free_roots(instance, alike) == alike


@pytest.mark.parametrize("boxes", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_free_roots_have_paths_of_their_own_where_those_for_all_ranks_alike_carry_less(boxes: int) -> None:
    """Of four boxes a ring is enough for ranks alike; of free roots it would leave a fifth."""
    topology = replicate(load_topology("pcie8-1nic"), boxes)
    instance = instance_of(topology, "allreduce", 8 * boxes, 1e9 / (8 * boxes))
    turned = boxes_of(topology, instance.paths)
    assert turned is not None
    alike = PathsApart()(instance, turned.rotation)
    kept = PathsApart().with_free_roots(instance, alike, turned.rotation)
    least = JointMaster(instance).least_us(60, TreePacking().gap)
    assert JointMaster(instance, kept).least_us(60, TreePacking().gap) <= least * LOSS
    assert (kept == alike) == (boxes == 2)
    assert len(kept) < len(instance.paths) / 6
    if boxes == 4:
        assert JointMaster(instance, alike).least_us(60, TreePacking().gap) > least * 1.2


def test_the_same_machine_gives_the_same_paths() -> None:
    assert solved("mi100x8", "allgather")[1] == solved("mi100x8", "allgather")[1]
