"""Equal boxes folded onto one: a cluster that can be rotated is solved for the chunks of its first box, and the answer turned round.

All boxes do the same at the same time. A link then carries, beside its own message of the first box's chunks, the images of
those that the first box's chunks send over the links that rotate onto it. So it is enough to schedule the first box's
chunks on a machine where links that rotate onto each other are one link (docs/formulation.md, section 11).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from synth.boxes import Boxes, powers
from synth.instance import Instance, Symmetry
from synth.ir import Schedule, Send
from synth.paths import Path
from synth.symmetry import members_of

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Fold:
    """`instance` is the cluster with links merged: its schedules are of the chunks `deciding`, those that the first box owns, and
    its symmetries those that take the first box to itself.
    """

    instance: Instance
    boxes: Boxes
    chunks: Ints
    """[b, c]: what chunk c becomes once everything has moved on by b boxes."""
    deciding: tuple[int, ...]

    def unfold(self, schedule: Schedule) -> Schedule:
        """The schedule of all chunks from that of the deciding ones: its images, all at the same time.

        Images stand together, so that every rank has what it does at one moment in the order in which the others have it.
        """
        turns = list(zip(self.chunks.tolist(), self.boxes.paths.tolist(), strict=True))
        sends = []
        for send in sorted(schedule.sends, key=lambda send: send.start_us):
            for chunks, paths in turns:
                moved = tuple(sorted(chunks[chunk] for chunk in send.chunks))
                sends.append(Send(moved, paths[send.path], send.reduce, send.start_us, send.arrive_us))
        return Schedule(tuple(sends))


def fold(instance: Instance, boxes: Boxes) -> Fold | None:
    """The instance folded, or None where the rotation does not take its demands to its demands, or leaves a link in place that paths
    cross: what all boxes share, they cannot use at the same time.
    """
    rotated = chunk_images(instance, boxes.rotation)
    if rotated is None:
        return None
    chunks = powers(rotated, boxes.count)
    if not share_nothing(instance.paths, boxes):
        return None
    one = replace(merged(instance, boxes), symmetries=_in_place(instance, boxes))
    deciding = tuple(d.chunk for d in instance.demands if boxes.box_of[d.source] == 0)
    return Fold(one, boxes, chunks, deciding)


def share_nothing(paths: Sequence[Path], boxes: Boxes) -> bool:
    """Whether every link that paths cross is another in every box's turn, so that all boxes can do the same at the same time."""
    orbit = boxes.links.min(axis=0)
    used = sorted({link for path in paths for link in path.links})
    moved = not np.any(np.bincount(orbit[used])[orbit[used]] < boxes.count)
    return moved and all(len(set(orbit[list(path.links)].tolist())) == len(path.links) for path in paths)


def merged(instance: Instance, boxes: Boxes) -> Instance:
    """The instance with links that rotate onto each other as one link, the first of them; it has no symmetries to tell."""
    one = boxes.links.min(axis=0).tolist()
    paths = tuple(replace(path, links=tuple(one[link] for link in path.links)) for path in instance.paths)
    return replace(instance, paths=paths, symmetries=())


def _in_place(instance: Instance, boxes: Boxes) -> tuple[Symmetry, ...]:
    """The instance's symmetries that take the first box to itself, on links merged; the identity is left out."""
    one, first = boxes.links.min(axis=0).tolist(), set(boxes.ranks[0])
    kept = []
    for member in members_of(instance, instance.symmetries)[1:]:
        if {member.ranks[rank] for rank in first} == first:
            links = (one[image] if one[link] == link else link for link, image in enumerate(member.links))
            kept.append(replace(member, links=tuple(links)))
    return tuple(kept)


def chunk_images(instance: Instance, symmetry: Symmetry) -> Ints | None:
    """What every chunk becomes: the k-th with one source and the same destinations goes to the k-th of their image (eq. 25).

    None where some demand has no image. Chunks without a demand stay.
    """
    alike: dict[tuple[int, frozenset[int]], list[int]] = defaultdict(list)
    for demand in instance.demands:
        alike[demand.source, demand.dests].append(demand.chunk)
    image = np.arange(instance.collective.num_chunk_ids)
    for (source, dests), chunks in alike.items():
        there = alike.get((symmetry.ranks[source], frozenset(symmetry.ranks[dest] for dest in dests)), [])
        if len(there) != len(chunks):
            return None
        image[chunks] = there
    return image
