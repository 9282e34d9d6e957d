"""A place for every chunk on its way: the slots that every push, pop and sum reads and writes, and scratch reused.

A chunk that a rank has to end with lives in its output slot from its first arrival (or first sum) on; what a rank only
passes on lives in scratch from arrival to its last use. Until something arrives, a rank's own chunk or contribution is
in its input. Where a sum takes two steps, sums.py says which of them lie in scratch.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from msccl_xml.model import Buffer
from synth.errors import CheckError
from synth.lowering.buffers import Layout, Slot, slots_in_row
from synth.lowering.messages import Message
from synth.lowering.order import Order
from synth.lowering.sums import Sum

_Moments = NDArray[np.float64]


@dataclass(slots=True)
class ScratchPool:
    """Scratch slots of one rank: the one free for longest is reused, once `cooling` events went by.

    A slot's next writer has to wait for its last reader; the pause lets that wait end before it begins.
    """

    cooling: int
    freed_at: _Moments = field(default_factory=lambda: np.empty(0))
    """For every slot when it was freed; infinite while in use."""
    oldest: list[tuple[int, int]] = field(default_factory=list)
    """A heap of (when freed, slot); what is no longer so is left in it until it comes up."""
    slots: int = 0
    """how many there are; `freed_at` has room for more"""

    def allocate(self, count: int, now: int) -> int:
        """The first of `count` free slots in a row, now in use."""
        start = self._find_one(now) if count == 1 else self._find_row(count, now)
        start = self._added(count) if start is None else start
        self.freed_at[start : start + count] = math.inf
        return start

    def release(self, slot: int, now: int) -> None:
        """The slot's last reader has been ordered."""
        self.freed_at[slot] = now
        heapq.heappush(self.oldest, (now, slot))

    def _added(self, count: int) -> int:
        """The first of so many slots more."""
        first = self.slots
        self.slots += count
        if self.slots > len(self.freed_at):
            self.freed_at = np.concatenate([self.freed_at, np.full(self.slots, math.inf)])
        return first

    def _find_one(self, now: int) -> int | None:
        while self.oldest:
            freed, slot = self.oldest[0]
            if self.freed_at[slot] == freed:
                return slot if freed + self.cooling <= now else None
            heapq.heappop(self.oldest)
        return None

    def _find_row(self, count: int, now: int) -> int | None:
        """The row whose last slot was freed first, of such the first; None where that was not long enough ago."""
        if self.slots < count:
            return None
        last, width = self.freed_at[: self.slots], 1
        while width < count:
            # Two rows that overlap or touch make a longer one.
            step = min(width, count - width)
            last, width = np.maximum(last[:-step], last[step:]), width + step
        start = int(last.argmin())
        return start if last[start] + self.cooling <= now else None


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


#: Slots by chunk, of one rank.
_Slots = dict[int, Slot]


