"""Steps of exchanges (`Slices`) written down as a program: they are no set of reduction trees, so it does not come from a schedule.

For every other member of its groups a rank has a threadblock that sends what it has and receives the other's into scratch, piece
after piece and never more than the connection holds, so that two that send to each other never wait. Another one adds, in the order
of the members, so that all ranks get the same bits; of two members the receive adds, as order does not matter then. Ranks on the way
have a threadblock that passes on. What is finished goes to the output: by then all sends of the rank's own input are over, as each
stands before a receive that was waited for (or, to one that owns all parts, before that of what it has finished), so programs are
right in place, too. All threadblocks do their parts of steps in one order, that in which steps come, so nothing waits in a circle.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from typing import NamedTuple

from msccl_xml.limits import check_limits
from msccl_xml.model import Algo, Buffer, StepType
from synth.collective import Collective
from synth.errors import NoAnswerError
from synth.exchange import Given, Kind, Phase, Slices, Step
from synth.lowering.buffers import Slot
from synth.lowering.deadlock import Waits
from synth.lowering.dependences import Position
from synth.lowering.draft import Draft, draft_gpu
from synth.lowering.emit import emit, make_target
from synth.lowering.operations import Lane, Operation
from synth.lowering.options import LoweringOptions
from synth.lowering.threadblocks import Program
from synth.lowering.turns import Turns
from synth.paths import Path

#: `re` steps in a row that every runtime makes one operation of without harm (MSCCL_MAX_REDUCE_FUSION is 16, own value included).
_MOST_FUSED = 15


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
class _Share:
    """A rank's share of a slice: the threadblock that adds, where what it goes on with lies (chunk 0 of the vector would lie at
    `here`), what made that, and the phase under way, in which it still exchanges with so many others.
    """

    adding: Lane
    here: Slot = Slot(Buffer.INPUT, 0)  # noqa: RUF009 - a constant
    made: list[_Made] = field(default_factory=list)
    number: int = -1
    others: int = 0
    place: _Place | None = None
    received: dict[tuple[int, int], _Made] = field(default_factory=dict)

    def needed(self, chunks: range, lane: Lane) -> list[Position]:
        """What has to be done for chunks to be there, the last operation of each threadblock but `lane`."""
        latest: dict[Lane, Position] = {}
        for made in self.made:
            if made.start < chunks.stop and chunks.start < made.stop and made.lane != lane:
                latest[made.lane] = max(made.position, latest.get(made.lane, made.position))
        return [*latest.values()]


@dataclass
class _Rank:
    """One rank's program of one instance, its shares of the slices, and scratch so far."""

    rank: int
    shares: list[_Share]
    program: Program = field(default_factory=dict)
    waits: Waits = field(default_factory=dict)
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


def write_exchange(
    slices: Slices,
    steps: Sequence[Step],
    paths: Sequence[Path],
    topology_name: str,
    collective: Collective,
    options: LoweringOptions,
) -> Algo:
    """The program of an allreduce, from all its steps in an order in which each comes after those that it waits for; with
    `options.instances` N of N times as many chunks.

    Raises NoAnswerError where it does not fit the limits.
    """
    writer = _Writer(slices, steps, paths, collective.chunks, options)
    for step in steps:
        writer.write(step)
    target = make_target(collective, topology_name, options)
    gpus = tuple(draft_gpu(dict(sorted(rank.program.items())), rank.waits) for rank in writer.ranks)
    draft = Draft(Turns(slices.num_ranks, slices.num_ranks), gpus, writer.width)
    algo = emit(target, draft, options)
    if algo.threadblocks > options.threadblocks:
        needed = f"{algo.threadblocks} are needed on a gpu, {options.threadblocks} are allowed"
        raise NoAnswerError(f"{slices.name}: --max-threadblocks: {needed}")
    if problems := check_limits(algo, options.runtime, full_ops=False):
        raise NoAnswerError(f"{slices.name}: the program is beyond what {options.runtime} takes: {problems[0]}")
    return algo


