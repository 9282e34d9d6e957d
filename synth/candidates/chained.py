"""What to try through equal boxes, which pass on what one rank sends, or what it gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from synth.boxes import Boxes
from synth.candidates.candidate import CHAINED, FANNED, LARGE_VIEW, VIEW, Candidate
from synth.candidates.cuts import across_cuts, worth_cutting
from synth.candidates.sizes import CONNECTION_BOUND_BYTES
from synth.candidates.transfers import MAX_TRANSFERS, is_large, transfers_of, with_count
from synth.instance import Instance

#: Transfers of a reduce over equal boxes: sums are made chunk after chunk, and wait less for small ones.
_MAX_SUMMED_TRANSFERS = 20_000
#: Chunks from one rank to all over equal boxes are routed so many for each place of a box, whose parts follow each other; with
#: fewer, gates carry uneven loads.
WAYS_OF_A_PLACE = 4
#: Boxes from which on a ring of them is long beside trees, and beside what small tiles cost.
_MANY_BOXES = 8


def chained_candidates(
    instance: Instance, boxes: Boxes, strategy: str, counts: Sequence[int], buffer_bytes: int, *, by_time: bool
) -> list[Candidate]:
    """What to solve through equal boxes at one buffer size, for broadcast and reduce: round the ring, and where boxes are many over
    trees, too; the finest cut that is worth it, from which whole ways can be made, and for large buffers coarse ones, whose tiles
    overlap without a schedule. For gather and scatter straight to the boxes, where a flow takes too long.
    """
    if strategy not in ("auto", "hierarchy"):
        return []
    if instance.collective.name in FANNED and (strategy == "hierarchy" or is_large(instance.collective)):
        cuts = across_cuts(instance, counts, buffer_bytes)
        return [Candidate("hierarchy-fan", count, buffer_bytes) for count in cuts]
    if instance.collective.name not in CHAINED:
        return []
    ways = WAYS_OF_A_PLACE * boxes.size
    worth = {
        count: transfers_of(with_count(instance.collective, count))
        for count in counts
        if worth_cutting(instance, count, buffer_bytes)
    }

    def finest(most: int) -> int:
        fitting = [count for count, transfers in worth.items() if transfers <= most] or counts[:1]
        return max((count for count in fitting if count % ways == 0), default=fitting[-1])

    cuts = [finest(MAX_TRANSFERS)]
    large = by_time and buffer_bytes > CONNECTION_BOUND_BYTES
    if large:
        cuts += [finest(_MAX_SUMMED_TRANSFERS)] if instance.collective.combining else []
        cuts += [count for count in (ways, ways // 2) if count in worth]
    view = (LARGE_VIEW if large else VIEW) if by_time else None
    tried = [Candidate("hierarchy-chain", count, buffer_bytes, view) for count in cuts]
    if boxes.count >= _MANY_BOXES:
        tried += [replace(each, strategy="hierarchy-two-trees") for each in tried[:2]]
        # Small tiles pass on as soon from coarse chunks.
        tried += [Candidate("hierarchy-chain", ways, buffer_bytes, VIEW)] if large and ways in cuts else []
    return list(dict.fromkeys(tried))
