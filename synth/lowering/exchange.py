"""An `Exchange` written down as a program: it is no set of reduction trees, so it does not come from a schedule.

For every other member of its groups a rank has a threadblock that sends what it has and receives the other's into scratch, piece
after piece and never more than the connection holds, so that two that send to each other never wait. Another one a level adds, in
the order of the members, so that all ranks get the same bits; of two members the receive adds, as order does not matter then. Ranks
on the way have a threadblock that passes on. What is finished goes to the output: by then all sends of the rank's own input are
over, as each stands before a receive that was waited for, so programs are right in place, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from msccl_xml.limits import check_limits
from msccl_xml.model import Algo, Buffer, Gpu, Step, StepType, Threadblock
from synth.collective import Collective
from synth.errors import NoAnswerError
from synth.exchange import Exchange, Given, Kind, Phase
from synth.lowering.buffers import Slot
from synth.lowering.emit import make_target
from synth.lowering.options import LoweringOptions
from synth.paths import Path

#: `re` steps in a row that every runtime makes one operation of without harm (MSCCL_MAX_REDUCE_FUSION is 16, own value included).
_MOST_FUSED = 15


@dataclass(frozen=True, order=True)
class _Key:
    """A threadblock of a rank: of a level for a peer, for a flow that it passes on, or (`src` is `dst`) for sums."""

    level: int
    src: int
    dst: int


@dataclass
class _Block:
    """A threadblock in the making; `waits` are, by step, those that it waits for: threadblocks and their steps."""

    send: int = -1
    recv: int = -1
    channel: int = 0
    steps: list[Step] = field(default_factory=list)
    waits: list[list[tuple[_Key, int]]] = field(default_factory=list)

    def add(self, step: Step, waits: Sequence[tuple[_Key, int]] = ()) -> int:
        """Its number."""
        self.steps.append(step)
        self.waits.append(list(waits))
        return len(self.steps) - 1


@dataclass(frozen=True)
class _Made:
    """Chunks from `start` to before `stop` are there once a step is done."""

    start: int
    stop: int
    key: _Key
    step: int

    @property
    def done(self) -> tuple[_Key, int]:
        """What to wait for."""
        return self.key, self.step


class _Place(NamedTuple):
    """Where a rank has what it adds up in a phase: its own before, the result, and by member of the group, for the chunks of `mine`,
    the scratch for what it adds; none of two, whose receives add. `before` and `result` are where chunk 0 of the vector would lie.
    """

    group: tuple[int, ...]
    mine: range
    before: Slot
    result: Slot
    rooms: dict[int, int]

    def room(self, member: int, chunk: int) -> int:
        """The scratch for a member's chunk."""
        return self.rooms[member] + chunk - self.mine.start

    def received(self, member: int, chunk: int, count: int) -> Step:
        """The step that takes what a member gives from a chunk on."""
        if self.rooms:
            return Step(StepType.RECV, dst_buffer=Buffer.SCRATCH, dst_offset=self.room(member, chunk), count=count)
        here, there = self.before.offset + chunk, self.result.offset + chunk
        return Step(StepType.RECV_REDUCE_COPY, self.before.buffer, here, self.result.buffer, there, count)


@dataclass
class _Rank:
    """One rank's program of one instance: its threadblocks, where what it goes on with lies, what made that, and scratch so far."""

    rank: int
    blocks: dict[_Key, _Block] = field(default_factory=dict)
    here: Slot = field(default=Slot(Buffer.INPUT, 0))
    """where chunk 0 of the vector would lie"""
    made: list[_Made] = field(default_factory=list)
    scratch: int = 0

    def room(self, chunks: int) -> int:
        """So much new scratch: where it begins."""
        self.scratch += chunks
        return self.scratch - chunks

    def waits(self, start: int, stop: int, key: _Key) -> list[tuple[_Key, int]]:
        """What has to be done for chunks to be there, the last step of each threadblock but `key`."""
        latest: dict[_Key, int] = {}
        for made in self.made:
            if made.start < stop and start < made.stop and made.key != key:
                latest[made.key] = max(made.step, latest.get(made.key, -1))
        return sorted(latest.items())


