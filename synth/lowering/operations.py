"""Each rank's operations, one for every push, pop and local copy, cut where memory or the runtimes cut them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from msccl_xml.limits import LIMITS
from msccl_xml.model import StepType
from synth.lowering.buffers import Layout, Slot, own_copies, slots_in_row
from synth.lowering.messages import Message
from synth.lowering.order import Order
from synth.lowering.storage import Storage

#: Largest `cnt` of a step, the same for all runtimes.
MAX_COUNT = min(limits.count for limits in LIMITS.values())


class Lane(NamedTuple):
    """What a threadblock owns: at most one peer each way (-1: none), on one channel."""

    channel: int
    recv: int
    send: int


class Operation(NamedTuple):
    """One future step. `position` orders a rank's operations; executed one by one in that order they are right.

    `pops` and `pushes` name the piece of a message that is received or sent, by (message index, place in the message). A tuple, as
    there are two for every message.
    """

    rank: int
    position: tuple[int, int]
    type: StepType
    chunks: tuple[int, ...]
    lane: Lane
    """the peers that this operation needs; threadblocks.py joins lanes"""
    src: Slot | None = None
    dst: Slot | None = None
    pops: tuple[int, int] | None = None
    pushes: tuple[int, int] | None = None
    partial: bool = False
    """whether what it receives is a contribution that the next operation adds"""

    @property
    def count(self) -> int:  # type: ignore[override]  # an operation is never asked how often it holds a value
        """How many chunks it handles."""
        return len(self.chunks)

    @property
    def ends(self) -> tuple[Slot | None, Slot | None]:
        """Where the memory begins that it reads, and the memory that it writes; None where it does not."""
        return self.src if self.type.reads_src else None, self.dst if self.type.writes_dst else None

    def read(self) -> list[Slot]:
        """The memory that it reads."""
        return self._slots(self.ends[0])

    def written(self) -> list[Slot]:
        """The memory that it writes."""
        return self._slots(self.ends[1])

    def _slots(self, first: Slot | None) -> list[Slot]:
        return [] if first is None else slots_in_row(first, len(self.chunks))


class _Piece(NamedTuple):
    """The chunks of a message from `start` to before `end`: one step at either end."""

    place: int
    start: int
    end: int


def list_operations(
    layout: Layout, messages: list[Message], order: Order, storage: Storage, copying: int, ranks: int
) -> list[list[Operation]]:
    """All operations of each of the first `ranks` ranks in order of position; `copying` is over how many channels copies
    are spread.
    """
    table: list[list[Operation]] = [[] for _ in range(ranks)]
    for message in messages:
        start = 0
        for place, count in enumerate(_pieces(layout, message, storage)):
            piece = _Piece(place, start, start + count)
            table[message.sent.rank].append(_push(message, piece, order, storage))
            table[message.received.rank].append(_pop(message, piece, order, storage))
            start += count
    for rank, copies in own_copies(layout, messages, ranks).items():
        table[rank] += _copies(layout, rank, copies, copying, len(order.events))
    for operations in table:
        operations.sort(key=lambda operation: operation.position)
    return table


def _pieces(layout: Layout, message: Message, storage: Storage) -> list[int]:
    """Chunks of each piece of the message: cut where an address at either end does not go on, where adding ends or begins, or a step
    would be too long.
    """
    chunks = message.received.chunks
    if len(chunks) == 1:
        return [1]
    columns: list[Sequence[Slot | None]] = [storage.read[message.index], storage.write[message.index]]
    if message.index in storage.local:
        columns.append(storage.local[message.index])
    if storage.total:
        columns.append([storage.total.get((message.index, chunk)) for chunk in chunks])
    cuts = set().union(*(_cuts(layout, slots) for slots in columns))
    pieces = [1]
    for place in range(1, len(chunks)):
        if place in cuts or pieces[-1] == MAX_COUNT:
            pieces.append(1)
        else:
            pieces[-1] += 1
    return pieces


def _cuts(layout: Layout, slots: Sequence[Slot | None]) -> Iterable[int]:
    """The places in a column at which a chunk's slot does not lie behind the one before, unless neither has one."""
    first = slots[0]
    if first is not None and slots == slots_in_row(first, len(slots)):
        return layout.breaks(first, len(slots))
    return [place for place, (last, after) in enumerate(pairwise(slots), 1) if not _goes_on(layout, last, after)]


