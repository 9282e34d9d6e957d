"""Which buffer sizes to solve at, and from which sizes on something else decides."""

from __future__ import annotations

#: Buffers up to this are mostly latency on every machine of the catalogue: there the coarsest cut is tried, too.
LATENCY_BOUND_BYTES = 64 << 10
#: Buffers up to this are decided by connections as much as by links: candidates are made for an interpreter, too.
CONNECTION_BOUND_BYTES = 64 << 20
#: Buffers above this are ordered in rounds where they have a long way to go: over boxes, and from sums at free roots to copies.
PACED_BEYOND_BYTES = 8 << 20


def anchors(min_bytes: int, max_bytes: int, count: int = 4) -> tuple[int, ...]:
    """Buffer sizes to solve at, ascending: the largest, and down in equal ratios towards the smallest, as powers of two."""
    if min_bytes == max_bytes:
        return (max_bytes,)
    ratio = (max_bytes / min_bytes) ** (1 / count)
    sizes = {max_bytes}
    for step in range(1, count):
        sizes.add(max(min_bytes, 1 << (round(max_bytes / ratio**step).bit_length() - 1)))
    return tuple(sorted(sizes))
