"""Where every chunk lives on every rank at each moment: input, output or scratch, in place or not.

A chunk that a rank has to end with lives in its output slot from its first arrival (or first sum) on; what a rank only
passes on lives in scratch from arrival to its last use. Until something arrives, a rank's own chunk or contribution is
in its input.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from msccl_xml.model import Buffer
from synth.collective import Collective
from synth.errors import CheckError
from synth.lowering.messages import Message
from synth.lowering.order import Order

#: Scratch offsets carry their instance above this many slots, so that instances never share one; emit.py numbers them
#: anew.
INSTANCE_STRIDE = 1 << 24


class Slot(NamedTuple):
    """One chunk of memory of a rank."""

    buffer: Buffer
    offset: int

    def plus(self, chunks: int) -> Slot:
        """The slot `chunks` further on."""
        return Slot(self.buffer, self.offset + chunks)


@dataclass(frozen=True, slots=True)
class Layout:
    """Names of memory: with `aliased`, what lies in the input and in the output has one name, as in place.

    `custom`: the file's `coll` is custom, whose in-place call has one pointer for both buffers whatever is computed.
    """

    collective: Collective
    aliased: bool
    custom: bool = False

    def canonical(self, rank: int, slot: Slot) -> Slot:
        """The one name of the slot's memory: that in the longer of the two buffers."""
        if not self.aliased:
            return slot
        shift = 0 if self.custom else self.collective.in_place_shift(rank)
        if shift is None or slot.buffer is Buffer.SCRATCH:
            return slot
        if self.collective.output_chunks(rank) >= self.collective.input_chunks(rank):
            return slot if slot.buffer is Buffer.OUTPUT else Slot(Buffer.OUTPUT, slot.offset - shift)
        return slot if slot.buffer is Buffer.INPUT else Slot(Buffer.INPUT, slot.offset + shift)

    def source(self, rank: int, chunk: int) -> Slot | None:
        """Where the rank's own chunk or contribution is at the start."""
        offset = self.collective.input_offset(chunk, rank)
        return None if offset is None else self.canonical(rank, Slot(Buffer.INPUT, offset))

    def destination(self, rank: int, chunk: int) -> Slot | None:
        """Where the chunk has to end."""
        offset = self.collective.output_offset(chunk, rank)
        return None if offset is None else self.canonical(rank, Slot(Buffer.OUTPUT, offset))


@dataclass(slots=True)
class ScratchPool:
    """Scratch slots of one instance on one rank: the one free for longest is reused, once `cooling` events went by.

    A slot's next writer has to wait for its last reader; the pause lets that wait end before it begins.
    """

    cooling: int
    freed_at: list[int | None] = field(default_factory=list)
    """For every slot when it was freed; None while in use."""

    def allocate(self, count: int, now: int) -> int:
        """The first of `count` free slots in a row, now in use."""
        ready = [freed is not None and freed + self.cooling <= now for freed in self.freed_at]
        best: tuple[int, int] | None = None
        for start in range(len(ready) - count + 1):
            if all(ready[start : start + count]):
                rested = max(freed for freed in self.freed_at[start : start + count] if freed is not None)
                best = min(best or (rested, start), (rested, start))
        start = len(self.freed_at) if best is None else best[1]
        self.freed_at[start : start + count] = [None] * count
        return start

    def release(self, slot: int, now: int) -> None:
        """The slot's last reader has been ordered."""
        self.freed_at[slot] = now


@dataclass(frozen=True, slots=True)
class Storage:
    """Slots by (message index, chunk): where a push reads, where a pop stores, and what a reducing pop adds to."""

    read: dict[tuple[int, int], Slot]
    write: dict[tuple[int, int], Slot]
    local: dict[tuple[int, int], Slot]


