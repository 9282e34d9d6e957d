"""Rotations of the ranks: where every rank r may become r + g (mod n), runs of g ranks do alike, as equal boxes of a cluster do
(docs/formulation.md, section 11).

Such a machine, often a single box, is folded like a cluster, and what its program is, lowering and the simulator find out for one
run of ranks and turn for the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from synth.boxes import Boxes
from synth.instance import Instance
from synth.reductions.fold import chunk_images, share_nothing
from synth.symmetry import members_of


def rotations(instance: Instance) -> Iterator[tuple[Instance, Boxes]]:
    """For each rotation that the instance's symmetries make, takes chunks to chunks, and moves every link that paths cross: the
    instance with it as the first of its symmetries, and the runs of ranks as boxes, the shortest runs first.
    """
    ranks = instance.num_ranks
    members = {member.ranks: member for member in members_of(instance, instance.symmetries)}
    for size in (size for size in range(1, ranks // 2 + 1) if ranks % size == 0):
        rotation = members.get(tuple((rank + size) % ranks for rank in range(ranks)))
        if rotation is None:
            continue
        boxes = Boxes(tuple(tuple(range(first, first + size)) for first in range(0, ranks, size)), rotation)
        if share_nothing(instance.paths, boxes) and chunk_images(instance, rotation) is not None:
            others = (each for each in instance.symmetries if each != rotation)
            yield replace(instance, symmetries=(rotation, *others)), boxes
