"""What to try over paths that keep apart (synth.routing.apart)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

from synth.candidates.candidate import LARGE_VIEW, Candidate
from synth.candidates.cuts import FINEST_LARGE
from synth.candidates.transfers import MAX_FINE_TRANSFERS, own_chunks, readable_counts, ways_of
from synth.instance import Instance

#: Chunks of a rank's share at most in a list over paths that keep apart, whose messages come in order.
_FINEST_APART = 128


def apart_candidates(
    instance: Instance, counts: Sequence[int], buffer_bytes: int, paths: Collection[int], most_rounds: int
) -> list[Candidate]:
    """Trees over `paths`, which keep apart (synth.routing.apart), for a large buffer: in so many rounds at most, and in a list."""
    readable = readable_counts(instance, counts, MAX_FINE_TRANSFERS)
    listed = [count for count in readable if own_chunks(instance, count) <= _FINEST_APART] or counts[:1]
    return [
        apart_rounds("trees", instance, counts, buffer_bytes, paths, most_rounds),
        Candidate("trees", listed[-1], buffer_bytes, LARGE_VIEW, apart=True),
    ]


def apart_rounds(
    strategy: str,
    instance: Instance,
    counts: Sequence[int],
    buffer_bytes: int,
    paths: Collection[int],
    most_rounds: int,
) -> Candidate:
    """What goes over `paths`, which keep apart, in so many rounds at most, in each of which a path's threadblock has a message."""
    into: dict[int, list[float]] = defaultdict(list)
    for path in paths:
        into[instance.paths[path].dst].append(instance.paths[path].GBps)
    # All that a rank gets comes over these, and most over the widest.
    widest = max(max(rates) / sum(rates) for rates in into.values())
    most = most_rounds / (ways_of(instance.collective) * max(1, instance.num_ranks - 1) * widest)
    paced = [count for count in counts if own_chunks(instance, count) <= min(most, FINEST_LARGE)] or counts[:1]
    return Candidate(strategy, paced[-1], buffer_bytes, LARGE_VIEW, in_rounds=True, apart=True)