def write_exchange(
    exchange: Exchange, paths: Sequence[Path], topology_name: str, collective: Collective, options: LoweringOptions
) -> Algo:
    """The program of an allreduce whose chunks are a multiple of `exchange.parts`; with `options.instances` N of N times as many.

    Raises NoAnswerError where it does not fit the limits.
    """
    writer = _Writer(exchange, paths, collective.chunks, options)
    for phase in exchange.phases:
        writer.write(phase)
    target = make_target(collective, topology_name, options)
    gpus = tuple(writer.gpu(rank) for rank in writer.ranks)
    algo = Algo(
        name=target.name,
        coll=target.coll,
        proto=options.protocol,
        ngpus=exchange.num_ranks,
        nchannels=options.instances * writer.width,
        nchunksperloop=collective.chunks * options.instances,
        gpus=gpus,
        inplace=target.inplace,
        outofplace=target.outofplace,
        min_bytes=options.min_bytes,
        max_bytes=options.max_bytes,
    )
    if algo.threadblocks > options.threadblocks:
        needed = f"{algo.threadblocks} are needed on a gpu, {options.threadblocks} are allowed"
        raise NoAnswerError(f"{exchange.name}: --max-threadblocks: {needed}")
    if problems := check_limits(algo, options.runtime, full_ops=False):
        raise NoAnswerError(f"{exchange.name}: the program is beyond what {options.runtime} takes: {problems[0]}")
    return algo


