"""What to try in turns: large buffers that one rank sends to all, or gets from all, along few ways (synth.ordering.turns)."""

from __future__ import annotations

from collections.abc import Sequence

from synth.candidates.candidate import CHAINED, LARGE_VIEW, Candidate
from synth.candidates.cuts import worth_cutting
from synth.candidates.sizes import CONNECTION_BOUND_BYTES
from synth.candidates.transfers import transfers_of, with_count
from synth.instance import Instance

#: Transfers up to which a cut is tried: the last chunk starts as much later than it could as there are fewer.
_MOST_TRANSFERS = 33_000
#: The same for sums to be simulated, which takes longer.
_MOST_SUMMED_TRANSFERS = 16_500


def turned_candidates(
    instance: Instance, strategy: str, counts: Sequence[int], buffer_bytes: int, *, boxes: bool, by_time: bool
) -> list[Candidate]:
    """What to solve in turns for a large buffer: through equal `boxes`, where there are such, for links alone; and over all paths,
    for the connections of an interpreter if it is compared `by_time`, and else or where there are no boxes for links alone, too.
    """
    if instance.collective.name not in CHAINED or buffer_bytes <= CONNECTION_BOUND_BYTES:
        return []
    summed = by_time and instance.collective.combining
    most = _MOST_SUMMED_TRANSFERS if summed else _MOST_TRANSFERS
    fitting = [
        count
        for count in counts
        if worth_cutting(instance, count, buffer_bytes) and transfers_of(with_count(instance.collective, count)) <= most
    ]
    if not fitting:
        return []
    trees = Candidate("trees", fitting[-1], buffer_bytes, in_turns=True)
    chain = Candidate("hierarchy-chain", fitting[-1], buffer_bytes, in_turns=True)
    viewed = Candidate("trees", fitting[-1], buffer_bytes, LARGE_VIEW, in_turns=True)
    tried = [chain] if boxes and strategy in ("auto", "hierarchy") else []
    if strategy in ("auto", "trees"):
        tried += [viewed] if by_time else []
        tried += [trees] if not (boxes and by_time) else []
    return tried
