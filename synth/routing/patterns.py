"""Patterns of boxes: along which trees chunks go from box to box in a cluster of equal ones (docs/formulation.md, section 11)."""

from __future__ import annotations

from collections.abc import Callable

#: By box, counted from a chunk's own, the one that it comes from; the own one comes from itself.
Parents = tuple[int, ...]


def _ring(count: int) -> tuple[Parents, ...]:
    """From every box to the next."""
    return ((0, *range(count - 1)),)


def _doubling(count: int) -> tuple[Parents, ...]:
    """From half as many boxes as have it then."""
    return ((0, *(box - (1 << (box.bit_length() - 1)) for box in range(1, count))),)


def _star(count: int) -> tuple[Parents, ...]:
    """From the own box to every other."""
    return ((0,) * count,)


def _two_trees(count: int) -> tuple[Parents, ...]:
    """Two binary trees, for every other chunk each: no box passes on in both, so that it sends as much as it receives."""
    others = count - 1

    def parent(place: int) -> int:
        """In a tree in order of places 1 to `others`, whose leaves are odd, and 0 above it."""
        bit = place & -place
        up = place ^ bit | bit << 1
        return up if up <= others else place ^ bit

    def box_at(place: int, shift: int) -> int:
        return (place - 1 + shift) % others + 1 if place else 0

    return tuple(
        (0, *(box_at(parent((box - 1 - shift) % others + 1), shift) for box in range(1, count)))
        for shift in range(min(2, others))
    )


_TREES: dict[str, Callable[[int], tuple[Parents, ...]]] = {
    "ring": _ring,
    "doubling": _doubling,
    "star": _star,
    "two-trees": _two_trees,
}
#: Where every box's chunks go to all: a ring needs a connection each way and as many hops as there are boxes, doubling log2 of the
#: boxes of either, a star one hop and as many connections as there are other boxes.
TO_ALL = ("ring", "doubling", "star")
#: Where chunks of one rank do: a ring from its box on, or trees of log2 of the boxes' hops.
FROM_ONE = ("ring", "two-trees")
#: No trees of boxes: chunks with one destination go straight from every box to every other.
DIRECT = "direct"


def trees_of_boxes(pattern: str, count: int) -> tuple[Parents, ...]:
    """The trees of a pattern over `count` boxes, between which chunks take turns."""
    return _TREES[pattern](count)


def strides(pattern: str, count: int) -> list[int]:
    """How many boxes on the pattern's hops lead, in a cluster of `count` boxes; ascending."""
    if pattern == DIRECT:
        return list(range(1, count))
    trees = trees_of_boxes(pattern, count)
    return sorted({(box - parents[box]) % count for parents in trees for box in range(1, count)})