class _Writer:
    """All ranks' programs of the first instance, phase by phase."""

    def __init__(self, exchange: Exchange, paths: Sequence[Path], chunks: int, options: LoweringOptions) -> None:
        self.exchange, self.paths, self.chunks, self.options = exchange, paths, chunks, options
        self.ranks = [_Rank(rank) for rank in range(exchange.num_ranks)]
        self.width = 1
        self.channels = self._channels()

    def _channels(self) -> dict[tuple[int, int], int]:
        """By pair, the lower rank first, the first channel on which none of its hops is taken, nor has a rank too many peers; pairs
        that are equally far apart in a row, so that ranks fill channels alike.
        """
        taken: set[tuple[int, int, int]] = set()
        peers: dict[tuple[int, int, bool], int] = defaultdict(int)
        most = self.options.limits.peers_per_channel
        channels: dict[tuple[int, int], int] = {}
        routes = self.exchange.routes
        pairs = [pair for pair in routes if pair[0] < pair[1]]
        for src, dst in sorted(
            pairs, key=lambda pair: (min(pair[1] - pair[0], len(self.ranks) - pair[1] + pair[0]), pair)
        ):
            hops = {(self.paths[path].src, self.paths[path].dst) for path in (*routes[src, dst], *routes[dst, src])}
            channel = 0
            while any((*hop, channel) in taken for hop in hops) or any(
                max(peers[here, channel, True], peers[there, channel, False]) >= most for here, there in hops
            ):
                channel += 1
            for here, there in hops:
                taken.add((here, there, channel))
                peers[here, channel, True] += 1
                peers[there, channel, False] += 1
            channels[src, dst] = channel
            self.width = max(self.width, channel + 1)
        return channels

    def write(self, phase: Phase) -> None:
        """Every rank's part of a phase, and of what passes through it."""
        level = self.exchange.levels[phase.level]
        given = {(one.src, one.dst): one for one in self.exchange.given(phase, self.chunks)}
        for one in given.values():
            self._pass_on(phase, one)
        for group in level.groups:
            for rank in group:
                others = [other for other in group if other != rank]
                pairs = [(given[rank, other], given[other, rank]) for other in others]
                if phase.kind is Kind.FINISHED:
                    self._gather(self.ranks[rank], phase, pairs)
                else:
                    self._add_up(self.ranks[rank], phase, group, pairs)

    def _block(self, rank: _Rank, level: int, peer: int) -> tuple[_Key, _Block]:
        """The threadblock that exchanges with a peer."""
        key = _Key(level, rank.rank, peer)
        if key not in rank.blocks:
            there, back = self.exchange.routes[rank.rank, peer], self.exchange.routes[peer, rank.rank]
            channel = self.channels[min(rank.rank, peer), max(rank.rank, peer)]
            rank.blocks[key] = _Block(self.paths[there[0]].dst, self.paths[back[-1]].src, channel)
        return key, rank.blocks[key]

    def _pieces(self, one: Given) -> Iterator[tuple[int, int]]:
        """(first chunk, how many) of what is given: no more at a time than a connection holds."""
        for start in range(one.start, one.stop, self.options.capacity):
            yield start, min(self.options.capacity, one.stop - start)

    def _pass_on(self, phase: Phase, one: Given) -> None:
        """The threadblocks of the ranks between two: each piece is received and sent on."""
        route = self.exchange.routes[one.src, one.dst]
        channel = self.channels[min(one.src, one.dst), max(one.src, one.dst)]
        for before, after in pairwise(route):
            relay = self.ranks[self.paths[before].dst]
            key = _Key(phase.level, one.src, one.dst)
            block = relay.blocks.setdefault(key, _Block(self.paths[after].dst, self.paths[before].src, channel))
            room = relay.room(one.stop - one.start)
            for start, count in self._pieces(one):
                offset = room + start - one.start
                if self.options.fuses:
                    block.add(Step(StepType.RECV_COPY_SEND, dst_buffer=Buffer.SCRATCH, dst_offset=offset, count=count))
                else:
                    block.add(Step(StepType.RECV, dst_buffer=Buffer.SCRATCH, dst_offset=offset, count=count))
                    block.add(Step(StepType.SEND, Buffer.SCRATCH, offset, count=count))

    def _add_up(self, rank: _Rank, phase: Phase, group: tuple[int, ...], pairs: list[tuple[Given, Given]]) -> None:
        """Give each other what is to be added, and add it."""
        place = self._place(rank, phase, group)
        received: dict[tuple[int, int], _Made] = {}
        for given, taken in pairs:
            key, block = self._block(rank, phase.level, given.dst)
            for (there, count), (here, _) in zip(self._pieces(given), self._pieces(taken), strict=True):
                sent = Step(StepType.SEND, place.before.buffer, place.before.offset + there, count=count)
                block.add(sent, rank.waits(there, there + count, key))
                needed = () if place.rooms else rank.waits(here, here + count, key)
                number = block.add(place.received(taken.src, here, count), needed)
                received[taken.src, here] = _Made(here, here + count, key, number)
        rank.made = self._sums(rank, phase, place, received) if place.rooms else [*received.values()]
        rank.here = place.result

    def _place(self, rank: _Rank, phase: Phase, group: tuple[int, ...]) -> _Place:
        """Where a rank has what it adds up in a phase."""
        mine = self.exchange.span(rank.rank, phase.level + 1, self.chunks)
        rooms: dict[int, int] = {}
        if len(group) > 2 or not self.options.fuses:
            own = rank.here.offset + mine.start if phase.level else rank.room(len(mine))
            rooms = {other: own if other == rank.rank else rank.room(len(mine)) for other in group}
        result = Slot(Buffer.OUTPUT, 0)
        if phase.level < len(self.exchange.levels) - 1:
            first = rooms[group[0]] if rooms else rank.room(len(mine))
            result = Slot(Buffer.SCRATCH, first - mine.start)
        return _Place(group, mine, rank.here, result, rooms)

    def _sums(self, rank: _Rank, phase: Phase, place: _Place, received: dict[tuple[int, int], _Made]) -> list[_Made]:
        """A threadblock that adds the members' pieces in scratch, onto the first one's, and copies what is finished out."""
        key = _Key(phase.level, rank.rank, rank.rank)
        block = rank.blocks.setdefault(key, _Block())
        pieces = [*self._pieces(Given(rank.rank, rank.rank, place.mine.start, place.mine.stop))]
        for start, count in pieces if phase.level == 0 else ():
            # All ranks add in one order, so their own has to lie where others' does.
            here = place.room(rank.rank, start)
            block.add(Step(StepType.COPY, Buffer.INPUT, start, Buffer.SCRATCH, here, count))
        made = []
        for start, count in pieces:
            total = place.room(place.group[0], start)
            for members in _runs(place.group[1:]):
                awaited = (place.group[0], *members) if members[0] == place.group[1] else members
                needed = {received[other, start].done for other in awaited if other != rank.rank}
                if phase.kind is Kind.PART:
                    # Of its own part nobody is given anything; what others are given was waited for before it was sent.
                    needed |= {*rank.waits(start, start + count, key)}
                for other in members:
                    step = Step(StepType.REDUCE, Buffer.SCRATCH, place.room(other, start), Buffer.SCRATCH, total, count)
                    done = block.add(step, sorted(needed) if other == members[0] else ())
            if place.result.buffer is Buffer.OUTPUT:
                done = block.add(Step(StepType.COPY, Buffer.SCRATCH, total, Buffer.OUTPUT, start, count))
            made.append(_Made(start, start + count, key, done))
        return made

    def _gather(self, rank: _Rank, phase: Phase, pairs: list[tuple[Given, Given]]) -> None:
        """Give each other what is finished."""
        made = []
        for given, taken in pairs:
            key, block = self._block(rank, phase.level, given.dst)
            for (there, count), (here, _) in zip(self._pieces(given), self._pieces(taken), strict=True):
                block.add(Step(StepType.SEND, Buffer.OUTPUT, there, count=count), rank.waits(there, there + count, key))
                step = Step(StepType.RECV, dst_buffer=Buffer.OUTPUT, dst_offset=here, count=count)
                made.append(_Made(here, here + count, key, block.add(step)))
        rank.made += made

    def gpu(self, rank: _Rank) -> Gpu:
        """The rank with the threadblocks of all instances."""
        keys = sorted(rank.blocks)
        steps = _numbered(rank.blocks, keys)
        instances, chunks = self.options.instances, self.chunks
        blocks: list[Threadblock] = []
        for instance in range(instances):
            further = {Buffer.INPUT: chunks, Buffer.OUTPUT: chunks, Buffer.SCRATCH: rank.scratch}
            moved = {buffer: instance * by for buffer, by in further.items()}
            for key in keys:
                block = rank.blocks[key]
                own = tuple(_moved(step, moved, instance * len(keys)) for step in steps[key])
                channel = block.channel + instance * self.width
                blocks.append(Threadblock(len(blocks), block.send, block.recv, channel, own))
        return Gpu(rank.rank, chunks * instances, chunks * instances, rank.scratch * instances, tuple(blocks))


