"""What each collective has to bring where, cut into cases that a maximum flow decides (docs/formulation.md, section 10).

The bandwidth of a collective is bounded by the worst of its cases; for allgather and reduce-scatter these are all cuts there are.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from synth.bounds.machine import Floats
from synth.bounds.oracle import Case, evenly
from synth.collective import Collective, CollectiveName

ONE = Fraction(1)


def cases_of(collective: Collective) -> list[Case]:
    """The cases that together make the collective's cut bound."""
    ranks, share = sorted(collective.members), Fraction(1, collective.num_ranks)
    if len(ranks) < 2:
        return []
    root = ranks[0] if collective.root is None else collective.root
    others = [rank for rank in ranks if rank != root]
    gathered = share * len(others)
    match collective.name:
        case CollectiveName.ALLGATHER:
            return [_into(rank, ranks, share) for rank in ranks]
        case CollectiveName.REDUCE_SCATTER:
            return [_out_of(rank, ranks, share) for rank in ranks]
        case CollectiveName.ALLTOALL:
            return [case for rank in ranks for case in (_into(rank, ranks, share), _out_of(rank, ranks, share))]
        case CollectiveName.BROADCAST:
            return [Case({root: ONE}, {rank: ONE}) for rank in others]
        case CollectiveName.REDUCE:
            return [Case({rank: ONE}, {root: ONE}) for rank in others]
        case CollectiveName.GATHER:
            return [Case(evenly(others, gathered), {root: gathered})]
        case CollectiveName.SCATTER:
            return [Case({root: gathered}, evenly(others, gathered))]
        case CollectiveName.ALLREDUCE:
            # Whatever parts the ranks parts the first from another, one way or the other.
            return [
                case for rank in others for case in (Case({root: ONE}, {rank: ONE}), Case({rank: ONE}, {root: ONE}))
            ]


def pair_case(collective: Collective, src: int, dst: int) -> Case:
    """What rank `src` alone has for rank `dst` alone."""
    shared = collective.name not in (CollectiveName.ALLREDUCE, CollectiveName.BROADCAST, CollectiveName.REDUCE)
    share = Fraction(1, collective.num_ranks) if shared else ONE
    return Case({src: share}, {dst: share})


def farthest_us(collective: Collective, distance_us: Floats) -> float:
    """The longest of the ways that some chunk or contribution has to travel; `distance_us[r, s]` is the least from rank r to s."""
    return float(distance_us[np.ix_(sorted(collective.senders), sorted(collective.receivers))].max())


def _into(rank: int, ranks: list[int], share: Fraction) -> Case:
    others = [other for other in ranks if other != rank]
    return Case(dict.fromkeys(others, share), {rank: share * len(others)})


def _out_of(rank: int, ranks: list[int], share: Fraction) -> Case:
    others = [other for other in ranks if other != rank]
    return Case({rank: share * len(others)}, dict.fromkeys(others, share))
