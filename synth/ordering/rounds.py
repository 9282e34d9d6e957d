"""Ordering in rounds, for large buffers on an interpreter (docs/formulation.md, section 5).

A list schedule keeps links busy one message at a time. An interpreter has many threadblocks that share a link, and each carries out
its steps in a fixed order: what holds one up holds up all that wait for it. Rounds of equal length leave it slack: in a round every
connection carries a message or so, no link more than it can, a rank adds at most one message to a sum, and what a message needs
was sent as many rounds earlier as a threadblock takes for it, and one more. How many rounds there are says how long the
interpreter takes.

Sums are also looked at backwards: on the machine with every link turned around what is added up is copied, which fills links at the
end, where sums are few, as well as at the beginning.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import ceil
from typing import NamedTuple

from synth.boxes import Boxes
from synth.constants import Constants
from synth.errors import NoAnswerError
from synth.instance import Instance
from synth.interpreted import channels_needed
from synth.ir import Message, Routing, Schedule, Send
from synth.list_scheduler import Work
from synth.timing import link_loads_us

#: A round is at least so many times as long as a threadblock needs for a chunk.
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
#: Messages that are looked at for one that may be added in this round.
_LOOKED_AT = 64
#: A run is good enough if it takes no more than this, times what the busiest link has to carry.
_ENOUGH = 1.005
#: Where capacity ends: sums of shares are rounded.
_WHOLE = 0.9999
#: A message that takes this much of a round longer than a whole number of them takes no more of them.
_WHOLE_ROUNDS = 0.1


class Place(NamedTuple):
    """Where a message comes to, and whether it is added to what is there of its chunk."""

    rank: int
    chunk: int
    added: bool


class Pace(NamedTuple):
    """How a run goes: how long a round is, how much a chunk's turn counts beside the chain of messages that is still to come after
    one, and how many sums a rank makes at the same time, in multiples of the messages that it receives in a round.
    """

    round_us: float
    turn: float
    abreast: float = 1.0


class _Entry(NamedTuple):
    """A message that waits for its turn on a path, the smallest first."""

    group: int
    to_go: int
    turn: float
    rotation: int
    position: int


@dataclass(frozen=True)
class Rounds:
    """Orders a routing for the connections of a protocol. All `turns` are tried at the shortest rounds, the best of them with more
    sums `abreast` and at longer rounds, too, and the least time of all rounds together is kept; sums go forwards or backwards,
    whichever the first of these is better at. A round is at least `slack` times as long as a threadblock needs for a chunk, and
    there are `most` of them at most as far as that is for the path that carries most. `steps` are those that the runtime takes of a
    threadblock, None any number.
    """

    protocol: str
    slack: float = _SLACK
    most: int = _MOST_ROUNDS
    steps: int | None = None
    turns: tuple[float, ...] = (1 / 5, 1 / 12, 0.0)
    abreast: tuple[float, ...] = (1.5,)

    def __call__(self, instance: Instance, routing: Routing, boxes: Boxes | None = None) -> tuple[Schedule, int]:
        """When which message is sent, one chunk each, and the number of rounds: the messages of one start in it, one after another,
        and are there at its end. The times are those of rounds, not of links; `makespan_us` is that of all rounds.

        With `boxes`, the instance is one folded onto its first box (synth.reductions.fold), and the routing that of its chunks: what
        a connection or a rank has to do beside it are the images of what the chunks do elsewhere.

        Raises NoAnswerError where a connection has more messages than its threadblock may have steps.
        """
        forwards = plan = _Plan(instance, routing, self, boxes)
        (shortest_us, *longer_us), (first, *others) = plan.lengths_us, self.turns
        best = plan.tried(Pace(shortest_us, first))
        if all(transfer.reduce for transfer in routing.transfers) and not plan.is_enough(best):
            backwards = _Plan(instance, routing, self, boxes, backwards=True)
            turned = backwards.tried(best.pace)
            if turned.taken_us < best.taken_us:
                plan, best = backwards, turned
        for turn in others:
            best = plan.better(best, Pace(shortest_us, turn))
        for abreast in self.abreast:
            best = plan.better(best, best.pace._replace(abreast=abreast))
        for round_us in longer_us:
            best = plan.better(best, best.pace._replace(round_us=round_us))
        if plan.backwards:
            best = replace(best, rounds=[best.count - 1 - number for number in best.rounds])
        return forwards.schedule(best), best.count


@dataclass(frozen=True, slots=True)
class _Tried:
    """The round of every message at a pace, and how many rounds there are."""

    pace: Pace
    rounds: list[int]
    count: int

    @property
    def taken_us(self) -> float:
        return self.count * self.pace.round_us


class _Plan:
    """What all paces have in common: who waits for whom, what shares which links, and which messages are one sum's."""

    def __init__(
        self, instance: Instance, routing: Routing, options: Rounds, boxes: Boxes | None, *, backwards: bool = False
    ) -> None:
        if backwards:
            instance = instance.reversed()
        self.instance, self.options, self.backwards = instance, options, backwards
        paths = instance.paths
        one_path = boxes.paths.min(axis=0).tolist() if boxes else range(len(paths))
        self.one_rank = list(range(instance.num_ranks))
        """by rank, of boxes, the one at the same place of the first"""
        if boxes:
            for rank, place in boxes.place_of.items():
                self.one_rank[rank] = boxes.ranks[0][place]
        self.messages = [Message((t.chunk,), t.path, t.reduce and not backwards) for t in sorted(routing.transfers)]
        self.work = Work.of(instance, self.messages)
        self.paths = [one_path[message.path] for message in self.messages]
        self.counts = Counter(self.paths)
        self.busy = {
            path: tuple(zip(paths[path].links, paths[path].busy_us(instance.chunk_bytes), strict=True))
            for path in sorted(self.counts)
        }
        self.busiest_us = max(link_loads_us(instance, self.paths).values(), default=0.0)
        needed = channels_needed(instance, self.counts, options.protocol)
        self.channels = {path: max(1, ceil(needed[path])) for path in self.busy}
        crowded = max((ceil(self.counts[path] / count) for path, count in self.channels.items()), default=0)
        if crowded > options.most:
            raise NoAnswerError(
                f"a connection has {crowded} messages, in rounds it can have {options.most}: cut less finely"
            )
        self.protocol = Constants.for_topology(instance.topology).of(options.protocol)
        self.chunk_us = instance.chunk_bytes / (self.protocol.rate_GBps * 1e3)
        self.message_us = {path: self._message_us(path) for path in self.busy}
        self.lengths_us = self._lengths()
        self.places = [Place(self._adder(m.path), m.chunks[0], m.reduce or backwards) for m in self.messages]
        self.parts = Counter(place for place in self.places if place.added)
        self.rotations = [(paths[path].dst - paths[path].src) % instance.num_ranks for path in self.paths]
        self.turns = self._turns()
        self.to_go = self._to_go()

    def tried(self, pace: Pace) -> _Tried:
        """What a pace gives."""
        rounds = _Run(self, pace).rounds()
        return _Tried(pace, rounds, max(rounds, default=-1) + 1)

    def is_enough(self, tried: _Tried) -> bool:
        """Whether links are as busy as can be."""
        return tried.taken_us <= self.busiest_us * _ENOUGH

    def better(self, best: _Tried, pace: Pace) -> _Tried:
        """The better of what was found and what the pace gives, which is not looked at where the former is enough."""
        if self.is_enough(best):
            return best
        return min(best, self.tried(pace), key=lambda tried: tried.taken_us)

    def _message_us(self, path: int) -> float:
        """What a message takes if all threadblocks of its path have one, as many as bandwidth or the number of steps asks for, and
        what it takes at any rate.
        """
        fewest = ceil(self.counts[path] / self.options.steps) if self.options.steps else 1
        threadblocks = max(self.channels[path], fewest)
        busy_us = max(self.chunk_us, max(us for _, us in self.busy[path]) * threadblocks)
        return busy_us + self.instance.paths[path].alpha_us + self.protocol.step_us

    def _adder(self, path: int) -> int:
        """The rank that adds what comes over a path to a sum: backwards, the one that a copy is from."""
        return self.instance.paths[path].src if self.backwards else self.instance.paths[path].dst

    def _lengths(self) -> list[float]:
        """Lengths of a round with which the path that carries most has the same number of messages in each."""
        most = max(self.counts.values(), default=1)
        least = ceil(most / self.options.most)
        whole = [self.busiest_us / ceil(most / each) for each in range(least, least + _NUMBERS)]
        return [length for length in whole if length >= self.chunk_us * self.options.slack][:_LENGTHS] or [
            self.chunk_us * _USUAL_SLACK
        ]

    def _turns(self) -> list[float]:
        """By message, where its chunk stands among those of its owner, 0 to 1."""
        by_owner = self.instance.by_owner(message.chunks[0] for message in self.messages)
        turns = {chunk: place / len(own) for own in by_owner.values() for place, chunk in enumerate(own)}
        return [turns[message.chunks[0]] for message in self.messages]

    def _to_go(self) -> list[int]:
        """By message, how many there are in the longest chain that begins with it."""
        to_go = [0] * len(self.messages)
        for index in reversed(self.work.causal_order()):
            to_go[index] = 1 + max((to_go[follower] for follower in self.work.after[index]), default=0)
        return to_go

    def groups(self, pace: Pace) -> list[int]:
        """By message, when its turn at the rank that it comes to is: sums are begun in groups, those first that most waits for,
        and as many of them at a time as keep all connections busy, since each takes one message a round.
        """
        rounds = self.busiest_us / pace.round_us
        received: dict[int, float] = defaultdict(float)
        for path, count in self.counts.items():
            received[self.one_rank[self._adder(path)]] += count / max(rounds, 1.0)
        urgent: dict[Place, tuple[float, float, int]] = {}
        for index, place in enumerate(self.places):
            key = (pace.turn * rounds * self.turns[index] - self.to_go[index], self.turns[index], place.chunk)
            urgent[place] = min(urgent.get(place, key), key)
        ordered: dict[int, list[Place]] = defaultdict(list)
        for place in sorted(urgent, key=lambda place: (urgent[place], place)):
            ordered[self.one_rank[place.rank]].append(place)
        group: dict[Place, int] = {}
        for rank, places in ordered.items():
            groups = max(1, int(len(places) / (received[rank] * pace.abreast * _WHOLE)))
            group.update((place, position * groups // len(places)) for position, place in enumerate(places))
        return [group[place] for place in self.places]

    def schedule(self, tried: _Tried) -> Schedule:
        """The messages in their rounds; those of one round in rotations, which do not meet in a switch."""
        rounds, pace = tried.rounds, tried.pace
        order = sorted(
            range(len(rounds)), key=lambda index: (rounds[index], self.rotations[index], self.paths[index], index)
        )
        in_round = Counter(rounds)
        begun: Counter[int] = Counter()
        sends = []
        for index in order:
            number = rounds[index]
            start_us = (number + begun[number] / in_round[number]) * pace.round_us
            begun[number] += 1
            sends.append(Send(*self.messages[index], start_us, (number + 1) * pace.round_us))
        return Schedule(tuple(sends))


class _Run:
    """One run: round after round, whatever may be sent is, the path that is most behind first."""

    def __init__(self, plan: _Plan, pace: Pace) -> None:
        self.plan = plan
        self.round_us = pace.round_us
        # A threadblock begins a message anywhere in a round.
        self.lag = {path: 1 + ceil(us / pace.round_us - _WHOLE_ROUNDS) for path, us in plan.message_us.items()}
        self.groups = plan.groups(pace)
        self.waiting = list(plan.work.before)
        self.missing = Counter(plan.parts)
        self.left = Counter(plan.counts)
        share = pace.round_us / plan.busiest_us if plan.busiest_us else 1.0
        self.most = {path: max(plan.channels[path], ceil(count * share)) + 1 for path, count in plan.counts.items()}
        self.ready: dict[int, list[_Entry]] = {path: [] for path in plan.busy}
        self.largest: dict[int, float] = defaultdict(float)
        for links in plan.busy.values():
            for link, busy_us in links:
                self.largest[link] = max(self.largest[link], busy_us)
        self.free_us = dict.fromkeys(self.largest, 0.0)
        self.added: set[Place] = set()

    def rounds(self) -> list[int]:
        """The round of every message."""
        result = [-1] * len(self.waiting)
        self._make_ready(index for index, count in enumerate(self.waiting) if count == 0)
        number, left = 0, len(result)
        ends: defaultdict[int, list[int]] = defaultdict(list)
        while left:
            sent = self._round(number)
            for index in sent:
                result[index] = number
                ends[number + self.lag[self.plan.paths[index]]].append(index)
            left -= len(sent)
            number += 1
            self._arrive(ends.pop(number, ()))
        return result

    def _round(self, number: int) -> list[int]:
        """The messages of one round. A link that was left idle may carry one message more in the next."""
        for link, largest_us in self.largest.items():
            self.free_us[link] = min(self.free_us[link], largest_us) + self.round_us
        self.added.clear()
        sent: list[int] = []
        carried: Counter[int] = Counter()
        paths = list(self.ready)
        first = number % len(paths)
        paths = [path for path in paths[first:] + paths[:first] if self.ready[path]]
        while paths:
            paths.sort(key=lambda path: -self.left[path] / self.plan.counts[path])
            again = []
            for path in paths:
                index = self._next(path)
                if index is not None:
                    sent.append(index)
                    carried[path] += 1
                    if self.ready[path] and carried[path] < self.most[path]:
                        again.append(path)
            paths = again
        return sent

    def _next(self, path: int) -> int | None:
        """Take the message of a path whose turn it is, if its links have room: of the first group, of which something may be added,
        the one whose sum misses most.
        """
        links = self.plan.busy[path]
        if any(self.free_us[link] < busy_us * _WHOLE for link, busy_us in links):
            return None
        ready = self.ready[path]
        found, most = -1, 0
        for position in range(min(len(ready), _LOOKED_AT)):
            entry = ready[position]
            if found >= 0 and entry.group != ready[found].group:
                break
            place = self.plan.places[entry.position]
            if not place.added:
                if found < 0:
                    found = position
                break
            if place not in self.added and self.missing[place] > most:
                found, most = position, self.missing[place]
        if found < 0:
            return None
        index = ready.pop(found).position
        for link, busy_us in links:
            self.free_us[link] -= busy_us
        self.left[path] -= 1
        place = self.plan.places[index]
        if place.added:
            self.added.add(place)
            self.missing[place] -= 1
        return index

    def _arrive(self, sent: Iterable[int]) -> None:
        ready = []
        for index in sent:
            for follower in self.plan.work.after[index]:
                self.waiting[follower] -= 1
                if not self.waiting[follower]:
                    ready.append(follower)
        self._make_ready(ready)

    def _make_ready(self, messages: Iterable[int]) -> None:
        plan = self.plan
        for index in messages:
            entry = _Entry(self.groups[index], -plan.to_go[index], plan.turns[index], plan.rotations[index], index)
            insort(self.ready[plan.paths[index]], entry)
