"""Exact times (cost level 2, docs/formulation.md section 4) of messages whose order is given, and the checker of schedules."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from copy import copy

from synth.additions import Additions
from synth.errors import CheckError
from synth.instance import Instance
from synth.ir import Message, Routing, Schedule, Send, Transfer, causes

#: Times closer than this are the same moment (double precision at 1e6 us keeps 1e-10).
TOLERANCE_US = 1e-6


class Replay:
    """Messages in a fixed order, ready to be timed at any size: the earliest schedule in which every link carries its
    messages in the order of the list (eq. 5 to 7).

    A message starts once all its chunks are at its source and every link of its path has finished the messages listed before.
    The list must be in a causal order: what a message forwards is brought by messages listed before it; CheckError otherwise.
    """

    def __init__(
        self, instance: Instance, messages: Sequence[Message], waits: Sequence[Collection[int]] | None = None
    ) -> None:
        """`waits`: for each message the places of those that must have arrived before it, where eq. 2 does not say (None)."""
        self.messages = tuple(messages)
        self.num_links = len(instance.topology.links)
        waits = causes(instance, self.messages) if waits is None else waits
        for index, others in enumerate(waits):
            if others and max(others) >= index:
                witness = (self.messages[index], self.messages[max(others)])
                raise CheckError("timing", "a message is listed before what it forwards", witness)
        self.waits = tuple(map(tuple, waits))

    def on(self, instance: Instance) -> Replay:
        """The same messages on a machine with the same paths that may have more links."""
        other = copy(self)
        other.num_links = len(instance.topology.links)
        return other

    def times_us(self, instance: Instance) -> list[tuple[float, float]]:
        """(start, arrival) of every message, in the list's order, with the instance's paths and chunk size."""
        costs = _Costs(instance)
        free_us = [0.0] * self.num_links
        additions = Additions(instance)
        adding = additions.active
        arrive_us = [0.0] * len(self.messages)
        times = []
        for index, message in enumerate(self.messages):
            busy, latency = costs[message.path, len(message.chunks)]
            start = 0.0
            for other in self.waits[index]:
                if arrive_us[other] > start:
                    start = arrive_us[other]
            for link, _ in busy:
                if free_us[link] > start:
                    start = free_us[link]
            if adding and additions.counts(message):
                start = max(start, additions.starts_us(message, latency)[0])
                arrive_us[index] = additions.start(message, start, latency)
            else:
                arrive_us[index] = start + latency
            for link, busy_us in busy:
                free_us[link] = start + busy_us
            times.append((start, arrive_us[index]))
        return times

    def makespan_us(self, instance: Instance) -> float:
        """The last arrival."""
        return max((arrive for _, arrive in self.times_us(instance)), default=0.0)


class _Costs(dict[tuple[int, int], tuple[tuple[tuple[int, float], ...], float]]):
    """By path and number of chunks what a message costs: ((link, us that it is occupied), ...), and its latency in us."""

    def __init__(self, instance: Instance) -> None:
        super().__init__()
        self.instance = instance

    def __missing__(self, key: tuple[int, int]) -> tuple[tuple[tuple[int, float], ...], float]:
        path = self.instance.paths[key[0]]
        busy_us, latency_us = path.costs_us(key[1] * self.instance.chunk_bytes)
        costs = self[key] = tuple(zip(path.links, busy_us, strict=True)), latency_us
        return costs


def retime(instance: Instance, messages: Sequence[Message], waits: Sequence[Collection[int]] | None = None) -> Schedule:
    """The messages, in their order, as a schedule with the earliest exact times; `waits` as for `Replay`."""
    times = Replay(instance, messages, waits).times_us(instance)
    return Schedule.of(Send(*message, *when) for message, when in zip(messages, times, strict=True))


def link_loads_us(instance: Instance, paths: Iterable[int]) -> dict[int, float]:
    """How long one-chunk messages over `paths` (one entry a message) occupy each link that they use."""
    loads: dict[int, float] = defaultdict(float)
    for index, messages in Counter(paths).items():
        path = instance.paths[index]
        for link, busy_us in zip(path.links, path.busy_us(instance.chunk_bytes), strict=True):
            loads[link] += messages * busy_us
    return dict(loads)


def busiest_link_us(instance: Instance, transfers: Iterable[Transfer]) -> float:
    """The most that any link has to carry: no schedule of these transfers is shorter where each travels alone."""
    return max(link_loads_us(instance, (transfer.path for transfer in transfers)).values(), default=0.0)


def messages_of(schedule: Schedule) -> list[Message]:
    """The schedule's messages in its order, without times."""
    return [Message(send.chunks, send.path, send.reduce) for send in schedule.sends]


