"""Whole shares for every rank: a vector that has no equal shares is solved with a few chunks more, and these are left out.

Boxes that are to do the same need equal shares, but a vector of a power of two has none for six boxes of eight GPUs. What is solved
then has a whole share for every rank. Without its surplus chunks it is a schedule of the vector, and takes no longer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from synth.collective import SHARED
from synth.instance import Instance
from synth.ir import Schedule


@dataclass(frozen=True)
class Padding:
    """`padded` is the `instance` with whole shares, whose chunk c is `chunks[c]` of the instance, or none of it."""

    instance: Instance
    padded: Instance
    chunks: dict[int, int]

    def without_surplus(self, schedule: Schedule) -> Schedule:
        """What the padded instance's schedule does for the chunks that there are, at the same times."""
        sends = []
        for send in schedule.sends:
            kept = tuple(self.chunks[chunk] for chunk in send.chunks if chunk in self.chunks)
            if kept:
                sends.append(send._replace(chunks=kept))
        return Schedule(tuple(sends))


def pad(instance: Instance) -> Padding | None:
    """The instance with a share of the vector for every rank, as few chunks more as that takes; None where it has whole shares."""
    collective = instance.collective
    share = -(-collective.chunks // collective.num_ranks)
    if collective.name in SHARED or share * collective.num_ranks == collective.chunks:
        return None
    padded = replace(instance, collective=replace(collective, chunks=share * collective.num_ranks))
    own = instance.by_owner(range(collective.chunks))
    more = padded.by_owner(range(padded.collective.chunks))
    chunks = {there: here for rank, ours in own.items() for there, here in zip(more[rank], ours, strict=False)}
    return Padding(instance, padded, chunks)
