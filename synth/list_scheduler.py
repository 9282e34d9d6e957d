"""List scheduling: exact times (cost level 2) for messages whose order is a preference, not a law.

Time runs from event to event. Whenever links fall free or chunks arrive, the messages that could start are taken in the order of
their place, and each starts at once if every link of its path is free (docs/formulation.md, section 5). Three rules can be
added: messages on the links with the most work left go first; the next message over a critical link (one with nearly the most
work of all) reserves the other links of its path, so that nothing else is on them when the critical link falls free; and
messages of different lengths are taken so that links which several paths share stay busy.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from synth.additions import Additions
from synth.errors import CheckError
from synth.instance import Instance
from synth.ir import Message, Schedule, Send, causes

_SAME_MOMENT_US = 1e-9
#: A link with at least this share of the most loaded link's work is critical.
_CRITICAL = 0.9
#: Messages that are looked at for one whose sum nobody adds to.
_LOOKED_AT = 16
#: Messages that are looked at for one that leaves a link when it should.
_FITTED = 6


class Rule(NamedTuple):
    """How the messages that could start are taken."""

    busiest_first: bool = False
    reserve: bool = False
    fitting: bool = False
    """Whether a path that shares a link starts, of its first few messages, the one that leaves that when another path can take it:
    after a longer one that would wait, after a shorter one the link."""


@dataclass(frozen=True)
class Work:
    """Messages with their dependences, by position: `before[i]` how many others message i waits for, `after[i]` who waits for it."""

    messages: tuple[Message, ...]
    before: tuple[int, ...]
    after: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, instance: Instance, messages: Sequence[Message]) -> Work:
        return cls.waiting(messages, causes(instance, messages))

    @classmethod
    def waiting(cls, messages: Sequence[Message], needs: Sequence[Collection[int]]) -> Work:
        """Of messages that wait for others by position, `needs`."""
        after: list[list[int]] = [[] for _ in messages]
        for index, others in enumerate(needs):
            for other in sorted(others):
                after[other].append(index)
        return cls(tuple(messages), tuple(map(len, needs)), tuple(map(tuple, after)))

    def causal_order(self) -> list[int]:
        """Positions in an order in which everything comes after what it waits for."""
        return list(self._order)

    @cached_property
    def _order(self) -> tuple[int, ...]:
        """That order, found once for all who walk it."""
        waiting = list(self.before)
        order = [index for index, count in enumerate(waiting) if count == 0]
        for index in order:
            for follower in self.after[index]:
                waiting[follower] -= 1
                if waiting[follower] == 0:
                    order.append(follower)
        if len(order) < len(waiting):
            raise CheckError("ordering", "messages wait for each other in a circle")
        return tuple(order)

    def so_far(self, lasts: Sequence[float]) -> list[float]:
        """By position, the longest chain that a message waits for, if message i lasts `lasts[i]`."""
        so_far = [0.0] * len(self.messages)
        for index in self._order:
            for follower in self.after[index]:
                so_far[follower] = max(so_far[follower], so_far[index] + lasts[index])
        return so_far

    def to_go(self, lasts: Sequence[float], beside: Sequence[float] | None = None) -> list[float]:
        """By position, the longest chain that begins with a message, if message i lasts `lasts[i]`, and `beside[i]` besides."""
        to_go = [0.0] * len(self.messages) if beside is None else list(beside)
        for index in reversed(self._order):
            to_go[index] += lasts[index] + max((to_go[follower] for follower in self.after[index]), default=0.0)
        return to_go


def list_schedule(
    instance: Instance,
    work: Work,
    places: Sequence[int],
    *,
    rule: Rule = Rule(),  # noqa: B008 - a constant
    cutoff_us: float = math.inf,
) -> Schedule | None:
    """One run; `places[i]` says when message i's turn is among those that could start (all different, smallest first).

    None as soon as some link can no longer finish its work by `cutoff_us`.
    """
    run = _carried_out(instance, work, places, rule, cutoff_us)
    return None if run is None else Schedule.of(run.sends)


def start_order(instance: Instance, work: Work, places: Sequence[int]) -> list[int]:
    """The positions of the messages in the order in which they start in a run of `list_schedule`."""
    run = _carried_out(instance, work, places, Rule(), math.inf)
    assert run is not None
    return run.started


def _carried_out(instance: Instance, work: Work, places: Sequence[int], rule: Rule, cutoff_us: float) -> _Run | None:
    run = _Run(instance, work, places, rule)
    while run.events and run.latest_us <= cutoff_us:
        now, touched = run.next_moment()
        if rule.reserve:
            touched |= run.reserve(now)
        for path in run.by_urgency(touched, now):
            run.start_if_free(path, now)
    if run.latest_us > cutoff_us:
        return None
    if len(run.sends) < len(work.messages):
        raise CheckError("ordering", "messages wait for each other in a circle")
    return run


_LINK_FREE, _ARRIVAL, _BEGIN = 0, 1, 2


def _first_few(ready: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Of a heap, the smallest first; it is mostly the only one asked for."""
    yield ready[0]
    yield from heapq.nsmallest(_LOOKED_AT, ready)[1:]