def check_routing(instance: Instance, routing: Routing, chunks: Iterable[int] | None = None) -> None:
    """Raise CheckError unless the routing, carried out in causal order, meets the collective's postcondition exactly.

    A chunk's contributions are a bit set of ranks: a reduction joins two disjoint sets, a copy hands on the full sum only, and
    at the end every destination holds the full set. With `chunks` it is a routing of these alone.
    """
    stage = "routing"
    if len(set(routing.transfers)) != len(routing.transfers):
        raise CheckError(stage, "a transfer happens twice")
    by_chunk: dict[int, list[Transfer]] = defaultdict(list)
    for transfer in routing.transfers:
        if not (0 <= transfer.path < len(instance.paths) and 0 <= transfer.chunk < instance.collective.num_chunk_ids):
            raise CheckError(stage, "a transfer of a chunk or over a path that does not exist", (transfer,))
        by_chunk[transfer.chunk].append(transfer)
    wanted = range(instance.collective.num_chunk_ids) if chunks is None else chunks
    checked: set[tuple[object, ...]] = set()
    sources, destinations = instance.collective.sources, instance.collective.destinations
    for chunk in wanted:
        own = by_chunk.pop(chunk, [])
        # Most chunks take the ways of another one between the same ends.
        alike = (sources(chunk), destinations(chunk), *[(transfer.path, transfer.reduce) for transfer in own])
        if alike not in checked:
            _check_chunk(instance, chunk, own)
            checked.add(alike)
    if by_chunk:
        raise CheckError(stage, "a transfer of a chunk that is not to be routed", tuple(next(iter(by_chunk.values()))))


def _check_chunk(instance: Instance, chunk: int, transfers: list[Transfer]) -> None:
    collective = instance.collective
    held = {rank: 1 << rank for rank in collective.sources(chunk)}
    full = sum(held.values())
    left = len(transfers)
    for transfer in _in_causal_order(instance, transfers):
        path = instance.paths[transfer.path]
        carried, there = held.get(path.src, 0), held.get(path.dst, 0)
        if not carried or (transfer.reduce and carried & there) or (not transfer.reduce and carried != full):
            problem = f"chunk {chunk}: rank {path.src} sends {carried:b} to rank {path.dst} that holds {there:b}"
            raise CheckError("routing", problem, (transfer,))
        held[path.dst] = carried | there if transfer.reduce else full
        left -= 1
    if left:
        raise CheckError("routing", f"chunk {chunk} is forwarded in a circle", tuple(transfers))
    lacking = [rank for rank in sorted(collective.destinations(chunk)) if held.get(rank) != full]
    if lacking:
        raise CheckError("routing", f"chunk {chunk} does not reach ranks {lacking}", tuple(transfers))


def _in_causal_order(instance: Instance, transfers: list[Transfer]) -> Iterator[Transfer]:
    """The transfers of one chunk, each after those that it waits for (synth.ir.predecessors); those in circles are left out.

    All contributions of a rank wait for the same, and so do all copies from it: these groups are looked at, not each transfer.
    """
    paths = instance.paths
    leaving: dict[tuple[int, bool], list[Transfer]] = defaultdict(list)
    for transfer in sorted(transfers, key=lambda transfer: (not transfer.reduce, transfer.path)):
        leaving[paths[transfer.path].src, transfer.reduce].append(transfer)
    copied = {paths[transfer.path].dst for transfer in transfers if not transfer.reduce}

    def groups_behind(transfer: Transfer) -> list[tuple[int, bool]]:
        there = paths[transfer.path].dst
        if not transfer.reduce:
            return [(there, False)]
        return [(there, True)] if there in copied else [(there, True), (there, False)]

    let_go = {transfer: groups_behind(transfer) for transfer in transfers}
    awaited = Counter(group for groups in let_go.values() for group in groups)
    ready = [group for group in leaving if group not in awaited]
    for group in ready:
        for transfer in leaving.get(group, ()):
            yield transfer
            for freed in let_go[transfer]:
                awaited[freed] -= 1
                if not awaited[freed]:
                    ready.append(freed)


def check_schedule(
    instance: Instance, schedule: Schedule, routing: Routing | None = None, chunks: Iterable[int] | None = None
) -> None:
    """Raise CheckError unless the schedule is feasible at cost level 2 and meets the postcondition.

    Checked: durations (eq. 5), that a rank forwards only what it has (eq. 6), that messages on one link do not overlap (eq. 7),
    and the postcondition, or, where `routing` is given, one that `check_routing` let pass, that the schedule carries out exactly
    that. With `chunks` it is a schedule of these alone.
    """
    stage = "schedule"
    transfers = schedule.transfers()
    if routing is None:
        check_routing(instance, Routing(transfers), chunks)
    elif len(transfers) != len(routing.transfers) or set(transfers) != set(routing.transfers):
        raise CheckError(stage, "carries out another routing", tuple(set(transfers) ^ set(routing.transfers)))
    costs = _Costs(instance)
    for send, before in zip(schedule.sends, causes(instance, schedule.sends), strict=True):
        latency = costs[send.path, len(send.chunks)][1]
        if send.start_us < -TOLERANCE_US or send.arrive_us < send.start_us + latency - _slack(send.arrive_us):
            raise CheckError(stage, f"a message takes less than {latency} us", (send,))
        latest = send.start_us + _slack(send.start_us)
        for earlier in before:
            if schedule.sends[earlier].arrive_us > latest:
                raise CheckError(
                    stage, "a message leaves before what it forwards arrives", (send, schedule.sends[earlier])
                )
    _check_links(costs, schedule.sends)


def _check_links(costs: _Costs, sends: Iterable[Send]) -> None:
    free_us: dict[int, tuple[float, Send | None]] = defaultdict(lambda: (0.0, None))
    for send in sorted(sends, key=lambda send: (send.start_us, send.arrive_us)):
        start_us = send.start_us
        for link, busy_us in costs[send.path, len(send.chunks)][0]:
            until, other = free_us[link]
            if start_us < until - _slack(until):
                raise CheckError("schedule", f"two messages overlap on link {link}", (other, send))
            free_us[link] = (start_us + busy_us, send)


def _slack(time_us: float) -> float:
    return TOLERANCE_US + 1e-9 * abs(time_us)
