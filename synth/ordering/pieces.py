"""Pieces: chunks of one owner that take the same way and travel together, one at a time at either end of its share and more
between (docs/formulation.md, section 5).

Every message costs a step, and a runtime reads so many. Until the first sums are complete, or the first chunks of others are there,
links that wait for these are idle for as long as so many messages take one after another, and at the end those are that have sent
all; between, only the number of steps counts. So the first and the last are the shortest. (Down a single chain equal ones are the
best: there all wait for the largest.)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from synth.instance import Instance
from synth.ir import Routing

Way = TypeVar("Way")

#: Shares of an owner's chunks over which pieces grow, and over which they shrink again, the longest first.
_RAMPS = (0.5, 0.4, 0.3, 0.25, 0.2)


class Pieces(NamedTuple):
    """A routing whose chunks are numbered so that those of a piece are neighbours, and the chunks of every piece."""

    routing: Routing
    chunks: tuple[tuple[int, ...], ...]


def in_pieces(instance: Instance, routing: Routing, most: int) -> Pieces:
    """The routing with the chunks of every owner in other places, and as many pieces of these as `most` if they take few ways: of
    as few chunks as that allows. Chunks of one owner whose numbers are apart stay as they are, alone.
    """
    ways = routing.ways()
    number: dict[int, int] = {}
    pieces: list[tuple[int, ...]] = []
    for own in instance.by_owner(ways).values():
        if own[-1] - own[0] >= len(own):
            number.update(zip(own, own, strict=True))
            pieces += [(chunk,) for chunk in own]
            continue
        alike: dict[tuple[tuple[int, bool], ...], list[int]] = defaultdict(list)
        for chunk in own:
            alike[tuple(ways[chunk])].append(chunk)
        first = own[0]
        for way, size in sizes_of({way: len(chunks) for way, chunks in alike.items()}, most):
            piece = tuple(range(first, first + size))
            number.update(zip(alike[way][:size], piece, strict=True))
            del alike[way][:size]
            pieces.append(piece)
            first += size
    moved = sorted(transfer._replace(chunk=number[transfer.chunk]) for transfer in routing.transfers)
    return Pieces(Routing(tuple(moved), routing.relaxed_us), tuple(pieces))


def sizes_of(chunks: Mapping[Way, int], most: int) -> list[tuple[Way, int]]:
    """The pieces of an owner that has so many `chunks` on every way, in their order: the way of each, and how many chunks it has.
    There are no more than `most`, and the largest has no more chunks than that takes; where there are as many ways, one for each.
    """
    total = sum(chunks.values())
    for largest in range(max(1, total // most), total + 1):
        for ramp in _RAMPS:
            pieces = _dealt(chunks, largest, ramp)
            if len(pieces) <= most:
                return pieces
    return list(chunks.items())


def _dealt(chunks: Mapping[Way, int], largest: int, ramp: float) -> list[tuple[Way, int]]:
    """Pieces of up to `largest` chunks: ways take turns, so that at every moment of each about the same share has gone."""
    total, left = sum(chunks.values()), dict(chunks)
    order = {way: position for position, way in enumerate(chunks)}
    pieces: list[tuple[Way, int]] = []
    gone = 0
    while left:
        share = gone / total
        wanted = round(1 + (largest - 1) * min(1.0, share / ramp, (1 - share) / ramp))
        way = max(left, key=lambda way: (left[way] / chunks[way], left[way], -order[way]))
        size = min(max(1, wanted), left[way])
        pieces.append((way, size))
        left[way] -= size
        gone += size
        if not left[way]:
            del left[way]
    return pieces
