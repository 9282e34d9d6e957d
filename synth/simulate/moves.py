"""What each operation moves, slice by slice: bytes on the wire or own time, and the room it takes and gives back."""

from __future__ import annotations

from typing import NamedTuple

from msccl_xml.model import StepType
from synth.constants import ProtocolConstants
from synth.simulate.program import Program

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
    """An operation with all its slices, in full tiles and in the last one."""

    sends: bool
    receives: bool
    full: tuple[Piece, ...]
    last: tuple[Piece, ...]


def moves_of(program: Program, constants: ProtocolConstants) -> list[list[Move]]:
    """The moves of every threadblock, in the order of `program.blocks`; operations that move as much share one."""
    known: dict[tuple[StepType, int, int], Move] = {}
    moves = []
    for block in program.blocks:
        own = []
        for kind, chunks, _, _, sources in block.operations:
            key = kind, chunks, sources
            if key not in known:
                known[key] = _move(program, constants, *key)
            own.append(known[key])
        moves.append(own)
    return moves


def _move(program: Program, constants: ProtocolConstants, kind: StepType, chunks: int, sources: int) -> Move:
    sends = kind.sends and chunks > 0
    full, last = (
        _pieces(chunks * data, sources, sends, constants) for data in (program.tile_bytes, program.last_bytes)
    )
    return Move(sends, kind.receives and chunks > 0, full, last)


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
