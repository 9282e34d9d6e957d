"""What to try for a buffer size: how finely to cut, with which strategies. All limits are counted in transfers, not seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from synth.collective import SHARED, Collective, CollectiveName
from synth.instance import Instance

#: Transfers that one candidate may have: above, stages take many seconds and files outgrow the runtimes.
MAX_TRANSFERS = 10_000
#: The same where every chunk has one destination: routes are short, and loads even with few of them.
MAX_DIRECT_TRANSFERS = 4_000
#: Transfers up to which `auto` tries the greedy beside the trees: it is run many times.
MAX_GREEDY_TRANSFERS = 5_000
#: Buffers up to this are mostly latency on every machine of the catalogue: there the coarsest cut is tried, too.
LATENCY_BOUND_BYTES = 64 << 10
#: The strategy that routes both halves of an allreduce as one, and the ranks up to which it ends in seconds.
JOINT = "joint"
_MOST_JOINT_RANKS = 32
#: Where one size is all that is asked for, this many of the coarsest cuts are tried whatever their chunks cost.
_FEWEST_CUTS = 4
#: A chunk whose time on the slowest path is less than this share of its latency gains nothing by being cut further.
_FINEST_SHARE = 0.25


#: Buffers up to this are decided by connections as much as by links: candidates are made for an interpreter, too.
CONNECTION_BOUND_BYTES = 64 << 20
#: The protocol whose connections stand for all where candidates are made for an interpreter: LL has less latency, Simple more.
VIEW = "LL128"
#: Chunks of a candidate for an interpreter, of the vector or of all shares together: more cost a message each, fewer do not fill
#: the links of the machines that have the most.
_COARSE_CHUNKS = 64


@dataclass(frozen=True, slots=True)
class Candidate:
    """One combination to try: a strategy, a chunk count (as in synth.chunks), the buffer size it is solved at, and whether
    for links alone or for the connections of an interpreter (synth.interpreted), by protocol.
    """

    strategy: str
    count: int
    anchor_bytes: int
    view: str | None = None


def anchors(min_bytes: int, max_bytes: int, count: int = 4) -> tuple[int, ...]:
    """Buffer sizes to solve at, ascending: the largest, and down in equal ratios towards the smallest, as powers of two."""
    if min_bytes == max_bytes:
        return (max_bytes,)
    ratio = (max_bytes / min_bytes) ** (1 / count)
    sizes = {max_bytes}
    for step in range(1, count):
        sizes.add(max(min_bytes, 1 << (round(max_bytes / ratio**step).bit_length() - 1)))
    return tuple(sorted(sizes))


def with_count(collective: Collective, count: int) -> Collective:
    """The collective cut into `count` chunks a rank where ranks have shares, `count` in all otherwise."""
    return replace(collective, chunks=count * collective.num_ranks if collective.name in SHARED else count)


def direct(collective: Collective) -> bool:
    """Whether every chunk has one destination, so that routes are paths and routing is a flow."""
    return collective.name in (CollectiveName.GATHER, CollectiveName.SCATTER, CollectiveName.ALLTOALL)


def transfers_of(collective: Collective) -> int:
    """How many transfers a routing of the collective has at least."""
    match collective.name:
        case CollectiveName.GATHER | CollectiveName.SCATTER | CollectiveName.ALLTOALL:
            return collective.num_chunk_ids
        case CollectiveName.ALLREDUCE:
            return 2 * collective.chunks * (collective.num_ranks - 1)
        case _:
            return collective.chunks * (collective.num_ranks - 1)


def worthwhile_counts(instance: Instance, counts: Sequence[int], buffer_bytes: int, most: int) -> list[int]:
    """Of the admissible counts (as in chunk_counts), at most `most` worth trying at this size, ascending.

    Cutting stops where transfers get too many or chunks too small to be worth their latency. The finest counts come first; below
    them, each next is at most half of the one before.
    """
    fitting = [count for count in counts if _fits(instance, count, buffer_bytes)] or [counts[0]]
    chosen = fitting[-1:]
    for count in reversed(fitting[:-1]):
        if 2 * count <= chosen[-1] or len(fitting) <= most:
            chosen.append(count)
    return sorted(chosen[:most])


def candidates(
    instance: Instance, strategy: str, counts: Sequence[int], buffer_bytes: int, *, thorough: bool
) -> list[Candidate]:
    """What to solve at one buffer size; `thorough` where that size is all that is asked for."""
    collective = instance.collective
    chosen = worthwhile_counts(instance, counts, buffer_bytes, 6 if thorough else 1)
    if strategy != "auto":
        return [Candidate(strategy, count, buffer_bytes) for count in chosen]
    tried = [Candidate("flow" if direct(collective) else "trees", count, buffer_bytes) for count in chosen]
    small = [count for count in counts if transfers_of(with_count(collective, count)) <= MAX_GREEDY_TRANSFERS]
    coarse = worthwhile_counts(instance, small or counts[:1], buffer_bytes, 2 if thorough else 1)
    if buffer_bytes <= LATENCY_BOUND_BYTES:
        # The coarsest cut, and for allreduce the coarsest that gives every rank a piece to reduce.
        each = [count for count in small if count >= instance.num_ranks][:1]
        coarse = [counts[0], *(each if collective.name is CollectiveName.ALLREDUCE else []), *coarse]
    if thorough:
        # Where only the schedule counts, a finer cut pays even if a chunk's time is far below its latency.
        coarse = [*coarse, *small[:_FEWEST_CUTS]]
    tried += [Candidate("greedy", count, buffer_bytes) for count in dict.fromkeys(coarse)]
    return tried


def interpreted_candidates(
    instance: Instance, strategy: str, counts: Sequence[int], buffer_bytes: int, *, thorough: bool
) -> list[Candidate]:
    """What to solve at one buffer size for an interpreter's connections: a coarse cut, and for trees the finest."""
    if buffer_bytes > CONNECTION_BOUND_BYTES or strategy not in ("auto", "trees", "flow", "greedy"):
        return []
    shares = instance.num_ranks if instance.collective.name in SHARED else 1
    finest = worthwhile_counts(instance, counts, buffer_bytes, 1)[0]
    coarse = max((count for count in counts if count * shares <= _COARSE_CHUNKS and count <= finest), default=counts[0])
    tried = []
    if strategy in ("auto", "trees", "flow"):
        packed = "flow" if direct(instance.collective) and strategy != "trees" else "trees"
        tried += [
            (packed, count) for count in ((finest // 4, finest // 2, coarse, finest) if thorough else (coarse, finest))
        ]
    if strategy in ("auto", "greedy"):
        tried.append(("greedy", coarse))
    admissible = [pair for pair in tried if pair[1] in counts and _small(instance, *pair)]
    return [Candidate(name, count, buffer_bytes, VIEW) for name, count in dict.fromkeys(admissible)]


def joint_candidates(instance: Instance, counts: Sequence[int], buffer_bytes: int) -> list[Candidate]:
    """allreduce with free roots, where ranks may not be equal: the finest cut, since its pipeline is as long as two trees."""
    if instance.collective.name is not CollectiveName.ALLREDUCE or instance.num_ranks > _MOST_JOINT_RANKS:
        return []
    return [Candidate(JOINT, count, buffer_bytes) for count in worthwhile_counts(instance, counts, buffer_bytes, 1)]


def _small(instance: Instance, strategy: str, count: int) -> bool:
    transfers = transfers_of(with_count(instance.collective, count))
    return transfers <= (MAX_GREEDY_TRANSFERS if strategy == "greedy" else MAX_TRANSFERS)


def _fits(instance: Instance, count: int, buffer_bytes: int) -> bool:
    collective = with_count(instance.collective, count)
    if transfers_of(collective) > (MAX_DIRECT_TRANSFERS if direct(collective) else MAX_TRANSFERS):
        return False
    chunk_bytes = buffer_bytes / collective.chunks
    busy_us, alpha_us = max((path.latency_us(chunk_bytes) - path.alpha_us, path.alpha_us) for path in instance.paths)
    return busy_us >= _FINEST_SHARE * alpha_us
