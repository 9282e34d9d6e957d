"""What is tried through equal boxes for what one rank sends or gets."""

from __future__ import annotations

import pytest

from synth.boxes import Boxes
from synth.candidates.chained import chained_candidates
from synth.candidates.hierarchy import hierarchy_candidates
from synth.candidates.transfers import is_large, transfers_of, with_count
from synth.instance import Symmetry
from tests.graphs import instance_of, star

POWERS = tuple(1 << k for k in range(9))
GB = 1 << 30


def boxes_of(size: int, count: int) -> Boxes:
    """So many boxes, whose paths and links do not matter here."""
    ranks = range(size * count)
    rotation = Symmetry(tuple((rank + size) % len(ranks) for rank in ranks), (), ())
    return Boxes(tuple(tuple(ranks[first : first + size]) for first in ranks[::size]), rotation)


@pytest.mark.parametrize("name", ["broadcast", "reduce"])
@pytest.mark.parametrize("count", [2, 8, 32])
def test_what_goes_through_boxes_is_cut_into_whole_ways(name: str, count: int) -> None:
    instance, boxes = instance_of(star(8 * count), name, root=0), boxes_of(8, count)
    counts = tuple(1 << k for k in range(12))
    tried = chained_candidates(instance, boxes, "auto", counts, GB, by_time=True)
    assert tried
    assert all(each.chained and not each.boxed for each in tried)
    assert {each.count % 16 for each in tried} == {0}
    most = 10_000 if name == "broadcast" else 20_000
    assert max(transfers_of(with_count(instance.collective, each.count)) for each in tried) <= most
    # A tree of boxes is worth its connections where the ring is long, and so are small tiles.
    assert {each.strategy for each in tried} == (
        {"hierarchy-chain", "hierarchy-two-trees"} if count >= 8 else {"hierarchy-chain"}
    )
    assert {each.view for each in tried} == ({"Simple", "LL128"} if count >= 8 else {"Simple"})
    assert [each.count for each in tried if each.view == "LL128"] == [32] * (count >= 8)
    assert chained_candidates(instance, boxes, "trees", counts, GB, by_time=True) == []
    assert hierarchy_candidates(instance, "auto", counts, GB, by_time=True) == []


@pytest.mark.parametrize("name", ["gather", "scatter"])
def test_what_one_rank_sends_or_gets_fans_out_where_a_flow_takes_long(name: str) -> None:
    few, many = instance_of(star(128), name, root=0), instance_of(star(136), name, root=0)
    assert not is_large(few.collective)
    assert chained_candidates(few, boxes_of(8, 16), "auto", POWERS, GB, by_time=True) == []
    assert is_large(many.collective)
    tried = chained_candidates(many, boxes_of(8, 17), "auto", POWERS, GB, by_time=True)
    assert [(each.strategy, each.count) for each in tried] == [("hierarchy-fan", 1), ("hierarchy-fan", 4)]
    assert chained_candidates(many, boxes_of(8, 17), "flow", POWERS, GB, by_time=True) == []
    asked = chained_candidates(few, boxes_of(8, 16), "hierarchy", POWERS, 1 << 10, by_time=True)
    assert [(each.strategy, each.count) for each in asked] == [("hierarchy-fan", 1)]


def test_what_goes_through_boxes_is_cut_less_for_small_buffers() -> None:
    instance, boxes = instance_of(star(16), "broadcast", root=0), boxes_of(8, 2)
    sizes = (1 << 10, 1 << 20, 1 << 24, GB)
    finest = [
        max(each.count for each in chained_candidates(instance, boxes, "auto", POWERS, size, by_time=True))
        for size in sizes
    ]
    assert finest == sorted(finest)
    assert finest[0] == 1
    (alone,) = chained_candidates(instance, boxes, "hierarchy", POWERS, GB, by_time=False)
    assert alone.view is None
    assert chained_candidates(instance_of(star(16), "allgather"), boxes, "auto", POWERS, GB, by_time=True) == []
