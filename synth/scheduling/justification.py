"""Schedules pushed against their end and back against their start: what has slack makes room for what has none.

Forward-backward improvement (K. Li and R. Willis, 1992; double justification: V. Valls, F. Ballestin and S. Quintanilla, 2005) of
schedules at cost level 2 (docs/formulation.md, section 5).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from synth.additions import Additions
from synth.instance import Instance
from synth.ir import Schedule, Send, causes
from synth.list_scheduler import Rule, Work, list_schedule
from synth.paths import Path
from synth.timing import busiest_link_us, messages_of, retime

#: Times closer than this are the same moment.
_SAME_MOMENT_US = 1e-9


@dataclass(frozen=True)
class Justification:
    """There and back up to `rounds` times, while that gains more than the share `gain` of what the busiest link leaves to gain, and
    not any more where a schedule takes no longer than that link is busy, times `busy`. What takes longer than that, times `idle`,
    after one order is list scheduled, too.
    """

    rounds: int = 8
    gain: float = 0.02
    busy: float = 1.002
    idle: float = 1.02

    def __call__(self, instance: Instance, schedule: Schedule) -> Schedule:
        """A schedule of the same messages, no later than the one given. Where sums take time (synth.additions), which is another
        matter backwards, what is found without that is timed with it.
        """
        least_us = busiest_link_us(instance, schedule.transfers())
        if schedule.makespan_us <= least_us * self.busy:
            return schedule
        if Additions(instance).active:
            found = self(replace(instance, reduce_us_per_byte=0.0), schedule)
            found = retime(instance, messages_of(found))
        else:
            found = self._pushed(instance, schedule, least_us, schedule.makespan_us)
        return min(schedule, found, key=lambda each: each.makespan_us)

    def in_order(self, instance: Instance, order: Schedule) -> Schedule:
        """A schedule of the messages of `order`, which may overlap on links, but starts each after what it waits for; where links
        are left idle, the better of that and of what is ready first, if that ends at another time.
        """
        least_us = busiest_link_us(instance, order.transfers())
        found = self._pushed(instance, order, least_us)
        if found.makespan_us <= least_us * self.idle:
            return found
        messages = messages_of(found)
        listed = list_schedule(instance, Work.of(instance, messages), range(len(messages)), rule=Rule(fitting=True))
        assert listed is not None
        if abs(listed.makespan_us - found.makespan_us) <= _SAME_MOMENT_US:
            return found
        return min(found, self(instance, listed), key=lambda schedule: schedule.makespan_us)

    def _pushed(self, instance: Instance, order: Schedule, least_us: float, best_us: float = math.inf) -> Schedule:
        """The best found, the first if none ends before `best_us`."""
        messages = _Messages.of(instance, order)
        starts_us = [send.start_us for send in order.sends]
        best: list[float] = []
        for _ in range(self.rounds):
            starts_us = messages.justified(starts_us)
            reached_us = messages.end_us(starts_us)
            gained_us = best_us - reached_us
            if not best or gained_us > 0:
                best = starts_us
            if gained_us <= self.gain * (reached_us - least_us) or reached_us <= least_us * self.busy:
                break
            best_us = reached_us
        return messages.at(best)


class _Span(NamedTuple):
    """A message occupies `link` for `busy_us`, beginning `after_us` after its own start."""

    link: int
    after_us: float
    busy_us: float


@dataclass(frozen=True)
class _Messages:
    """What the messages `sends` take, by place: the others that each waits for (`before`) and that wait for it (`behind`), and its
    kind (those of a kind take the same path and time); by kind, the spans of links that one occupies, in time as it goes and as it
    goes backwards.
    """

    sends: Sequence[Send]
    latency_us: list[float]
    before: Sequence[Collection[int]]
    behind: Sequence[Collection[int]]
    kinds: list[int]
    spans: list[tuple[_Span, ...]]
    backwards: list[tuple[_Span, ...]]
    room_us: list[float]
    """by link, what leaves room for its shortest message"""

    @classmethod
    def of(cls, instance: Instance, schedule: Schedule) -> _Messages:
        sends = schedule.sends
        deciding = _deciding_links(instance.paths)
        room_us = [math.inf] * len(instance.topology.links)
        kinds: dict[tuple[int, int], int] = {}
        for send in sends:
            kinds.setdefault((send.path, len(send.chunks)), len(kinds))
        latency: list[float] = []
        spans: list[tuple[_Span, ...]] = []
        backwards: list[tuple[_Span, ...]] = []
        for path, chunks in kinds:
            busy, latency_us = instance.paths[path].costs_us(chunks * instance.chunk_bytes)
            kept = [(link, us) for link, us in zip(instance.paths[path].links, busy, strict=True) if link in deciding]
            latency.append(latency_us)
            spans.append(tuple(_Span(link, 0.0, us) for link, us in kept))
            backwards.append(tuple(_Span(link, latency_us - us, us) for link, us in kept))
            for link, us in kept:
                room_us[link] = min(room_us[link], us - _SAME_MOMENT_US)
        before = causes(instance, sends)
        behind = Work.waiting(messages_of(schedule), before).after
        kind_of = [kinds[send.path, len(send.chunks)] for send in sends]
        return cls(sends, [latency[kind] for kind in kind_of], before, behind, kind_of, spans, backwards, room_us)

    def end_us(self, starts_us: Sequence[float]) -> float:
        """When the last of them arrives."""
        return max(start + latency for start, latency in zip(starts_us, self.latency_us, strict=True))

    def at(self, starts_us: Sequence[float]) -> Schedule:
        """Their schedule."""
        timed = zip(self.sends, starts_us, self.latency_us, strict=True)
        sends = [Send(send.chunks, send.path, send.reduce, start, start + latency) for send, start, latency in timed]
        return Schedule.of(sends)

    def justified(self, starts_us: Sequence[float]) -> list[float]:
        """Starts where, the last to arrive first, every message starts as late as the end, what waits for it and what has been
        placed allow, and then, the first to start first, as soon as these do.
        """
        turned = replace(self, before=self.behind, behind=self.before, spans=self.backwards, backwards=self.spans)
        end_us = self.end_us(starts_us)
        late_us = self._turned_us(turned._soonest(self._turned_us(starts_us, end_us)), end_us)
        return self._soonest(late_us)

    def _turned_us(self, starts_us: Sequence[float], end_us: float) -> list[float]:
        """The starts in time that runs backwards from the end."""
        return [end_us - (start + latency) for start, latency in zip(starts_us, self.latency_us, strict=True)]

    def _soonest(self, wanted_us: Sequence[float]) -> list[float]:
        """The starts, if the messages, in order of those `wanted_us`, each take the first time that its links leave free. What one
        waits for comes before it, whatever is wanted: rounds may be shorter than a message, which ends later than it should then.
        """
        latency_us = self.latency_us
        order = sorted(
            range(len(wanted_us)), key=lambda place: (wanted_us[place], wanted_us[place] + latency_us[place])
        )
        busy = _Busy(self.room_us, self.spans)
        starts_us = [0.0] * len(order)
        arrive_us: list[float | None] = [None] * len(order)
        for first in order:
            due = [first]
            while due:
                place = due[-1]
                ready_us = 0.0
                for other in self.before[place]:
                    arrived_us = arrive_us[other]
                    if arrived_us is None:
                        due.append(other)
                    elif arrived_us > ready_us:
                        ready_us = arrived_us
                if due[-1] != place:
                    continue
                due.pop()
                if arrive_us[place] is None:
                    start_us = busy.take(self.kinds[place], ready_us)
                    starts_us[place], arrive_us[place] = start_us, start_us + latency_us[place]
        return starts_us


class _Busy:
    """When links are busy, in blocks between which another message fits: one of `room_us`, by link, at least. What one occupies,
    `spans` says by its kind.
    """

    def __init__(self, room_us: Sequence[float], spans: Sequence[tuple[_Span, ...]]) -> None:
        self.begins: list[list[float]] = [[] for _ in room_us]
        self.ends: list[list[float]] = [[] for _ in room_us]
        self.room_us, self.spans = room_us, spans
        #: By kind, from when until when there has been no room for one, and so never will be.
        self.full_us = [(0.0, 0.0)] * len(spans)

    def take(self, kind: int, start_us: float) -> float:
        """Take the first time, from `start_us` on, when links are free for one of the kind; when that starts."""
        spans, asked_us = self.spans[kind], start_us
        from_us, until_us = self.full_us[kind]
        if from_us <= start_us < until_us:
            asked_us, start_us = from_us, until_us
        waiting = True
        while waiting:
            waiting = False
            for link, after_us, busy_us in spans:
                begin_us = start_us + after_us
                begins, ends = self.begins[link], self.ends[link]
                index = first = bisect_right(ends, begin_us + _SAME_MOMENT_US)
                while index < len(begins) and begins[index] < begin_us + busy_us - _SAME_MOMENT_US:
                    begin_us = ends[index]
                    index += 1
                # Late times are rounded by more than a moment: then what waits for the end of a block already starts there.
                if index > first and begin_us - after_us > start_us:
                    start_us = begin_us - after_us
                    waiting = len(spans) > 1
        self.full_us[kind] = asked_us, start_us
        for link, after_us, busy_us in spans:
            self._block(link, start_us + after_us, start_us + after_us + busy_us)
        return start_us

    def _block(self, link: int, begin_us: float, end_us: float) -> None:
        begins, ends, room_us = self.begins[link], self.ends[link], self.room_us[link]
        index = bisect_left(begins, begin_us)
        closes = index < len(begins) and begins[index] - end_us < room_us
        if index and begin_us - ends[index - 1] < room_us:
            ends[index - 1] = ends[index] if closes else end_us
            if closes:
                del begins[index], ends[index]
        elif closes:
            begins[index] = begin_us
        else:
            begins.insert(index, begin_us)
            ends.insert(index, end_us)


def _deciding_links(paths: Sequence[Path]) -> set[int]:
    """The links without those that are never busy but while another is: all their paths cross that one, for as long at least."""
    crossing: dict[int, dict[int, tuple[float, float]]] = defaultdict(dict)
    beside: dict[int, tuple[int, ...]] = {}
    for path in paths:
        for link, occupancy in zip(path.links, path.occupancy, strict=True):
            crossing[link][path.index] = occupancy
            beside[link] = path.links

    def covers(other: int, link: int) -> bool:
        longer = crossing[other]
        return all(
            path in longer and longer[path][0] >= gap_us and longer[path][1] >= us_per_byte
            for path, (gap_us, us_per_byte) in crossing[link].items()
        )

    def is_idle_alone(link: int) -> bool:
        others = (other for other in beside[link] if other != link)
        return any(covers(other, link) and (other < link or not covers(link, other)) for other in others)

    return {link for link in crossing if not is_idle_alone(link)}
