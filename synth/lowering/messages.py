"""The schedule's messages as lowering sees them: every instance's own copy, on a channel.

Instance j of N moves sub-chunk j of every chunk. Sub-chunks are laid out by instance inside a rank's share: chunk k of
a share of c chunks is sub-chunk j c + k of c N, so chunks that lie together in the schedule lie together in every
instance.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from synth.collective import Collective


class Connection(NamedTuple):
    """What a runtime connects: one direction between two ranks on one channel. Messages arrive in order, untagged."""

    src: int
    dst: int
    channel: int


@dataclass(frozen=True, slots=True)
class Message:
    """One send of one instance; `index` is its place in order of start, `chunks` are sub-chunk ids in rising order."""

    index: int
    chunks: tuple[int, ...]
    src: int
    dst: int
    channel: int
    instance: int
    reduce: bool
    start_us: float
    arrive_us: float

    @property
    def connection(self) -> Connection:
        return Connection(self.src, self.dst, self.channel)


def multiplied(collective: Collective, instances: int) -> Collective:
    """The collective over sub-chunks: what a program of `instances` instances carries out."""
    return replace(collective, chunks=collective.chunks * instances)


def subchunk(collective: Collective, chunk: int, instance: int, instances: int) -> int:
    """The id, in `multiplied(collective, instances)`, of the part of `chunk` that `instance` moves."""
    share, offset = divmod(chunk, collective.per_rank)
    return (share * instances + instance) * collective.per_rank + offset


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
