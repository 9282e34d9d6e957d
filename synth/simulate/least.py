"""What no run of a program takes less than, without running it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from synth.constants import ProtocolConstants
from synth.simulate.engine import Route
from synth.simulate.moves import Piece, pieces_of
from synth.simulate.program import Program


def least_us(
    program: Program, routes: Sequence[Route], capacity_bytes_per_us: Sequence[float], constants: ProtocolConstants
) -> float:
    """Microseconds after the launch that the busiest threadblock or link needs for all its slices (docs/formulation.md, 33b)."""
    rate = constants.rate_GBps * 1e3 / constants.wire
    tiles = program.tiles - 1
    carried: dict[int, float] = defaultdict(float)
    longest_us = 0.0
    usual, last = (pieces_of(program, constants, each) for each in (program.tile_bytes, program.last_bytes))
    for block, in_tile, at_end in zip(program.blocks, usual, last, strict=True):
        (sent, own_us), (sent_at_end, own_us_at_end) = _work(in_tile), _work(at_end)
        sent, own_us = tiles * sent + sent_at_end, tiles * own_us + own_us_at_end
        links = routes[block.send].links if block.send >= 0 else ()
        for link in links:
            carried[link] += sent
        longest_us = max(longest_us, own_us + sent / min([rate, *(capacity_bytes_per_us[link] for link in links)]))
    return max(longest_us, *(sent / capacity_bytes_per_us[link] for link, sent in carried.items()), 0.0)


def _work(pieces: Iterable[Piece]) -> tuple[float, float]:
    """Bytes on the wire of what is sent, and microseconds of all else."""
    sent = own_us = 0.0
    for piece in pieces:
        if piece.sends:
            sent += piece.work
        else:
            own_us += piece.work
    return sent, own_us
