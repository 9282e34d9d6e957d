"""Which cuts are worth their transfers at a buffer size."""

from __future__ import annotations

from collections.abc import Sequence

from synth.candidates.candidate import CHAINED
from synth.candidates.transfers import (
    MAX_FINE_TRANSFERS,
    MAX_TRANSFERS,
    direct,
    readable_counts,
    transfers_of,
    with_count,
)
from synth.collective import SHARED
from synth.constants import Constants
from synth.instance import Instance

#: Transfers of a candidate where every chunk has one destination: routes are short, and loads even with few of them.
_MAX_DIRECT_TRANSFERS = 4_000
#: A chunk whose time on the slowest path is less than this share of its latency gains nothing by being cut further.
_FINEST_SHARE = 0.25
#: Where schedules are all that counts and nothing coarser is near the limit, it still gains something by so many times less.
_FINER_STILL = 4
#: Chunks of a candidate for an interpreter, of the vector or of all shares together: more cost a message each, fewer do not fill
#: the links of the machines that have the most.
_COARSE_CHUNKS = 64
#: A message of less costs its step and nothing else.
_LEAST_CHUNK_BYTES = 1 << 10
#: Chunks of a large buffer at most, times the ranks, unless a finer cut is tried on purpose: it takes longer and is hardly better.
FINEST_LARGE = 64
#: Chunks of a rank's share over equal boxes at most where every chunk has one destination: finer cuts gain less than a percent.
_FINEST_ACROSS = 4
_TILE_BYTES = Constants().simple.tile_bytes


def worthwhile_counts(instance: Instance, counts: Sequence[int], buffer_bytes: int, most: int) -> list[int]:
    """Of the admissible counts (as in chunk_counts), at most `most` worth trying at this size, ascending.

    Cutting stops where transfers get too many or chunks too small to be worth their latency. The finest counts come first; below
    them, each next is at most half of the one before.
    """
    fitting = [count for count in counts if fits(instance, count, buffer_bytes)] or [counts[0]]
    chosen = fitting[-1:]
    for count in reversed(fitting[:-1]):
        if 2 * count <= chosen[-1] or len(fitting) <= most:
            chosen.append(count)
    return sorted(chosen[:most])


def fits(instance: Instance, count: int, buffer_bytes: int) -> bool:
    """Whether a cut has no more transfers than a candidate may have, and is worth them."""
    collective = with_count(instance.collective, count)
    if transfers_of(collective) > (_MAX_DIRECT_TRANSFERS if direct(collective) else MAX_TRANSFERS):
        return False
    return worth_cutting(instance, count, buffer_bytes)


def worth_cutting(instance: Instance, count: int, buffer_bytes: int) -> bool:
    """Whether a chunk's time on the slowest path is not small beside its latency there."""
    chunk_bytes = buffer_bytes / with_count(instance.collective, count).chunks
    busy_us, alpha_us = max(
        (path.latency_us(chunk_bytes) - path.alpha_us, path.alpha_us) for path in instance.unlike_paths
    )
    return busy_us >= _FINEST_SHARE * alpha_us


def worth_reading(instance: Instance, counts: Sequence[int], buffer_bytes: int, most: int) -> list[int]:
    """The finest of the `readable_counts` that gains something where schedules are all that counts; none where none does."""
    fitting = readable_counts(instance, counts, most)
    return [count for count in fitting if worth_cutting(instance, count, _FINER_STILL * buffer_bytes)][-1:]


def coarse_cut(instance: Instance, counts: Sequence[int], buffer_bytes: int) -> int:
    """The finest of the cuts that leave every message worth its step."""
    shares = instance.num_ranks if instance.collective.name in SHARED else 1
    most = min(_COARSE_CHUNKS, buffer_bytes // _LEAST_CHUNK_BYTES)
    return max((count for count in counts if count * shares <= most), default=counts[0])


def large_cuts(instance: Instance, counts: Sequence[int], buffer_bytes: int) -> list[int]:
    """The finest cut that is worth it, and the others of `large_candidates`, the coarsest last."""
    cuts = {count: with_count(instance.collective, count) for count in counts}
    worthwhile = worthwhile_counts(instance, counts, buffer_bytes, len(counts))
    most = FINEST_LARGE * instance.num_ranks
    finest = max((count for count in worthwhile if cuts[count].chunks <= most), default=worthwhile[0])
    # What one rank sends to all, or gets from all, gains little by cuts that take so many transfers.
    transfers = MAX_TRANSFERS if instance.collective.name in CHAINED else MAX_FINE_TRANSFERS
    finer = [
        count
        for count, cut in cuts.items()
        if finest < count and 2 * cut.chunk_bytes(buffer_bytes) >= _TILE_BYTES and transfers_of(cut) <= transfers
    ]
    half = [count for count in counts if 2 * count <= finest]
    each = [count for count, cut in cuts.items() if cut.chunks >= instance.num_ranks]
    return list(dict.fromkeys((finest, *(finer or half)[-1:], *(each or [finest])[:1])))


def across_cuts(instance: Instance, counts: Sequence[int], buffer_bytes: int) -> list[int]:
    """For chunks with one destination whole shares, which many connections carry side by side, and finer ones that are worth it."""
    finer = [
        count
        for count in counts
        if transfers_of(with_count(instance.collective, count)) <= MAX_TRANSFERS
        and worth_cutting(instance, count, buffer_bytes)
    ]
    return list(dict.fromkeys((counts[0], *[count for count in finer if count <= _FINEST_ACROSS][-1:])))
