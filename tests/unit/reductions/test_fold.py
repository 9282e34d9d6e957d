"""Boxes: which clusters have a rotation, and that what is made for one box's chunks holds for all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from synth.build import Builder, boxes_of
from synth.errors import CheckError
from synth.instance import Instance
from synth.ir import Routing, Schedule
from synth.ordering import Ordering
from synth.paths import find_paths
from synth.reductions.boxes import find_boxes, nodes_of
from synth.reductions.fold import Fold, chunk_images, fold
from synth.routing.hierarchy import HierarchyRouting
from synth.timing import check_routing, check_schedule
from synth.topology import Device, DeviceKind, Topology, restrict
from tests import folding
from tests.folding import unfolded
from tests.graphs import both_ways, dgx1, full, instance_of, ring, star, two_boxes


def cluster(box: Topology, nodes: int, nics: tuple[int, ...] = (0,), rate: float = 5.0) -> Topology:
    """`nodes` copies of a box in which the GPUs of `nics` have a NIC of their own, on one network."""
    return folding.cluster(box, nodes, tuple((rank, rate) for rank in nics))


def folded(topology: Topology, name: str, per_rank: int = 1) -> tuple[Instance, Fold]:
    instance = instance_of(topology, name, per_rank)
    boxes = boxes_of(topology, instance.paths)
    assert boxes is not None
    answer = fold(instance, boxes)
    assert answer is not None
    return instance, answer


def ordered(instance: Instance, answer: Fold) -> tuple[Routing, Schedule]:
    routing, _ = HierarchyRouting()(answer.instance, answer.boxes)
    schedule, _ = Ordering()(answer.instance, routing)
    return routing, schedule


@pytest.mark.parametrize("topology", [cluster(star(4), 3, (0, 2)), cluster(dgx1(), 2), cluster(ring(3), 5, (0, 1, 2))])
def test_the_rotation_takes_every_box_to_the_next(topology: Topology) -> None:
    paths = find_paths(topology)
    boxes = find_boxes(topology, paths)
    assert boxes is not None
    assert boxes.ranks == nodes_of(topology)
    rotation = boxes.rotation
    for here, there in zip(boxes.ranks, (*boxes.ranks[1:], boxes.ranks[0]), strict=True):
        assert tuple(rotation.ranks[rank] for rank in here) == there
    for path in paths:
        image = paths[rotation.paths[path.index]]
        assert image.links == tuple(rotation.links[link] for link in path.links)
        assert (image.src, image.dst) == (rotation.ranks[path.src], rotation.ranks[path.dst])
        assert (image.alpha_us, image.occupancy) == (path.alpha_us, path.occupancy)


def test_devices_in_another_order_are_found_by_search() -> None:
    topology = cluster(star(4), 3, (0, 2))
    moved = [device for device in topology.devices if device.id in ("nic0.1", "nic2.1")]
    rest = [device for device in topology.devices if device not in moved]
    shuffled = replace(topology, devices=(*rest, *reversed(moved)))
    boxes = find_boxes(shuffled, find_paths(shuffled))
    assert boxes is not None
    assert boxes.count == 3


def slower(topology: Topology, src: str) -> Topology:
    """The topology with every link out of `src` at half its rate."""
    links = tuple(replace(k, GBps=k.GBps / 2) if k.src == src else k for k in topology.links)
    return replace(topology, links=links)


@pytest.mark.parametrize(
    "topology",
    [
        star(4),
        slower(cluster(star(4), 3), "nic0.1"),
        slower(cluster(star(4), 3), "gpu3"),
        restrict(cluster(star(4), 2), range(7)),
    ],
    ids=["one box", "a slower nic", "a slower gpu", "unequal boxes"],
)
def test_no_boxes(topology: Topology) -> None:
    assert boxes_of(topology, find_paths(topology)) is None


@pytest.mark.parametrize("per_rank", [1, 3])
def test_what_is_made_for_one_box_is_feasible_for_all(per_rank: int) -> None:
    instance, answer = folded(cluster(dgx1(), 4, (0, 5)), "allgather", per_rank)
    routing, schedule = ordered(instance, answer)
    check_schedule(answer.instance, schedule, routing, answer.deciding)
    whole = answer.unfold(schedule)
    check_schedule(instance, whole, unfolded(answer, routing))
    assert whole.makespan_us == schedule.makespan_us
    assert len(whole.transfers()) == 32 * per_rank * 31
    assert len(answer.deciding) == 8 * per_rank


def test_the_check_of_one_boxes_chunks_wants_these_and_no_others() -> None:
    instance, answer = folded(cluster(star(3), 3), "allgather")
    routing, schedule = ordered(instance, answer)
    with pytest.raises(CheckError, match="does not reach"):
        check_routing(answer.instance, routing)
    with pytest.raises(CheckError, match="not to be routed"):
        check_routing(answer.instance, routing, answer.deciding[1:])
    late = [send._replace(start_us=0.0) for send in schedule.sends]
    with pytest.raises(CheckError):
        check_schedule(answer.instance, Schedule(tuple(late)), routing, answer.deciding)


def test_a_link_that_boxes_share_does_not_fold() -> None:
    topology = cluster(star(2), 3)
    devices = (*topology.devices, Device("core", DeviceKind.NETWORK, -1))
    links = tuple(replace(link, dst="core") if link.dst == "network" else link for link in topology.links) + tuple(
        both_ways("core", "network", 50.0, 0.5)
    )
    shared = replace(topology, devices=devices, links=links)
    instance = instance_of(shared, "allgather")
    boxes = boxes_of(shared, instance.paths)
    assert boxes is not None
    assert fold(instance, boxes) is None
    assert Builder(shared).boxed(instance.collective, 1e6, "ring") is None


def test_chunks_have_images_where_demands_have() -> None:
    topology = cluster(star(4), 3)
    paths = find_paths(topology)
    boxes = boxes_of(topology, paths)
    assert boxes is not None
    even = chunk_images(instance_of(topology, "allreduce", 24), boxes.rotation)
    assert even is not None
    assert even.tolist() == [*range(8, 24), *range(8)]
    assert chunk_images(instance_of(topology, "allreduce", 16), boxes.rotation) is None
    assert chunk_images(instance_of(topology, "broadcast", 4, root=0), boxes.rotation) is None


def test_boxes_of_two_described_side_by_side() -> None:
    topology = two_boxes(full(4), (0, 1))
    boxes = boxes_of(topology, find_paths(topology))
    assert boxes is not None
    assert boxes.ranks == ((0, 1, 2, 3), (4, 5, 6, 7))
