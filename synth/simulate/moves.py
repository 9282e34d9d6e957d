"""What each operation moves, slice by slice: bytes on the wire or own time, and the room it takes and gives back."""

from __future__ import annotations

from typing import NamedTuple

from synth.constants import ProtocolConstants
from synth.simulate.program import Operation, Program

#: What a threadblock is at: waiting for flags; in an operation, waiting for a slice or for room; moving a slice.
IDLE, READY, MOVING = 0, 1, 2
#: Bytes of a slice of nothing (a buffer smaller than its chunks): a flow has to have some.
_NOTHING = 1e-6


class Piece(NamedTuple):
    """One slice: bytes on the wire where it is sent, microseconds where not; slots taken before it and given back after it."""

    work: float
    take: int
    give: int


class Move(NamedTuple):
    """One operation with all its slices, in full tiles and in the last one."""

    sends: bool
    receives: bool
    full: tuple[Piece, ...]
    last: tuple[Piece, ...]
    waits: tuple[tuple[int, int], ...]


def moves_of(program: Program, constants: ProtocolConstants) -> list[list[Move]]:
    """The moves of every threadblock, in the order of `program.blocks`."""
    cached: dict[tuple[bool, int, int, bool], tuple[Piece, ...]] = {}

    def pieces(operation: Operation, sends: bool, last: bool) -> tuple[Piece, ...]:
        key = (sends, operation.chunks, operation.sources, last)
        if key not in cached:
            data = operation.chunks * (program.last_bytes if last else program.tile_bytes)
            cached[key] = _pieces(data, operation.sources, sends, constants)
        return cached[key]

    def move(operation: Operation) -> Move:
        sends = operation.type.sends and operation.chunks > 0
        receives = operation.type.receives and operation.chunks > 0
        cuts = pieces(operation, sends, False), pieces(operation, sends, True)
        return Move(sends, receives, *cuts, tuple((wait.tb, wait.operations) for wait in operation.waits))

    return [[move(operation) for operation in block.operations] for block in program.blocks]


def _pieces(data: float, sources: int, sends: bool, constants: ProtocolConstants) -> tuple[Piece, ...]:
    """`data` bytes cut as the protocol does; slices of one unit of room share what it takes and gives.

    A slice of nothing is left out, and the one before it takes its room: an empty slice costs no time but has its slots.
    """
    size = max(data / constants.slices, constants.smallest_slice_bytes)
    number = max(1, -int(-data // size)) if data > 0 else 1
    number = min(number, constants.slices)
    rate = constants.rate_GBps * 1e3
    pieces, per_slot = [], constants.slices // constants.slots
    for position in range(number):
        part = min(size, data - position * size)
        work = max(part / constants.wire, _NOTHING) if sends else sources * part / rate
        lasts = position == number - 1
        first = -(-position // per_slot)  # units begun before this slice, and after it
        begun = constants.slots if lasts else -(-(position + 1) // per_slot)
        ended = constants.slots if lasts else (position + 1) // per_slot
        pieces.append(Piece(work, begun - first, ended - position // per_slot))
    return tuple(pieces)
