"""Clusters of equal boxes: which rank stands at which place of which box, and the rotation that takes every box to the next."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from synth.instance import Symmetry

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Boxes:
    """`ranks[b][i]` is the rank at place i of box b; `rotation` is a symmetry that takes it to place i of box b + 1, the
    last box's to box 0. Its powers make a group of as many members as there are boxes, which leaves no rank in place.
    """

    ranks: tuple[tuple[int, ...], ...]
    rotation: Symmetry

    @property
    def count(self) -> int:
        """How many boxes there are."""
        return len(self.ranks)

    @property
    def size(self) -> int:
        """How many ranks a box has."""
        return len(self.ranks[0])

    def starting_at(self, rank: int) -> Boxes:
        """The boxes in their order, that of a rank first."""
        first = self.box_of[rank]
        return Boxes(self.ranks[first:] + self.ranks[:first], self.rotation)

    @cached_property
    def box_of(self) -> dict[int, int]:
        """By rank, its box."""
        return {rank: box for box, ranks in enumerate(self.ranks) for rank in ranks}

    @cached_property
    def place_of(self) -> dict[int, int]:
        """By rank, its place in the box."""
        return {rank: place for ranks in self.ranks for place, rank in enumerate(ranks)}

    @cached_property
    def paths(self) -> Ints:
        """[b, p]: where path p lies once everything has moved on by b boxes."""
        return powers(np.array(self.rotation.paths, dtype=np.int64), self.count)

    @cached_property
    def links(self) -> Ints:
        """[b, l]: where link l lies once everything has moved on by b boxes."""
        return powers(np.array(self.rotation.links, dtype=np.int64), self.count)


def powers(permutation: Ints, count: int) -> Ints:
    """[k, i]: the image of i under the k-th power of a permutation, for k from 0 to count - 1."""
    table = np.empty((count, len(permutation)), dtype=np.int64)
    table[0] = np.arange(len(permutation))
    for power in range(1, count):
        table[power] = permutation[table[power - 1]]
    return table
