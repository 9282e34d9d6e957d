"""Fills rounds with messages, tick after tick (docs/formulation.md, section 5, (14a) to (14d))."""

from __future__ import annotations

import math
from bisect import insort
from collections import defaultdict
from collections.abc import Iterable

from synth.ordering.traffic import WHOLE, Direction, Traffic

#: Messages that are looked at for one that may be added in this round.
_LOOKED_AT = 64
#: A message that takes this much of a round longer than a whole number of them takes no more of them.
_WHOLE_ROUNDS = 0.1

#: A message that waits for its turn on a path, the smallest first: its group, messages that follow in the longest chain (negative),
#: turn, rotation, position, and the number of the sum that it is added to. A plain tuple, as these are looked at all the time.
_Entry = tuple[int, int, float, int, int, int | None]


class Filling:
    """One run in one direction: tick after tick, whatever may be sent is, the path that is most behind first; of a path's messages
    those of the first of `groups`, by message.
    """

    def __init__(self, traffic: Traffic, direction: Direction, round_us: float, groups: list[int]) -> None:
        self.traffic, self.direction = traffic, direction
        self.tick_us = round_us / traffic.ticks
        self.lasts = {size: traffic.lasts(size) for size in set(traffic.sizes)}
        # A threadblock begins a message anywhere in the time that one like it takes.
        slack = {
            (path, size): math.ceil(traffic.taken_us(path, size) / self.tick_us - _WHOLE_ROUNDS)
            for path, size in traffic.busy
        }
        #: By message, what another that needs it waits beside the ticks that it lasts.
        self.slack = [slack[which] for which in zip(traffic.paths, traffic.sizes, strict=True)]
        self.entries: list[_Entry] = list(
            zip(
                groups,
                [-count for count in direction.to_go],
                traffic.turns,
                traffic.rotations,
                range(len(traffic.sums)),
                traffic.sums,
                strict=True,
            )
        )
        self.waiting = list(direction.work.before)
        self.earliest = [0] * len(self.waiting)
        self.missing = list(traffic.parts)
        self.left = dict(traffic.counts)
        #: By path, how far it is, from -1 for what has carried nothing to 0.
        self.gone = dict.fromkeys(traffic.counts, -1.0)
        share = round_us / traffic.busiest_us if traffic.busiest_us else 1.0
        #: By path, chunks that it may carry in a round times its ticks, and how many of these are left: some come back every tick.
        self.most = {
            path: (max(traffic.channels[path], math.ceil(count * share)) + 1) * traffic.largest * traffic.ticks
            for path, count in traffic.counts.items()
        }
        self.tokens = dict(self.most)
        self.spent: set[int] = set()
        self.ready: dict[int, list[_Entry]] = {path: [] for path in traffic.counts}
        self.largest_us: dict[int, float] = defaultdict(float)
        for links in traffic.busy.values():
            for link, busy_us in links:
                self.largest_us[link] = max(self.largest_us[link], busy_us)
        self.smallest: dict[int, int] = {}
        for path, size in reversed(traffic.busy):
            self.smallest[path] = size
        self.needed = {
            which: [(link, busy_us * WHOLE) for link, busy_us in links] for which, links in traffic.busy.items()
        }
        #: By path, what its smallest message needs: tokens, and us of its links.
        self.least = {path: (size * traffic.ticks, self.needed[path, size]) for path, size in self.smallest.items()}
        self.free_us = dict.fromkeys(self.largest_us, 0.0)
        #: By sum the tick from which on it may be added to again.
        self.free_at = [0] * len(traffic.parts)

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
            self.tokens[path] = min(self.most[path], self.tokens[path] + self.most[path] // self.traffic.ticks)
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
        traffic, ready = self.traffic, self.ready[path]
        found = self._first(ready, tick)
        if found is None:
            return None
        index = ready[found][4]
        size = traffic.sizes[index]
        if size > self.smallest[path] and not self._has_room(path, size):
            return None
        del ready[found]
        for link, busy_us in traffic.busy[path, size]:
            free_us[link] -= busy_us
        self.tokens[path] -= size * traffic.ticks
        self.spent.add(path)
        self.left[path] -= size / traffic.largest
        self.gone[path] = -self.left[path] / traffic.counts[path]
        added = traffic.sums[index]
        if added is not None:
            self.free_at[added] = tick + self.lasts[size]
            self.missing[added] -= 1
        return index

    def _has_room(self, path: int, size: int) -> bool:
        """Whether a path may carry so many chunks in this tick, and its links can."""
        if self.tokens[path] < size * self.traffic.ticks:
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
        end, backwards = tick + self.lasts[self.traffic.sizes[index]], self.direction.backwards
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
            insort(self.ready[self.traffic.paths[index]], self.entries[index])
