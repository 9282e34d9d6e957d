"""What is cut finer where nothing coarser is near the limit."""

from __future__ import annotations

import pytest

from synth.candidates.candidate import LARGE_VIEW
from synth.candidates.finer import finer_candidates, finer_lists, finer_sums
from synth.candidates.lean import lean_candidates
from synth.candidates.scheduled import candidates
from synth.candidates.transfers import transfers_of, with_count
from synth.collective import ROOTED
from synth.topology import Topology
from tests.graphs import dgx1, instance_of, mesh, star, two_switches

POWERS = tuple(1 << k for k in range(9))
KB, MB, GB = 1 << 10, 1 << 20, 1 << 30


@pytest.mark.parametrize("name", ["allgather", "reduce-scatter", "allreduce"])
def test_where_schedules_decide_finer_cuts_are_as_fine_as_a_runtime_reads(name: str) -> None:
    instance = instance_of(star(16), name)
    counts = (*POWERS, 512, 1024, 2048)
    finest = max(
        count for count in counts if transfers_of(with_count(instance.collective, count)) <= 2_000 * instance.num_ranks
    )
    tried = finer_candidates(instance, "auto", counts, GB, boxes=False, joint=False, latency_counts=False)
    assert [(each.strategy, each.view, each.in_rounds) for each in tried] == [
        ("trees", None, False),
        ("trees", LARGE_VIEW, True),
    ]
    assert {each.count for each in tried} == {finest}
    assert finest > max(each.count for each in candidates(instance, "auto", counts, GB, single=True))
    joint = finer_candidates(instance, "auto", counts, GB, boxes=False, joint=True, latency_counts=False)
    assert {(each.strategy, each.in_rounds) for each in joint} == {("joint", False), ("joint", True)}
    # Chunks that are nothing beside their latency are not cut.
    assert finer_candidates(instance, "auto", counts, KB, boxes=False, joint=False, latency_counts=False) == []


@pytest.mark.parametrize(("side", "finest"), [(4, 512), (5, 512), (8, 512), (2, 1024)])
def test_free_roots_are_cut_as_finely_as_the_middle_of_a_mesh_reads(side: int, finest: int) -> None:
    """A rank in the middle has four ways where one has three at the mean, so that it reads a third more."""
    instance = instance_of(mesh(side, side), "allreduce")
    counts = (*POWERS, 512, 1024, 2048)
    tried = finer_candidates(instance, "trees", counts, 4 * GB, boxes=False, joint=True, latency_counts=False)
    assert {(each.strategy, each.count) for each in tried} == {("joint", finest)}
    middle = 2 * transfers_of(with_count(instance.collective, finest)) * min(4, 2 * side - 2) / len(instance.paths)
    assert middle <= 4_000


def test_finer_cuts_follow_the_strategy_and_the_boxes() -> None:
    instance = instance_of(star(16), "allgather")
    made = {
        strategy: [
            each.strategy
            for each in finer_candidates(instance, strategy, POWERS, GB, boxes=True, joint=False, latency_counts=False)
        ]
        for strategy in ("auto", "trees", "hierarchy", "greedy")
    }
    assert made == {
        "auto": ["hierarchy-ring", "trees", "trees"],
        "trees": ["trees", "trees"],
        "hierarchy": ["hierarchy-ring"],
        "greedy": [],
    }
    broadcast = instance_of(star(4), "broadcast", root=0)
    assert finer_candidates(broadcast, "auto", POWERS, GB, boxes=False, joint=False, latency_counts=False) == []


@pytest.mark.parametrize("name", ["alltoall", "gather"])
def test_where_schedules_decide_a_flow_is_cut_once_more(name: str) -> None:
    """As finely as is made in seconds; boxes have flows of their own."""
    instance = instance_of(star(16), name, root=0 if name in ROOTED else None)

    def tried(strategy: str, boxes: bool) -> list[tuple[str, int]]:
        found = finer_candidates(instance, strategy, POWERS, GB, boxes=boxes, joint=False, latency_counts=False)
        return [(each.strategy, each.count) for each in found]

    finest = {"alltoall": 16, "gather": 256}[name]
    assert tried("auto", False) == tried("flow", False) == [("flow", finest)]
    assert tried("auto", True) == tried("greedy", False) == []


def test_where_latency_counts_the_greedy_is_tried_on_what_flows_leave_far_from_the_limit() -> None:
    """On a 3x3 torus, 32 KB: the flow's paths are even, but not in step. Boxes, and what bandwidth decides, are left to flows."""
    instance = instance_of(mesh(3, 3), "alltoall")

    def tried(strategy: str, *, boxes: bool, latency_counts: bool) -> list[tuple[str, int]]:
        found = finer_candidates(
            instance, strategy, POWERS, 32 * KB, boxes=boxes, joint=False, latency_counts=latency_counts
        )
        return [(each.strategy, each.count) for each in found]

    assert tried("auto", boxes=False, latency_counts=True) == [
        ("greedy", 1),
        ("greedy", 2),
        ("greedy", 8),
        ("greedy", 16),
        ("flow", 4),
    ]
    assert tried("auto", boxes=True, latency_counts=True) == []
    assert tried("auto", boxes=False, latency_counts=False) == [("flow", 4)]
    assert tried("flow", boxes=False, latency_counts=True) == [("flow", 4)]


def test_where_latency_counts_copies_and_sums_are_cut_finely_for_the_greedy() -> None:
    """Parts follow each other from hop to hop, the sooner the smaller they are; of many ranks as many as are routed in seconds,
    unless boxes or free roots leave something better.
    """

    def tried(topology: Topology, name: str, size: int = 64 * KB, **kwargs: bool) -> list[int]:
        asked = {"boxes": False, "joint": False, "latency_counts": True} | kwargs
        found = finer_candidates(instance_of(topology, name), "auto", POWERS, size, **asked)
        return [each.count for each in found if each.strategy == "greedy"]

    assert tried(mesh(3, 3), "allgather") == [16, 32]
    assert tried(mesh(4, 4), "allreduce") == [64, 128]
    assert tried(mesh(3, 3), "allgather", latency_counts=False) == []
    assert tried(star(17), "allgather", MB) == [16, 32]
    assert tried(mesh(8, 8), "allgather", MB) == [2, 4]
    assert tried(mesh(8, 8), "allreduce", MB) == [128, 256]
    assert tried(mesh(8, 8), "allgather", MB, boxes=True) == []
    assert tried(mesh(8, 8), "allreduce", MB, joint=True) == []


def test_large_sums_are_listed_finer_where_no_ways_meet_and_elsewhere_for_links_alone() -> None:
    """As finely as a runtime reads: 1,024 chunks of eight ranks, of which there is nothing finer than itself."""
    counts, finer = POWERS, (*POWERS, 512, 1024, 2048)
    apart, crowded = (instance_of(machine, "allreduce") for machine in (dgx1(), two_switches(8)))
    for instance, found, others, view in (
        (apart, finer_lists, finer_sums, LARGE_VIEW),
        (crowded, finer_sums, finer_lists, None),
    ):
        planned = lean_candidates(instance, counts, GB, single=True)
        (made,) = found(instance, finer, planned)
        assert (made.strategy, made.count, made.view, made.in_rounds) == ("trees", 1024, view, False)
        assert found(instance, finer, [made]) == []
        assert others(instance, finer, planned) == []