def adding_threadblocks(slices: Slices, chunks: int, options: LoweringOptions) -> int:
    """Threadblocks that add, each for some of the slices: none where receives do, and more than one where that would have more steps
    than a runtime reads. A piece takes a step for every sum, one for every other that it waits for, and two to be copied in and out.
    """
    sizes = [level.size for level in slices.exchanges[0].levels if level.size > 2 or not options.fuses]
    pieces = -(-chunks // (options.capacity * slices.parts))
    return min(-(-2 * sum(sizes) * pieces * slices.count // options.limits.steps), slices.count)


class _Writer:
    """All ranks' programs of the first instance, step by step."""

    def __init__(
        self, slices: Slices, steps: Sequence[Step], paths: Sequence[Path], chunks: int, options: LoweringOptions
    ) -> None:
        self.slices, self.paths, self.chunks, self.options = slices, paths, chunks, options
        self.width = max(1, adding_threadblocks(slices, chunks, options))
        adding = [Lane(number % self.width, -1, -1) for number in range(slices.count)]
        self.ranks = [_Rank(rank, [*map(_Share, adding)]) for rank in range(slices.num_ranks)]
        self.channels = self._channels()
        ends = ((rank, step) for step in steps for rank in (step.there.src, step.there.dst))
        self.partners = Counter((rank, step.slice, step.number) for rank, step in ends)
        """with how many others a rank exchanges something of a slice in a phase"""
        self._parts: dict[tuple[int, int], list[range]] = {}
        """by slice and level what every rank goes on with after it"""

    def _channels(self) -> dict[tuple[int, int], int]:
        """By pair, the lower rank first, the first channel on which none of its hops is taken, nor has a rank too many peers; pairs
        that are equally far apart in a row, so that ranks fill channels alike.
        """
        taken: set[tuple[int, int, int]] = set()
        peers: dict[tuple[int, int, bool], int] = defaultdict(int)
        most = self.options.limits.peers_per_channel
        channels: dict[tuple[int, int], int] = {}
        routes = self.slices.routes
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

    def write(self, step: Step) -> None:
        """What both ranks of a step do, and those that it passes through; with the last of a phase a rank adds up."""
        phase = self.slices.exchange(step.slice).phases[step.number]
        for given, taken in ((step.there, step.back), (step.back, step.there)):
            self._pass_on(given)
            rank = self.ranks[given.src]
            share = rank.shares[step.slice]
            if share.number != step.number:
                self._begin(rank, step, phase)
            if phase.kind is Kind.FINISHED:
                self._gather(rank, share, given, taken)
                continue
            place = share.place
            assert place is not None
            self._give(rank, share, place, given, taken)
            share.others -= 1
            if not share.others:
                made = self._sums(rank, share, place, phase) if place.rooms else [*share.received.values()]
                share.made, share.here = made, place.result

    def _begin(self, rank: _Rank, step: Step, phase: Phase) -> None:
        """A rank's next phase of a slice."""
        share = rank.shares[step.slice]
        share.number = step.number
        if phase.kind is not Kind.FINISHED:
            share.place = self._place(rank, step, phase)
            share.others = self.partners[rank.rank, step.slice, step.number]
            share.received = {}

    def _lane(self, rank: int, peer: int) -> Lane:
        """The threadblock that exchanges with a peer."""
        there, back = self.slices.routes[rank, peer], self.slices.routes[peer, rank]
        return Lane(self._channel(rank, peer), self.paths[back[-1]].src, self.paths[there[0]].dst)

    def _channel(self, rank: int, peer: int) -> int:
        return self.channels[min(rank, peer), max(rank, peer)]

    def _pieces(self, chunks: range) -> Iterator[range]:
        """The chunks, no more at a time than a connection holds."""
        for start in range(chunks.start, chunks.stop, self.options.capacity):
            yield range(start, min(start + self.options.capacity, chunks.stop))

    def _pass_on(self, one: Given) -> None:
        """The threadblocks of the ranks between two: each piece is received and sent on."""
        for before, after in pairwise(self.slices.routes[one.src, one.dst]):
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

    def _pairs(self, given: Given, taken: Given) -> Iterator[tuple[range | None, range | None]]:
        """The pieces that go there and come back; None for those of which there is one less."""
        return zip_longest(self._pieces(given.chunks), self._pieces(taken.chunks))

    def _give(self, rank: _Rank, share: _Share, place: _Place, given: Given, taken: Given) -> None:
        """Exchange what is to be added with another member; if there are but two, add it."""
        lane = self._lane(rank.rank, given.dst)
        for there, here in self._pairs(given, taken):
            if there is not None:
                rank.add(lane, StepType.SEND, there, place.before.plus(there.start), waits=share.needed(there, lane))
            if here is None:
                continue
            if place.rooms:
                done = rank.add(lane, StepType.RECV, here, dst=place.room(taken.src, here.start))
            else:
                own, total = place.before.plus(here.start), place.result.plus(here.start)
                done = rank.add(lane, StepType.RECV_REDUCE_COPY, here, own, total, share.needed(here, lane))
            share.received[taken.src, here.start] = _Made(here.start, here.stop, lane, done)

    def _place(self, rank: _Rank, step: Step, phase: Phase) -> _Place:
        """Where a rank has what it adds up in a phase of a slice."""
        exchange, share = self.slices.exchange(step.slice), rank.shares[step.slice]
        length = self.chunks // self.slices.count
        if (parts := self._parts.get((step.slice, phase.level))) is None:
            parts = exchange.spans(phase.level + 1, length, self.slices.turn(step.slice))
            self._parts[step.slice, phase.level] = parts
        part = parts[rank.rank]
        (group,) = (group for group in exchange.levels[phase.level].groups if rank.rank in group)
        mine = range(part.start + step.slice * length, part.stop + step.slice * length)
        rooms: dict[int, int] = {}
        if len(group) > 2 or not self.options.fuses:
            own = share.here.offset + mine.start if phase.level else rank.room(len(mine))
            rooms = {other: own if other == rank.rank else rank.room(len(mine)) for other in group}
        result = Slot(Buffer.OUTPUT, 0)
        if phase.level < len(exchange.levels) - 1:
            first = rooms[group[0]] if rooms else rank.room(len(mine))
            result = Slot(Buffer.SCRATCH, first - mine.start)
        return _Place(group, mine, share.here, result, rooms)

    def _sums(self, rank: _Rank, share: _Share, place: _Place, phase: Phase) -> list[_Made]:
        """A threadblock that adds the members' pieces in scratch, onto the first one's, and copies what is finished out."""
        pieces = [*self._pieces(place.mine)]
        for piece in pieces if phase.level == 0 else ():
            # All ranks add in one order, so their own has to lie where others' does.
            own = Slot(Buffer.INPUT, piece.start)
            rank.add(share.adding, StepType.COPY, piece, own, place.room(rank.rank, piece.start))
        made = []
        for piece in pieces:
            total = place.room(place.group[0], piece.start)
            for members in _runs(place.group[1:]):
                awaited: Sequence[int] = members
                if members[0] == place.group[1]:
                    # What a rank adds onto its own sum it has given to all others before.
                    own_first = phase.kind is Kind.ALL and phase.level > 0 and place.group[0] == rank.rank
                    awaited = place.group if own_first else (place.group[0], *members)
                needed = {share.received[other, piece.start].position for other in awaited if other != rank.rank}
                if phase.kind is Kind.PART:
                    # Of its own part nobody is given anything; what others are given was waited for before it was sent.
                    needed |= {*share.needed(piece, share.adding)}
                for other in members:
                    waits = needed if other == members[0] else ()
                    done = rank.add(share.adding, StepType.REDUCE, piece, place.room(other, piece.start), total, waits)
            if place.result.buffer is Buffer.OUTPUT:
                done = rank.add(share.adding, StepType.COPY, piece, total, Slot(Buffer.OUTPUT, piece.start))
            made.append(_Made(piece.start, piece.stop, share.adding, done))
        return made

    def _gather(self, rank: _Rank, share: _Share, given: Given, taken: Given) -> None:
        """Exchange what is finished with another member."""
        lane = self._lane(rank.rank, given.dst)
        for there, here in self._pairs(given, taken):
            if there is not None:
                rank.add(lane, StepType.SEND, there, Slot(Buffer.OUTPUT, there.start), waits=share.needed(there, lane))
            if here is not None:
                done = rank.add(lane, StepType.RECV, here, dst=Slot(Buffer.OUTPUT, here.start))
                share.made.append(_Made(here.start, here.stop, lane, done))


def _runs(members: Sequence[int]) -> list[Sequence[int]]:
    """The members in runs that may be one operation, as even as can be: of any two one is another rank, so each run waits first."""
    count = -(-len(members) // _MOST_FUSED)
    cuts = [len(members) * part // count for part in range(count + 1)]
    return [members[start:stop] for start, stop in pairwise(cuts)]
