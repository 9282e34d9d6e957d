"""What each operation moves, slice by slice: bytes on the wire or own time, and the room it takes and gives back."""

from __future__ import annotations

from typing import NamedTuple

from msccl_xml.model import StepType
from synth.constants import ProtocolConstants
from synth.simulate.program import Program

#: What a threadblock is at: waiting for flags; in an operation, waiting for a slice or for room; moving a slice.
IDLE, READY, MOVING = 0, 1, 2
#: What a threadblock that is ready waits for until another one brings it.
NOTHING, DATA, ROOM = 0, 1, 2
#: Bytes of a slice of nothing (a buffer smaller than its chunks): a flow has to have some.
_NOTHING = 1e-6


class Piece(NamedTuple):
    """One slice: bytes on the wire where it is sent, microseconds where not; slots taken before it where it is sent, and given back
    after it where it is received; and whether its operation ends with it.
    """

    work: float
    take: int
    give: int
    sends: bool
    receives: bool
    ends: bool


def pieces_of(program: Program, constants: ProtocolConstants, tile_bytes: float) -> list[list[Piece]]:
    """By threadblock, in the order of `program.blocks`, the slices of all its operations in a tile of so many bytes a chunk."""
    known: dict[tuple[StepType, int, int], tuple[Piece, ...]] = {}
    pieces = []
    for block in program.blocks:
        own: list[Piece] = []
        for kind, chunks, _, _, sources in block.operations:
            key = kind, chunks, sources
            if key not in known:
                known[key] = _pieces(*key, chunks * tile_bytes, constants)
            own += known[key]
        pieces.append(own)
    return pieces


def _pieces(kind: StepType, chunks: int, sources: int, data: float, constants: ProtocolConstants) -> tuple[Piece, ...]:
    """An operation's `data` bytes cut as the protocol does; slices of one unit of room share what it takes and gives.

    A slice of nothing is left out, and the one before it takes its room: an empty slice costs no time but has its slots.
    """
    sends, receives = kind.sends and chunks > 0, kind.receives and chunks > 0
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
        take, give = begun - first if sends else 0, ended - position // per_slot if receives else 0
        pieces.append(Piece(work, take, give, sends, receives, lasts))
    return tuple(pieces)
