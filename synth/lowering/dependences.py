"""Which steps have to wait for which others on the same rank, and no more of them than needed.

Two operations on one chunk of memory, one of them a write, have to happen in the order of their positions. Order within
a threadblock is free; what other waits imply, by a vector clock over the rank's threadblocks, is left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from msccl_xml.model import Buffer, StepType
from synth.lowering.buffers import Layout, Slot
from synth.lowering.operations import Lane, Operation
from synth.lowering.threadblocks import Program

Position = tuple[int, int]


def find_waits(program: Program, layouts: Iterable[Layout]) -> dict[Position, tuple[Position, ...]]:
    """By position, the operations of other threadblocks that each operation waits for itself.

    `layouts` are all the ways in which the file may be called, the one whose names the program uses first: what is one chunk of
    memory in any of them counts.
    """
    operations = sorted((op for lane in program.values() for op in lane), key=lambda op: op.position)
    place = {op.position: (lane, number) for lane, ops in program.items() for number, op in enumerate(ops)}
    accesses = [_Access(op, op.read(), op.written()) for op in operations]
    conflicts: dict[Position, set[Position]] = defaultdict(set)
    for number, layout in enumerate(layouts):
        called = [_called(access, layout, renamed=number > 0) for access in accesses]
        for earlier, later in _conflicts(called, layout):
            if place[earlier][0] != place[later][0]:
                conflicts[later].add(earlier)
    return _reduce(operations, conflicts, place)


class _Access(NamedTuple):
    """An operation and the memory that it uses."""

    op: Operation
    reads: list[Slot]
    writes: list[Slot]


def _called(access: _Access, layout: Layout, *, renamed: bool) -> _Access:
    """The same memory under the names that it has in one layout; not `renamed`: it has them already."""
    op, reads, writes = access
    if renamed and layout.aliased:
        reads = [layout.canonical(op.rank, slot) for slot in reads]
        writes = [layout.canonical(op.rank, slot) for slot in writes]
    if op.type is StepType.COPY and reads == writes:
        return _Access(op, reads, [])  # in place, the copy of a rank's own share stores what is there
    return _Access(op, reads, writes)


def _conflicts(accesses: list[_Access], layout: Layout) -> list[tuple[Position, Position]]:
    """Pairs (earlier, later) on one slot: read after write, write after write, write after read."""
    writer: dict[Slot, Operation] = {}
    readers: dict[Slot, list[Operation]] = defaultdict(list)
    pairs = []
    for op, reads, writes in accesses:
        for slot in reads:
            if slot in writer:
                pairs.append((writer[slot].position, op.position))
            readers[slot].append(op)
        for slot in writes:
            for earlier in [*readers.pop(slot, []), *([writer[slot]] if slot in writer else [])]:
                if earlier is not op and not _implied(layout, earlier, op, slot):
                    pairs.append((earlier.position, op.position))
            writer[slot] = op
    return pairs


def _implied(layout: Layout, earlier: Operation, later: Operation, slot: Slot) -> bool:
    """Whether the message that `later` receives cannot exist before `earlier` is done.

    The finished sum of a chunk includes this rank's contribution: whatever led to that being sent is over when the sum
    comes.
    """
    finished = later.type in (StepType.RECV, StepType.RECV_COPY_SEND) and not later.partial
    return layout.collective.combining and finished and slot.buffer is not Buffer.SCRATCH


def _reduce(
    operations: list[Operation], conflicts: dict[Position, set[Position]], place: dict[Position, tuple[Lane, int]]
) -> dict[Position, tuple[Position, ...]]:
    """Leave out what program order and other waits imply; the latest operations come first, as they imply most."""
    clock_of: dict[Position, dict[Lane, int]] = {}
    current: dict[Lane, dict[Lane, int]] = defaultdict(dict)
    waits: dict[Position, tuple[Position, ...]] = {}
    for op in operations:
        lane, number = place[op.position]
        clock = dict(current[lane])
        needed = []
        for earlier in sorted(conflicts.get(op.position, ()), reverse=True):
            there, step = place[earlier]
            if clock.get(there, -1) < step:
                needed.append(earlier)
                for known, reached in clock_of[earlier].items():
                    clock[known] = max(clock.get(known, -1), reached)
        clock[lane] = number
        clock_of[op.position] = clock
        current[lane] = clock
        if needed:
            waits[op.position] = tuple(reversed(needed))
    return waits
