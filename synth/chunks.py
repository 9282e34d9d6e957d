"""How finely a vector may be cut: the chunk counts that every buffer of a size range divides by.

A runtime passes over a file, without a word, where `nchunksperloop` does not divide the element count (times the ranks,
where ranks have shares). So the admissible counts follow from the element counts that nccl-tests calls the collective
with.

Where ranks have shares, nccl-tests gives each the floor of its 1/R of the elements, rounded down to a multiple of 16
bytes (`(count/nranks) & -(16/eltSize)` in the GetCollByteCount of all_gather, reduce_scatter, alltoall, gather and
scatter). On three ranks a share of a power-of-two buffer is therefore a multiple of 4 fp32 elements and of nothing
more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from synth.collective import SHARED, CollectiveName

#: Bytes that nccl-tests rounds a rank's share down to a multiple of.
SHARE_ALIGNMENT_BYTES = 16
#: Finest cut worth offering: steps and scratch grow with the count, and a 256th of 1 KB is one element.
MAX_CHUNKS = 256
FP32_BYTES = 4


def element_count(name: CollectiveName, num_ranks: int, size_bytes: int, element_bytes: int = FP32_BYTES) -> int:
    """Elements of a rank's share, or of the vector where there are no shares, of nccl-tests' buffer of `size_bytes`.

    0 where the buffer is too small for every rank to get a share: nccl-tests then moves nothing.
    """
    count = size_bytes // element_bytes
    if name not in SHARED:
        return count
    alignment = max(1, SHARE_ALIGNMENT_BYTES // element_bytes)
    return count // num_ranks // alignment * alignment


def moved_bytes(name: CollectiveName, num_ranks: int, size_bytes: int) -> int:
    """What nccl-tests' buffer of `size_bytes` holds, and a runtime compares with the sizes of a file: all of `element_count`.

    On three ranks an allgather of 1 MB moves 16 bytes less. Where nothing is moved, `size_bytes` itself.
    """
    shares = num_ranks if name in SHARED else 1
    return element_count(name, num_ranks, size_bytes) * shares * FP32_BYTES or size_bytes


def range_sizes(min_bytes: int, max_bytes: int) -> tuple[int, ...]:
    """The buffer sizes, in bytes, that a sweep from `min_bytes` to `max_bytes` visits, ascending.

    One size if both are equal; otherwise the powers of two in the range and the doublings of `min_bytes` (nccl-tests
    `-f 2`).
    """
    if min_bytes == max_bytes:
        return (min_bytes,)
    sizes = set()
    for first in (min_bytes, 1 << (min_bytes - 1).bit_length()):
        size = first
        while size <= max_bytes:
            sizes.add(size)
            size *= 2
    return tuple(sorted(sizes))


def chunk_counts(
    name: CollectiveName,
    num_ranks: int,
    min_bytes: int,
    max_bytes: int,
    element_bytes: int = FP32_BYTES,
    finer: int = 1,
) -> tuple[int, ...]:
    """The admissible chunk counts, ascending, at most MAX_CHUNKS (of a vector without shares: or 32 for each rank), times `finer`.

    A count is admissible if it divides the element count of every size in the range (`range_sizes`); sizes so small
    that nothing is moved do not matter. 1 always is.
    """
    counts = (element_count(name, num_ranks, size, element_bytes) for size in range_sizes(min_bytes, max_bytes))
    common = math.gcd(*counts)
    most = MAX_CHUNKS if name in SHARED else max(MAX_CHUNKS, 32 * num_ranks)
    return tuple(chunks for chunks in range(1, min(common, most * finer) + 1) if common % chunks == 0) or (1,)


def even_counts(name: CollectiveName, num_ranks: int, counts: Sequence[int]) -> tuple[int, ...]:
    """Of the admissible counts, ascending, of a vector of which every rank reduces a part, those that give all ranks as many chunks,
    and such others as have none of those between half of them and themselves. Of other collectives all.
    """
    if name is not CollectiveName.ALLREDUCE:
        return tuple(counts)
    even = [count for count in counts if count % num_ranks == 0]
    return tuple(
        count for count in counts if count % num_ranks == 0 or not any(count < 2 * other < 2 * count for other in even)
    )


def divides(
    name: CollectiveName, num_ranks: int, chunks: int, size_bytes: int, element_bytes: int = FP32_BYTES
) -> bool:
    """Whether a runtime would use `chunks` (counted as in `chunk_counts`) at this size; True where nothing moves."""
    return element_count(name, num_ranks, size_bytes, element_bytes) % chunks == 0


def first_indivisible(name: CollectiveName, num_ranks: int, chunks: int, sizes: tuple[int, ...]) -> int | None:
    """The first of `sizes` (bytes) at which fp32 buffers do not divide by `chunks`, for the warning; None if all do."""
    return next((size for size in sizes if not divides(name, num_ranks, chunks, size)), None)
