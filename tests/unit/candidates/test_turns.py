"""What is tried in turns."""

from __future__ import annotations

import pytest

from synth.candidates.transfers import transfers_of, with_count
from synth.candidates.turns import TurnedOver, turned_candidates
from tests.graphs import instance_of, star

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


@pytest.mark.parametrize(
    ("strategy", "expected"), [("hierarchy", {"hierarchy-chain"}), ("trees", {"trees"}), ("greedy", set())]
)
def test_turns_are_of_the_strategy_that_is_asked_for(strategy: str, expected: set[str]) -> None:
    instance = instance_of(star(16), "broadcast", root=0)
    tried = turned_candidates(instance, strategy, POWERS, GB, OVER_BOXES)
    assert {each.strategy for each in tried} == expected


def test_nothing_else_comes_in_turns() -> None:
    small, shared = instance_of(star(8), "broadcast", root=0), instance_of(star(8), "allgather")
    assert turned_candidates(small, "auto", POWERS, 64 << 20, OVER_BOXES) == []
    assert turned_candidates(shared, "auto", POWERS, GB, OVER_BOXES) == []
    many = instance_of(star(136), "reduce", root=0)
    tried = turned_candidates(many, "auto", POWERS, GB, OVER_BOXES)
    assert all(transfers_of(with_count(many.collective, each.count)) <= 16_500 for each in tried)
    assert turned_candidates(many, "auto", POWERS[7:], GB, OVER_BOXES) == []