@dataclass(slots=True)
class _Walk:
    """Walks the global order and keeps where everything is."""

    layout: Layout
    cooling: int
    last_use: dict[tuple[int, int], int]
    storage: Storage = field(default_factory=lambda: Storage({}, {}, {}))
    home: dict[tuple[int, int], Slot] = field(default_factory=dict)
    """by (rank, chunk) where what arrives is stored"""
    held: dict[tuple[int, int], Slot] = field(default_factory=dict)
    """by (rank, chunk) where what has arrived is stored"""
    pools: dict[tuple[int, int], ScratchPool] = field(default_factory=dict)
    clock: Counter[int] = field(default_factory=Counter)

    def push(self, message: Message) -> None:
        """A message leaves: it reads its chunks, and room is made for them where they go.

        Room made this early has been free before the message starts. So a receive never waits for what may come after
        the send, which may itself wait for the receive to begin, where the message is longer than the connection holds.
        """
        for chunk in message.chunks:
            self.storage.read[message.index, chunk] = self._value(message.src, chunk)
        homeless = []
        for chunk in message.chunks:
            destination = self.layout.destination(message.dst, chunk)
            if destination is not None:
                self.home[message.dst, chunk] = destination
            elif (message.dst, chunk) not in self.home:
                homeless.append(chunk)
        if homeless:
            pool = self.pools.setdefault((message.dst, message.instance), ScratchPool(self.cooling))
            start = pool.allocate(len(homeless), self.clock[message.dst]) + message.instance * INSTANCE_STRIDE
            for place, chunk in enumerate(homeless):
                self.home[message.dst, chunk] = Slot(Buffer.SCRATCH, start + place)

    def pop(self, message: Message) -> None:
        """A message arrives: it is stored, or added to what the rank has."""
        rank = message.dst
        for chunk in message.chunks:
            if message.reduce:
                self.storage.local[message.index, chunk] = self._value(rank, chunk)
            self.held[rank, chunk] = self.storage.write[message.index, chunk] = self.home[rank, chunk]

    def _value(self, rank: int, chunk: int) -> Slot:
        slot = self.held.get((rank, chunk)) or self.layout.source(rank, chunk)
        if slot is None:
            raise CheckError("lowering", f"rank {rank} uses chunk {chunk} before it has it")
        return slot

    def release(self, rank: int, message: Message, now: int) -> None:
        """Free the scratch of what the event at position `now` used for the last time."""
        self.clock[rank] += 1
        for chunk in message.chunks:
            slot = self.held.get((rank, chunk))
            if slot is not None and slot.buffer is Buffer.SCRATCH and self.last_use[rank, chunk] == now:
                pool = self.pools[rank, message.instance]
                pool.release(slot.offset % INSTANCE_STRIDE, self.clock[rank])


def place_chunks(layout: Layout, messages: list[Message], order: Order, cooling: int) -> Storage:
    """Slots of everything that the messages read and write, walking the global order; `cooling` as in ScratchPool.

    A slot is reused only after its last reader in that order, so the waits that reuse makes point backwards in it.
    """
    last_use: dict[tuple[int, int], int] = {}
    for place, (index, pop) in enumerate(order.events):
        message = messages[index]
        for chunk in message.chunks:
            last_use[message.dst if pop else message.src, chunk] = place
    walk = _Walk(layout, cooling, last_use)
    for place, (index, pop) in enumerate(order.events):
        message = messages[index]
        if pop:
            walk.pop(message)
        else:
            walk.push(message)
        walk.release(message.dst if pop else message.src, message, place)
    return walk.storage


def own_copies(layout: Layout, messages: list[Message]) -> dict[int, list[tuple[int, Slot, Slot]]]:
    """By rank, (chunk, from, to) of chunks that no message brings where they have to end and that are not there yet."""
    brought = {(message.dst, chunk) for message in messages for chunk in message.chunks}
    copies: dict[int, list[tuple[int, Slot, Slot]]] = {}
    for rank in range(layout.collective.num_ranks):
        for chunk in range(layout.collective.num_chunk_ids):
            there = layout.destination(rank, chunk)
            if there is None or (rank, chunk) in brought:
                continue
            here = layout.source(rank, chunk)
            if here is None:
                raise CheckError("lowering", f"chunk {chunk} never gets to rank {rank}")
            if here != there:
                copies.setdefault(rank, []).append((chunk, here, there))
    return copies
