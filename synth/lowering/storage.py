"""A place for every chunk on its way: the slots that every push, pop and sum reads and writes, and scratch reused.

A chunk that a rank has to end with lives in its output slot from its first arrival (or first sum) on; what a rank only
passes on lives in scratch from arrival to its last use. Until something arrives, a rank's own chunk or contribution is
in its input. Where a sum takes two steps, sums.py says which of them lie in scratch.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from msccl_xml.model import Buffer
from synth.errors import CheckError
from synth.lowering.buffers import Layout, Slot
from synth.lowering.messages import Message
from synth.lowering.order import Order
from synth.lowering.sums import Sum


@dataclass(slots=True)
class ScratchPool:
    """Scratch slots of one rank: the one free for longest is reused, once `cooling` events went by.

    A slot's next writer has to wait for its last reader; the pause lets that wait end before it begins.
    """

    cooling: int
    freed_at: list[int | None] = field(default_factory=list)
    """For every slot when it was freed; None while in use."""
    oldest: list[tuple[int, int]] = field(default_factory=list)
    """A heap of (when freed, slot); what is no longer so is left in it until it comes up."""

    def allocate(self, count: int, now: int) -> int:
        """The first of `count` free slots in a row, now in use."""
        start = self._find_one(now) if count == 1 else self._find_row(count, now)
        start = len(self.freed_at) if start is None else start
        self.freed_at[start : start + count] = [None] * count
        return start

    def release(self, slot: int, now: int) -> None:
        """The slot's last reader has been ordered."""
        self.freed_at[slot] = now
        heapq.heappush(self.oldest, (now, slot))

    def _find_one(self, now: int) -> int | None:
        while self.oldest:
            freed, slot = self.oldest[0]
            if self.freed_at[slot] == freed:
                return slot if freed + self.cooling <= now else None
            heapq.heappop(self.oldest)
        return None

    def _find_row(self, count: int, now: int) -> int | None:
        ready = [freed is not None and freed + self.cooling <= now for freed in self.freed_at]
        best: tuple[int, int] | None = None
        for start in range(len(ready) - count + 1):
            if all(ready[start : start + count]):
                rested = max(freed for freed in self.freed_at[start : start + count] if freed is not None)
                best = min(best or (rested, start), (rested, start))
        return None if best is None else best[1]


@dataclass(frozen=True, slots=True)
class Storage:
    """Slots by message index, one for each of its chunks in order."""

    read: dict[int, list[Slot]] = field(default_factory=dict)
    """where a push reads"""
    write: dict[int, list[Slot]] = field(default_factory=dict)
    """where a pop stores what it receives"""
    local: dict[int, list[Slot | None]] = field(default_factory=dict)
    """where a reducing pop finds the rank's own value; None for the first contribution to a relay, which has none"""
    total: dict[tuple[int, int], Slot] = field(default_factory=dict)
    """by message index and chunk where the sum goes, if sums are planned"""


