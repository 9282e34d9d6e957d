"""Ordering in rounds, for large buffers on an interpreter (docs/formulation.md, section 5).

A list schedule keeps links busy one message at a time. An interpreter has many threadblocks that share a link, and each carries out
its steps in a fixed order: what holds one up holds up all that wait for it. Rounds of equal length leave it slack: in a round every
connection carries a message or so, no link more than it can, a rank adds at most one message to a sum, and what a message needs
was sent as many rounds earlier as a threadblock takes for it, and one more. How many rounds there are says how long the
interpreter takes.

Messages may be pieces of several chunks (synth.ordering.pieces). A round is then as long as for the largest of them, and has several
ticks: smaller ones take fewer.

Sums are also looked at backwards: on the machine with every link turned around what is added up is copied, which fills links at the
end, where sums are few, as well as at the beginning.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from synth.boxes import Boxes
from synth.constants import Constants
from synth.errors import NoAnswerError
from synth.instance import Instance
from synth.interpreted import channels_needed
from synth.ir import Message, Routing, Schedule, Send
from synth.list_scheduler import Work
from synth.timing import link_loads_us

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
#: Messages that are looked at for one that may be added in this round.
_LOOKED_AT = 64
#: A run is good enough if it takes no more than this, times what the busiest link has to carry.
_ENOUGH = 1.005
#: And this is so good that going there and back is not worth it, which pays from that share of the time on.
_NEARLY_ENOUGH = 1.01
_WORTH_IT = 0.998
#: Runs after the first one of a pace, forwards and backwards in turns.
_MOST_TURNS_AROUND = 6
#: What is so far behind after so many of them is left there.
_TURNS_GIVEN = 2
_BEHIND = 1.01
#: Where capacity ends: sums of shares are rounded.
_WHOLE = 0.9999
#: A message that takes this much of a round longer than a whole number of them takes no more of them.
_WHOLE_ROUNDS = 0.1
#: Ticks of a round at most.
_TICKS = 4


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


#: A message that waits for its turn on a path, the smallest first: its group, messages that follow in the longest chain (negative),
#: turn, rotation, position, and the number of the sum that it is added to. A plain tuple, as these are looked at all the time.
_Entry = tuple[int, int, float, int, int, int | None]


@dataclass(frozen=True)
class Rounds:
    """Orders a routing for the connections of a protocol. All `turns` are tried at the shortest rounds, the best of them with more
    sums `abreast` and at longer rounds, too, and the least time of all rounds together is kept; sums go forwards or backwards,
    whichever the first of these is better at. A round is at least `slack` times as long as a threadblock needs for a message, and
    there are `most` of them at most as far as that is for the path that carries most. `steps` are those that the runtime takes of a
    threadblock, None any number.
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
        plan = _Plan(instance, _cut(routing, pieces), self, boxes)
        best = plan.best()
        return plan.schedule(best), math.ceil(best.count / plan.ticks)


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


class _Direction(NamedTuple):
    """Who waits for whom, from the beginning on or, backwards, from the end on."""

    work: Work
    to_go: list[float]
    """by message, how many there are in the longest chain that begins with it"""
    backwards: bool


def _cut(routing: Routing, pieces: Sequence[tuple[int, ...]] | None) -> list[Message]:
    """The messages that carry out a routing, in order of chunk and path: a transfer each, or those of a piece together."""
    transfers = sorted(routing.transfers)
    if pieces is None:
        return [Message((transfer.chunk,), transfer.path, transfer.reduce) for transfer in transfers]
    piece = {each[0]: each for each in pieces}
    return [Message(piece[each.chunk], each.path, each.reduce) for each in transfers if each.chunk in piece]