def _differ(messages: Sequence[Message]) -> bool:
    """Whether messages are of several lengths."""
    return len({len(message.chunks) for message in messages}) > 1


class _Shared(NamedTuple):
    """The busiest link that a path shares with others, as the position in the path, and these others, each with its links that the
    path has not.
    """

    position: int
    others: list[tuple[int, list[int]]]


class _Run:
    """The state of one run: what is free when, what is ready where, what happens next."""

    def __init__(self, instance: Instance, work: Work, places: Sequence[int], rule: Rule) -> None:
        self.instance = instance
        self.work = work
        self.places = places
        self.busiest_first = rule.busiest_first
        self.links = [path.links for path in instance.paths]
        self.costs: dict[tuple[int, int], tuple[tuple[float, ...], float]] = {}
        self.free_us = [0.0] * len(instance.topology.links)
        self.left_us = [0.0] * len(instance.topology.links)
        self.paths_on: dict[int, list[int]] = defaultdict(list)
        for path in sorted({message.path for message in work.messages}):
            for link in self.links[path]:
                self.paths_on[link].append(path)
        for message in work.messages:
            for link, busy_us in zip(self.links[message.path], self._cost(message)[0], strict=True):
                self.left_us[link] += busy_us
        most = max(self.left_us, default=0.0)
        self.critical = [link for link, left in enumerate(self.left_us) if left >= _CRITICAL * most and left > 0]
        self.shared = self._shared() if rule.fitting and _differ(work.messages) else {}
        #: Links kept free: for which path, and from when on.
        self.held: dict[int, tuple[float, int]] = {}
        self.ready: list[list[tuple[int, int]]] = [[] for _ in instance.paths]
        self.waiting = list(work.before)
        self.sends: list[Send] = []
        self.started: list[int] = []
        self.additions = Additions(instance)
        #: The run ends no earlier: the last arrival so far, and what is free when plus what is left there.
        self.latest_us = 0.0
        for index, count in enumerate(self.waiting):
            if count == 0:
                self._make_ready(index)
        self.events: list[tuple[float, int, int]] = [
            (0.0, _BEGIN, path) for path, ready in enumerate(self.ready) if ready
        ]

    def next_moment(self) -> tuple[float, set[int]]:
        """Advance to the next time at which something happens: that time, and the paths that may now start something."""
        events, ready = self.events, self.ready
        now = events[0][0]
        touched: set[int] = set()
        while events and events[0][0] <= now + _SAME_MOMENT_US:
            time_us, kind, which = heapq.heappop(events)
            now = max(now, time_us)
            if kind == _LINK_FREE:
                for path in self.paths_on[which]:
                    if ready[path]:
                        touched.add(path)
            elif kind == _ARRIVAL:
                for follower in self.work.after[which]:
                    self.waiting[follower] -= 1
                    if self.waiting[follower] == 0:
                        touched.add(self._make_ready(follower))
            else:
                touched.add(which)
        return now, touched

    def by_urgency(self, touched: set[int], now: float) -> list[int]:
        """The paths that are free, in the order in which they may start their first ready message."""
        ready, links, free_us, latest_us = self.ready, self.links, self.free_us, now + _SAME_MOMENT_US
        free: list[tuple[float, tuple[int, int], int]] = []
        for path in touched:
            if not ready[path]:
                continue
            for link in links[path]:  # this is asked more often than all else
                if free_us[link] > latest_us:
                    break
            else:
                free.append((0.0, ready[path][0], path))
        if self.busiest_first:
            left = self.left_us
            free = [(-round(max(left[link] for link in links[path]), 6), turn, path) for _, turn, path in free]
        free.sort()
        return [path for _, _, path in free]

    def start_if_free(self, path: int, now: float) -> None:
        links, latest_us = self.links[path], now + _SAME_MOMENT_US
        for link in links:
            if self.free_us[link] > latest_us:
                return
        turn = self._next(path, now)
        if turn is None:
            return
        message = self.work.messages[turn[1]]
        busy, latency = self._cost(message)
        if self.held and self._in_the_way(path, busy, now):
            return
        self._take(path, turn)
        index = turn[1]
        added = self.additions.counts(message)
        arrive = self.additions.start(message, now, latency) if added else now + latency
        latest = max(self.latest_us, arrive)
        for link, busy_us in zip(links, busy, strict=True):
            until = now + busy_us
            self.free_us[link] = until
            self.left_us[link] -= busy_us
            latest = max(latest, until + self.left_us[link] - _SAME_MOMENT_US)
            heapq.heappush(self.events, (until, _LINK_FREE, link))
        self.latest_us = latest
        heapq.heappush(self.events, (arrive, _ARRIVAL, index))
        self.started.append(index)
        self.sends.append(Send(message.chunks, path, message.reduce, now, arrive))

    def reserve(self, now: float) -> set[int]:
        """Start what critical links can carry now, and hold links for what they carry next; the paths that holds let go."""
        before = self.held
        self.held = {}
        for link in self.critical:
            waiting = [path for path in self.paths_on[link] if self.ready[path]]
            if waiting:
                path = min(waiting, key=lambda path: self.ready[path][0])
                start = max(self.free_us[other] for other in self.links[path])
                if start <= now + _SAME_MOMENT_US:
                    self.start_if_free(path, now)
                    waiting = [other for other in waiting if self.ready[other]]
                    if not waiting:
                        continue
                    path = min(waiting, key=lambda path: self.ready[path][0])
                    start = max(self.free_us[other] for other in self.links[path])
                for other in self.links[path]:
                    self.held[other] = min(self.held.get(other, (math.inf, path)), (start, path))
        let_go = [link for link, hold in before.items() if self.held.get(link, (0.0, -1))[1] != hold[1]]
        return {path for link in let_go for path in self.paths_on[link] if self.ready[path]}

    def _next(self, path: int, now: float) -> tuple[int, int] | None:
        """The message of a path whose turn it is: of the first few, one that would be added at once when it comes."""
        ready = self.ready[path]
        if not self.additions.active:
            return self._fitting(path, now) if path in self.shared else ready[0]
        soonest, first = math.inf, ready[0]
        for turn in _first_few(ready):
            message = self.work.messages[turn[1]]
            if not self.additions.counts(message):
                return turn
            start, at_once = self.additions.starts_us(message, self._cost(message)[1])
            if at_once <= now + _SAME_MOMENT_US:
                return turn
            if start < soonest:
                soonest, first = start, turn
        if soonest <= now + _SAME_MOMENT_US:
            return first
        heapq.heappush(self.events, (soonest, _BEGIN, path))
        return None

    def _shared(self) -> dict[int, _Shared]:
        """By path that shares a link, which and with whom."""
        shared: dict[int, _Shared] = {}
        for path in sorted({path for paths in self.paths_on.values() if len(paths) > 1 for path in paths}):
            links = self.links[path]
            met = [position for position, link in enumerate(links) if len(self.paths_on[link]) > 1]
            position = max(met, key=lambda position: self.left_us[links[position]])
            others = (other for other in self.paths_on[links[position]] if other != path)
            shared[path] = _Shared(
                position, [(other, [link for link in self.links[other] if link not in links]) for other in others]
            )
        return shared

    def _fitting(self, path: int, now: float) -> tuple[int, int]:
        """Of the first few messages of a path, the one that leaves its shared link when the soonest of the others can start."""
        ready, (position, others) = self.ready[path], self.shared[path]
        soonest = math.inf
        for other, beside in others:
            if self.ready[other]:
                soonest = min(soonest, max((self.free_us[link] for link in beside), default=now))
        if soonest == math.inf:
            return ready[0]
        room_us = max(0.0, soonest - now)
        return min(
            heapq.nsmallest(_FITTED, ready),
            key=lambda turn: (round(abs(self._cost(self.work.messages[turn[1]])[0][position] - room_us), 6), turn),
        )

    def _take(self, path: int, turn: tuple[int, int]) -> None:
        ready = self.ready[path]
        if ready[0] == turn:
            heapq.heappop(ready)
        else:
            ready.remove(turn)
            heapq.heapify(ready)

    def _in_the_way(self, path: int, busy: tuple[float, ...], now: float) -> bool:
        """Whether a message would still be on a held link when its holder wants to start."""
        for link, busy_us in zip(self.links[path], busy, strict=True):
            hold = self.held.get(link)
            if hold is not None and hold[1] != path and now + busy_us > hold[0] + _SAME_MOMENT_US:
                return True
        return False

    def _make_ready(self, index: int) -> int:
        path = self.work.messages[index].path
        heapq.heappush(self.ready[path], (self.places[index], index))
        return path

    def _cost(self, message: Message) -> tuple[tuple[float, ...], float]:
        """(occupancy of each link, latency) of the message, in us."""
        key = (message.path, len(message.chunks))
        if key not in self.costs:
            size = len(message.chunks) * self.instance.chunk_bytes
            self.costs[key] = self.instance.paths[message.path].costs_us(size)
        return self.costs[key]
