"""What to try in turns: large buffers that one rank sends to all, or gets from all, along few ways (synth.ordering.turns)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from synth.candidates.candidate import CHAINED, LARGE_VIEW, Candidate
from synth.candidates.cuts import worth_cutting
from synth.candidates.sizes import CONNECTION_BOUND_BYTES
from synth.candidates.transfers import transfers_of, with_count
from synth.instance import Instance

#: Transfers up to which a cut is tried: the last chunk starts as much later than it could as there are fewer.
_MOST_TRANSFERS = 33_000
#: The same by time for sums, and for boxes in which GPUs share NICs: simulating them takes long, and they gain least by finer cuts.
_MOST_SIMULATED_TRANSFERS = 16_500
#: Chunks up to which a runtime is likely to hold a program.
_MOST_CHUNKS = 1_024
#: Ranks of boxes with NICs enough up to which trees are packed over all paths: beyond, that takes most of the time for nothing.
_MOST_PACKED_RANKS = 16


class TurnedOver(NamedTuple):
    """Whether there are equal boxes, whether these have a NIC for each GPU, and whether answers are compared by time."""

    boxes: bool
    nics: bool
    by_time: bool


def turned_candidates(
    instance: Instance, strategy: str, counts: Sequence[int], buffer_bytes: int, over: TurnedOver
) -> list[Candidate]:
    """What to solve in turns for a large buffer: through equal boxes, where there are such, for links alone; and over all paths, or
    through many ranks' boxes again, for the connections of an interpreter if it is compared by time. Over all paths for links alone,
    too, where it is not, or where there are no boxes.
    """
    if instance.collective.name not in CHAINED or buffer_bytes <= CONNECTION_BOUND_BYTES:
        return []
    simulated = over.by_time and (instance.collective.combining or (over.boxes and not over.nics))
    most = _MOST_SIMULATED_TRANSFERS if simulated else _MOST_TRANSFERS
    fitting = [
        count
        for count in counts
        if count <= _MOST_CHUNKS
        and worth_cutting(instance, count, buffer_bytes)
        and transfers_of(with_count(instance.collective, count)) <= most
    ]
    if not fitting:
        return []
    chain = Candidate("hierarchy-chain", fitting[-1], buffer_bytes, in_turns=True)
    trees = replace(chain, strategy="trees")
    chains = over.boxes and strategy in ("auto", "hierarchy")
    packed = strategy == "trees" or not over.nics or instance.num_ranks <= _MOST_PACKED_RANKS
    tried = [chain] if chains else []
    if chains and over.by_time and not packed:
        tried.append(replace(chain, view=LARGE_VIEW))
    if packed and strategy in ("auto", "trees"):
        tried += [replace(trees, view=LARGE_VIEW)] if over.by_time else []
        tried += [trees] if not (over.boxes and over.by_time) else []
    return tried
