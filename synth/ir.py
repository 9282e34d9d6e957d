"""What the stages hand on: a `Routing` (who sends what to whom), then a `Schedule` (in what order, together, and when).

Both name chunks by id and paths by index into the instance's paths. Ordering and scheduling give the same type: an ordering is
a schedule whose sends carry one chunk each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from synth.instance import Instance


class Transfer(NamedTuple):
    """Chunk `chunk` crosses path `path`; with `reduce` the receiver adds it to its own contribution."""

    chunk: int
    path: int
    reduce: bool = False


#: The paths that a chunk takes, ascending, and whether it is added up at their ends.
Way = tuple[tuple[int, bool], ...]


@dataclass(frozen=True, slots=True)
class Routing:
    """Every transfer that happens, each once. `relaxed_us` is its cost at level 1 (docs/formulation.md, section 3)."""

    transfers: tuple[Transfer, ...]
    relaxed_us: float = 0.0

    def ways(self) -> dict[int, Way]:
        """The way of every chunk that is moved, by chunk, ascending."""
        taken: dict[int, list[tuple[int, bool]]] = defaultdict(list)
        for chunk, path, reduce in sorted(self.transfers):
            taken[chunk].append((path, reduce))
        return {chunk: tuple(way) for chunk, way in taken.items()}


class Message(NamedTuple):
    """A `Send` that has no times yet."""

    chunks: tuple[int, ...]
    path: int
    reduce: bool = False


class Send(NamedTuple):
    """One message: `chunks` cross `path` together, starting at `start_us` and all there at `arrive_us`."""

    chunks: tuple[int, ...]
    path: int
    reduce: bool
    start_us: float
    arrive_us: float


_BY_START = attrgetter("start_us", "path", "chunks")


@dataclass(frozen=True, slots=True)
class Schedule:
    """All messages in order of start (ties: path, chunks); `makespan_us` is the last arrival."""

    sends: tuple[Send, ...]

    @classmethod
    def of(cls, sends: Iterable[Send]) -> Schedule:
        """The schedule of messages in any order."""
        return cls(tuple(sorted(sends, key=_BY_START)))

    @property
    def makespan_us(self) -> float:
        return max((send.arrive_us for send in self.sends), default=0.0)

    def transfers(self) -> tuple[Transfer, ...]:
        """The routing that the schedule carries out."""
        return tuple(Transfer(chunk, send.path, send.reduce) for send in self.sends for chunk in send.chunks)


#: Where a message comes from and goes to: (rank, chunks, rank, chunks as that rank knows them, whether it is a contribution). A
#: plain tuple, as one is made for every message of every order that is tried.
Ends = tuple[int, tuple[int, ...], int, tuple[int, ...], bool]
#: More ranks than there are on any machine.
_MOST_RANKS = 1 << 20


def causes(instance: Instance, messages: Iterable[Message | Send]) -> list[Collection[int]]:
    """For each message the places of those that must have arrived before it starts (`causes_by_ends`)."""
    ends = [(path.src, path.dst) for path in instance.paths]
    return causes_by_ends(
        [(ends[path][0], chunks, ends[path][1], chunks, reduce) for chunks, path, reduce, *_ in messages]
    )


def causes_by_ends(messages: Sequence[Ends]) -> list[Collection[int]]:
    """For each message the places of those that must have arrived before it starts (docs/formulation.md, eq. 2), not to be changed:
    messages that wait for the same share them.

    What a rank sends of a chunk is what it was sent: a copy leaves after the copy that brought the chunk, or, at the rank that
    reduced it, after every contribution; a contribution leaves after every contribution that it includes.
    """
    # By chunk and rank as one number: making a tuple for each chunk of each message would take most of the time.
    copies: dict[int, list[int]] = {}
    reduces: dict[int, list[int]] = {}
    for place, (_, _, dst, arriving, reduce) in enumerate(messages):
        table = reduces if reduce else copies
        for chunk in arriving:
            key = chunk * _MOST_RANKS + dst
            if key in table:
                table[key].append(place)
            else:
                table[key] = [place]
    result: list[Collection[int]] = []
    for src, chunks, _, _, reduce in messages:
        before: Collection[int] = ()
        for chunk in chunks:
            key = chunk * _MOST_RANKS + src
            brought = (None if reduce else copies.get(key)) or reduces.get(key) or ()
            if isinstance(before, set):
                before.update(brought)
            elif not before:
                before = brought
            elif brought != before:  # chunks of a message mostly came in the same ones
                before = {*before, *brought}
        result.append(before)
    return result


def predecessors(instance: Instance, transfers: Iterable[Transfer]) -> dict[Transfer, tuple[Transfer, ...]]:
    """`causes` of transfers, each a message of its own."""
    listed = tuple(transfers)
    before = causes(instance, [Message((chunk,), path, reduce) for chunk, path, reduce in listed])
    return {
        transfer: tuple(listed[place] for place in sorted(places))
        for transfer, places in zip(listed, before, strict=True)
    }
