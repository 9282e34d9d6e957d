"""Which chunks travel together, and when: grouping of chunks that share their whole way, then merging where there is slack.

Chunks of one commodity that use the same transfers form a run. Cutting runs into groups of g chunks and list scheduling the
groups in the order of the given schedule costs pipelining and saves gaps and steps: powers of two are tried until one is later. Then
neighbours on a link are merged wherever nobody waits for the first of them. The result is never later than what came in.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

from synth.instance import Instance
from synth.ir import Message, Schedule, Send, causes
from synth.list_scheduler import Work, list_schedule
from synth.timing import TOLERANCE_US, messages_of, retime


@dataclass(frozen=True)
class Contiguity:
    """`max_group` bounds how many chunks a message carries (72 is the runtimes' own limit on `cnt`, exclusive)."""

    max_group: int = 64

    def __call__(self, instance: Instance, schedule: Schedule) -> Schedule:
        """A schedule of the same routing, no later than `schedule`, with as few messages as that allows."""
        best = schedule
        runs = _runs(instance, schedule)
        longest = max(map(len, runs), default=1)
        size = 2
        while size < 2 * longest and size <= self.max_group:
            grouped = _group(instance, schedule, runs, size, best.makespan_us + TOLERANCE_US)
            if grouped is None:
                break
            best, size = grouped, 2 * size
        merged = _merge_where_nobody_waits(instance, best, self.max_group)
        return merged if merged.makespan_us <= schedule.makespan_us + TOLERANCE_US else best


def _commodity(instance: Instance, chunk: int) -> tuple[frozenset[int], frozenset[int], int]:
    """Chunks with equal values lie side by side in every buffer when their ids do."""
    return instance.collective.sources(chunk), instance.collective.destinations(chunk), instance.owner(chunk)


def _runs(instance: Instance, schedule: Schedule) -> list[list[int]]:
    """Maximal runs of neighbouring chunk ids of one commodity with the same transfers."""
    ways: dict[int, set[tuple[int, bool]]] = defaultdict(set)
    for transfer in schedule.transfers():
        ways[transfer.chunk].add((transfer.path, transfer.reduce))
    runs: list[list[int]] = []
    for chunk in sorted(ways):
        last = runs[-1][-1] if runs else -2
        same = last == chunk - 1 and ways[last] == ways[chunk]
        if same and _commodity(instance, last) == _commodity(instance, chunk):
            runs[-1].append(chunk)
        else:
            runs.append([chunk])
    return runs


def _group(
    instance: Instance, schedule: Schedule, runs: list[list[int]], size: int, cutoff_us: float
) -> Schedule | None:
    """The schedule with runs cut into groups of `size`, list scheduled by when each group's first chunk used to leave.

    None where that takes longer than `cutoff_us`.
    """
    group_of: dict[int, tuple[int, ...]] = {}
    for run in runs:
        for start in range(0, len(run), size):
            group = tuple(run[start : start + size])
            group_of.update(dict.fromkeys(group, group))
    messages: dict[Message, None] = {}
    for send in schedule.sends:
        for chunk in send.chunks:
            messages.setdefault(Message(group_of[chunk], send.path, send.reduce))
    work = Work.of(instance, tuple(messages))
    return list_schedule(instance, work, range(len(work.messages)), cutoff_us=cutoff_us)


def _merge_where_nobody_waits(instance: Instance, schedule: Schedule, max_group: int) -> Schedule:
    """Merge sends that follow each other on a path if everything that the earlier one brings is only needed later."""
    slack = _Slack.of(instance, schedule)
    by_path: dict[int, list[int]] = defaultdict(list)
    for place, send in enumerate(schedule.sends):
        by_path[send.path].append(place)
    sends: list[Send] = []
    for path in sorted(by_path):
        merged: list[Send] = []
        needed_us = math.inf
        for place in by_path[path]:
            later = schedule.sends[place]
            if merged and slack.allows(instance, merged[-1], needed_us, place):
                joined = merged[-1]
                chunks = tuple(sorted((*joined.chunks, *later.chunks)))
                if len(chunks) <= max_group and _side_by_side(instance, chunks):
                    merged[-1] = Send(chunks, path, joined.reduce, joined.start_us, later.arrive_us)
                    needed_us = min(needed_us, slack.needed_us[place])
                    continue
            merged.append(later)
            needed_us = slack.needed_us[place]
        sends += merged
    return retime(instance, messages_of(Schedule.of(sends)))


def _side_by_side(instance: Instance, chunks: tuple[int, ...]) -> bool:
    """Whether the chunks lie next to each other in every buffer."""
    contiguous = chunks[-1] - chunks[0] == len(chunks) - 1
    return contiguous and _commodity(instance, chunks[0]) == _commodity(instance, chunks[-1])


class _Slack(NamedTuple):
    """By place of a send in the schedule, when its chunks were at its source, and when what it brings is first sent on (infinite
    where it never is), in us.
    """

    sends: tuple[Send, ...]
    ready_us: list[float]
    needed_us: list[float]

    @classmethod
    def of(cls, instance: Instance, schedule: Schedule) -> _Slack:
        sends = schedule.sends
        before = causes(instance, sends)
        needed_us = [math.inf] * len(sends)
        for send, earlier in zip(sends, before, strict=True):
            for other in earlier:
                needed_us[other] = min(needed_us[other], send.start_us)
        ready_us = [max((sends[other].arrive_us for other in earlier), default=0.0) for earlier in before]
        return cls(sends, ready_us, needed_us)

    def allows(self, instance: Instance, joined: Send, needed_us: float, place: int) -> bool:
        """Whether the send at a place can travel with `joined`, right behind which it leaves, without anybody noticing: what that
        brings is first needed at `needed_us`.
        """
        later = self.sends[place]
        if joined.reduce != later.reduce or needed_us < later.arrive_us - TOLERANCE_US:
            return False
        busy_us = max(instance.paths[joined.path].busy_us(len(joined.chunks) * instance.chunk_bytes))
        return (
            later.start_us <= joined.start_us + busy_us + TOLERANCE_US
            and self.ready_us[place] <= joined.start_us + TOLERANCE_US
        )