@dataclass(slots=True)
class _Walk:
    """Walks the global order and keeps where everything is."""

    layout: Layout
    cooling: int
    last_use: dict[tuple[int, int], int]
    sums: Mapping[tuple[int, int], Sum]
    storage: Storage = field(default_factory=Storage)
    home: dict[tuple[int, int], Slot] = field(default_factory=dict)
    """by (rank, chunk) where what arrives is stored"""
    held: dict[tuple[int, int], Slot] = field(default_factory=dict)
    """by (rank, chunk) where what has arrived is stored"""
    pools: dict[int, ScratchPool] = field(default_factory=dict)
    clock: Counter[int] = field(default_factory=Counter)

    def push(self, message: Message, now: int) -> None:
        """A message leaves: it reads its chunks, and room is made for them where they go.

        Room made this early has been free before the message starts. So a receive never waits for what may come after
        the send, which may itself wait for the receive to begin, where the message is longer than the connection holds.
        """
        src, _, chunks = message.sent
        self.storage.read[message.index] = [self._value(src, chunk) for chunk in chunks]
        dst, _, arriving = message.received
        homes = [self._home(message.index, dst, chunk) for chunk in arriving]
        if None in homes:
            pool = self.pools.setdefault(dst, ScratchPool(self.cooling))
            free = itertools.count(pool.allocate(homes.count(None), self.clock[dst]))
            for place, chunk in enumerate(arriving):
                if homes[place] is None:
                    homes[place] = self.home[dst, chunk] = Slot(Buffer.SCRATCH, next(free))
        self.storage.write[message.index] = [home for home in homes if home is not None]
        self.clock[src] += 1
        for chunk in chunks:
            if message.reduce or self.last_use[src, chunk] == now:
                self._free(src, self.held.get((src, chunk)))
            if message.reduce:
                # What comes back to a relay is another value, which lies wherever there is room then.
                self.held.pop((src, chunk), None)
                self.home.pop((src, chunk), None)

    def pop(self, message: Message, now: int) -> None:
        """A message arrives: it is stored, or added to what the rank has."""
        rank, _, chunks = message.received
        self.clock[rank] += 1
        own: list[Slot | None] = []
        for chunk, there in zip(chunks, self.storage.write[message.index], strict=True):
            local = self._held(rank, chunk) if message.reduce else None
            own.append(local)
            if local is not None:
                total = self._total(message.index, rank, chunk, there)
                for slot in (local, there):
                    self._free(rank, slot if slot != total else None)
                there = total
            self.held[rank, chunk] = there
            if self.last_use[rank, chunk] == now:
                self._free(rank, there)
        if message.reduce:
            self.storage.local[message.index] = own

    def _home(self, index: int, rank: int, chunk: int) -> Slot | None:
        """Where a message's chunk is stored; None: in scratch that it has still to be given."""
        if self.sums and self.sums.get((index, chunk)) in (Sum.SCRATCH, Sum.ONTO_RESULT):
            return None
        return self.layout.destination(rank, chunk) or self.home.get((rank, chunk))

    def _total(self, index: int, rank: int, chunk: int, received: Slot) -> Slot:
        """Where the sum goes of what is received in a slot."""
        if not self.sums:
            return received
        there = self.layout.destination(rank, chunk)
        onto = there is not None and self.sums.get((index, chunk)) is Sum.ONTO_RESULT
        total = self.storage.total[index, chunk] = there if onto and there is not None else received
        return total

    def _held(self, rank: int, chunk: int) -> Slot | None:
        """What has arrived of a chunk, or else the rank's own."""
        return self.held.get((rank, chunk)) or self.layout.source(rank, chunk)

    def _value(self, rank: int, chunk: int) -> Slot:
        slot = self._held(rank, chunk)
        if slot is None:
            raise CheckError("lowering", f"rank {rank} uses chunk {chunk} before it has it")
        return slot

    def _free(self, rank: int, slot: Slot | None) -> None:
        """Free the slot, if it is scratch: it has been used for the last time."""
        if slot is not None and slot.buffer is Buffer.SCRATCH:
            self.pools[rank].release(slot.offset, self.clock[rank])


def place_chunks(
    layout: Layout, messages: list[Message], order: Order, cooling: int, sums: Mapping[tuple[int, int], Sum]
) -> Storage:
    """Slots of everything that the messages read and write, walking the global order; `cooling` as in ScratchPool.

    A slot is reused only after its last reader in that order, so the waits that reuse makes point backwards in it.
    `sums` names the contributions that are received and added in two steps (by message index and chunk).
    """
    last_use: dict[tuple[int, int], int] = {}
    for place, (index, pop) in enumerate(order.events):
        rank, _, chunks = messages[index].received if pop else messages[index].sent
        for chunk in chunks:
            last_use[rank, chunk] = place
    walk = _Walk(layout, cooling, last_use, sums)
    for place, (index, pop) in enumerate(order.events):
        (walk.pop if pop else walk.push)(messages[index], place)
    return walk.storage
