"""An `Exchange` written down as a program: it is no set of reduction trees, so it does not come from a schedule.

For every other member of its groups a rank has a threadblock that sends what it has and receives the other's into scratch, piece
after piece and never more than the connection holds, so that two that send to each other never wait. Another one adds, in the order
of the members, so that all ranks get the same bits; of two members the receive adds, as order does not matter then. Ranks on the way
have a threadblock that passes on. What is finished goes to the output: by then all sends of the rank's own input are
over, as each stands before a receive that was waited for, so programs are right in place, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from msccl_xml.limits import check_limits
from msccl_xml.model import Algo, Buffer, StepType
from synth.collective import Collective
from synth.errors import NoAnswerError
from synth.exchange import Exchange, Given, Kind, Phase
from synth.lowering.buffers import Slot
from synth.lowering.deadlock import Waits
from synth.lowering.dependences import Position
from synth.lowering.emit import emit, make_target
from synth.lowering.operations import Lane, Operation
from synth.lowering.options import LoweringOptions
from synth.lowering.threadblocks import Program
from synth.lowering.turns import Turns
from synth.paths import Path

#: `re` steps in a row that every runtime makes one operation of without harm (MSCCL_MAX_REDUCE_FUSION is 16, own value included).
_MOST_FUSED = 15
#: The threadblock that adds.
_ADDING = Lane(0, -1, -1)


class _Made(NamedTuple):
    """Chunks from `start` to before `stop` are there once an operation of a threadblock is done."""

    start: int
    stop: int
    lane: Lane
    position: Position


class _Place(NamedTuple):
    """Where a rank has what it adds up in a phase: its own before, the result, and by member of the group, for the chunks of `mine`,
    the scratch for what it adds; none of two, whose receives add. `before` and `result` are where chunk 0 of the vector would lie.
    """

    group: tuple[int, ...]
    mine: range
    before: Slot
    result: Slot
    rooms: dict[int, int]

    def room(self, member: int, chunk: int) -> Slot:
        """The scratch for a member's chunk."""
        return Slot(Buffer.SCRATCH, self.rooms[member] + chunk - self.mine.start)


