"""What comes in pieces (synth.ordering.pieces), and in how many: a runtime does not read a message for every chunk."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from synth.candidates.candidate import LARGE_VIEW, Candidate
from synth.candidates.cuts import FINEST_LARGE
from synth.candidates.links import is_crowded, is_uneven
from synth.candidates.sizes import CONNECTION_BOUND_BYTES
from synth.candidates.transfers import MOST_READ_TRANSFERS, direct, own_chunks, transfers_of, ways_of, with_count
from synth.collective import SHARED
from synth.instance import Instance
from synth.paths import meeting

#: A rank's chunks come in pieces if there are at least so many of these, of so many bytes or more, and no more transfers than this.
_FEWEST_PIECES = 12
_LEAST_PIECE_BYTES = 128 << 10
_LEAST_PIECE_ALONE_BYTES = 64 << 10
_MAX_PIECED_TRANSFERS = 530_000
#: Chunks of a piece on average, of sums, and over equal boxes of so few ranks that a runtime reads as many messages as the finest
#: rounds have.
_CHUNKS_OF_A_PIECE = 2.5
_CHUNKS_OF_A_SUMMED_PIECE = 4.0
_CHUNKS_OF_A_FINE_PIECE = 1.3
#: Where a runtime reads all chunks as they are, buffers up to this come in pieces, too, unless ways of several ranks meet.
_LARGEST_PIECED_ANYWAY = 256 << 20
#: Of the pieces that a runtime reads, the share that it reads however their threadblocks and waits come out.
_PIECES_READ_SURELY = 0.95
#: Pieces of a share of `_PIECED_BYTES` at most, and of others by the cube root of their size (eq. 14f): with more of them messages
#: cost more than what they save until all links are busy, and threadblocks, of which there are so many, have more steps.
_PIECES = 64
_PIECED_BYTES = 8 << 20
#: Copies over equal boxes, of which the last to come is all that is waited for, gain by it where they are cut so much less finely.
_COARSE_COPIES = 4


def in_pieces(
    instance: Instance,
    counts: Sequence[int],
    paced: Candidate,
    *,
    alone: bool = False,
    chunks: float = _CHUNKS_OF_A_PIECE,
) -> list[Candidate]:
    """What comes in rounds, in as many pieces as a runtime reads, of about so many `chunks` on average: where it does not read as
    many messages as there are chunks, and the smallest pieces are worth their steps. Of a machine `alone`, in no more than are
    worth it, and medium buffers at any rate.
    """
    most = _most_pieces(instance)
    medium = alone and paced.anchor_bytes <= _LARGEST_PIECED_ANYWAY and not is_crowded(instance.paths)
    if medium or (alone and not _is_read_whole(instance, counts)):
        share_bytes = paced.anchor_bytes / instance.num_ranks
        most = min(most, round(_PIECES * math.cbrt(share_bytes / _PIECED_BYTES)))
    finer = [count for count in counts if own_chunks(instance, count) > most]
    if most < _FEWEST_PIECES or not finer:
        return []
    count = min(finer, key=lambda count: abs(math.log2(own_chunks(instance, count) / (chunks * most))))
    cut = with_count(instance.collective, count)
    least_bytes = _LEAST_PIECE_ALONE_BYTES if alone else _LEAST_PIECE_BYTES
    if transfers_of(cut) > _MAX_PIECED_TRANSFERS or cut.chunk_bytes(paced.anchor_bytes) < least_bytes:
        return []
    return [replace(paced, count=count, pieces=most)]


def boxed_pieces(instance: Instance, counts: Sequence[int], paced: Candidate) -> list[Candidate]:
    """Pieces over equal boxes of what is no allreduce, beside what is tried in rounds there: where a runtime reads no finer cut than
    that as it is.
    """
    most, collective = _most_pieces(instance), instance.collective
    coarse = _COARSE_COPIES * own_chunks(instance, paced.count) <= most
    finer = any(FINEST_LARGE < own_chunks(instance, count) <= most for count in counts)
    if finer or collective.name not in SHARED or not (coarse or collective.combining):
        return []
    chunks = _CHUNKS_OF_A_PIECE if most < FINEST_LARGE else _CHUNKS_OF_A_FINE_PIECE
    return in_pieces(instance, counts, paced, chunks=chunks)


def pieced_sums(instance: Instance, counts: Sequence[int], boxed: Sequence[Candidate]) -> list[Candidate]:
    """Beside what is tried `boxed` for an allreduce of one large buffer over equal boxes, pieces of four chunks on average: a
    runtime reads half as many messages for each rank as of either half, so that the smallest have to be smaller still.
    """
    paced = [each for each in boxed if each.in_rounds and each.anchor_bytes > CONNECTION_BOUND_BYTES]
    if not paced or _most_pieces(instance) > FINEST_LARGE:
        return []
    return in_pieces(instance, counts, paced[0], chunks=_CHUNKS_OF_A_SUMMED_PIECE)


def summed_pieces(instance: Instance, counts: Sequence[int], buffer_bytes: int) -> list[Candidate]:
    """Pieces of a large allreduce on one machine of unequal links: there neither what is listed nor what a runtime reads in rounds
    comes near the limit. Of four chunks on average where ways of several ranks meet in one link.
    """
    if not is_uneven(instance.paths):
        return []
    paced = Candidate("trees", counts[-1], buffer_bytes, LARGE_VIEW, in_rounds=True)
    chunks = _CHUNKS_OF_A_SUMMED_PIECE if meeting(instance.paths) else _CHUNKS_OF_A_PIECE
    return in_pieces(instance, counts, paced, alone=True, chunks=chunks)


def finest_pieces(instance: Instance, strategy: str, counts: Sequence[int], buffer_bytes: int) -> list[Candidate]:
    """What comes in as many pieces as a runtime reads, and the smallest of these half as large as otherwise: for one size that is
    compared by schedule, over unequal links without boxes, where nothing coarser is near the limit.
    """
    packed = strategy in ("auto", "trees") and instance.collective.name in SHARED and not direct(instance.collective)
    halves = [count for count in counts if 2 * count in counts]
    if not packed or not is_uneven(instance.paths) or _is_read_whole(instance, halves):
        return []
    paced = Candidate("trees", counts[-1], buffer_bytes, LARGE_VIEW, in_rounds=True)
    most = int(_most_pieces(instance) * _PIECES_READ_SURELY)
    coarser = in_pieces(instance, halves, paced, alone=True)
    return [replace(each, count=2 * each.count, pieces=most) for each in coarser]


def _most_pieces(instance: Instance) -> int:
    """How many messages a runtime reads for every rank's chunks."""
    return MOST_READ_TRANSFERS // (ways_of(instance.collective) * max(1, instance.num_ranks - 1))


def _is_read_whole(instance: Instance, counts: Sequence[int]) -> bool:
    """Whether a runtime reads a message for every chunk of any of the cuts."""
    return all(own_chunks(instance, count) <= _most_pieces(instance) for count in counts)
