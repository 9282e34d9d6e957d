"""How a protocol cuts chunks into transfers and transfers into slots, and where a connection's slots lie in memory."""

from __future__ import annotations

from dataclasses import dataclass

from synth.constants import Constants
from synth.errors import InputError
from synth.execute.cuda.abi import FLAG_BYTES, LINE_BYTES, LINE_WORDS
from synth.execute.cuda.plan import MAX_COUNT, Plan

_WORD, _PACK = 8, 16


@dataclass(frozen=True, slots=True)
class Geometry:
    """Data bytes of a transfer (a tile), how many transfers a connection holds, and in how many slices one travels.

    LL and LL128 have one slice: they mark every line. InputError for tiles that are no multiple of 16 bytes.
    """

    protocol: str
    tile_bytes: int
    in_flight: int
    slices: int
    smallest_slice_bytes: int = _PACK

    def __post_init__(self) -> None:
        if self.tile_bytes < _PACK or self.tile_bytes % _PACK:
            raise InputError("--tile", "", self.tile_bytes, f"a multiple of {_PACK} bytes")
        if min(self.in_flight, self.slices) < 1:
            raise InputError("--slots", "", (self.in_flight, self.slices), "1 or more")

    @classmethod
    def of(cls, protocol: str) -> Geometry:
        """That of the runtimes' own interpreters (synth/constants.py), so that what hangs there hangs here."""
        constants = Constants().of(protocol)
        slices = constants.slices if protocol == "Simple" else 1
        return cls(protocol, constants.tile_bytes, constants.in_flight, slices, constants.smallest_slice_bytes)

    @property
    def slots(self) -> int:
        """Slots of a connection."""
        return self.in_flight * self.slices

    @property
    def slot_bytes(self) -> int:
        """Bytes of a slot: its share of the largest transfer, whose chunks each begin on a unit of their own."""
        if self.protocol == "Simple":
            packs = self.tile_bytes // _PACK + MAX_COUNT
            held = max(-(-packs // self.slices), min(self.smallest_slice, packs))
            return _rounded(held * _PACK)
        words = self.tile_bytes // _WORD + MAX_COUNT
        if self.protocol == "LL":
            return _rounded(words * _PACK)
        return _rounded(-(-words // LINE_WORDS) * LINE_BYTES)

    @property
    def smallest_slice(self) -> int:
        """Packs of 16 bytes of which a slice has at least so many, unless the transfer ends."""
        return max(1, self.smallest_slice_bytes // _PACK)

    def most_chunks(self, chunk_bytes: int) -> int:
        """Chunks of one transfer: as many whole ones as fit a tile, from 1 to 71."""
        return max(1, min(MAX_COUNT, self.tile_bytes // chunk_bytes))


@dataclass(frozen=True, slots=True)
class Arenas:
    """The memory through which ranks reach each other: one piece for each rank, and where in them each connection lies.

    Slots and tail lie in the piece of the receiver, head in that of the sender: each polls its own memory. The flags come first.
    """

    size_bytes: tuple[int, ...]
    flag_bytes: tuple[int, ...]
    """How much of each piece is flags."""
    slots: tuple[int, ...]
    tails: tuple[int, ...]
    heads: tuple[int, ...]


def lay_out(plan: Plan, geometry: Geometry) -> Arenas:
    """Offsets for every connection; the same in every process, so that only the addresses of the pieces need to be exchanged."""
    used = [0] * plan.num_ranks
    tails = [_take(used, connection.dst, FLAG_BYTES) for connection in plan.connections]
    heads = [_take(used, connection.src, FLAG_BYTES) for connection in plan.connections]
    flags = tuple(used)
    slots = [_take(used, connection.dst, geometry.slots * geometry.slot_bytes) for connection in plan.connections]
    return Arenas(tuple(max(size, FLAG_BYTES) for size in used), flags, tuple(slots), tuple(tails), tuple(heads))


def _take(used: list[int], rank: int, size_bytes: int) -> int:
    start = used[rank]
    used[rank] += size_bytes
    return start


def _rounded(size_bytes: int) -> int:
    return -(-size_bytes // LINE_BYTES) * LINE_BYTES
