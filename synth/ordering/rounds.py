"""Ordering in rounds, for large buffers on an interpreter (docs/formulation.md, section 5).

A list schedule keeps links busy one message at a time. An interpreter has many threadblocks that share a link, and each carries out
its steps in a fixed order: what holds one up holds up all that wait for it. Rounds of equal length leave it slack: in a round every
connection carries a message or so, no link more than it can, a rank adds at most one message to a sum, and what a message needs
was sent as many rounds earlier as a threadblock takes for it, and one more. How many rounds there are says how long the
interpreter takes.

Messages may be pieces of several chunks (synth.ordering.pieces). A round is then as long as for the largest of them, and has several
ticks: smaller ones take fewer.

Rounds are filled (synth.ordering.filling) from the first on, or from the last one backwards, which fills links at the end, where
sums are few, as well as at the beginning; and there and back, each in the order of the other, until links are busy at either end.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from synth.boxes import Boxes
from synth.errors import NoAnswerError
from synth.instance import Instance
from synth.ir import Routing, Schedule, Send
from synth.ordering.filling import Filling
from synth.ordering.traffic import WHOLE, Direction, Place, Traffic, messages_of

#: A round is at least so many times as long as a threadblock needs for a message.
_SLACK = 1.1
#: And so many times where no number of rounds gives every path the same whole number of messages in each.
_USUAL_SLACK = 1.25
#: Rounds at most, as far as that is for the path that carries most, and messages of a connection: more gain nothing, take long, and
#: are more steps than a threadblock may have.
_MOST_ROUNDS = 256
#: Numbers of messages of that path in a round that are looked at, from the least on.
_NUMBERS = 4
#: Lengths that are tried, the shortest first.
_LENGTHS = 2
#: A run is good enough if it takes no more than this, times what the busiest link has to carry.
_ENOUGH = 1.005
#: And this is so good that going there and back is not worth it.
_NEARLY_ENOUGH = 1.015
#: No other pace goes there and back after what is so good.
_SETTLED = 1.03
#: What is found there and back is taken if it takes no more than this share of the best of the paces.
_WORTH_IT = 0.998
#: Runs after the first one of a pace, forwards and backwards in turns.
_MOST_TURNS_AROUND = 6
#: What is so far behind after so many of them is left there, and what is so far behind at first is not begun.
_TURNS_GIVEN = 2
_BEHIND = 1.01
_FAR_BEHIND = 1.2
#: Messages over all runs there and back, after which no other pace is begun.
_WORK_AROUND = 600_000


class Pace(NamedTuple):
    """How a run goes: how long a round is, how much a chunk's turn counts beside the chain of messages that is still to come after
    one, and how many sums a rank makes at the same time, in multiples of the messages that it receives in a round.
    """

    round_us: float
    turn: float
    abreast: float = 1.0


@dataclass(frozen=True)
class Rounds:
    """Orders a routing for the connections of a protocol. All `turns` are tried at the shortest rounds, the best of them with more
    sums `abreast` and at longer rounds, too, sums forwards or backwards, whichever the first of these is better at; and where links
    are idle then, turns there and back. The least time of all rounds together is kept. A round is at least `slack` times as long as
    a threadblock needs for a message, and there are `most` of them at most as far as that is for the path that carries most. `steps`
    are those that the runtime takes of a threadblock, None any number.
    """

    protocol: str
    slack: float = _SLACK
    most: int = _MOST_ROUNDS
    steps: int | None = None
    turns: tuple[float, ...] = (1 / 5, 1 / 12, 0.0)
    abreast: tuple[float, ...] = (1.5,)

    def __call__(
        self,
        instance: Instance,
        routing: Routing,
        pieces: Sequence[tuple[int, ...]] | None = None,
        *,
        boxes: Boxes | None = None,
    ) -> tuple[Schedule, int]:
        """When which message is sent, one of `pieces` each (None: one chunk), and the number of rounds: the messages of one start in
        it, one after another, and are there at its end; smaller ones than the largest start in a tick of it, and are there some
        ticks later. The times are those of rounds, not of links; `makespan_us` is that of all rounds.

        With `boxes`, the instance is one folded onto its first box (synth.reductions.fold), and the routing that of its chunks: what
        a connection or a rank has to do beside it are the images of what the chunks do elsewhere.

        Raises NoAnswerError where a connection has more messages than its threadblock may have steps.
        """
        traffic = Traffic(instance, messages_of(routing, pieces), self.protocol, self.steps, boxes)
        search = _Search(traffic, self)
        best = search.best()
        return search.schedule(best), math.ceil(best.count / traffic.ticks)


#: Rounds for both halves of an allreduce as one: chains are long there, so that their ends cost more than what short rounds do.
JOINT_ROUNDS = Rounds("Simple", slack=0.55, most=512)


@dataclass(frozen=True, slots=True)
class _Tried:
    """The tick in which every message begins at a pace, how many ticks there are, how long one is, and which way it was found."""

    pace: Pace
    ticks: list[int]
    count: int
    tick_us: float
    backwards: bool

    @property
    def taken_us(self) -> float:
        return self.count * self.tick_us


class _Search:
    """What is tried of one traffic: paces in either direction, and what comes of them there and back."""

    def __init__(self, traffic: Traffic, options: Rounds) -> None:
        self.traffic, self.options = traffic, options
        counts = traffic.counts
        crowded = max((math.ceil(counts[path] / count) for path, count in traffic.channels.items()), default=0)
        if crowded > options.most:
            raise NoAnswerError(
                f"a connection has {crowded} messages, in rounds it can have {options.most}: cut less finely"
            )
        self.lengths_us = self._lengths()
        self._seen: dict[tuple[Pace, bool], _Tried] = {}
        self._turned = 0

    def best(self) -> _Tried:
        """The best of all paces, and of what comes of them there and back where these are not good enough."""
        best = self._best_pace()
        if best.taken_us <= self.traffic.busiest_us * _NEARLY_ENOUGH:
            return best
        settled = self._settled()
        return settled if settled.taken_us <= best.taken_us * _WORTH_IT else best

    def _best_pace(self) -> _Tried:
        """All turns at the shortest rounds, the best of them with more sums abreast and at longer rounds, too; what is all summed
        forwards or backwards, whichever the first of these is better at.
        """
        (shortest_us, *longer_us), (first, *others) = self.lengths_us, self.options.turns
        best = self._tried(Pace(shortest_us, first))
        if all(message.reduce for message in self.traffic.messages):
            best = self._better(best, best.pace, backwards=True)
        for turn in others:
            best = self._better(best, Pace(shortest_us, turn), best.backwards)
        for abreast in self.options.abreast:
            best = self._better(best, best.pace._replace(abreast=abreast), best.backwards)
        for round_us in longer_us:
            best = self._better(best, best.pace._replace(round_us=round_us), best.backwards)
        return best

    def _settled(self) -> _Tried:
        """The best of all turns there and back at the shortest rounds, and of the best of these at longer ones. What is copied and
        summed begins backwards as well.
        """
        shortest_us, *longer_us = self.lengths_us
        begins = (False, True) if len({message.reduce for message in self.traffic.messages}) > 1 else (False,)
        (pace, begun), *others = [(Pace(shortest_us, turn), each) for turn in self.options.turns for each in begins]
        first = self._tried(pace, begun)
        best = self._there_and_back(first, math.inf)
        for other_pace, other_begun in others:
            if self._is_settled(best):
                return best
            other = self._tried(other_pace, other_begun)
            if other.taken_us > first.taken_us * _FAR_BEHIND:
                continue
            found = self._there_and_back(other, best.taken_us)
            if found.taken_us < best.taken_us:
                best, begun = found, other_begun
        for round_us in longer_us:
            if self._is_settled(best):
                return best
            longer = self._there_and_back(self._tried(best.pace._replace(round_us=round_us), begun), best.taken_us)
            best = min(best, longer, key=lambda tried: tried.taken_us)
        return best

    def _is_settled(self, best: _Tried) -> bool:
        """Whether no other pace is worth its time there and back."""
        near = best.taken_us <= self.traffic.busiest_us * _SETTLED
        return near or self._turned * len(self.traffic.messages) >= _WORK_AROUND

    def _there_and_back(self, tried: _Tried, beside_us: float) -> _Tried:
        """The best that is found forwards in turns with backwards, each in the order of the other, until neither gains, or is far
        behind what takes `beside_us`. Backwards all is as late as can be, so that whatever is held up holds all up: that is not
        taken.
        """
        best, least_us, in_vain = None if tried.backwards else tried, tried.taken_us, 0
        for turned in range(1, _MOST_TURNS_AROUND + 1):
            tried = self._turned_around(tried)
            if not tried.backwards and (best is None or tried.taken_us < best.taken_us):
                best = tried
            in_vain = 0 if tried.taken_us < least_us else in_vain + 1
            least_us = min(least_us, tried.taken_us)
            behind = turned >= _TURNS_GIVEN and least_us > beside_us * _BEHIND
            if in_vain > 1 or behind or (best is not None and self._is_enough(best)):
                break
        assert best is not None
        return best

    def _turned_around(self, tried: _Tried) -> _Tried:
        """What was found in one direction carried out in the other, in the order that it had seen from there."""
        self._turned += 1
        turned = self.traffic.forwards if tried.backwards else self.traffic.backwards
        return self._carried_out(turned, tried.pace, self._mirrored(tried) if turned.backwards else tried.ticks)

    def _tried(self, pace: Pace, backwards: bool = False) -> _Tried:
        """What a pace gives, in messages in groups."""
        if (pace, backwards) not in self._seen:
            direction = self.traffic.backwards if backwards else self.traffic.forwards
            self._seen[pace, backwards] = self._carried_out(direction, pace, self._groups(pace, direction))
        return self._seen[pace, backwards]

    def _carried_out(self, direction: Direction, pace: Pace, groups: list[int]) -> _Tried:
        """A run in one direction with messages in these groups."""
        ticks = Filling(self.traffic, direction, pace.round_us, groups).ticks()
        first = min(ticks, default=0)
        ticks = [tick - first for tick in ticks]
        count = max(
            (tick + self.traffic.lasts(size) for tick, size in zip(ticks, self.traffic.sizes, strict=True)), default=0
        )
        tried = _Tried(pace, ticks, count, pace.round_us / self.traffic.ticks, direction.backwards)
        return replace(tried, ticks=self._mirrored(tried)) if direction.backwards else tried

    def _mirrored(self, tried: _Tried) -> list[int]:
        """By message, in which tick from the end it ends."""
        return [
            tried.count - self.traffic.lasts(size) - tick
            for tick, size in zip(tried.ticks, self.traffic.sizes, strict=True)
        ]

    def _is_enough(self, tried: _Tried) -> bool:
        """Whether links are as busy as can be."""
        return tried.taken_us <= self.traffic.busiest_us * _ENOUGH

    def _better(self, best: _Tried, pace: Pace, backwards: bool) -> _Tried:
        """The better of what was found and what the pace gives, which is not looked at where the former is enough."""
        if self._is_enough(best):
            return best
        return min(best, self._tried(pace, backwards), key=lambda tried: tried.taken_us)

    def _lengths(self) -> list[float]:
        """Lengths of a round with which the path that carries most has the same number of messages in each."""
        most = max(self.traffic.counts.values(), default=1.0)
        least = math.ceil(most / self.options.most)
        whole = [self.traffic.busiest_us / math.ceil(most / each) for each in range(least, least + _NUMBERS)]
        return [length for length in whole if length >= self.traffic.message_us * self.options.slack][:_LENGTHS] or [
            self.traffic.message_us * _USUAL_SLACK
        ]

    def _groups(self, pace: Pace, direction: Direction) -> list[int]:
        """By message, when its turn at the rank that it comes to is: sums are begun in groups, those first that most waits for,
        and as many of them at a time as keep all connections busy, since each takes one message a round.
        """
        traffic = self.traffic
        rounds = traffic.busiest_us / pace.round_us
        received: dict[int, float] = defaultdict(float)
        for path, count in traffic.counts.items():
            received[traffic.one_rank[traffic.instance.paths[path].dst]] += count / max(rounds, 1.0)
        urgent: dict[Place, tuple[float, float, int]] = {}
        for index, (place, turn) in enumerate(zip(traffic.places, traffic.turns, strict=True)):
            key = (pace.turn * rounds * turn - direction.to_go[index], turn, place.chunk)
            urgent[place] = min(urgent.get(place, key), key)
        ordered: dict[int, list[Place]] = defaultdict(list)
        for place in sorted(urgent, key=lambda place: (urgent[place], place)):
            ordered[traffic.one_rank[place.rank]].append(place)
        group: dict[Place, int] = {}
        for rank, places in ordered.items():
            groups = max(1, int(len(places) / (received[rank] * pace.abreast * WHOLE)))
            group.update((place, position * groups // len(places)) for position, place in enumerate(places))
        return [group[place] for place in traffic.places]

    def schedule(self, tried: _Tried) -> Schedule:
        """The messages in their rounds; those of one tick in rotations, which do not meet in a switch."""
        traffic, ticks, tick_us = self.traffic, tried.ticks, tried.tick_us
        order = sorted(
            range(len(ticks)), key=lambda index: (ticks[index], traffic.rotations[index], traffic.paths[index], index)
        )
        in_tick = Counter(ticks)
        begun: Counter[int] = Counter()
        sends = []
        for index in order:
            tick = ticks[index]
            start_us = (tick + begun[tick] / in_tick[tick]) * tick_us
            begun[tick] += 1
            end_us = (tick + traffic.lasts(traffic.sizes[index])) * tick_us
            sends.append(Send(*traffic.messages[index], start_us, end_us))
        return Schedule(tuple(sends))
