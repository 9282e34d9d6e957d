"""Trees of boxes: which they are by hand, how deep, and that of two trees no box passes on in both."""

from __future__ import annotations

from collections import Counter

import pytest

from synth.routing.patterns import DIRECT, FROM_ONE, TO_ALL, Parents, strides, trees_of_boxes


@pytest.mark.parametrize(("pattern", "count", "expected"), [
    ("ring", 5, [1]),
    ("doubling", 2, [1]),
    ("doubling", 5, [1, 2, 4]),
    ("doubling", 8, [1, 2, 4]),
    ("star", 2, [1]),
    ("star", 5, [1, 2, 3, 4]),
    ("two-trees", 2, [1]),
    ("two-trees", 3, [1, 2]),
    ("two-trees", 5, [1, 2, 3, 4]),
    (DIRECT, 4, [1, 2, 3]),
])  # fmt: skip
def test_strides(pattern: str, count: int, expected: list[int]) -> None:
    assert strides(pattern, count) == expected


def depth(parents: Parents) -> int:
    """Hops to the box that is farthest from the first; fails where some box is not reached."""
    hops = {0: 0}
    for _ in parents:
        hops |= {box: hops[parent] + 1 for box, parent in enumerate(parents) if box and parent in hops}
    assert len(hops) == len(parents)
    return max(hops.values())


@pytest.mark.parametrize("pattern", sorted({*TO_ALL, *FROM_ONE}))
@pytest.mark.parametrize("count", [2, 3, 4, 7, 8, 32, 33])
def test_every_box_is_reached_in_the_hops_that_a_pattern_needs(pattern: str, count: int) -> None:
    most = {
        "ring": count - 1,
        "doubling": count.bit_length() - 1,
        "star": 1,
        "two-trees": (count - 1).bit_length(),
    }
    assert max(map(depth, trees_of_boxes(pattern, count))) == most[pattern]


@pytest.mark.parametrize("count", range(3, 40))
def test_of_two_trees_no_box_passes_on_in_both(count: int) -> None:
    first, second = (Counter(parents[1:]) for parents in trees_of_boxes("two-trees", count))
    assert not (first.keys() & second.keys()) - {0}
    # The first box sends every chunk once; the others at most two copies of every other one.
    assert first[0] == second[0] == 1
    assert max([*first.values(), *second.values()]) <= 2
