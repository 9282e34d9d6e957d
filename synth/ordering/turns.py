"""Turns: chunks that one rank sends to all, or gets from all, follow each other along few ways, one of each way in every turn
(docs/formulation.md, section 5).

What repeats on all ways stays in step: a chunk is due everywhere a turn after the one before it on its way, and a turn lasts as long
as the busiest link takes for a chunk of every way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from synth.instance import Instance
from synth.ir import Message, Routing, Schedule, Send, Way
from synth.list_scheduler import Work
from synth.timing import busiest_link_us


@dataclass(frozen=True)
class Turns:
    """Says when every transfer of a routing is due, if all chunks have one source, or one destination. A way has `most` messages at
    most: what has more chunks sends some neighbours together.
    """

    most: int = 512

    def __call__(self, instance: Instance, routing: Routing) -> Schedule:
        """The messages that carry it out, each when it is due (eq. 14g): they may overlap on links, but none is due too soon.

        Copies are due as soon as they could be on an empty machine, sums as late as the last of their chunk allows.
        """
        ways = _ways(routing)
        turns = max(map(len, ways.values()), default=1)
        turn_us = busiest_link_us(instance, routing.transfers) / turns
        sends: list[Send] = []
        for number, (way, chunks) in enumerate(ways.items()):
            together = ceil(len(chunks) / self.most)
            message_bytes = instance.chunk_bytes * together
            latency_us = [instance.paths[path].latency_us(message_bytes) for path, _ in way]
            after_us = _due_us(way, instance, message_bytes, latency_us)
            for first in range(0, len(chunks), together):
                begin_us = (first * turns / len(chunks) + number / len(ways)) * turn_us
                message = tuple(chunks[first : first + together])
                for (path, reduce), due_us, takes_us in zip(way, after_us, latency_us, strict=True):
                    start_us = begin_us + due_us
                    sends.append(Send(message, path, reduce, start_us, start_us + takes_us))
        return Schedule.of(sends)


def _ways(routing: Routing) -> dict[Way, list[int]]:
    """The chunks of each way, ascending."""
    chunks: dict[Way, list[int]] = defaultdict(list)
    for chunk, way in routing.ways().items():
        chunks[way].append(chunk)
    return chunks


def _due_us(way: Way, instance: Instance, message_bytes: float, latency_us: Sequence[float]) -> list[float]:
    """When each of the messages that follow one way is due, from when the first is."""
    work = Work.of(instance, [Message((0,), path, reduce) for path, reduce in way])
    soonest_us = work.so_far(latency_us)
    if not all(reduce for _, reduce in way):
        return soonest_us
    left_us = work.to_go(latency_us, _waits_us(way, instance, message_bytes, soonest_us))
    return [max(left_us) - us for us in left_us]


def _waits_us(way: Way, instance: Instance, message_bytes: float, soonest_us: Sequence[float]) -> list[float]:
    """How long before its sum is complete each message should be there, as these are added one after another: what can be there
    last is the last.
    """
    sums: dict[int, list[int]] = defaultdict(list)
    for place, (path, _) in enumerate(way):
        sums[instance.paths[path].dst].append(place)
    adding_us = instance.reduce_us_per_byte * message_bytes
    waits_us = [0.0] * len(way)
    for added in sums.values():
        for position, place in enumerate(sorted(added, key=lambda place: -soonest_us[place])):
            waits_us[place] = position * adding_us
    return waits_us
