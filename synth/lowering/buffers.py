"""Slots of memory and their names, in place or not, and the chunks that have only to be copied to their own rank's output."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from msccl_xml.model import Buffer
from synth.collective import Collective
from synth.errors import CheckError
from synth.lowering.messages import Message


class Slot(NamedTuple):
    """One chunk of memory of a rank."""

    buffer: Buffer
    offset: int

    def plus(self, chunks: int) -> Slot:
        """The slot `chunks` further on."""
        return Slot(self.buffer, self.offset + chunks)


#: By buffer all slots that were named so far: there are few, and every step names some.
_ROWS: dict[Buffer, list[Slot]] = {buffer: [] for buffer in Buffer}


def slots_in_row(first: Slot, count: int) -> list[Slot]:
    """So many slots, one behind the other."""
    row = _ROWS[first.buffer]
    end = first.offset + count
    row += (Slot(first.buffer, offset) for offset in range(len(row), end))
    return row[first.offset : end]


@dataclass(frozen=True)
class Layout:
    """Names of memory: with `aliased`, what lies in the input and in the output has one name, as in place.

    `custom`: the file's `coll` is custom, whose in-place call has one pointer for both buffers whatever is computed.
    `instances`: parts of every chunk; each instance's part of a rank's share lies together.
    """

    collective: Collective
    aliased: bool
    custom: bool = False
    instances: int = 1

    def follows(self, slot: Slot, before: Slot) -> bool:
        """Whether a slot lies right behind another for every instance: shares are apart where there are several."""
        if slot.offset != before.offset + 1 or slot.buffer is not before.buffer:
            return False
        return self.instances == 1 or slot.buffer is Buffer.SCRATCH or slot.offset % self.collective.per_rank > 0

    def breaks(self, first: Slot, count: int) -> range:
        """Where in so many slots, one behind the other, one does not follow for every instance."""
        if self.instances == 1 or first.buffer is Buffer.SCRATCH:
            return range(0)
        share = self.collective.per_rank
        return range(share - first.offset % share, count, share)

    def canonical(self, rank: int, slot: Slot) -> Slot:
        """The one name of the slot's memory: that in the longer of the two buffers."""
        if not self.aliased or slot.buffer is Buffer.SCRATCH:
            return slot
        shift, longer = self._in_place[rank]
        if shift is None or slot.buffer is longer:
            return slot
        return Slot(longer, slot.offset - shift if longer is Buffer.OUTPUT else slot.offset + shift)

    @cached_property
    def _in_place(self) -> tuple[tuple[int | None, Buffer], ...]:
        """Of every rank, by how much the output lies behind the input, and the longer of the two."""
        collective = self.collective
        return tuple(
            (
                0 if self.custom else collective.in_place_shift(rank),
                Buffer.OUTPUT if collective.output_chunks(rank) >= collective.input_chunks(rank) else Buffer.INPUT,
            )
            for rank in range(collective.num_ranks)
        )

    def source(self, rank: int, chunk: int) -> Slot | None:
        """Where the rank's own chunk or contribution is at the start."""
        return self.sources(rank).get(chunk)

    def destination(self, rank: int, chunk: int) -> Slot | None:
        """Where the chunk has to end."""
        return self.destinations(rank).get(chunk)

    def sources(self, rank: int) -> dict[int, Slot]:
        """By chunk `source`, of all chunks that have one; ascending."""
        if rank not in self._sources:
            self._sources[rank] = self._slots(rank, Buffer.INPUT, self.collective.inputs(rank))
        return self._sources[rank]

    def destinations(self, rank: int) -> dict[int, Slot]:
        """By chunk `destination`, of all chunks that have one; ascending."""
        if rank not in self._destinations:
            self._destinations[rank] = self._slots(rank, Buffer.OUTPUT, self.collective.outputs(rank))
        return self._destinations[rank]

    def _slots(self, rank: int, buffer: Buffer, offsets: dict[int, int]) -> dict[int, Slot]:
        """By chunk the name of its memory in one of a rank's buffers."""
        row = slots_in_row(self.canonical(rank, Slot(buffer, 0)), max(offsets.values(), default=-1) + 1)
        return {chunk: row[offset] for chunk, offset in offsets.items()}

    @cached_property
    def _sources(self) -> dict[int, dict[int, Slot]]:
        """Those of ranks that were asked for before: every message asks again."""
        return {}

    @cached_property
    def _destinations(self) -> dict[int, dict[int, Slot]]:
        return {}


def own_copies(layout: Layout, messages: list[Message], ranks: int) -> dict[int, list[tuple[int, Slot, Slot]]]:
    """For the first `ranks` ranks, (chunk, from, to) of chunks that no message brings where they have to end and that are not there
    yet.
    """
    brought: list[set[int]] = [set() for _ in range(ranks)]
    for message in messages:
        brought[message.received.rank].update(message.received.chunks)
    copies: dict[int, list[tuple[int, Slot, Slot]]] = {}
    for rank in range(ranks):
        for chunk, there in layout.destinations(rank).items():
            if chunk in brought[rank]:
                continue
            here = layout.source(rank, chunk)
            if here is None:
                raise CheckError("lowering", f"chunk {chunk} never gets to rank {rank}")
            if here != there:
                copies.setdefault(rank, []).append((chunk, here, there))
    return copies
