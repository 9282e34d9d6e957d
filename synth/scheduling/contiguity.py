"""Which chunks travel together, and when: grouping of chunks that share their whole way, then merging where there is slack.

Chunks of one commodity that use the same transfers form a run. Cutting runs into groups of g chunks and list scheduling the
groups in the order of the given schedule costs pipelining and saves gaps and steps: powers of two are tried until one is later. Then
neighbours on a link are merged wherever nobody waits for the first of them. The result is never later than what came in.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

from synth.instance import Instance
from synth.ir import Message, Schedule, Send, Transfer, predecessors
from synth.list_scheduler import Work, list_schedule
from synth.timing import TOLERANCE_US, retime


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
    slack = _Slack(_ready_times(instance, schedule), _first_need(instance, schedule))
    by_path: dict[int, list[Send]] = defaultdict(list)
    for send in schedule.sends:
        by_path[send.path].append(send)
    sends: list[Send] = []
    for path in sorted(by_path):
        merged = by_path[path][:1]
        for later in by_path[path][1:]:
            joined = merged[-1]
            chunks = tuple(sorted((*joined.chunks, *later.chunks)))
            if len(chunks) <= max_group and _side_by_side(instance, chunks) and slack.allows(instance, joined, later):
                merged[-1] = Send(chunks, path, joined.reduce, joined.start_us, later.arrive_us)
            else:
                merged.append(later)
        sends += merged
    sends.sort(key=lambda send: (send.start_us, send.path, send.chunks))
    return retime(instance, [Message(send.chunks, send.path, send.reduce) for send in sends])


def _side_by_side(instance: Instance, chunks: tuple[int, ...]) -> bool:
    """Whether the chunks lie next to each other in every buffer."""
    contiguous = chunks[-1] - chunks[0] == len(chunks) - 1
    return contiguous and _commodity(instance, chunks[0]) == _commodity(instance, chunks[-1])


class _Slack(NamedTuple):
    """When each transfer's chunk was at its source, and when what the transfer brings is first sent on, in us."""

    ready_us: dict[Transfer, float]
    needed_us: dict[Transfer, float]

    def allows(self, instance: Instance, joined: Send, later: Send) -> bool:
        """Whether `later` can travel with `joined`, right behind which it leaves, without anybody noticing."""
        busy_us = max(instance.paths[joined.path].busy_us(len(joined.chunks) * instance.chunk_bytes))
        ready = max(self.ready_us[Transfer(chunk, later.path, later.reduce)] for chunk in later.chunks)
        needed = min(self.needed_us[Transfer(chunk, joined.path, joined.reduce)] for chunk in joined.chunks)
        return (
            joined.reduce == later.reduce
            and later.start_us <= joined.start_us + busy_us + TOLERANCE_US
            and ready <= joined.start_us + TOLERANCE_US
            and needed >= later.arrive_us - TOLERANCE_US
        )


def _ready_times(instance: Instance, schedule: Schedule) -> dict[Transfer, float]:
    """When each transfer's chunk was at its source."""
    arrived = {Transfer(c, send.path, send.reduce): send.arrive_us for send in schedule.sends for c in send.chunks}
    before = predecessors(instance, arrived)
    return {transfer: max((arrived[other] for other in before[transfer]), default=0.0) for transfer in arrived}


def _first_need(instance: Instance, schedule: Schedule) -> dict[Transfer, float]:
    """When what each transfer brings is first sent on (infinite where it never is)."""
    started = {Transfer(c, send.path, send.reduce): send.start_us for send in schedule.sends for c in send.chunks}
    need = dict.fromkeys(started, float("inf"))
    for transfer, earlier in predecessors(instance, started).items():
        for other in earlier:
            need[other] = min(need[other], started[transfer])
    return need
