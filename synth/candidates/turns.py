"""What to try in turns: large buffers that one rank sends to all, or gets from all, along few ways (synth.ordering.turns)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from synth.candidates.candidate import CHAINED, LARGE_VIEW, RINGS, Candidate
from synth.candidates.cuts import worth_cutting
from synth.candidates.links import are_all_joined, is_uneven
from synth.candidates.sizes import CONNECTION_BOUND_BYTES
from synth.candidates.transfers import transfers_of, with_count
from synth.instance import Instance

#: The strategy through equal boxes.
_CHAIN = "hierarchy-chain"
#: Buffers from which on one size alone is tried in turns, and around rings by time; and the least that is a message by time up to
#: `CONNECTION_BOUND_BYTES`: there messages cost more than waiting for them.
_LEAST_TURNED_BYTES = 16_000_000
_LEAST_AROUND_BYTES = 64_000_000
_LEAST_CHUNK_BYTES = 125_000
#: Transfers up to which a cut is tried: the last chunk starts as much later than it could as there are fewer.
_MOST_TRANSFERS = 33_000
#: The same by time for sums, and for boxes in which GPUs share NICs: simulating them takes long, and they gain least by finer cuts.
_MOST_SIMULATED_TRANSFERS = 16_500
#: Chunks up to which a runtime is likely to hold a program.
_MOST_CHUNKS = 1_024
#: Ranks of boxes with NICs enough up to which trees are packed over all paths: beyond, that takes most of the time for nothing.
_MOST_PACKED_RANKS = 16
#: Around rings, whose ways are the longest, more chunks gain still, and a rank has a message in and one out of each; a way has so
#: many messages at most.
_MOST_CHUNKS_AROUND = 2_048
MOST_AROUND = 1_024


class TurnedOver(NamedTuple):
    """Whether there are equal boxes, whether these have a NIC for each GPU, whether answers are compared by time, whether rings pass
    all ranks, and whether one size alone is asked for.
    """

    boxes: bool
    nics: bool
    by_time: bool
    rings: bool = False
    single: bool = False


def turned_candidates(
    instance: Instance, strategy: str, counts: Sequence[int], buffer_bytes: int, over: TurnedOver
) -> list[Candidate]:
    """What to solve in turns for a large buffer: through equal boxes, where there are such, for links alone; over all paths, or
    through many ranks' boxes again, for the connections of an interpreter if it is compared by time, and for links alone where it is
    not, or where there are no boxes; and around rings, where there are such, but not over boxes where copies are compared by time.

    By time rings are instead of what is for links alone, of sums, or for connections, of copies over paths that are all as wide; and
    of all else for sums over boxes with NICs enough, or over a switch, which wait for each other unless a rank has one of a chunk.
    """
    if instance.collective.name not in CHAINED:
        return []
    if buffer_bytes <= CONNECTION_BOUND_BYTES:
        if not over.single or buffer_bytes < _LEAST_TURNED_BYTES:
            return []
        if over.by_time:
            return _of_medium(instance, strategy, counts, buffer_bytes, over)
    by_time, combining = over.by_time, instance.collective.combining
    around = strategy == "auto" and over.rings and may_go_around(instance, over)
    rings = _finest(RINGS, instance, counts, buffer_bytes, _MOST_TRANSFERS) if around else []
    joined = combining and are_all_joined(instance.num_ranks, instance.paths)
    if rings and by_time and (over.boxes or joined):
        return rings
    simulated = by_time and (combining or (over.boxes and not over.nics))
    most = _MOST_SIMULATED_TRANSFERS if simulated else _MOST_TRANSFERS
    packed = strategy == "trees" or not over.nics or instance.num_ranks <= _MOST_PACKED_RANKS
    tried = []
    for chain in _finest(_CHAIN, instance, counts, buffer_bytes, most):
        trees = replace(chain, strategy="trees")
        chains = over.boxes and strategy in ("auto", "hierarchy")
        tried += [chain] if chains else []
        if chains and by_time and not packed:
            tried.append(replace(chain, view=LARGE_VIEW))
        if packed and strategy in ("auto", "trees"):
            viewed = by_time and (combining or not rings or is_uneven(instance.paths))
            tried += [replace(trees, view=LARGE_VIEW)] if viewed else []
            tried += [trees] if not by_time or not (over.boxes or (rings and combining)) else []
    return [*tried, *rings]


def most_chunks(strategy: str) -> int:
    """The most chunks that a strategy is cut into in turns."""
    return _MOST_CHUNKS_AROUND if strategy == RINGS else _MOST_CHUNKS


def may_go_around(instance: Instance, over: TurnedOver) -> bool:
    """Whether rings, where there are any, are worth trying: over boxes by time those for sums alone, where there are NICs enough."""
    return not (over.by_time and over.boxes) or (instance.collective.combining and over.nics)


def _of_medium(
    instance: Instance, strategy: str, counts: Sequence[int], buffer_bytes: int, over: TurnedOver
) -> list[Candidate]:
    """What to solve in turns by time for one buffer that is not large: through boxes whose GPUs share NICs, and around the rings of
    one where ranks are not all joined, which lists of packed trees keep busy.
    """
    worth = [count for count in counts if count * _LEAST_CHUNK_BYTES <= buffer_bytes]
    if over.boxes:
        shared = not over.nics and strategy in ("auto", "hierarchy")
        return _finest(_CHAIN, instance, worth, buffer_bytes, _MOST_SIMULATED_TRANSFERS) if shared else []
    joined = are_all_joined(instance.num_ranks, instance.paths)
    if strategy != "auto" or not over.rings or joined or buffer_bytes < _LEAST_AROUND_BYTES:
        return []
    return _finest(RINGS, instance, worth, buffer_bytes, _MOST_TRANSFERS)


def _finest(
    strategy: str, instance: Instance, counts: Sequence[int], buffer_bytes: int, most_transfers: int
) -> list[Candidate]:
    """The strategy in turns at its finest cut that is worth its transfers, so many at most; none where there is no such."""
    fitting = [
        count
        for count in counts
        if count <= most_chunks(strategy)
        and worth_cutting(instance, count, buffer_bytes)
        and transfers_of(with_count(instance.collective, count)) <= most_transfers
    ]
    return [Candidate(strategy, count, buffer_bytes, in_turns=True) for count in fitting[-1:]]
