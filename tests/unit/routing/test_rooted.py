"""Chunks from one rank through equal boxes: loads by hand, any root, and what is refused."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from synth.bounds import bound_of
from synth.boxes import Boxes
from synth.build import Builder
from synth.collective import Collective, CollectiveName
from synth.errors import NoAnswerError
from synth.inputs.load import load_topology
from synth.instance import Instance
from synth.routing.patterns import FROM_ONE
from synth.routing.rooted import RootedRouting
from synth.timing import check_routing, link_loads_us
from synth.topology import Topology, replicate
from tests.folding import cluster
from tests.graphs import dgx1, star

GB = 1e9


def instance_of(topology: Topology, pattern: str, chunks: int, root: int = 0) -> tuple[Instance, Boxes]:
    collective = Collective(CollectiveName.BROADCAST, topology.num_ranks, chunks, root)
    found = Builder(topology).boxed(collective, GB, pattern)
    assert found is not None
    return found


def busiest_us(instance: Instance, paths: list[int]) -> float:
    return max(link_loads_us(instance, paths).values())


@pytest.mark.parametrize("pattern", FROM_ONE)
@pytest.mark.parametrize("nodes", [2, 3, 6])
@pytest.mark.parametrize("root", [0, 5, 9])
def test_every_rank_gets_every_chunk_once(pattern: str, nodes: int, root: int) -> None:
    topology = cluster(dgx1(), nodes, ((0, 12.0), (5, 12.0)))
    instance, boxes = instance_of(topology, pattern, 8, root)
    routing, _ = RootedRouting(pattern)(instance, boxes)
    check_routing(instance, routing)
    into = Counter((transfer.chunk, instance.paths[transfer.path].dst) for transfer in routing.transfers)
    assert set(into.values()) == {1}
    assert len(into) == 8 * (8 * nodes - 1)


@pytest.mark.parametrize("pattern", FROM_ONE)
@pytest.mark.parametrize("nodes", [2, 4, 5])
def test_nics_carry_what_they_can(pattern: str, nodes: int) -> None:
    """One NIC of 30 and one of 10 GB/s: of 16 chunks 12 and 4 come in, and as many go out, on every box but the ends."""
    instance, boxes = instance_of(cluster(star(4, GBps=200.0), nodes, ((0, 30.0), (1, 10.0))), pattern, 16)
    routing, packing = RootedRouting(pattern)(instance, boxes)
    by_hand_us = GB / 40e3
    assert packing.load_us == pytest.approx(by_hand_us, rel=1e-3)
    assert busiest_us(instance, [transfer.path for transfer in routing.transfers]) == pytest.approx(
        by_hand_us, rel=1e-3
    )


@pytest.mark.parametrize("pattern", FROM_ONE)
def test_a_cluster_of_dgx_a100_is_loaded_as_its_cut_says(pattern: str) -> None:
    topology = replicate(load_topology("dgx-a100"), 4)
    instance, boxes = instance_of(topology, pattern, 32)
    routing, _ = RootedRouting(pattern)(instance, boxes)
    bound = bound_of(topology, instance.collective)
    assert busiest_us(instance, [t.path for t in routing.transfers]) <= bound.us_per_byte * GB * 1.001


def test_chunks_of_several_ranks_are_refused() -> None:
    topology = cluster(star(2), 3, ((0, 10.0),))
    found = Builder(topology).boxed(Collective(CollectiveName.ALLGATHER, 6, 6), GB, "ring")
    assert found is not None
    with pytest.raises(NoAnswerError, match="do not go from one rank to all"):
        RootedRouting()(*found)


def test_boxes_without_a_way_to_the_next_are_left_to_others() -> None:
    instance, boxes = instance_of(cluster(star(2), 3, ((0, 10.0),)), "ring", 2)
    kept = [path for path in instance.paths if boxes.box_of[path.src] == boxes.box_of[path.dst]]
    alone = replace(instance, paths=tuple(replace(path, index=index) for index, path in enumerate(kept)))
    moved = tuple(kept.index(instance.paths[boxes.rotation.paths[path.index]]) for path in kept)
    with pytest.raises(NoAnswerError, match="no path leads"):
        RootedRouting("ring")(alone, replace(boxes, rotation=replace(boxes.rotation, paths=moved)))
