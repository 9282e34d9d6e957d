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
from synth.lowering.operations import Operation
from synth.lowering.threadblocks import Program

Position = tuple[int, int]


def find_waits(program: Program, layouts: Iterable[Layout]) -> dict[Position, tuple[Position, ...]]:
    """By position, the operations of other threadblocks that each operation waits for itself.

    `layouts` are all the ways in which the file may be called, the one whose names the program uses first: what is one chunk of
    memory in any of them counts.
    """
    placed = [
        _Placed(op, lane, number)
        for lane, operations in enumerate(program.values())
        for number, op in enumerate(operations)
    ]
    placed.sort(key=lambda each: each.op.position)
    accesses = [_Access(op, op.read(), op.written()) for op, _, _ in placed]
    conflicts: dict[int, set[int]] = defaultdict(set)
    for number, layout in enumerate(layouts):
        for earlier, later in _conflicts([_called(access, layout, renamed=number > 0) for access in accesses], layout):
            if placed[earlier].lane != placed[later].lane:
                conflicts[later].add(earlier)
    return {
        placed[later].op.position: tuple([placed[earlier].op.position for earlier in needed])
        for later, needed in _reduce(placed, conflicts).items()
    }


class _Placed(NamedTuple):
    """An operation, the number of its threadblock, and its place there. From here on its name is its place in the order of positions
    of its rank's operations.
    """

    op: Operation
    lane: int
    number: int


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
        access = _Access(op, reads, writes)
    if op.type is StepType.COPY and reads == writes:
        return _Access(op, reads, [])  # in place, the copy of a rank's own share stores what is there
    return access


def _conflicts(accesses: list[_Access], layout: Layout) -> list[tuple[int, int]]:
    """Pairs (earlier, later) on one slot: read after write, write after write, write after read."""
    writer: dict[Slot, int] = {}
    readers: dict[Slot, list[int]] = {}
    pairs = []
    for later, (op, reads, writes) in enumerate(accesses):
        for slot in reads:
            if slot in writer:
                pairs.append((writer[slot], later))
            readers.setdefault(slot, []).append(later)
        implied = bool(writes) and _is_implied(layout, op)
        for slot in writes:
            before = readers.pop(slot, [])
            if slot in writer:
                before.append(writer[slot])
            if not implied or slot.buffer is Buffer.SCRATCH:
                pairs += [(earlier, later) for earlier in before if earlier != later]
            writer[slot] = later
    return pairs


def _is_implied(layout: Layout, later: Operation) -> bool:
    """Whether the message that `later` receives cannot exist before whatever used its memory is done, unless that is scratch.

    The finished sum of a chunk includes this rank's contribution: whatever led to that being sent is over when the sum
    comes.
    """
    finished = later.type in (StepType.RECV, StepType.RECV_COPY_SEND) and not later.partial
    return finished and layout.collective.combining


def _reduce(placed: list[_Placed], conflicts: dict[int, set[int]]) -> dict[int, list[int]]:
    """Leave out what program order and other waits imply; the latest operations come first, as they imply most.

    An operation's clock says how far all threadblocks but its own have come for certain: the same as of the one before it, until it
    waits for something.
    """
    clock_of: list[dict[int, int]] = []
    current: dict[int, dict[int, int]] = defaultdict(dict)
    waits: dict[int, list[int]] = {}
    for later, (_, lane, _) in enumerate(placed):
        clock = current[lane]
        needed: list[int] = []
        for earlier in sorted(conflicts.get(later, ()), reverse=True):
            _, there, number = placed[earlier]
            if clock.get(there, -1) < number:
                if not needed:
                    clock = current[lane] = dict(clock)
                needed.append(earlier)
                for known, reached in clock_of[earlier].items():
                    if clock.get(known, -1) < reached:
                        clock[known] = reached
                clock[there] = number
        clock_of.append(clock)
        if needed:
            waits[later] = needed[::-1]
    return waits
