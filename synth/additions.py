"""Sums in the making: a rank adds one message at a time to what it holds of a chunk, and that takes an interpreter time.

Cost level 2 has it for nothing (docs/formulation.md, section 4); instances made for an interpreter (`Instance.reduce_us_per_byte`)
have not. A message that comes while another is being added waits in its connection, and one may wait at most: the next is not sent
until then. On a machine on which time runs backwards (`Instance.backwards`) copies that leave a rank are what is added there.
"""

from __future__ import annotations

from synth.instance import Instance
from synth.ir import Message


class Additions:
    """What is being added where, and until when, as messages start one after another."""

    def __init__(self, instance: Instance) -> None:
        self.active = instance.reduce_us_per_byte > 0 and instance.collective.combining
        self._us_per_chunk = instance.chunk_bytes * instance.reduce_us_per_byte
        self._paths = instance.paths
        self._backwards = instance.backwards
        self._until_us: dict[tuple[int, int], float] = {}

    def counts(self, message: Message) -> bool:
        """Whether the message is added somewhere, and that takes time."""
        return self.active and (message.reduce or self._backwards)

    def starts_us(self, message: Message, latency_us: float) -> tuple[float, float]:
        """From when on a message of that latency may start, and from when on it need not wait for others' sums either."""
        free_us = self._free_us(message)
        if not message.reduce:
            return free_us, free_us
        added_us = self._added_us(message)
        at_once_us = free_us + added_us - latency_us
        return at_once_us - added_us, at_once_us

    def start(self, message: Message, start_us: float, latency_us: float) -> float:
        """Note that a message starts; when it has arrived and been added."""
        added_us = self._added_us(message)
        arrive_us = start_us + latency_us
        until_us = start_us + added_us
        if message.reduce:
            arrive_us = until_us = max(arrive_us, self._free_us(message) + added_us)
        rank = self._rank(message)
        for chunk in message.chunks:
            self._until_us[rank, chunk] = until_us
        return arrive_us

    def _free_us(self, message: Message) -> float:
        rank, free_us = self._rank(message), 0.0
        for chunk in message.chunks:
            until_us = self._until_us.get((rank, chunk), 0.0)
            if until_us > free_us:
                free_us = until_us
        return free_us

    def _added_us(self, message: Message) -> float:
        return len(message.chunks) * self._us_per_chunk

    def _rank(self, message: Message) -> int:
        """Where the message is added."""
        path = self._paths[message.path]
        return path.dst if message.reduce else path.src
