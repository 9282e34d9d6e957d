"""What is tried in turns."""

from __future__ import annotations

import pytest

from synth.candidates.transfers import transfers_of, with_count
from synth.candidates.turns import turned_candidates
from tests.graphs import instance_of, star

POWERS = tuple(1 << k for k in range(11))
GB = 1 << 30


@pytest.mark.parametrize("name", ["broadcast", "reduce"])
def test_large_buffers_of_one_rank_come_in_turns(name: str) -> None:
    instance = instance_of(star(32), name, root=0)
    tried = turned_candidates(instance, "auto", POWERS, GB, boxes=True, by_time=True)
    assert [(each.strategy, each.view, each.ordered) for each in tried] == [
        ("hierarchy-chain", None, "turns"),
        ("trees", "Simple", "turns"),
    ]
    # Sums take longer to simulate, so that they are cut less finely.
    assert {each.count for each in tried} == {512 if name == "reduce" else 1024}
    by_schedule = turned_candidates(instance, "auto", POWERS, GB, boxes=True, by_time=False)
    assert [(each.strategy, each.view) for each in by_schedule] == [("hierarchy-chain", None), ("trees", None)]
    assert {each.count for each in by_schedule} == {1024}


def test_without_boxes_trees_come_for_links_and_for_connections() -> None:
    instance = instance_of(star(8), "broadcast", root=0)
    tried = turned_candidates(instance, "auto", POWERS, GB, boxes=False, by_time=True)
    assert [(each.strategy, each.view) for each in tried] == [("trees", "Simple"), ("trees", None)]


@pytest.mark.parametrize(
    ("strategy", "expected"), [("hierarchy", {"hierarchy-chain"}), ("trees", {"trees"}), ("greedy", set())]
)
def test_turns_are_of_the_strategy_that_is_asked_for(strategy: str, expected: set[str]) -> None:
    instance = instance_of(star(16), "broadcast", root=0)
    tried = turned_candidates(instance, strategy, POWERS, GB, boxes=True, by_time=True)
    assert {each.strategy for each in tried} == expected


def test_nothing_else_comes_in_turns() -> None:
    small, shared = instance_of(star(8), "broadcast", root=0), instance_of(star(8), "allgather")
    assert turned_candidates(small, "auto", POWERS, 64 << 20, boxes=True, by_time=True) == []
    assert turned_candidates(shared, "auto", POWERS, GB, boxes=True, by_time=True) == []
    many = instance_of(star(512), "reduce", root=0)
    tried = turned_candidates(many, "auto", POWERS, GB, boxes=True, by_time=True)
    assert all(transfers_of(with_count(many.collective, each.count)) <= 16_500 for each in tried)
    assert turned_candidates(many, "auto", POWERS[7:], GB, boxes=True, by_time=True) == []
