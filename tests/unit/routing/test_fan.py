"""Chunks of one rank, or for one, straight between its box and every other: loads by hand, any root, and what is refused."""

from __future__ import annotations

from collections import Counter

import pytest

from synth.bounds import bound_of
from synth.boxes import Boxes
from synth.build import Builder
from synth.collective import Collective, CollectiveName
from synth.errors import NoAnswerError
from synth.inputs.load import load_topology
from synth.instance import Instance
from synth.paths import find_paths
from synth.routing.fan import FanRouting
from synth.routing.patterns import DIRECT
from synth.timing import check_routing, link_loads_us
from synth.topology import Topology, replicate
from tests.folding import cluster
from tests.graphs import dgx1, star

GB = 1e9
EITHER_WAY = [CollectiveName.SCATTER, CollectiveName.GATHER]


def instance_of(topology: Topology, name: CollectiveName, chunks: int, root: int = 0) -> tuple[Instance, Boxes]:
    collective = Collective(name, topology.num_ranks, chunks * topology.num_ranks, root)
    found = Builder(topology).boxed(collective, GB, DIRECT)
    assert found is not None
    return found


@pytest.mark.parametrize("name", EITHER_WAY)
@pytest.mark.parametrize("nodes", [2, 3, 6])
@pytest.mark.parametrize("root", [0, 5, 9])
def test_every_chunk_crosses_between_boxes_once(name: CollectiveName, nodes: int, root: int) -> None:
    topology = cluster(dgx1(), nodes, ((0, 12.0), (5, 12.0)))
    instance, boxes = instance_of(topology, name, 2, root)
    routing, _ = FanRouting()(instance, boxes)
    check_routing(instance, routing)
    box = boxes.box_of
    paths = [(chunk, instance.paths[path]) for chunk, path, *_ in routing.transfers]
    crossed = Counter(chunk for chunk, path in paths if box[path.src] != box[path.dst])
    assert set(crossed.values()) == {1}
    assert len(crossed) == 2 * 8 * (nodes - 1)


@pytest.mark.parametrize("name", EITHER_WAY)
@pytest.mark.parametrize("nodes", [2, 4, 5])
def test_the_roots_box_and_the_others_carry_what_they_can(name: CollectiveName, nodes: int) -> None:
    """One NIC of 30 and one of 10 GB/s: a box has four shares of four chunks, and 12 of these 16 go over the first."""
    instance, boxes = instance_of(cluster(star(4, GBps=200.0), nodes, ((0, 30.0), (1, 10.0))), name, 4)
    routing, packing = FanRouting()(instance, boxes)
    by_hand_us = (nodes - 1) / nodes * GB / 40e3
    assert packing.load_us == pytest.approx(by_hand_us, rel=1e-3)
    busiest = max(link_loads_us(instance, [transfer.path for transfer in routing.transfers]).values())
    assert busiest == pytest.approx(by_hand_us, rel=1e-3)


@pytest.mark.parametrize("name", EITHER_WAY)
def test_a_cluster_of_dgx_a100_is_loaded_as_its_cut_says(name: CollectiveName) -> None:
    topology = replicate(load_topology("dgx-a100"), 4)
    instance, boxes = instance_of(topology, name, 4, 11)
    routing, _ = FanRouting()(instance, boxes)
    busiest_us = max(link_loads_us(instance, [t.path for t in routing.transfers]).values())
    bound = bound_of(topology, instance.collective, find_paths(topology))
    assert busiest_us <= bound.us_per_byte * GB * 1.001


@pytest.mark.parametrize("name", [CollectiveName.BROADCAST, CollectiveName.ALLTOALL])
def test_chunks_for_several_and_of_several_are_refused(name: CollectiveName) -> None:
    collective = Collective(name, 6, 6, 0 if name is CollectiveName.BROADCAST else None)
    found = Builder(cluster(star(2), 3, ((0, 10.0),))).boxed(collective, GB, DIRECT)
    assert found is not None
    with pytest.raises(NoAnswerError, match="not all of one rank or for one"):
        FanRouting()(*found)
