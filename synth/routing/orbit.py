"""Chunks and transfers under an instance's symmetries: one of each orbit is decided, the others are its images."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from synth.instance import Demand, Instance, Symmetry
from synth.symmetry import members_of


@dataclass(frozen=True, slots=True)
class Member:
    """One symmetry as it acts: demanded chunk c becomes `chunks[c]`, path p `paths[p]`, link l `links[l]`."""

    chunks: Mapping[int, int]
    paths: tuple[int, ...]
    links: tuple[int, ...]


@dataclass(frozen=True)
class Action:
    """A group that acts freely on the demanded chunks: the image of a deciding chunk under each member is
    another chunk.
    """

    members: tuple[Member, ...]
    deciding: tuple[Demand, ...]
    """The demand with the smallest chunk of every orbit, in order."""

    def expand(self, trees: Mapping[int, frozenset[int]]) -> dict[int, frozenset[int]]:
        """The trees of all chunks from those of the deciding chunks."""
        return {
            member.chunks[demand.chunk]: frozenset(member.paths[path] for path in trees[demand.chunk])
            for demand in self.deciding
            for member in self.members
        }


def action_of(instance: Instance) -> Action:
    """How the instance's symmetries act on its demands; those that do not map demands onto demands are left out.

    The k-th chunk among those with one source and the same destinations goes to the k-th of the image (eq. 25).
    """
    kept = [symmetry for symmetry in instance.symmetries if _chunk_images(instance, symmetry) is not None]
    members = []
    for symmetry in members_of(instance, kept):
        chunks = _chunk_images(instance, symmetry)
        if chunks is not None:
            members.append(Member(chunks, symmetry.paths, symmetry.links))
    seen: set[int] = set()
    deciding: list[Demand] = []
    for demand in instance.demands:
        if demand.chunk not in seen:
            deciding.append(demand)
            seen.update(member.chunks[demand.chunk] for member in members)
    return Action(tuple(members), tuple(deciding))


def _chunk_images(instance: Instance, symmetry: Symmetry) -> dict[int, int] | None:
    alike: dict[tuple[int, frozenset[int]], list[int]] = defaultdict(list)
    for demand in instance.demands:
        alike[demand.source, demand.dests].append(demand.chunk)
    images: dict[int, int] = {}
    for (source, dests), chunks in alike.items():
        there = alike.get((symmetry.ranks[source], frozenset(symmetry.ranks[dest] for dest in dests)), [])
        if len(there) != len(chunks):
            return None
        images.update(zip(chunks, there, strict=True))
    return images
