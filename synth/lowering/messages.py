"""The schedule's messages as lowering sees them: on a channel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Connection(NamedTuple):
    """What a runtime connects: one direction between two ranks on one channel. Messages arrive in order, untagged."""

    src: int
    dst: int
    channel: int


@dataclass(frozen=True, slots=True)
class Message:
    """One send; `index` is its place in order of start, `chunks` are in rising order."""

    index: int
    chunks: tuple[int, ...]
    src: int
    dst: int
    channel: int
    reduce: bool
    start_us: float
    arrive_us: float

    @property
    def connection(self) -> Connection:
        return Connection(self.src, self.dst, self.channel)


def arrivals_before(messages: list[Message]) -> list[tuple[int, ...]]:
    """For every message, those that bring what it forwards or the contributions in it (docs/formulation.md, eq. 2)."""
    copies: dict[tuple[int, int], list[int]] = {}
    reduces: dict[tuple[int, int], list[int]] = {}
    for message in messages:
        table = reduces if message.reduce else copies
        for chunk in message.chunks:
            table.setdefault((message.dst, chunk), []).append(message.index)
    result = []
    for message in messages:
        before: set[int] = set()
        for chunk in message.chunks:
            here = (message.src, chunk)
            brought = [] if message.reduce else copies.get(here, [])
            before.update(brought or reduces.get(here, []))
        result.append(tuple(sorted(before)))
    return result