@dataclass
class _Rank:
    """One rank's program of one instance, where what it goes on with lies, what made that, and scratch so far."""

    rank: int
    program: Program = field(default_factory=dict)
    waits: Waits = field(default_factory=dict)
    here: Slot = Slot(Buffer.INPUT, 0)  # noqa: RUF009 - a constant
    """where chunk 0 of the vector would lie"""
    made: list[_Made] = field(default_factory=list)
    scratch: int = 0
    operations: int = 0

    def room(self, chunks: int) -> int:
        """So much new scratch: where it begins."""
        self.scratch += chunks
        return self.scratch - chunks

    def add(
        self,
        lane: Lane,
        kind: StepType,
        chunks: range,
        src: Slot | None = None,
        dst: Slot | None = None,
        waits: Iterable[Position] = (),
    ) -> Position:
        """One more operation of a threadblock, after all others of the rank: where it stands."""
        position = self.operations, 0
        self.operations += 1
        self.program.setdefault(lane, []).append(Operation(self.rank, position, kind, tuple(chunks), lane, src, dst))
        if needed := tuple(sorted(waits)):
            self.waits[position] = needed
        return position

    def needed(self, chunks: range, lane: Lane) -> list[Position]:
        """What has to be done for chunks to be there, the last operation of each threadblock but `lane`."""
        latest: dict[Lane, Position] = {}
        for made in self.made:
            if made.start < chunks.stop and chunks.start < made.stop and made.lane != lane:
                latest[made.lane] = max(made.position, latest.get(made.lane, made.position))
        return [*latest.values()]


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
    programs, waits = [rank.program for rank in writer.ranks], [rank.waits for rank in writer.ranks]
    algo = emit(target, programs, waits, writer.width, options, Turns(exchange.num_ranks, exchange.num_ranks))
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
            self._pass_on(one)
        for group in level.groups:
            for rank in group:
                others = [other for other in group if other != rank]
                pairs = [(given[rank, other], given[other, rank]) for other in others]
                if phase.kind is Kind.FINISHED:
                    self._gather(self.ranks[rank], pairs)
                else:
                    self._add_up(self.ranks[rank], phase, group, pairs)

    def _lane(self, rank: int, peer: int) -> Lane:
        """The threadblock that exchanges with a peer."""
        there, back = self.exchange.routes[rank, peer], self.exchange.routes[peer, rank]
        return Lane(self._channel(rank, peer), self.paths[back[-1]].src, self.paths[there[0]].dst)

    def _channel(self, rank: int, peer: int) -> int:
        return self.channels[min(rank, peer), max(rank, peer)]

    def _pieces(self, chunks: range) -> Iterator[range]:
        """The chunks, no more at a time than a connection holds."""
        for start in range(chunks.start, chunks.stop, self.options.capacity):
            yield range(start, min(start + self.options.capacity, chunks.stop))

    def _pass_on(self, one: Given) -> None:
        """The threadblocks of the ranks between two: each piece is received and sent on."""
        for before, after in pairwise(self.exchange.routes[one.src, one.dst]):
            relay = self.ranks[self.paths[before].dst]
            lane = Lane(self._channel(one.src, one.dst), self.paths[before].src, self.paths[after].dst)
            room = relay.room(len(one.chunks))
            for piece in self._pieces(one.chunks):
                kept = Slot(Buffer.SCRATCH, room + piece.start - one.chunks.start)
                if self.options.fuses:
                    relay.add(lane, StepType.RECV_COPY_SEND, piece, dst=kept)
                else:
                    relay.add(lane, StepType.RECV, piece, dst=kept)
                    relay.add(lane, StepType.SEND, piece, src=kept)

    def _add_up(self, rank: _Rank, phase: Phase, group: tuple[int, ...], pairs: list[tuple[Given, Given]]) -> None:
        """Give each other what is to be added, and add it."""
        place = self._place(rank, phase, group)
        received: dict[tuple[int, int], _Made] = {}
        for given, taken in pairs:
            lane = self._lane(rank.rank, given.dst)
            for there, here in zip(self._pieces(given.chunks), self._pieces(taken.chunks), strict=True):
                rank.add(lane, StepType.SEND, there, place.before.plus(there.start), waits=rank.needed(there, lane))
                if place.rooms:
                    done = rank.add(lane, StepType.RECV, here, dst=place.room(taken.src, here.start))
                else:
                    own, total = place.before.plus(here.start), place.result.plus(here.start)
                    done = rank.add(lane, StepType.RECV_REDUCE_COPY, here, own, total, rank.needed(here, lane))
                received[taken.src, here.start] = _Made(here.start, here.stop, lane, done)
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
        pieces = [*self._pieces(place.mine)]
        for piece in pieces if phase.level == 0 else ():
            # All ranks add in one order, so their own has to lie where others' does.
            rank.add(_ADDING, StepType.COPY, piece, Slot(Buffer.INPUT, piece.start), place.room(rank.rank, piece.start))
        made = []
        for piece in pieces:
            total = place.room(place.group[0], piece.start)
            for members in _runs(place.group[1:]):
                awaited = (place.group[0], *members) if members[0] == place.group[1] else members
                needed = {received[other, piece.start].position for other in awaited if other != rank.rank}
                if phase.kind is Kind.PART:
                    # Of its own part nobody is given anything; what others are given was waited for before it was sent.
                    needed |= {*rank.needed(piece, _ADDING)}
                for other in members:
                    waits = needed if other == members[0] else ()
                    done = rank.add(_ADDING, StepType.REDUCE, piece, place.room(other, piece.start), total, waits)
            if place.result.buffer is Buffer.OUTPUT:
                done = rank.add(_ADDING, StepType.COPY, piece, total, Slot(Buffer.OUTPUT, piece.start))
            made.append(_Made(piece.start, piece.stop, _ADDING, done))
        return made

    def _gather(self, rank: _Rank, pairs: list[tuple[Given, Given]]) -> None:
        """Give each other what is finished."""
        made = []
        for given, taken in pairs:
            lane = self._lane(rank.rank, given.dst)
            for there, here in zip(self._pieces(given.chunks), self._pieces(taken.chunks), strict=True):
                rank.add(lane, StepType.SEND, there, Slot(Buffer.OUTPUT, there.start), waits=rank.needed(there, lane))
                done = rank.add(lane, StepType.RECV, here, dst=Slot(Buffer.OUTPUT, here.start))
                made.append(_Made(here.start, here.stop, lane, done))
        rank.made += made


def _runs(members: Sequence[int]) -> list[Sequence[int]]:
    """The members in runs that may be one operation, as even as can be: of any two one is another rank, so each run waits first."""
    count = -(-len(members) // _MOST_FUSED)
    cuts = [len(members) * part // count for part in range(count + 1)]
    return [members[start:stop] for start, stop in pairwise(cuts)]
