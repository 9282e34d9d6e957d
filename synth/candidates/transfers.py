"""How many transfers a cut has, and how many it may have: for stages to end in seconds, and for a runtime to read them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from synth.candidates.candidate import CHAINED, FANNED, HIERARCHICAL
from synth.collective import SHARED, Collective, CollectiveName
from synth.instance import Instance

#: Transfers that one candidate may have: above, stages take many seconds and files outgrow the runtimes.
MAX_TRANSFERS = 10_000
#: The same for one candidate of the largest buffers.
MAX_FINE_TRANSFERS = 16_000
#: The same for one over equal boxes that is ordered in rounds, if each rank has no more chunks than this.
MAX_PACED_TRANSFERS = 32_000
FINE = 32
#: The same for the finest of these, which is for one instance.
MAX_FINEST_PACED_TRANSFERS = 65_000
#: Transfers up to which `auto` tries the greedy beside the trees: it is run many times.
MAX_GREEDY_TRANSFERS = 5_000
#: Ranks that are few: of more, the finest cuts take long.
FEW_RANKS = 16
#: Transfers a rank that a runtime reads: a send and a receive each, of 4,095 elements of its file.
MOST_READ_TRANSFERS = 2_000
#: Ranks up to which a flow of what one rank sends or gets ends in seconds; it comes nearer to the limit than a fan of boxes.
_MOST_FLOWN_RANKS = 128


def with_count(collective: Collective, count: int) -> Collective:
    """The collective cut into `count` chunks a rank where ranks have shares, `count` in all otherwise."""
    return replace(collective, chunks=count * collective.num_ranks if collective.name in SHARED else count)


def direct(collective: Collective) -> bool:
    """Whether every chunk has one destination, so that routes are paths and routing is a flow."""
    return collective.name in (CollectiveName.GATHER, CollectiveName.SCATTER, CollectiveName.ALLTOALL)


def transfers_of(collective: Collective) -> int:
    """How many transfers a routing of the collective has at least; of a group's chunks, all count."""
    others = len(collective.members) - 1
    match collective.name:
        case CollectiveName.GATHER | CollectiveName.SCATTER | CollectiveName.ALLTOALL:
            return collective.num_chunk_ids
        case CollectiveName.ALLREDUCE:
            return 2 * collective.chunks * others
        case _:
            return collective.chunks * others


def is_large(collective: Collective) -> bool:
    """Whether even the coarsest cut that gives every rank a share has more transfers than one candidate may have, or one rank sends
    to so many, or gets from so many, that a flow takes minutes and more channels than there are.
    """
    if collective.name in HIERARCHICAL | CHAINED:
        return collective.num_ranks * (collective.num_ranks - 1) > MAX_TRANSFERS
    if collective.name in FANNED:
        return collective.num_ranks > _MOST_FLOWN_RANKS
    return transfers_of(collective) > MAX_TRANSFERS


def is_small(instance: Instance, strategy: str, count: int) -> bool:
    """Whether a strategy makes what is cut so in seconds."""
    transfers = transfers_of(with_count(instance.collective, count))
    return transfers <= (MAX_GREEDY_TRANSFERS if strategy == "greedy" else MAX_TRANSFERS)


def routed_counts(instance: Instance, counts: Sequence[int], most: int) -> list[int]:
    """The counts, ascending, of which no more transfers than `most` are routed: one half of an allreduce mirrors the other."""
    halves = 2 if instance.collective.name is CollectiveName.ALLREDUCE else 1
    return [count for count in counts if transfers_of(with_count(instance.collective, count)) <= halves * most]


def readable_counts(instance: Instance, counts: Sequence[int], most: int | None = None) -> list[int]:
    """The counts, ascending, with no more transfers than a runtime reads, and than `most` where that is given."""
    read = most_readable(instance, most)
    return [count for count in counts if transfers_of(with_count(instance.collective, count)) <= read]


def most_readable(instance: Instance, most: int | None = None) -> int:
    """The most transfers that a candidate may have of which a runtime reads all, and no more than `most` where that is given."""
    read = MOST_READ_TRANSFERS * instance.num_ranks
    return read if most is None else min(read, most)


def read_of_even_paths(instance: Instance) -> int:
    """The transfers of which a runtime reads all where every path has as many: a rank with more paths has more to read."""
    leaving = Counter(path.src for path in instance.paths)
    return MOST_READ_TRANSFERS * len(instance.paths) // max(leaving.values())


def ways_of(collective: Collective) -> int:
    """How often a chunk goes to or comes from all: as a sum and as a copy, or as one of these."""
    return 2 if collective.name is CollectiveName.ALLREDUCE else 1


def own_chunks(instance: Instance, count: int) -> int:
    """The chunks of each rank in a cut."""
    return with_count(instance.collective, count).chunks // instance.num_ranks
