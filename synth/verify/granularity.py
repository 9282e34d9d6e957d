"""How many chunks a transfer may hold, at the sizes that a runtime chooses a file for.

The runtimes move as many whole chunks at once as fit a tile of the protocol (maxAllowedCount: at least 1, at most 71): one where
buffers are large, many where they are small. A file whose minBytes and maxBytes leave some of these out is not judged by them.
Tiles are those of the default buffer sizes; a smaller NCCL_BUFFSIZE makes those of Simple smaller.
"""

from __future__ import annotations

from msccl_xml.limits import LIMITS
from msccl_xml.model import Algo, StepType
from synth.constants import chunks_per_transfer, last_byte


def granularities(algo: Algo, runtime: str) -> list[int]:
    """The numbers of chunks a transfer to ask about, ascending, capped at the largest count of a step.

    Where one chunk is among them, it decides about deadlocks (graph.py). Accesses can be ordered by a free slot at one number and
    by the size of a message at another, so races are asked about at the powers of two above as well. Where it is not, nothing
    decides for the others, and all are asked about.
    """
    counts = [step.count for _, _, _, step in algo.steps() if step.type is not StepType.NOP]
    most = min(max(counts, default=1), max(limits.count for limits in LIMITS.values()))
    low, high = (max(1, min(each, most)) for each in _possible(algo, runtime, most))
    if low > 1:
        return list(range(low, high + 1))
    return [*(1 << k for k in range(high.bit_length()) if 1 << k < high), high]


def _possible(algo: Algo, runtime: str, most: int) -> tuple[int, int]:
    """The least and the largest number of chunks a transfer, of the largest and the smallest buffer."""
    smallest, largest = max(1, algo.min_bytes or 0), last_byte(algo.max_bytes, runtime)
    if algo.coll == "custom" or (largest is not None and largest < smallest):
        return 1, most  # sizes are not compared, or the file is never chosen by itself
    fewest, highest = (
        1 if each is None else chunks_per_transfer(algo.coll, algo.proto, -(-each // algo.nchunksperloop), runtime)
        for each in (largest, smallest)
    )
    return fewest, highest
