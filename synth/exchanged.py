"""An allreduce in exchanges (synth.exchange) as a solution: which of a machine's are short, their times, their programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from msccl_xml.model import Algo
from synth.exchange import Exchange
from synth.instance import Instance
from synth.interpreted import as_interpreted
from synth.ir import Schedule, Send
from synth.lowering import LoweringOptions, write_exchange
from synth.solve import Solution, Written
from synth.timing import Replay


@dataclass(frozen=True)
class _Program:
    """Writes an exchange of an instance for whatever options."""

    exchange: Exchange
    instance: Instance

    def __call__(self, options: LoweringOptions) -> Algo:
        instance = self.instance
        return write_exchange(self.exchange, instance.paths, instance.topology.name, instance.collective, options)


def exchanged(instance: Instance, exchange: Exchange) -> Solution:
    """The exchange of an allreduce of all ranks, whose chunks are a multiple of `exchange.parts`, with the earliest exact times if
    links take its messages as they are listed. Raises CheckError where it is none.
    """
    exchange.check()
    messages, waits = exchange.messages(instance.collective.chunks)
    times = Replay(instance, messages, waits).times_us(instance)
    order = sorted(range(len(messages)), key=lambda at: (*times[at], messages[at].path, messages[at].chunks))
    place = {at: number for number, at in enumerate(order)}
    schedule = Schedule(tuple(Send(*messages[at], *times[at]) for at in order))
    moved = tuple(tuple(sorted(place[other] for other in waits[at])) for at in order)
    written = Written(_Program(exchange, instance), moved, _threadblocks(instance, exchange))
    makespan_us = schedule.makespan_us
    return Solution(
        instance,
        schedule,
        exchange.name,
        "as listed",
        "heuristic",
        makespan_us,
        makespan_us,
        None,
        "exact times",
        written,
    )


def _threadblocks(instance: Instance, exchange: Exchange) -> int:
    """Of the busiest rank: one for every peer, one that adds if three or more are added, one for every flow that it passes on."""
    own = sum(level.size - 1 for level in exchange.levels) + any(level.size > 2 for level in exchange.levels)
    passing = Counter(instance.paths[path].src for route in exchange.routes.values() for path in route[1:])
    return own + max(passing.values(), default=0)


def shortest(instance: Instance, exchanges: Sequence[Exchange], protocol: str | None, most: int) -> list[Exchange]:
    """At most so many of the exchanges, the shortest first: by what an interpreter would take, and where no `protocol` is given by
    links alone. `instance` says for how large a buffer.
    """
    buffer_bytes = instance.chunk_bytes * instance.collective.chunks
    seen = as_interpreted(instance, protocol) if protocol else instance

    def time_us(exchange: Exchange) -> float:
        cut = seen.with_chunk_bytes(buffer_bytes / exchange.parts)
        return Replay(cut, *exchange.messages(exchange.parts)).makespan_us(cut)

    return sorted(exchanges, key=time_us)[:most]
