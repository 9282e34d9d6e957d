"""What is tried in turns."""

from __future__ import annotations

import pytest

from synth.candidates.transfers import transfers_of, with_count
from synth.candidates.turns import TurnedOver, turned_candidates
from synth.instance import Instance
from tests.graphs import instance_of, mesh, star, unequal_ring

POWERS = tuple(1 << k for k in range(11))
GB = 1 << 30
OVER_BOXES = TurnedOver(boxes=True, nics=True, by_time=True)


@pytest.mark.parametrize("name", ["broadcast", "reduce"])
def test_large_buffers_of_one_rank_come_in_turns(name: str) -> None:
    instance = instance_of(star(32), name, root=0)
    tried = turned_candidates(instance, "auto", POWERS, GB, OVER_BOXES)
    assert [(each.strategy, each.view, each.ordered) for each in tried] == [
        ("hierarchy-chain", None, "turns"),
        ("hierarchy-chain", "Simple", "turns"),
    ]
    # Sums take longer to simulate, so that they are cut less finely.
    assert {each.count for each in tried} == {512 if name == "reduce" else 1024}
    by_schedule = turned_candidates(instance, "auto", POWERS, GB, OVER_BOXES._replace(by_time=False))
    assert [(each.strategy, each.view, each.count) for each in by_schedule] == [("hierarchy-chain", None, 1024)]


@pytest.mark.parametrize("over", [OVER_BOXES, OVER_BOXES._replace(nics=False)])
def test_trees_over_boxes_are_packed_if_ranks_are_few_or_share_nics(over: TurnedOver) -> None:
    few, many = (instance_of(star(ranks), "broadcast", root=0) for ranks in (16, 32))
    tried, of_many = (turned_candidates(each, "auto", POWERS, GB, over) for each in (few, many))
    assert [(each.strategy, each.view, each.count) for each in tried] == [
        ("hierarchy-chain", None, 1024),
        ("trees", "Simple", 1024),
    ]
    assert {(each.strategy, each.count) for each in of_many} == (
        {("hierarchy-chain", 1024)} if over.nics else {("hierarchy-chain", 512), ("trees", 512)}
    )


def test_without_boxes_trees_come_for_links_and_for_connections() -> None:
    instance = instance_of(star(8), "broadcast", root=0)
    tried = turned_candidates(instance, "auto", POWERS, GB, OVER_BOXES._replace(boxes=False))
    assert [(each.strategy, each.view) for each in tried] == [("trees", "Simple"), ("trees", None)]


AROUND = OVER_BOXES._replace(rings=True)
#: The cut that counts for rings has twice as many chunks as any other.
FINER = (*POWERS, 2048, 4096)


@pytest.mark.parametrize(("boxes", "by_time"), [(True, True), (False, True), (True, False), (False, False)])
def test_rings_come_in_turns_where_sums_wait_for_one_rank_each(boxes: bool, by_time: bool) -> None:
    over = AROUND._replace(boxes=boxes, by_time=by_time)
    tried = turned_candidates(instance_of(star(16), "reduce", root=0), "auto", FINER, GB, over)
    assert (tried[-1].strategy, tried[-1].count, tried[-1].view, tried[-1].ordered) == ("rings", 2048, None, "turns")
    # Others' sums wait for each other, which an interpreter takes long to carry out: schedules do not know.
    assert {each.strategy for each in tried} - {"rings"} == (
        set() if by_time else {"trees", "hierarchy-chain"} if boxes else {"trees"}
    )


def test_rings_come_beside_trees_where_these_may_be_nearer() -> None:
    alone = AROUND._replace(boxes=False)
    for machine, name, expected in (
        (star(8), "broadcast", [("trees", None)]),
        (mesh(2, 4), "reduce", [("trees", "Simple")]),
        (unequal_ring(), "broadcast", [("trees", "Simple"), ("trees", None)]),
    ):
        tried = turned_candidates(instance_of(machine, name, root=0), "auto", FINER, GB, alone)
        assert [(each.strategy, each.view) for each in tried] == [*expected, ("rings", None)]


def test_rings_are_not_for_copies_over_boxes_nor_where_gpus_share_nics() -> None:
    instances = [instance_of(star(16), name, root=0) for name in ("broadcast", "reduce")]
    for instance, over in zip(instances, (AROUND, AROUND._replace(nics=False)), strict=True):
        tried = turned_candidates(instance, "auto", FINER, GB, over)
        assert {each.strategy for each in tried} == {"hierarchy-chain", "trees"}
        assert max(each.count for each in tried) <= 1024


def test_one_medium_buffer_comes_in_turns_over_shared_nics_and_around_rings_of_one_box() -> None:
    one = AROUND._replace(single=True)
    joined, apart = (instance_of(machine, "reduce", root=0) for machine in (star(16), mesh(2, 4)))
    shared, alone = one._replace(nics=False), one._replace(boxes=False)

    def tried(instance: Instance, over: TurnedOver, size_bytes: int) -> list[tuple[str, int]]:
        return [(each.strategy, each.count) for each in turned_candidates(instance, "auto", FINER, size_bytes, over)]

    # Messages of 128 kB and more.
    assert tried(joined, shared, 16 << 20) == tried(joined, shared, 16_000_000) == [("hierarchy-chain", 128)]
    assert tried(apart, alone, 64 << 20) == tried(apart, alone, 64_000_000) == [("rings", 512)]
    assert not any((tried(joined, one, 64 << 20), tried(joined, alone, 64 << 20), tried(apart, alone, 32 << 20)))
    assert not any((tried(joined, shared, 8 << 20), tried(joined, shared._replace(single=False), 64 << 20)))
    # A schedule waits for no message, so that the finest are the best.
    by_schedule = tried(joined, shared._replace(by_time=False), 16 << 20)
    assert by_schedule == [("hierarchy-chain", 1024), ("trees", 1024), ("rings", 2048)]


@pytest.mark.parametrize(
    ("strategy", "expected"), [("hierarchy", {"hierarchy-chain"}), ("trees", {"trees"}), ("greedy", set())]
)
def test_turns_are_of_the_strategy_that_is_asked_for(strategy: str, expected: set[str]) -> None:
    instance = instance_of(star(16), "broadcast", root=0)
    tried = turned_candidates(instance, strategy, POWERS, GB, AROUND)
    assert {each.strategy for each in tried} == expected


def test_nothing_else_comes_in_turns() -> None:
    small, shared = instance_of(star(8), "broadcast", root=0), instance_of(star(8), "allgather")
    assert turned_candidates(small, "auto", POWERS, 64 << 20, OVER_BOXES) == []
    assert turned_candidates(shared, "auto", POWERS, GB, OVER_BOXES) == []
    many = instance_of(star(136), "reduce", root=0)
    tried = turned_candidates(many, "auto", POWERS, GB, OVER_BOXES)
    assert all(transfers_of(with_count(many.collective, each.count)) <= 16_500 for each in tried)
    assert turned_candidates(many, "auto", POWERS[7:], GB, OVER_BOXES) == []
