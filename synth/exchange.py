"""Allreduces in which every rank adds up for itself: in each of a few levels, the ranks of a group give each other what they have.

After a level all of a group hold the sum of what its members held before, and after the last one everything, so it takes as many
hops as the machine is wide, where a sum at one rank and its copies take twice that (docs/formulation.md, section 12). At a *parted*
level each member adds up a part of its own and goes on with that; the parts are gathered again at the end, in reverse.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from math import prod
from typing import NamedTuple

from synth.errors import CheckError
from synth.ir import Message

#: How the names of exchanges begin.
EXCHANGE = "exchange"


class Level(NamedTuple):
    """Every rank is in one of the groups; members are in the order in which all of them add."""

    groups: tuple[tuple[int, ...], ...]
    parted: bool = False

    @property
    def size(self) -> int:
        """Members of a group."""
        return len(self.groups[0])


class Kind(Enum):
    """What the members of a group give each other: the part that the other adds up, all that they have, or their finished part."""

    PART = "part"
    ALL = "all"
    FINISHED = "finished"


class Phase(NamedTuple):
    """All groups of a level at once."""

    level: int
    kind: Kind


class Given(NamedTuple):
    """In a phase, `src` gives `dst` its `chunks`."""

    src: int
    dst: int
    chunks: range


@dataclass(frozen=True)
class Exchange:
    """The levels, and by ordered pair of ranks that are in a group together the paths, over other ranks if need be, between them."""

    num_ranks: int
    levels: tuple[Level, ...]
    routes: Mapping[tuple[int, int], tuple[int, ...]]

    @property
    def name(self) -> str:
        """`exchange-4p-2`: groups of four, whose members part the vector, then of two."""
        return "-".join([EXCHANGE, *(f"{level.size}{'p' * level.parted}" for level in self.levels)])

    @property
    def parts(self) -> int:
        """What the vector's chunks have to be a multiple of."""
        return prod(level.size for level in self.levels if level.parted)

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """In order of time."""
        down = [Phase(number, Kind.PART if level.parted else Kind.ALL) for number, level in enumerate(self.levels)]
        back = [Phase(number, Kind.FINISHED) for number, kind in reversed(down) if kind is Kind.PART]
        return (*down, *back)

    @cached_property
    def _places(self) -> tuple[dict[int, int], ...]:
        """By level the place of every rank among the members of its group."""
        return tuple(
            {rank: place for group in level.groups for place, rank in enumerate(group)} for level in self.levels
        )

    def span(self, rank: int, level: int, chunks: int) -> range:
        """The chunks that a rank goes on with before a level (after all of them: their number)."""
        start, length = 0, chunks
        for above, places in zip(self.levels[:level], self._places, strict=False):
            if above.parted:
                length //= above.size
                start += places[rank] * length
        return range(start, start + length)

    def given(self, phase: Phase, chunks: int) -> list[Given]:
        """What is given in a phase, nearest places first, so that no member is everybody's first."""
        level = self.levels[phase.level]
        found = []
        for turn in range(1, level.size):
            for group in level.groups:
                for place, src in enumerate(group):
                    dst = group[(place + turn) % level.size]
                    owner = dst if phase.kind is Kind.PART else src
                    span = self.span(owner, phase.level + level.parted, chunks)
                    found.append(Given(src, dst, span))
        return found

    def messages(self, chunks: int) -> tuple[list[Message], list[tuple[int, ...]]]:
        """Every hop as a message, in a causal order, and for each the places of those that must have arrived before it starts."""
        messages: list[Message] = []
        waits: list[tuple[int, ...]] = []
        came: dict[int, tuple[int, ...]] = {}
        for phase in self.phases:
            arriving: dict[int, list[int]] = defaultdict(list)
            flows = [(one, self.routes[one.src, one.dst]) for one in self.given(phase, chunks)]
            last = [-1] * len(flows)
            for hop in range(max(len(route) for _, route in flows)):
                for flow, (one, route) in enumerate(flows):
                    if hop >= len(route):
                        continue
                    waits.append((last[flow],) if hop else came.get(one.src, ()))
                    last[flow] = len(messages)
                    messages.append(Message(tuple(one.chunks), route[hop]))
            for place, (one, _) in zip(last, flows, strict=True):
                arriving[one.dst].append(place)
            came = {rank: tuple(places) for rank, places in arriving.items()}
        return messages, waits

    def fault(self) -> str | None:
        """What keeps some rank from ending with every contribution, each once, of every part; None where nothing does."""
        ranks = range(self.num_ranks)
        held = {rank: 1 << rank for rank in ranks}
        for number, level in enumerate(self.levels):
            if sorted(rank for group in level.groups for rank in group) != list(ranks):
                return f"level {number} has a rank in no group, or in two"
            for group in level.groups:
                if len(group) != level.size:
                    return f"group {group} of level {number} is no {level.size} ranks"
                if len({self.span(rank, number, self.parts) for rank in group}) > 1:
                    return f"group {group} of level {number} has different parts"
                total = sum(held[rank] for rank in group)
                if total.bit_count() != sum(held[rank].bit_count() for rank in group):
                    return f"group {group} of level {number} adds something twice"
                held |= dict.fromkeys(group, total)
        lacking = [rank for rank in ranks if held[rank] != (1 << self.num_ranks) - 1]
        return f"ranks {lacking} do not get every contribution" if lacking else None

    def check(self) -> None:
        """Raise CheckError where there is a fault."""
        if (fault := self.fault()) is not None:
            raise CheckError("exchange", fault, self.levels)
