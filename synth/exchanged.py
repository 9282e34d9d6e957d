"""An allreduce in exchanges (synth.exchange) as a solution: which of a machine's are short, their times, their programs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from msccl_xml.model import Algo
from synth.exchange import Exchange, Hop, Slices, Step
from synth.instance import Instance
from synth.interpreted import as_interpreted
from synth.ir import Schedule, Send
from synth.list_scheduler import Work, start_order
from synth.lowering import LoweringOptions, adding_threadblocks, write_exchange
from synth.solve import Solution, Written
from synth.timing import Replay

#: Times that differ by less are the same but for rounding.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class _Program:
    """Writes the steps of slices, in their order, for whatever options."""

    slices: Slices
    steps: tuple[Step, ...]
    instance: Instance

    def __call__(self, options: LoweringOptions) -> Algo:
        instance = self.instance
        return write_exchange(
            self.slices, self.steps, instance.paths, instance.topology.name, instance.collective, options
        )


def exchanged(instance: Instance, slices: Slices) -> Solution:
    """The exchanges of an allreduce of all ranks, whose chunks are a multiple of the slices and no fewer than `slices.parts`. Hops
    are ordered by list scheduling, and steps so that each rank has one order for all that it does with another; exact times follow.
    Raises CheckError where it is no allreduce.
    """
    slices.check()
    steps, hops = _ordered(instance, slices)
    messages = [hop.message for hop in hops]
    times = Replay(instance, messages, [hop.waits for hop in hops]).times_us(instance)
    order = sorted(range(len(messages)), key=lambda at: (*times[at], messages[at].path, messages[at].chunks))
    schedule = Schedule(tuple(Send(*messages[at], *times[at]) for at in order))
    waits = tuple(tuple(sorted(hop.waits)) for hop in _moved(hops, order))
    written = Written(_Program(slices, tuple(steps), instance), waits, _threadblocks(instance, slices))
    makespan_us = schedule.makespan_us
    return Solution(
        instance,
        schedule,
        slices.name,
        "first come, first served",
        "heuristic",
        makespan_us,
        makespan_us,
        None,
        "exact times",
        written,
    )


def _ordered(instance: Instance, slices: Slices) -> tuple[list[Step], list[Hop]]:
    """The steps in an order in which programs can do them, and the hops in one that agrees with it on the way from every rank to
    every other, and in which they start as list scheduling has them, or hardly later.
    """
    steps, hops = slices.listed(instance.collective.chunks)
    work = Work.waiting([hop.message for hop in hops], [hop.waits for hop in hops])
    begun = {at: turn for turn, at in enumerate(start_order(instance, work, range(len(hops))))}
    # A step's turn comes with its later first hop, and after those of all that it waits for.
    due = [0] * len(steps)
    for at, hop in enumerate(hops):
        before = [hops[other].step for other in hop.waits]
        if hop.step not in before:
            due[hop.step] = max([due[hop.step], begun[at], *(due[step] for step in before)])
    ranked = sorted(range(len(steps)), key=lambda step: (due[step], step))
    turn = {step: number for number, step in enumerate(ranked)}
    start: dict[int, int] = {}
    latest: dict[tuple[tuple[int, int], int], int] = defaultdict(int)
    for at in sorted(range(len(hops)), key=lambda at: (turn[hops[at].step], at)):
        hop = hops[at]
        way = hop.pair, hop.message.path
        start[at] = latest[way] = max([begun[at], latest[way], *(start[other] for other in hop.waits)])
    order = sorted(start, key=lambda at: (start[at], turn[hops[at].step], at))
    return [steps[step] for step in ranked], _moved(hops, order)


def _moved(hops: Sequence[Hop], order: Sequence[int]) -> list[Hop]:
    """The hops in another order, `order[i]` now at place i."""
    place = {at: number for number, at in enumerate(order)}
    return [hops[at]._replace(waits=tuple(place[other] for other in hops[at].waits)) for at in order]


def _threadblocks(instance: Instance, slices: Slices) -> int:
    """Of the busiest rank: one for every peer, one for every flow that it passes on, and those that add."""
    passing = Counter(instance.paths[path].src for route in slices.routes.values() for path in route[1:])
    peers = slices.peers
    threadblocks = max(peers[rank] + passing[rank] for rank in range(slices.num_ranks))
    return threadblocks + adding_threadblocks(slices, instance.collective.chunks, LoweringOptions())


def shortest(instance: Instance, exchanges: Sequence[Slices], protocol: str | None, most: int) -> list[Slices]:
    """At most so many of the exchanges, the shortest first: by what an interpreter would take, and where no `protocol` is given by
    links alone, if hops take their turns as they are listed. `instance` says for how large a buffer.

    What takes longer than these even if no hop waits for a link is not listed.
    """
    buffer_bytes = instance.chunk_bytes * instance.collective.chunks
    seen = as_interpreted(instance, protocol) if protocol else instance
    ways = _Ways(seen)
    least_us = [ways.least_us(slices, buffer_bytes) for slices in exchanges]
    found: list[tuple[float, int]] = []
    for at in sorted(range(len(exchanges)), key=least_us.__getitem__):
        if len(found) >= most and least_us[at] > found[most - 1][0] * (1 + _ROUNDING):
            break
        slices = exchanges[at]
        cut = seen.with_chunk_bytes(buffer_bytes / slices.parts)
        _, hops = slices.listed(slices.parts)
        replay = Replay(cut, [hop.message for hop in hops], [hop.waits for hop in hops])
        found = sorted([*found, (replay.makespan_us(cut), at)])
    return [exchanges[at] for _, at in found[:most]]


class _Ways(dict[tuple[tuple[int, ...], float], float]):
    """By route and bytes the us from one end to the other where nothing else is under way."""

    def __init__(self, instance: Instance) -> None:
        super().__init__()
        self.instance = instance

    def __missing__(self, key: tuple[tuple[int, ...], float]) -> float:
        route, given_bytes = key
        us = self[key] = sum(self.instance.paths[path].latency_us(given_bytes) for path in route)
        return us

    def least_us(self, slices: Slices, buffer_bytes: float) -> float:
        """What slices take at least: every rank goes on when it has all that it is given."""
        chunk_bytes = buffer_bytes / slices.parts
        return max(self._of_slice(slices, slice_, chunk_bytes) for slice_ in range(slices.count))

    def _of_slice(self, slices: Slices, slice_: int, chunk_bytes: float) -> float:
        exchange, turn = slices.exchange(slice_), slices.turn(slice_)
        has_us = [0.0] * exchange.num_ranks
        for phase in exchange.phases:
            came_us = has_us.copy()
            for src, dst, chunks in exchange.given(phase, slices.parts // slices.count, turn):
                arrival_us = has_us[src] + self[exchange.routes[src, dst], len(chunks) * chunk_bytes]
                if arrival_us > came_us[dst]:
                    came_us[dst] = arrival_us
            has_us = came_us
        return max(has_us)


def shortest_in_slices(instance: Instance, exchanges: Sequence[Slices], most: int) -> list[Slices]:
    """The same of exchanges in so many slices that links are busy all the time: the longest ways of all phases, and what the busiest
    link carries in all of them.
    """
    buffer_bytes = instance.chunk_bytes * instance.collective.chunks

    def time_us(slices: Slices) -> float:
        load_us: dict[int, float] = defaultdict(float)
        share_bytes = buffer_bytes / len(slices.exchanges)
        latency_us = max(_latency_us(instance, exchange, share_bytes, load_us) for exchange in slices.exchanges)
        return latency_us + max(load_us.values())

    return sorted(exchanges, key=time_us)[:most]


def _latency_us(instance: Instance, exchange: Exchange, share_bytes: float, load_us: dict[int, float]) -> float:
    """The longest ways of an exchange's phases together; what it has links carry of so many bytes is added to their loads."""
    longest_us = 0.0
    for phase in exchange.phases:
        phase_us = 0.0
        for one in exchange.given(phase, exchange.parts):
            route = [instance.paths[path] for path in exchange.routes[one.src, one.dst]]
            phase_us = max(phase_us, sum(path.alpha_us for path in route))
            given_bytes = len(one.chunks) * share_bytes / exchange.parts
            for path in route:
                for link, busy_us in zip(path.links, path.busy_us(given_bytes), strict=True):
                    load_us[link] += busy_us
        longest_us += phase_us
    return longest_us