class _Plan:
    """What all paces have in common: who waits for whom, what shares which links, and which messages are one sum's."""

    def __init__(self, instance: Instance, messages: list[Message], options: Rounds, boxes: Boxes | None) -> None:
        self.instance, self.options, self.messages = instance, options, messages
        paths = instance.paths
        one_path = boxes.paths.min(axis=0).tolist() if boxes else range(len(paths))
        self.one_rank = list(range(instance.num_ranks))
        """by rank, of boxes, the one at the same place of the first"""
        if boxes:
            for rank, place in boxes.place_of.items():
                self.one_rank[rank] = boxes.ranks[0][place]
        forwards = Work.of(instance, messages)
        alike = [1.0] * len(messages)
        turned = Work.waiting(messages, forwards.after)
        self.directions = (
            _Direction(forwards, forwards.to_go(alike), False),
            _Direction(turned, turned.to_go(alike), True),
        )
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
        needed = channels_needed(instance, chunks, options.protocol)
        self.channels = {path: max(1, math.ceil(needed[path])) for path in self.counts}
        crowded = max((math.ceil(self.counts[path] / count) for path, count in self.channels.items()), default=0)
        if crowded > options.most:
            raise NoAnswerError(
                f"a connection has {crowded} messages, in rounds it can have {options.most}: cut less finely"
            )
        self.protocol = Constants.for_topology(instance.topology).of(options.protocol)
        self.message_us = self.largest * instance.chunk_bytes / (self.protocol.rate_GBps * 1e3)
        """what a threadblock takes for the largest"""
        self.lengths_us = self._lengths()
        self.places = [Place(paths[m.path].dst, m.chunks[0], m.reduce) for m in messages]
        parts = Counter(place for place in self.places if place.added)
        number = {place: position for position, place in enumerate(parts)}
        self.sums = [number.get(place) for place in self.places]
        """by message the number of the sum that it is added to, None if it is not"""
        self.parts = list(parts.values())
        """by number of a sum, how many messages are added to it"""
        self.rotations = [(paths[path].dst - paths[path].src) % instance.num_ranks for path in self.paths]
        self.turns = self._turns()
        self._seen: dict[tuple[Pace, bool], _Tried] = {}

    def best(self) -> _Tried:
        """The best of all paces, and of what comes of them there and back where these are not good enough."""
        best = self._best_pace()
        if best.taken_us <= self.busiest_us * _NEARLY_ENOUGH:
            return best
        settled = self._settled()
        return settled if settled.taken_us <= best.taken_us * _WORTH_IT else best

    def _best_pace(self) -> _Tried:
        """All turns at the shortest rounds, the best of them with more sums abreast and at longer rounds, too; what is all summed
        forwards or backwards, whichever the first of these is better at.
        """
        (shortest_us, *longer_us), (first, *others) = self.lengths_us, self.options.turns
        best = self._tried(Pace(shortest_us, first))
        if all(message.reduce for message in self.messages):
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
        begins = (False, True) if len({message.reduce for message in self.messages}) > 1 else (False,)
        (pace, begun), *others = [(Pace(shortest_us, turn), each) for turn in self.options.turns for each in begins]
        best = self._there_and_back(pace, begun, math.inf)
        for other_pace, other_begun in others:
            found = self._there_and_back(other_pace, other_begun, best.taken_us)
            if found.taken_us < best.taken_us:
                best, begun = found, other_begun
        for round_us in longer_us:
            found = self._there_and_back(best.pace._replace(round_us=round_us), begun, best.taken_us)
            best = min(best, found, key=lambda tried: tried.taken_us)
        return best

    def _there_and_back(self, pace: Pace, backwards: bool, beside_us: float) -> _Tried:
        """The best that is found forwards in turns with backwards, each in the order of the other, until neither gains, or is far
        behind what takes `beside_us`. Backwards all is as late as can be, so that whatever is held up holds all up: that is not
        taken.
        """
        tried = self._tried(pace, backwards)
        best, least_us, in_vain = None if backwards else tried, tried.taken_us, 0
        for turned in range(1, _MOST_TURNS_AROUND + 1):
            tried = self._turned_around(tried)
            if not tried.backwards and (best is None or tried.taken_us < best.taken_us):
                best = tried
            in_vain = 0 if tried.taken_us < least_us else in_vain + 1
            least_us = min(least_us, tried.taken_us)
            behind = turned >= _TURNS_GIVEN and least_us > beside_us * _BEHIND
            if in_vain > 1 or behind or (best is not None and self.is_enough(best)):
                break
        assert best is not None
        return best

    def _turned_around(self, tried: _Tried) -> _Tried:
        """What was found in one direction carried out in the other, in the order that it had seen from there."""
        turned = self.directions[not tried.backwards]
        return self._carried_out(turned, tried.pace, self._mirrored(tried) if turned.backwards else tried.ticks)

    def _tried(self, pace: Pace, backwards: bool = False) -> _Tried:
        """What a pace gives, in messages in groups."""
        if (pace, backwards) not in self._seen:
            direction = self.directions[backwards]
            self._seen[pace, backwards] = self._carried_out(direction, pace, self._groups(pace, direction))
        return self._seen[pace, backwards]

    def _carried_out(self, direction: _Direction, pace: Pace, groups: list[int]) -> _Tried:
        """A run in one direction with messages in these groups."""
        ticks = _Run(self, direction, pace.round_us, groups).ticks()
        first = min(ticks, default=0)
        ticks = [tick - first for tick in ticks]
        count = max((tick + self.lasts(size) for tick, size in zip(ticks, self.sizes, strict=True)), default=0)
        tried = _Tried(pace, ticks, count, pace.round_us / self.ticks, direction.backwards)
        return replace(tried, ticks=self._mirrored(tried)) if direction.backwards else tried

    def _mirrored(self, tried: _Tried) -> list[int]:
        """By message, in which tick from the end it ends."""
        return [tried.count - self.lasts(size) - tick for tick, size in zip(tried.ticks, self.sizes, strict=True)]

    def lasts(self, size: int) -> int:
        """Ticks that a message of so many chunks takes of a threadblock, and of what it is added to."""
        return math.ceil(size * self.ticks / self.largest)

    def is_enough(self, tried: _Tried) -> bool:
        """Whether links are as busy as can be."""
        return tried.taken_us <= self.busiest_us * _ENOUGH

    def _better(self, best: _Tried, pace: Pace, backwards: bool) -> _Tried:
        """The better of what was found and what the pace gives, which is not looked at where the former is enough."""
        if self.is_enough(best):
            return best
        return min(best, self._tried(pace, backwards), key=lambda tried: tried.taken_us)

    def taken_us(self, path: int, size: int) -> float:
        """What a message of so many chunks takes if all threadblocks of its path have one, as many as bandwidth or the number of
        steps asks for, and what it takes at any rate.
        """
        fewest = math.ceil(self.counts[path] / self.options.steps) if self.options.steps else 1
        threadblocks = max(self.channels[path], fewest)
        own_us = self.message_us * size / self.largest
        busy_us = max(own_us, max(us for _, us in self.busy[path, size]) * threadblocks)
        return busy_us + self.instance.paths[path].alpha_us + self.protocol.step_us

    def _lengths(self) -> list[float]:
        """Lengths of a round with which the path that carries most has the same number of messages in each."""
        most = max(self.counts.values(), default=1.0)
        least = math.ceil(most / self.options.most)
        whole = [self.busiest_us / math.ceil(most / each) for each in range(least, least + _NUMBERS)]
        return [length for length in whole if length >= self.message_us * self.options.slack][:_LENGTHS] or [
            self.message_us * _USUAL_SLACK
        ]

    def _turns(self) -> list[float]:
        """By message, where its chunk stands among those of its owner, 0 to 1."""
        by_owner = self.instance.by_owner(message.chunks[0] for message in self.messages)
        turns = {chunk: place / len(own) for own in by_owner.values() for place, chunk in enumerate(own)}
        return [turns[message.chunks[0]] for message in self.messages]

    def _groups(self, pace: Pace, direction: _Direction) -> list[int]:
        """By message, when its turn at the rank that it comes to is: sums are begun in groups, those first that most waits for,
        and as many of them at a time as keep all connections busy, since each takes one message a round.
        """
        rounds = self.busiest_us / pace.round_us
        received: dict[int, float] = defaultdict(float)
        for path, count in self.counts.items():
            received[self.one_rank[self.instance.paths[path].dst]] += count / max(rounds, 1.0)
        urgent: dict[Place, tuple[float, float, int]] = {}
        for index, place in enumerate(self.places):
            key = (pace.turn * rounds * self.turns[index] - direction.to_go[index], self.turns[index], place.chunk)
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
        """The messages in their rounds; those of one tick in rotations, which do not meet in a switch."""
        ticks, tick_us = tried.ticks, tried.tick_us
        order = sorted(
            range(len(ticks)), key=lambda index: (ticks[index], self.rotations[index], self.paths[index], index)
        )
        in_tick = Counter(ticks)
        begun: Counter[int] = Counter()
        sends = []
        for index in order:
            tick = ticks[index]
            start_us = (tick + begun[tick] / in_tick[tick]) * tick_us
            begun[tick] += 1
            sends.append(Send(*self.messages[index], start_us, (tick + self.lasts(self.sizes[index])) * tick_us))
        return Schedule(tuple(sends))


