"""Chunks with one destination over equal boxes: loads by hand, gates, and what is refused."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from synth.bounds import bound_of
from synth.errors import NoAnswerError
from synth.inputs.load import load_topology
from synth.routing.across import AcrossRouting
from synth.routing.box import gates_of
from synth.timing import check_routing, link_loads_us
from synth.topology import replicate
from tests.folding import boxed, cluster, unfolded
from tests.graphs import dgx1, from_pairs, star

GB = 1e9


@pytest.mark.parametrize("nodes", [2, 3, 5])
def test_every_chunk_gets_where_it_belongs(nodes: int) -> None:
    instance, answer = boxed(cluster(dgx1(), nodes, ((0, 12.0), (5, 12.0))), "alltoall", 2, GB, "direct")
    routing, packing = AcrossRouting()(answer.instance, answer.boxes)
    whole = unfolded(answer, routing)
    check_routing(instance, whole)
    # Two NICs take a box's chunks for all others out: each one half.
    by_hand_us = 8 * 8 * (nodes - 1) / 2 * (GB / (8 * nodes)) / 12e3
    assert packing.load_us == pytest.approx(by_hand_us, rel=1e-3)
    assert max(link_loads_us(instance, [transfer.path for transfer in whole.transfers]).values()) == pytest.approx(
        by_hand_us, rel=1e-3
    )


def test_a_nic_of_three_times_the_rate_carries_three_times_as_much() -> None:
    _, answer = boxed(cluster(star(4, GBps=200.0), 3, ((0, 30.0), (1, 10.0))), "alltoall", 1, GB, "direct")
    routing, _ = AcrossRouting()(answer.instance, answer.boxes)
    box, place = answer.boxes.box_of, answer.boxes.place_of
    crossing = [answer.instance.paths[t.path] for t in routing.transfers]
    sent = Counter(place[path.src] for path in crossing if box[path.src] != box[path.dst])
    assert sent == {0: 24, 1: 8}


def test_of_gates_that_differ_in_their_nics_alone_one_is_used() -> None:
    """Two GPUs of a DGX A100 share a switch with two NICs, so that four ways lead to their like: one loads NICs as evenly."""
    instance, answer = boxed(replicate(load_topology("dgx-a100"), 3), "alltoall", 1, GB, "direct")
    gates = gates_of(answer.instance, answer.boxes, (1, 2))
    assert set(Counter((gate.src, gate.dst) for gate in gates).values()) == {4}
    routing, packing = AcrossRouting()(answer.instance, answer.boxes)
    used = {answer.instance.paths[transfer.path] for transfer in routing.transfers}
    box = answer.boxes.box_of
    ends = Counter((path.src, path.dst) for path in used if box[path.src] != box[path.dst])
    assert set(ends.values()) == {1}
    assert packing.load_us <= bound_of(instance.topology, instance.collective).time_us(GB) * 1.001


def test_chunks_for_several_ranks_are_refused() -> None:
    _, answer = boxed(cluster(star(2), 3, ((0, 10.0),)), "allgather", 1, GB, "direct")
    with pytest.raises(NoAnswerError, match="several ranks"):
        AcrossRouting()(answer.instance, answer.boxes)


def test_gpus_of_a_box_that_reach_each_other_over_the_network_alone_are_left_to_others() -> None:
    apart = cluster(from_pairs("apart", 2, []), 3, ((0, 10.0), (1, 10.0)))
    _, answer = boxed(apart, "alltoall", 1, GB, "direct")
    inside = [path for path in answer.instance.paths if answer.boxes.box_of[path.src] == answer.boxes.box_of[path.dst]]
    kept = tuple(path for path in answer.instance.paths if path not in inside)
    alone = replace(answer.instance, paths=tuple(replace(path, index=index) for index, path in enumerate(kept)))
    with pytest.raises(NoAnswerError, match="over other boxes only"):
        AcrossRouting()(alone, answer.boxes)