def _runs(members: Sequence[int]) -> list[Sequence[int]]:
    """The members in runs that may be one operation, as even as can be: of any two one is another rank, so each run waits first."""
    count = -(-len(members) // _MOST_FUSED)
    cuts = [len(members) * part // count for part in range(count + 1)]
    return [members[start:stop] for start, stop in pairwise(cuts)]


def _numbered(blocks: dict[_Key, _Block], keys: Sequence[_Key]) -> dict[_Key, list[Step]]:
    """The steps of a rank's threadblocks, which are numbered as the keys stand: a step waits for one other, and a nop before it for
    each further one.
    """
    number = {key: place for place, key in enumerate(keys)}
    awaited = {wait for block in blocks.values() for waits in block.waits for wait in waits}
    at: dict[tuple[_Key, int], int] = {}
    for key in keys:
        last = -1
        for place, waits in enumerate(blocks[key].waits):
            last += max(1, len(waits))
            at[key, place] = last
    result: dict[_Key, list[Step]] = {}
    for key in keys:
        steps = result[key] = []
        for place, (step, waits) in enumerate(zip(blocks[key].steps, blocks[key].waits, strict=True)):
            causes = [(number[wait[0]], at[wait]) for wait in waits]
            steps += [Step(StepType.NOP, count=0, depid=depid, deps=deps) for depid, deps in causes[:-1]]
            depid, deps = causes[-1] if causes else (-1, -1)
            steps.append(step._replace(depid=depid, deps=deps, hasdep=(key, place) in awaited))
    return result


def _moved(step: Step, further: dict[Buffer, int], threadblocks: int) -> Step:
    """The step of another instance: so much further on in every buffer, and so many threadblocks."""
    here = step.src_offset + further[step.src_buffer] if step.src_offset >= 0 else -1
    there = step.dst_offset + further[step.dst_buffer] if step.dst_offset >= 0 else -1
    depid = step.depid + threadblocks if step.depid >= 0 else -1
    return step._replace(src_offset=here, dst_offset=there, depid=depid)