def _goes_on(layout: Layout, last: Slot | None, after: Slot | None) -> bool:
    """Whether one chunk's slot lies behind another's, or neither has one."""
    if last is None or after is None:
        return last is after
    return layout.follows(after, last)


def _push(message: Message, piece: _Piece, order: Order, storage: Storage) -> Operation:
    return Operation(
        rank=message.sent.rank,
        position=(order.push_at[message.index], piece.place),
        type=StepType.SEND,
        chunks=message.sent.chunks[piece.start : piece.end],
        lane=Lane(message.channel, -1, message.sent.peer),
        src=storage.read[message.index][piece.start],
        pushes=(message.index, piece.place),
    )


def _pop(message: Message, piece: _Piece, order: Order, storage: Storage) -> Operation:
    local = storage.local[message.index][piece.start] if message.index in storage.local else None
    return Operation(
        rank=message.received.rank,
        position=(order.pop_at[message.index], piece.place),
        type=StepType.RECV if local is None else StepType.RECV_REDUCE_COPY,
        chunks=message.received.chunks[piece.start : piece.end],
        lane=Lane(message.channel, message.received.peer, -1),
        src=local,
        dst=storage.write[message.index][piece.start],
        pops=(message.index, piece.place),
    )


def part_sums(operations: list[Operation], totals: Mapping[tuple[int, int], Slot]) -> list[Operation]:
    """A rank's operations with every receiving sum as a receive and a `re` that follows it at once.

    `totals`: by (message index, chunk) where the sum goes.
    As a receive stands before each, no two `re` are neighbours, which the parsers would fuse into one instruction.
    """
    result = []
    for operation in operations:
        result += _parts(operation, totals) if operation.type is StepType.RECV_REDUCE_COPY else [operation]
    return result


def _parts(operation: Operation, totals: Mapping[tuple[int, int], Slot]) -> list[Operation]:
    if operation.pops is None or operation.dst is None:
        raise AssertionError(f"a receiving sum that receives or stores nothing: {operation}")
    at, place = operation.position
    total = totals[operation.pops[0], operation.chunks[0]]
    received, local = operation.dst, operation.src
    receive = operation._replace(type=StepType.RECV, src=None, position=(at, 3 * place + 1), partial=True)
    added = local if total == received else received
    add = operation._replace(type=StepType.REDUCE, src=added, dst=total, position=(at, 3 * place + 2), pops=None)
    if total in (received, local):
        return [receive, add]
    copy = operation._replace(type=StepType.COPY, dst=total, position=(at, 3 * place), pops=None)
    return [copy, receive, add]


def _copies(
    layout: Layout, rank: int, copies: list[tuple[int, Slot, Slot]], width: int, events: int
) -> list[Operation]:
    """Local copies, contiguous ones joined, spread over the channels, since one threadblock copies no faster than one connection
    moves; `events` is how many pushes and pops there are.

    They come first, unless the caller's data for others still lies where they go (an in-place scatter of one pointer):
    then last.
    """
    collective = layout.collective
    # Out of place no output is anybody's input.
    chunks = range(collective.num_chunk_ids) if layout.aliased else ()
    sources = {layout.source(rank, chunk) for chunk in chunks}
    late = any(there in sources for _, _, there in copies)
    runs: list[tuple[int, list[tuple[int, Slot, Slot]]]] = []
    for chunk, here, there in copies:
        channel = chunk % collective.per_rank * width // collective.per_rank
        if runs and runs[-1][0] == channel and len(runs[-1][1]) < MAX_COUNT:
            _, last_here, last_there = runs[-1][1][-1]
            if layout.follows(here, last_here) and layout.follows(there, last_there):
                runs[-1][1].append((chunk, here, there))
                continue
        runs.append((channel, [(chunk, here, there)]))
    return [
        Operation(
            rank=rank,
            position=(events if late else -1, number),
            type=StepType.COPY,
            chunks=tuple(chunk for chunk, _, _ in run),
            lane=Lane(channel, -1, -1),
            src=run[0][1],
            dst=run[0][2],
        )
        for number, (channel, run) in enumerate(runs)
    ]