class _Run:
    """One run: tick after tick, whatever may be sent is, the path that is most behind first."""

    def __init__(self, plan: _Plan, direction: _Direction, round_us: float, groups: list[int]) -> None:
        self.plan, self.direction = plan, direction
        self.tick_us = round_us / plan.ticks
        self.lasts = {size: plan.lasts(size) for size in set(plan.sizes)}
        # A threadblock begins a message anywhere in the time that one like it takes.
        slack = {
            (path, size): math.ceil(plan.taken_us(path, size) / self.tick_us - _WHOLE_ROUNDS)
            for path, size in plan.busy
        }
        #: By message, what another that needs it waits beside the ticks that it lasts.
        self.slack = [slack[which] for which in zip(plan.paths, plan.sizes, strict=True)]
        self.entries: list[_Entry] = list(
            zip(
                groups,
                [-count for count in direction.to_go],
                plan.turns,
                plan.rotations,
                range(len(plan.sums)),
                plan.sums,
                strict=True,
            )
        )
        self.waiting = list(direction.work.before)
        self.earliest = [0] * len(self.waiting)
        self.missing = list(plan.parts)
        self.left = dict(plan.counts)
        #: By path, how far it is, from -1 for what has carried nothing to 0.
        self.gone = dict.fromkeys(plan.counts, -1.0)
        share = round_us / plan.busiest_us if plan.busiest_us else 1.0
        #: By path, chunks that it may carry in a round times its ticks, and how many of these are left: some come back every tick.
        self.most = {
            path: (max(plan.channels[path], math.ceil(count * share)) + 1) * plan.largest * plan.ticks
            for path, count in plan.counts.items()
        }
        self.tokens = dict(self.most)
        self.spent: set[int] = set()
        self.ready: dict[int, list[_Entry]] = {path: [] for path in plan.counts}
        self.largest_us: dict[int, float] = defaultdict(float)
        for links in plan.busy.values():
            for link, busy_us in links:
                self.largest_us[link] = max(self.largest_us[link], busy_us)
        self.smallest: dict[int, int] = {}
        for path, size in reversed(plan.busy):
            self.smallest[path] = size
        self.needed = {
            which: [(link, busy_us * _WHOLE) for link, busy_us in links] for which, links in plan.busy.items()
        }
        #: By path, what its smallest message needs: tokens, and us of its links.
        self.least = {path: (size * plan.ticks, self.needed[path, size]) for path, size in self.smallest.items()}
        self.free_us = dict.fromkeys(self.largest_us, 0.0)
        #: By sum the tick from which on it may be added to again.
        self.free_at = [0] * len(plan.parts)

    def ticks(self) -> list[int]:
        """The tick in which every message begins."""
        result = [-1] * len(self.waiting)
        self._make_ready(index for index, count in enumerate(self.waiting) if count == 0)
        tick, left = 0, len(result)
        due: defaultdict[int, list[int]] = defaultdict(list)
        while left:
            sent = self._tick(tick)
            for index in sent:
                result[index] = tick
                self._followed(index, tick, due)
            left -= len(sent)
            tick += 1
            self._make_ready(due.pop(tick, ()))
        return result

    def _tick(self, tick: int) -> list[int]:
        """The messages of one tick. A link that was left idle may carry one message more in the next."""
        for link, largest_us in self.largest_us.items():
            self.free_us[link] = min(self.free_us[link], largest_us) + self.tick_us
        for path in self.spent:
            self.tokens[path] = min(self.most[path], self.tokens[path] + self.most[path] // self.plan.ticks)
        self.spent = {path for path in self.spent if self.tokens[path] < self.most[path]}
        sent: list[int] = []
        paths = list(self.ready)
        first = tick % len(paths)
        paths = [path for path in paths[first:] + paths[:first] if self.ready[path]]
        while paths:
            paths.sort(key=self.gone.__getitem__)
            again = []
            for path in paths:
                index = self._next(path, tick)
                if index is not None:
                    sent.append(index)
                    if self.ready[path]:
                        again.append(path)
            paths = again
        return sent

    def _next(self, path: int, tick: int) -> int | None:
        """Take the message of a path whose turn it is, if its links have room: of the first group, of which something may be added,
        the one whose sum misses most.
        """
        tokens, needed = self.least[path]
        if self.tokens[path] < tokens:
            return None
        free_us = self.free_us
        for link, needed_us in needed:  # the innermost loop of all
            if free_us[link] < needed_us:
                return None
        plan, ready = self.plan, self.ready[path]
        found = self._first(ready, tick)
        if found is None:
            return None
        index = ready[found][4]
        size = plan.sizes[index]
        if size > self.smallest[path] and not self._has_room(path, size):
            return None
        del ready[found]
        for link, busy_us in plan.busy[path, size]:
            free_us[link] -= busy_us
        self.tokens[path] -= size * plan.ticks
        self.spent.add(path)
        self.left[path] -= size / plan.largest
        self.gone[path] = -self.left[path] / plan.counts[path]
        added = plan.sums[index]
        if added is not None:
            self.free_at[added] = tick + self.lasts[size]
            self.missing[added] -= 1
        return index

    def _has_room(self, path: int, size: int) -> bool:
        """Whether a path may carry so many chunks in this tick, and its links can."""
        if self.tokens[path] < size * self.plan.ticks:
            return False
        return all(self.free_us[link] >= needed_us for link, needed_us in self.needed[path, size])

    def _first(self, ready: list[_Entry], tick: int) -> int | None:
        """The position of that message, if there is one."""
        free_at, missing = self.free_at, self.missing
        of_group, added = ready[0][0], ready[0][5]
        if added is None or (free_at[added] <= tick and (len(ready) == 1 or ready[1][0] != of_group)):
            return 0
        found, most = None, 0
        for position, (group, _, _, _, _, added) in enumerate(ready[:_LOOKED_AT]):
            if group != of_group:
                if found is not None:
                    break
                of_group = group
            if added is None:
                return position if found is None else found
            if missing[added] > most and free_at[added] <= tick:
                found, most = position, missing[added]
        return found

    def _followed(self, index: int, tick: int, due: defaultdict[int, list[int]]) -> None:
        """Enter in `due` in which tick those may begin that wait for a message which begins in this one."""
        earliest, waiting, slack = self.earliest, self.waiting, self.slack
        end, backwards = tick + self.lasts[self.plan.sizes[index]], self.direction.backwards
        at = end + slack[index]
        for follower in self.direction.work.after[index]:
            if backwards:
                # There it is the follower that has to be in time for what was looked at before it.
                at = end + slack[follower]
            if at > earliest[follower]:
                earliest[follower] = at
            waiting[follower] -= 1
            if not waiting[follower]:
                due[earliest[follower]].append(follower)

    def _make_ready(self, messages: Iterable[int]) -> None:
        for index in messages:
            insort(self.ready[self.plan.paths[index]], self.entries[index])
