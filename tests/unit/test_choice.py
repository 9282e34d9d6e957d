"""The split of a size range against all splits there are."""

from __future__ import annotations

import math
from itertools import combinations, pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.choice import _FILE_PENALTY, Segment, split_range

Costs = list[dict[int, float]]


def total(sizes: list[int], costs: Costs, segments: list[Segment]) -> float:
    """The price of a split: log costs, and a little for each file."""
    logs = sum(math.log(costs[s.candidate][size]) for s in segments for size in sizes[s.first : s.last + 1])
    return logs + _FILE_PENALTY * len(segments)


def every_split(sizes: list[int], costs: Costs, max_files: int) -> list[list[Segment]]:
    """All ways to cut the range into runs, and all candidates that can serve each run."""
    splits = []
    for files in range(1, min(max_files, len(sizes)) + 1):
        for cuts in combinations(range(1, len(sizes)), files - 1):
            edges = [0, *cuts, len(sizes)]
            for chosen in product(range(len(costs)), repeat=files):
                split = [Segment(k, edges[i], edges[i + 1] - 1) for i, k in enumerate(chosen)]
                if all(size in costs[s.candidate] for s in split for size in sizes[s.first : s.last + 1]):
                    splits.append(split)
    return splits


@settings(max_examples=150)
@given(data=st.data(), count=st.integers(1, 5), max_files=st.integers(1, 3))
def test_no_split_is_cheaper(data: st.DataObject, count: int, max_files: int) -> None:
    sizes = [1 << k for k in range(count)]
    cost = st.sampled_from([0.5, 1.0, 1.01, 1.2, 3.0, 10.0])
    some = st.one_of(st.fixed_dictionaries(dict.fromkeys(sizes, cost)), st.dictionaries(st.sampled_from(sizes), cost))
    costs = data.draw(st.lists(some, min_size=1, max_size=3))
    splits = every_split(sizes, costs, max_files)
    segments = split_range(sizes, costs, max_files)
    if not splits:
        assert segments == []
        return
    assert [size for s in segments for size in sizes[s.first : s.last + 1]] == sizes
    assert len(segments) <= max_files
    assert total(sizes, costs, segments) == pytest.approx(min(total(sizes, costs, split) for split in splits))
    assert all(a.candidate != b.candidate for a, b in pairwise(segments))


def test_the_cheapest_at_each_end_serves_its_end() -> None:
    latency, bandwidth = {1: 1.0, 2: 2.0, 4: 4.0, 8: 8.0}, {1: 3.0, 2: 3.0, 4: 3.0, 8: 3.0}
    assert split_range([1, 2, 4, 8], [latency, bandwidth], 4) == [Segment(0, 0, 1), Segment(1, 2, 3)]


def test_a_file_that_saves_almost_nothing_is_not_worth_it() -> None:
    first, second = {1: 1.0, 2: 1.0}, {1: 2.0, 2: 1.0 - _FILE_PENALTY / 2}
    assert split_range([1, 2], [first, second], 4) == [Segment(0, 0, 1)]


def test_sizes_count_alike_by_what_is_saved_of_each() -> None:
    # The first halves the small size, the second saves a fifth of the large one, which is more us.
    assert split_range([1, 2], [{1: 1.0, 2: 10.0}, {1: 2.0, 2: 8.0}], 1) == [Segment(0, 0, 1)]


def test_one_file_takes_the_best_compromise() -> None:
    small, large, both = {1: 1.0, 2: 100.0}, {1: 100.0, 2: 1.0}, {1: 2.0, 2: 2.0}
    assert split_range([1, 2], [small, large, both], 1) == [Segment(2, 0, 1)]
    assert split_range([1, 2], [small, large, both], 2) == [Segment(0, 0, 0), Segment(1, 1, 1)]


def test_a_size_that_nobody_serves_leaves_no_split() -> None:
    assert split_range([1, 2, 4], [{1: 1.0, 4: 1.0}], 4) == []
    assert split_range([1, 2], [], 4) == []


def test_to_be_behind_others_counts_for_more_than_to_be_behind_oneself() -> None:
    first, second = {1: 1.0, 2: 1.1}, {1: 1.03, 2: 1.0}
    assert split_range([1, 2], [first, second], 1) == [Segment(1, 0, 1)]
    assert split_range([1, 2], [first, second], 1, {2: 1.2}) == [Segment(1, 0, 1)]
    assert split_range([1, 2], [first, second], 1, {1: 1.0}) == [Segment(0, 0, 1)]