@dataclass(slots=True)
class _Walk:
    """Walks the global order and keeps where everything is."""

    layout: Layout
    cooling: int
    last_use: Mapping[int, Mapping[int, int]]
    """by rank and chunk its last event"""
    sums: Mapping[tuple[int, int], Sum]
    storage: Storage = field(default_factory=Storage)
    home: defaultdict[int, _Slots] = field(default_factory=lambda: defaultdict(dict))
    """by rank where in scratch what arrives is stored"""
    held: defaultdict[int, _Slots] = field(default_factory=lambda: defaultdict(dict))
    """by rank where what has arrived is stored"""
    pools: dict[int, ScratchPool] = field(default_factory=dict)
    clock: Counter[int] = field(default_factory=Counter)

    def push(self, message: Message, now: int) -> None:
        """A message leaves: it reads its chunks, and room is made for them where they go.

        Room made this early has been free before the message starts. So a receive never waits for what may come after
        the send, which may itself wait for the receive to begin, where the message is longer than the connection holds.
        """
        src, _, chunks = message.sent
        self.storage.read[message.index] = self._values(src, chunks)
        self.storage.write[message.index] = self._homes(message)
        self.clock[src] += 1
        held, home, last_use = self.held[src], self.home[src], self.last_use[src]
        for chunk in chunks:
            if message.reduce or last_use[chunk] == now:
                self._free(src, held.get(chunk))
            if message.reduce:
                # What comes back to a relay is another value, which lies wherever there is room then.
                held.pop(chunk, None)
                home.pop(chunk, None)

    def pop(self, message: Message, now: int) -> None:
        """A message arrives: it is stored, or added to what the rank has."""
        rank, _, chunks = message.received
        self.clock[rank] += 1
        homes, held, last_use = self.storage.write[message.index], self.held[rank], self.last_use[rank]
        if message.reduce:
            homes = self._added(message, homes)
        held.update(zip(chunks, homes, strict=True))
        for chunk, there in zip(chunks, homes, strict=True):
            if last_use[chunk] == now:
                self._free(rank, there)

    def _values(self, rank: int, chunks: Sequence[int]) -> list[Slot]:
        """Where chunks are that the rank has."""
        values = []
        for chunk, slot in zip(chunks, self._held(rank, chunks), strict=True):
            if slot is None:
                raise CheckError("lowering", f"rank {rank} uses chunk {chunk} before it has it")
            values.append(slot)
        return values

    def _held(self, rank: int, chunks: Sequence[int]) -> list[Slot | None]:
        """What has arrived of chunks, or else the rank's own."""
        held, own = self.held[rank], self.layout.sources(rank)
        return [held.get(chunk) or own.get(chunk) for chunk in chunks]

    def _homes(self, message: Message) -> list[Slot]:
        """Where a message's chunks will be stored: where they have to end, or in scratch."""
        rank, _, chunks = message.received
        home, ends = self.home[rank], self.layout.destinations(rank)
        known = [ends.get(chunk) or home.get(chunk) for chunk in chunks]
        if self.sums:
            known = [
                None if self._is_apart(message.index, chunk) else there
                for chunk, there in zip(chunks, known, strict=True)
            ]
        missing = [chunk for chunk, there in zip(chunks, known, strict=True) if there is None]
        if missing:
            pool = self.pools.setdefault(rank, ScratchPool(self.cooling))
            first = pool.allocate(len(missing), self.clock[rank])
            home.update(zip(missing, slots_in_row(Slot(Buffer.SCRATCH, first), len(missing)), strict=True))
        return [there or home[chunk] for chunk, there in zip(chunks, known, strict=True)]

    def _is_apart(self, index: int, chunk: int) -> bool:
        """Whether what a message brings of a chunk lies in scratch until it is added."""
        return self.sums.get((index, chunk)) in (Sum.SCRATCH, Sum.ONTO_RESULT)

    def _added(self, message: Message, received: Sequence[Slot]) -> list[Slot]:
        """Where the sums go of what is received in these slots and what the rank has; what it has none of stays where it is."""
        rank, _, chunks = message.received
        local = self.storage.local[message.index] = self._held(rank, chunks)
        totals = []
        for chunk, mine, there in zip(chunks, local, received, strict=True):
            total = there
            if mine is not None:
                total = self._total(message.index, rank, chunk, there)
                for slot in (mine, there):
                    self._free(rank, slot if slot != total else None)
            totals.append(total)
        return totals

    def _total(self, index: int, rank: int, chunk: int, received: Slot) -> Slot:
        """Where the sum goes of what is received in a slot."""
        if not self.sums:
            return received
        there = self.layout.destination(rank, chunk)
        onto = there is not None and self.sums.get((index, chunk)) is Sum.ONTO_RESULT
        total = self.storage.total[index, chunk] = there if onto and there is not None else received
        return total

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
    last_use: defaultdict[int, dict[int, int]] = defaultdict(dict)
    for place, (index, pop) in enumerate(order.events):
        rank, _, chunks = messages[index].received if pop else messages[index].sent
        last_use[rank].update(dict.fromkeys(chunks, place))
    walk = _Walk(layout, cooling, last_use, sums)
    for place, (index, pop) in enumerate(order.events):
        (walk.pop if pop else walk.push)(messages[index], place)
    return walk.storage
