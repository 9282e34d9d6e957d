"""What to cut finer where nothing coarser is near the limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from synth.candidates.candidate import CHAINED, HIERARCHICAL, JOINT, LARGE_VIEW, RING, Candidate
from synth.candidates.cuts import worth_cutting, worth_reading
from synth.candidates.links import is_crowded
from synth.candidates.transfers import (
    FEW_RANKS,
    MAX_FINE_TRANSFERS,
    MAX_FINEST_PACED_TRANSFERS,
    MAX_GREEDY_TRANSFERS,
    MAX_PACED_TRANSFERS,
    direct,
    read_of_even_paths,
    readable_counts,
    routed_counts,
    transfers_of,
    with_count,
)
from synth.instance import Instance

#: Transfers of a flow where schedules decide and nothing coarser is near the limit.
_MAX_FINE_DIRECT = 8_000
#: Transfers of the greedy where chunks have one destination each, which pass many ranks on their ways.
_MAX_DIRECT_GREEDY = 1_500
#: Transfers that it routes for many ranks: few ranks gain nothing by so many.
_MAX_GREEDY_OF_MANY = 16_200
#: And so many of the finest of these, or of the coarsest, where finer cuts are looked for.
_FINEST_GREEDY = 2
#: A chunk gains something by so many times less where latency counts, and parts follow one another from hop to hop.
_FINEST_LATE = 16


def finer_candidates(
    instance: Instance,
    strategy: str,
    counts: Sequence[int],
    buffer_bytes: int,
    *,
    boxes: bool,
    joint: bool,
    latency_counts: bool,
) -> list[Candidate]:
    """What to solve for one size that is compared by schedule where nothing coarser is near the limit: packings cut as finely as
    a runtime reads (an allreduce's with free roots, where these are `joint`), in a list and in rounds, and over equal `boxes` what
    is cut so for one of these; flows, but for those over boxes, as finely as they are made in seconds. Where latency counts, the
    greedy in the finest cuts, whose parts follow one another, since packings and flows know bandwidth alone: where chunks have one
    destination each in the coarsest, too, unless boxes are crossed.
    """
    collective = instance.collective
    tried: list[Candidate] = []
    if strategy == "auto" and latency_counts and not (direct(collective) and boxes):
        most = _MAX_DIRECT_GREEDY if direct(collective) else MAX_GREEDY_TRANSFERS
        worth = [count for count in counts if worth_cutting(instance, count, _FINEST_LATE * buffer_bytes)] or counts[:1]
        small = [count for count in worth if transfers_of(with_count(collective, count)) <= most]
        coarsest = small[:_FINEST_GREEDY] if direct(collective) else []
        if not direct(collective) and instance.num_ranks > FEW_RANKS:
            small = [] if boxes or joint else routed_counts(instance, worth, _MAX_GREEDY_OF_MANY)
        finest = small[-_FINEST_GREEDY:]
        tried = [Candidate("greedy", count, buffer_bytes) for count in dict.fromkeys((*coarsest, *finest))]
    if collective.name in CHAINED:
        return tried

    readable = partial(worth_reading, instance, counts, buffer_bytes)
    if direct(collective):
        flown = strategy in ("auto", "flow") and not boxes
        return [*tried, *(Candidate("flow", count, buffer_bytes) for count in readable(_MAX_FINE_DIRECT) if flown)]
    if boxes and strategy in ("auto", "hierarchy") and collective.name in HIERARCHICAL:
        tried += [Candidate(RING, count, buffer_bytes) for count in readable(MAX_FINEST_PACED_TRANSFERS)]
    if strategy in ("auto", "trees"):
        packing, paced, listed = "trees", MAX_PACED_TRANSFERS, MAX_FINEST_PACED_TRANSFERS
        if joint:
            # Free roots load all links alike.
            paced = listed = min(MAX_FINEST_PACED_TRANSFERS, read_of_even_paths(instance))
            packing = JOINT
        tried += [Candidate(packing, count, buffer_bytes) for count in readable(listed)]
        tried += [Candidate(packing, count, buffer_bytes, LARGE_VIEW, in_rounds=True) for count in readable(paced)]
    return tried


def finer_sums(instance: Instance, counts: Sequence[int], planned: Sequence[Candidate]) -> list[Candidate]:
    """Of what is planned for one large allreduce the trees over all paths for links alone, or the rounds where roots are free, as
    fine as is made in a second or two: where ways meet, as in PCIe, what the first and the last chunk wait for is what keeps a
    schedule from the limit.
    """
    free = [each for each in planned if each.strategy == JOINT and each.in_rounds and not each.apart]
    packed = free or [each for each in planned if each.strategy == "trees" and each.view is None and not each.apart]
    if not packed or not is_crowded(instance.paths):
        return []
    return _finest(instance, counts, packed)


def finer_lists(instance: Instance, counts: Sequence[int], planned: Sequence[Candidate]) -> list[Candidate]:
    """The same of trees for an interpreter's connections where no ways meet: what their shares are no multiple of is what keeps a
    schedule from the limit.
    """
    listed = [each for each in planned if each.strategy == "trees" and each.view is not None]
    packed = [each for each in listed if not (each.apart or each.in_rounds)]
    return _finest(instance, counts, packed) if packed and not is_crowded(instance.paths) else []


def _finest(instance: Instance, counts: Sequence[int], packed: Sequence[Candidate]) -> list[Candidate]:
    """The finest of some candidates cut as finely as is made in a second or two, if that is finer."""
    usual = max(packed, key=lambda each: each.count)
    finest = max(readable_counts(instance, counts, MAX_FINE_TRANSFERS), default=usual.count)
    return [replace(usual, count=finest)] if finest > usual.count else []
