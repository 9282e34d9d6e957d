"""What to try at one size where schedules decide, a strategy is asked for, or time is no matter."""

from __future__ import annotations

from collections.abc import Sequence

from synth.candidates.candidate import PACKINGS, VIEW, Candidate
from synth.candidates.cuts import coarse_cut, fits, worthwhile_counts
from synth.candidates.sizes import CONNECTION_BOUND_BYTES, LATENCY_BOUND_BYTES
from synth.candidates.transfers import (
    FEW_RANKS,
    MAX_GREEDY_TRANSFERS,
    direct,
    is_small,
    routed_counts,
    transfers_of,
    with_count,
)
from synth.collective import CollectiveName
from synth.instance import Instance

#: Where one size is all that is asked for, this many of the coarsest cuts are tried whatever their chunks cost.
_FEWEST_CUTS = 4
#: And so many of the finest that are worth their transfers, for packings; one less for many ranks, whose orders take long.
_FINEST_CUTS = 3


def candidates(
    instance: Instance,
    strategy: str,
    counts: Sequence[int],
    buffer_bytes: int,
    *,
    single: bool,
    thorough: bool = False,
    latency_counts: bool = True,
    exchanged: bool = False,
) -> list[Candidate]:
    """What to solve at one buffer size: `single` where that size is all that is asked for, `thorough` where time is no matter,
    whether latency counts beside bandwidth at the size, and whether exchanges are tried: then many ranks need no pieces that are
    fewer than they are.
    """
    collective = instance.collective
    chosen = _packing_counts(instance, counts, buffer_bytes, single=single, thorough=thorough)
    if strategy != "auto":
        return [Candidate(strategy, count, buffer_bytes) for count in chosen]
    tried = [Candidate("flow" if direct(collective) else "trees", count, buffer_bytes) for count in chosen]
    if not thorough and (direct(collective) or not latency_counts):
        # Packings are the better there, and the greedy takes long on many chunks.
        return tried
    small = _greedy_counts(instance, counts)
    coarse = worthwhile = worthwhile_counts(instance, small or counts[:1], buffer_bytes, 2 if single else 1)
    if buffer_bytes <= LATENCY_BOUND_BYTES:
        # The coarsest cut, and for allreduce the coarsest that gives every rank a piece to reduce.
        each = [count for count in small if count >= instance.num_ranks][:1]
        coarse = [counts[0], *(each if collective.name is CollectiveName.ALLREDUCE else []), *coarse]
    if single:
        # Where only the schedule counts, a finer cut pays even if a chunk's time is far below its latency.
        coarse = [*coarse, *(count for count in small[:_FEWEST_CUTS] if count > worthwhile[0])]
    if exchanged and instance.num_ranks > FEW_RANKS:
        coarse = [count for count in coarse if count >= instance.num_ranks]
        tried = [each for each in tried if each.count >= instance.num_ranks] or tried[-1:]
    tried += [Candidate("greedy", count, buffer_bytes) for count in dict.fromkeys(coarse)]
    return tried


def _greedy_counts(instance: Instance, counts: Sequence[int]) -> list[int]:
    """Cuts for the greedy; of an allreduce, whose halves mirror each other, the coarsest that gives every rank a piece to reduce,
    too, if one half of it is small enough.
    """
    collective, ranks = instance.collective, instance.num_ranks
    small = [count for count in counts if transfers_of(with_count(collective, count)) <= MAX_GREEDY_TRANSFERS]
    if collective.name is CollectiveName.ALLREDUCE and not any(count >= ranks for count in small):
        small += routed_counts(instance, [count for count in counts if count >= ranks][:1], MAX_GREEDY_TRANSFERS)
    return small


def _packing_counts(
    instance: Instance, counts: Sequence[int], buffer_bytes: int, *, single: bool, thorough: bool
) -> list[int]:
    """Cuts for a packing: the finest; where there is one size alone, the finest few, or the coarsest, too, if chunks have one
    destination each, since then nothing is gained by a pipeline.
    """
    if not single:
        return worthwhile_counts(instance, counts, buffer_bytes, 1)
    if thorough:
        return worthwhile_counts(instance, counts, buffer_bytes, 6)
    if direct(instance.collective):
        return sorted({counts[0], *worthwhile_counts(instance, counts, buffer_bytes, 1)})
    fitting = [count for count in counts if fits(instance, count, buffer_bytes)] or [counts[0]]
    return fitting[-(_FINEST_CUTS if instance.num_ranks <= FEW_RANKS else _FINEST_CUTS - 1) :]


def interpreted_candidates(
    instance: Instance, strategy: str, counts: Sequence[int], buffer_bytes: int, *, single: bool
) -> list[Candidate]:
    """What to solve at one buffer size for an interpreter's connections: a coarse cut, and for trees the finest."""
    if buffer_bytes > CONNECTION_BOUND_BYTES or strategy not in ("auto", *PACKINGS, "greedy"):
        return []
    finest = worthwhile_counts(instance, counts, buffer_bytes, 1)[0]
    coarse = coarse_cut(instance, counts, buffer_bytes)
    tried = []
    if strategy in ("auto", *PACKINGS):
        packed = "flow" if direct(instance.collective) and strategy != "trees" else "trees"
        tried += [
            (packed, count) for count in ((finest // 4, finest // 2, coarse, finest) if single else (coarse, finest))
        ]
    if strategy in ("auto", "greedy"):
        tried.append(("greedy", coarse))
    admissible = [pair for pair in tried if pair[1] in counts and is_small(instance, *pair)]
    return [Candidate(name, count, buffer_bytes, VIEW) for name, count in dict.fromkeys(admissible)]


def largest_candidates(
    strategy: str, instance: Instance, counts: Sequence[int], buffer_bytes: int, *, by_time: bool
) -> list[Candidate]:
    """For the largest buffers, where long messages last long enough for several to be in flight: the two finest cuts, and where
    times decide (`by_time`) one a good deal coarser, which leaves a threadblock few steps.
    """
    finest = worthwhile_counts(instance, counts, buffer_bytes, 2)
    coarse = [count for count in counts if 8 * count <= finest[-1]] if by_time else []
    return [Candidate(strategy, count, buffer_bytes) for count in (*coarse[-1:], *finest)]
