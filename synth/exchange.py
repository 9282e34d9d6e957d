"""Allreduces in which every rank adds up for itself: in each of a few levels, the ranks of a group give each other what they have.

After a level all of a group hold the sum of what its members held before, and after the last one everything, so it takes as many
hops as the machine is wide, where a sum at one rank and its copies take twice that (docs/formulation.md, section 12). At a *parted*
level each member adds up a part of its own and goes on with that; the parts are gathered again at the end, in reverse. Some members
may own all parts, as the GPUs beside a box's NICs: the others go on with nothing, and are given everything at the end.

The vector may be cut into *slices*, which follow one another through the phases, so that links are busy while sums wait for what is
under way; and the slices may begin at one level after another, so that the links of all levels are.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property, reduce
from math import prod
from operator import or_
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from synth.errors import CheckError
from synth.ir import Message

#: How the names of exchanges begin.
EXCHANGE = "exchange"


class Level(NamedTuple):
    """Every rank is in one of the groups; members are in the order in which all of them add. If it is parted, `owners` are the
    ranks that own a part of what their group holds, as many of each group (None: all).
    """

    groups: tuple[tuple[int, ...], ...]
    parted: bool = False
    owners: frozenset[int] | None = None

    @property
    def size(self) -> int:
        """Members of a group."""
        return len(self.groups[0])

    @property
    def shares(self) -> int:
        """Parts that a group makes of what it holds."""
        if not self.parted:
            return 1
        return self.size if self.owners is None else max(len(self.owners.intersection(group)) for group in self.groups)

    @property
    def name(self) -> str:
        """`4`, or `4p` if it is parted, among two of the four `4p2`."""
        return f"{self.size}{'p' * self.parted}{'' if self.owners is None else self.shares}"


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
    """The levels, and by ordered pair of ranks that are in a group together the paths, over other ranks if need be, between them:
    what one slice goes through.
    """

    num_ranks: int
    levels: tuple[Level, ...]
    routes: Mapping[tuple[int, int], tuple[int, ...]]

    @property
    def name(self) -> str:
        """`exchange-4p-2`: groups of four, whose members part the vector, then of two."""
        return "-".join([EXCHANGE, *(level.name for level in self.levels)])

    @property
    def has_gates(self) -> bool:
        """Whether at some level some own all that others give them."""
        return any(level.owners is not None for level in self.levels)

    @cached_property
    def parts(self) -> int:
        """What the vector's chunks have to be a multiple of."""
        return prod(self._shares)

    @cached_property
    def _shares(self) -> tuple[int, ...]:
        """Parts that a group makes of what it holds, by level."""
        return tuple(level.shares for level in self.levels)

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """In order of time."""
        down = [Phase(number, Kind.PART if level.parted else Kind.ALL) for number, level in enumerate(self.levels)]
        back = [Phase(number, Kind.FINISHED) for number, kind in reversed(down) if kind is Kind.PART]
        return (*down, *back)

    @cached_property
    def pairs(self) -> list[tuple[int, int]]:
        """Who gives whom anything, and each of them the other way round."""
        given = [one for phase in self.phases for one in self.given(phase, self.parts)]
        return [*dict.fromkeys(pair for one in given for pair in ((one.src, one.dst), (one.dst, one.src)))]

    @cached_property
    def _places(self) -> tuple[NDArray[np.int64], ...]:
        """By level and rank its place among those of its group that may own a part, -1 for who owns nothing."""
        places = np.full((len(self.levels), self.num_ranks), -1, dtype=np.int64)
        for number, level in enumerate(self.levels):
            for group in level.groups:
                for place, rank in enumerate(filter(level.owners.__contains__, group) if level.owners else group):
                    places[number, rank] = place
        return tuple(places)

    def spans(self, level: int, chunks: int, turn: int = 0) -> list[range]:
        """By rank, those of so many chunks that it goes on with before a level (after all of them: their number). Where they cannot
        be shared out evenly, `turn` says who gets more.
        """
        starts = np.zeros(self.num_ranks, dtype=np.int64)
        stops = np.full(self.num_ranks, chunks)
        for above, place, shares in zip(self.levels[:level], self._places, self._shares, strict=False):
            if above.parted:
                sizes, more = stops - starts, turn % shares
                stops = starts + np.where(place < 0, 0, (sizes * (place + 1) + more) // shares)
                starts += np.where(place < 0, 0, (sizes * place + more) // shares)
        return list(map(range, starts.tolist(), stops.tolist()))

    def given(self, phase: Phase, chunks: int, turn: int = 0) -> list[Given]:
        """What is given in a phase, nearest places first, so that no member is everybody's first; nothing is not given."""
        level = self.levels[phase.level]
        spans = self.spans(phase.level + level.parted, chunks, turn)
        owned_there = phase.kind is Kind.PART
        found = []
        for away in range(1, level.size):
            for group in level.groups:
                for src, dst in zip(group, (*group[away:], *group[:away]), strict=True):
                    if span := spans[dst if owned_there else src]:
                        found.append(Given(src, dst, span))
        return found

    def fault(self) -> str | None:
        """What keeps some rank from ending with every contribution, each once, of every part; None where nothing does."""
        ranks = range(self.num_ranks)
        held = {rank: 1 << rank for rank in ranks}
        for number, level in enumerate(self.levels):
            if sorted(rank for group in level.groups for rank in group) != list(ranks):
                return f"level {number} has a rank in no group, or in two"
            spans = self.spans(number, self.parts)
            for group in level.groups:
                if len(group) != level.size:
                    return f"group {group} of level {number} is no {level.size} ranks"
                if any(spans[rank] != spans[group[0]] for rank in group):
                    return f"group {group} of level {number} has different parts"
                if level.owners is not None and spans[group[0]]:
                    owned, shares = len(level.owners.intersection(group)), self._shares[number]
                    if owned != shares:
                        return f"group {group} of level {number} has {owned} ranks that own parts, not {shares}"
                total = sum(held[rank] for rank in group)
                if total.bit_count() != sum(held[rank].bit_count() for rank in group):
                    return f"group {group} of level {number} adds something twice"
                held |= dict.fromkeys(group, total)
            if self._differ(held, number + 1):
                return f"after level {number} ranks hold sums of one part that are different and share contributions"
        lacking = [rank for rank in ranks if held[rank] != (1 << self.num_ranks) - 1]
        return f"ranks {lacking} do not get every contribution" if lacking else None

    def _differ(self, held: Mapping[int, int], level: int) -> bool:
        """Whether ranks that hold one part before a level have sums of it that overlap and are not the same: then they would add the
        same contributions in different orders, and not get the same bits.
        """
        sums: dict[range, set[int]] = defaultdict(set)
        for rank, part in enumerate(self.spans(level, self.parts)):
            if part:
                sums[part].add(held[rank])
        return any(reduce(or_, found).bit_count() < sum(map(int.bit_count, found)) for found in sums.values())

    def check(self) -> None:
        """Raise CheckError where there is a fault."""
        if (fault := self.fault()) is not None:
            raise CheckError("exchange", fault, self.levels)


class Step(NamedTuple):
    """Two members of a group give each other something of a slice, or one gives the other, in the phase of that number."""

    slice: int
    number: int
    there: Given
    back: Given


class Hop(NamedTuple):
    """A message, which hops (by place among all) must have arrived before it starts, and on what way it is: of which step (by
    number), from which rank to which.
    """

    message: Message
    waits: tuple[int, ...]
    step: int
    pair: tuple[int, int]


@dataclass(frozen=True)
class Slices:
    """An allreduce in exchanges: equal slices of the vector, each in one of the `exchanges` in turn, which are over the same pairs
    of ranks and have as many phases.
    """

    exchanges: tuple[Exchange, ...]
    count: int = 1

    @property
    def name(self) -> str:
        """`exchange-4p-2`, `exchange-4p-2-in-8` slices, `exchange-4p-2-turned-in-8` where they begin at different levels."""
        turned = "-turned" if len(self.exchanges) > 1 else ""
        return f"{self.exchanges[0].name}{turned}" + (f"-in-{self.count}" if self.count > 1 else "")

    @property
    def num_ranks(self) -> int:
        """Ranks, all of which take part."""
        return self.exchanges[0].num_ranks

    @property
    def routes(self) -> Mapping[tuple[int, int], tuple[int, ...]]:
        """The ways between ranks that give each other something."""
        return self.exchanges[0].routes

    @property
    def parts(self) -> int:
        """Chunks that the vector has to have at least, so that none of its parts is empty."""
        return self.count * max(exchange.parts for exchange in self.exchanges)

    def cut(self, count: int) -> Slices:
        """The same in `count` slices, or in so many more that each of the exchanges has as many."""
        turns = len(self.exchanges)
        return replace(self, count=-(-count // turns) * turns)

    @property
    def has_gates(self) -> bool:
        """Whether at some level some own all that others give them."""
        return self.exchanges[0].has_gates

    @property
    def peers(self) -> Counter[int]:
        """With how many others each rank exchanges."""
        return Counter(src for src, _ in self.routes)

    def exchange(self, slice_: int) -> Exchange:
        """What a slice goes through."""
        return self.exchanges[slice_ % len(self.exchanges)]

    def turn(self, slice_: int) -> int:
        """Who gets more of a slice that cannot be shared out evenly: another with each of an exchange's."""
        return slice_ // len(self.exchanges)

    def listed(self, chunks: int) -> tuple[list[Step], list[Hop]]:
        """All steps of a vector of so many chunks, and every hop of theirs in a causal order: phase by phase, slice by slice."""
        length = chunks // self.count
        steps: list[Step] = []
        hops: list[Hop] = []
        came: list[Mapping[int, Sequence[int]]] = [{}] * self.count
        for number in range(len(self.exchanges[0].phases)):
            for slice_ in range(self.count):
                given = self._given(slice_, number, length)
                upward = (pair for pair in given if pair[0] < pair[1])
                both = dict.fromkeys((*upward, *((min(pair), max(pair)) for pair in given)))
                pairs = {pair: at for at, pair in enumerate(both)}
                first = len(steps)
                steps += [Step(slice_, number, _of(given, *pair), _of(given, *reversed(pair))) for pair in pairs]
                which = {(src, dst): first + pairs[min(src, dst), max(src, dst)] for src, dst in given}
                came[slice_] = self._hop(hops, given, which, came[slice_])
        return steps, hops

    def _given(self, slice_: int, number: int, length: int) -> dict[tuple[int, int], Given]:
        """What is given of a slice in a phase, by who gives it to whom."""
        exchange = self.exchange(slice_)
        given = exchange.given(exchange.phases[number], length, self.turn(slice_))
        ahead = slice_ * length
        return {
            (one.src, one.dst): one._replace(chunks=range(one.chunks.start + ahead, one.chunks.stop + ahead))
            for one in given
        }

    def _hop(
        self,
        hops: list[Hop],
        given: Mapping[tuple[int, int], Given],
        which: Mapping[tuple[int, int], int],
        came: Mapping[int, Sequence[int]],
    ) -> Mapping[int, Sequence[int]]:
        """Add the hops of a phase of a slice, before which so much `came` by rank; what has come after it, by rank."""
        last: dict[tuple[int, int], int] = {}
        for hop in range(max((len(self.routes[pair]) for pair in given), default=0)):
            for pair, one in given.items():
                route = self.routes[pair]
                if hop < len(route):
                    waits = (last[pair],) if hop else tuple(came.get(one.src, ()))
                    last[pair] = len(hops)
                    hops.append(Hop(Message(tuple(one.chunks), route[hop]), waits, which[pair], pair))
        arriving = defaultdict(list, {rank: [*before] for rank, before in came.items()})
        for (_, dst), place in last.items():
            arriving[dst].append(place)
        return arriving

    def check(self) -> None:
        """Raise CheckError where there is a fault."""
        for exchange in self.exchanges:
            exchange.check()


def _of(given: Mapping[tuple[int, int], Given], src: int, dst: int) -> Given:
    """What one gives another: no chunks where that is nothing."""
    return given.get((src, dst), Given(src, dst, range(0)))
