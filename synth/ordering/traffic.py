"""What is to be ordered in rounds: messages, who waits for whom, which paths and links they share, and what they are added to."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from synth.boxes import Boxes
from synth.constants import Constants
from synth.instance import Instance
from synth.interpreted import channels_needed
from synth.ir import Message, Routing
from synth.list_scheduler import Work
from synth.timing import link_loads_us

#: Ticks of a round at most.
_TICKS = 4
#: Where capacity ends: sums of shares are rounded.
WHOLE = 0.9999


class Place(NamedTuple):
    """Where a message comes to, and whether it is added to what is there of its chunk."""

    rank: int
    chunk: int
    added: bool


class Direction(NamedTuple):
    """Who waits for whom, from the beginning on or, backwards, from the end on."""

    work: Work
    to_go: list[float]
    """by message, how many there are in the longest chain that begins with it"""
    backwards: bool


class Traffic:
    """The messages that carry out a routing over the connections of a protocol, one of `pieces` each (None: one chunk). `steps` are
    those that a threadblock may have, None any number; of equal `boxes`, the messages are of the first one (synth.reductions.fold).
    """

    def __init__(
        self,
        instance: Instance,
        messages: Sequence[Message],
        protocol: str,
        steps: int | None = None,
        boxes: Boxes | None = None,
    ) -> None:
        self.instance, self.messages, self.steps = instance, messages, steps
        paths = instance.paths
        one_path = boxes.paths.min(axis=0).tolist() if boxes else range(len(paths))
        self.one_rank = list(range(instance.num_ranks))
        """by rank, of boxes, the one at the same place of the first"""
        if boxes:
            for rank, place in boxes.place_of.items():
                self.one_rank[rank] = boxes.ranks[0][place]
        self.paths = [one_path[message.path] for message in self.messages]
        self.sizes = [len(message.chunks) for message in self.messages]
        self.largest = max(self.sizes, default=1)
        self.ticks = min(_TICKS, self.largest)
        """of a round"""
        chunks: Counter[int] = Counter()
        for path, size in zip(self.paths, self.sizes, strict=True):
            chunks[path] += size
        self.counts = {path: chunks[path] / self.largest for path in sorted(chunks)}
        """by path, how many messages as large as the largest it carries"""
        self.busy = {
            (path, size): tuple(zip(paths[path].links, paths[path].busy_us(size * instance.chunk_bytes), strict=True))
            for path, size in sorted(set(zip(self.paths, self.sizes, strict=True)))
        }
        self.busiest_us = max(link_loads_us(instance, chunks.elements()).values(), default=0.0)
        needed = channels_needed(instance, chunks, protocol)
        self.channels = {path: max(1, math.ceil(needed[path])) for path in self.counts}
        self.protocol = Constants.for_topology(instance.topology).of(protocol)
        self.message_us = self.largest * instance.chunk_bytes / (self.protocol.rate_GBps * 1e3)
        """what a threadblock takes for the largest"""
        self.places = [Place(paths[m.path].dst, m.chunks[0], m.reduce) for m in messages]
        parts = Counter(place for place in self.places if place.added)
        number = {place: position for position, place in enumerate(parts)}
        self.sums = [number.get(place) for place in self.places]
        """by message the number of the sum that it is added to, None if it is not"""
        self.parts = list(parts.values())
        """by number of a sum, how many messages are added to it"""
        self.rotations = [(paths[path].dst - paths[path].src) % instance.num_ranks for path in self.paths]
        self.turns = self._turns()

    @cached_property
    def forwards(self) -> Direction:
        """From the beginning on."""
        return self._direction(Work.of(self.instance, self.messages), False)

    @cached_property
    def backwards(self) -> Direction:
        """From the end on: those that wait for a message come before it."""
        return self._direction(Work.waiting(self.messages, self.forwards.work.after), True)

    def _direction(self, work: Work, backwards: bool) -> Direction:
        return Direction(work, work.to_go([1.0] * len(self.messages)), backwards)

    def lasts(self, size: int) -> int:
        """Ticks that a message of so many chunks takes of a threadblock, and of what it is added to."""
        return math.ceil(size * self.ticks / self.largest)

    def taken_us(self, path: int, size: int) -> float:
        """What a message of so many chunks takes if all threadblocks of its path have one, as many as bandwidth or the number of
        steps asks for, and what it takes at any rate.
        """
        fewest = math.ceil(self.counts[path] / self.steps) if self.steps else 1
        threadblocks = max(self.channels[path], fewest)
        own_us = self.message_us * size / self.largest
        busy_us = max(own_us, max(us for _, us in self.busy[path, size]) * threadblocks)
        return busy_us + self.instance.paths[path].alpha_us + self.protocol.step_us

    def _turns(self) -> list[float]:
        """By message, where its chunk stands among those of its owner, 0 to 1."""
        by_owner = self.instance.by_owner(message.chunks[0] for message in self.messages)
        turns = {chunk: place / len(own) for own in by_owner.values() for place, chunk in enumerate(own)}
        return [turns[message.chunks[0]] for message in self.messages]


def messages_of(routing: Routing, pieces: Sequence[tuple[int, ...]] | None) -> list[Message]:
    """The messages that carry out a routing, in order of chunk and path: a transfer each, or those of a piece together."""
    transfers = sorted(routing.transfers)
    if pieces is None:
        return [Message((transfer.chunk,), transfer.path, transfer.reduce) for transfer in transfers]
    piece = {each[0]: each for each in pieces}
    return [Message(piece[each.chunk], each.path, each.reduce) for each in transfers if each.chunk in piece]
