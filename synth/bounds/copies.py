"""What ranks take in or give away path by path: nothing between two GPUs copies or adds, so every byte comes over a path of its own.

A cut counts a byte once, however many GPUs behind it want it; where two GPUs share a NIC, each has the NIC in its cut. The linear
program here fills paths instead: at what rate can all ranks take in (or give away) at the same time, from whomever. What is quoted
is what its prices prove (docs/formulation.md, eq. 40a), which holds for any prices, however they were found.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array, hstack, vstack

from synth.bounds.concurrent import Priced, without_noise
from synth.bounds.machine import Floats, Ints, Machine
from synth.bounds.refine import Matrix
from synth.bounds.value import Limit
from synth.collective import CollectiveName
from synth.errors import NoAnswerError, SolverError
from synth.milp.lp import solve_lp

#: Paths above which the program is not asked.
_MOST_PATHS = 12_000
_INTO = frozenset({CollectiveName.ALLGATHER, CollectiveName.ALLREDUCE})
_OUT_OF = frozenset({CollectiveName.REDUCE_SCATTER, CollectiveName.ALLREDUCE})


def copies_limit(machine: Machine, name: CollectiveName) -> Priced | None:
    """The limit of allgather, reduce-scatter, or allreduce by roots; None for others, where paths are not known, or are too many."""
    known = len(machine.delays.src)
    if name not in _INTO | _OUT_OF or not 0 < known <= _MOST_PATHS:
        return None
    ends = [end for end, names in ((machine.delays.dst, _INTO), (machine.delays.src, _OUT_OF)) if name in names]
    crossings = _crossings(machine)
    try:
        prices = _prices(machine, ends, crossings)
    except (SolverError, NoAnswerError):
        return None
    return Priced(_limit(machine, ends, crossings, prices), tuple(np.flatnonzero(prices).tolist()))


def _crossings(machine: Machine) -> Matrix:
    """[e, p]: how often path p crosses edge e."""
    delays = machine.delays
    shape = (len(machine.links), len(delays.src))
    return csr_array((np.ones(len(delays.edges)), (delays.edges, delays.crossed)), shape=shape)


def _prices(machine: Machine, ends: list[Ints], crossings: Matrix) -> Floats:
    """The edges' prices in the program: columns are the bytes on every path once for each of `ends`, what is reduced at each rank,
    and the rate that is to be large; rates are scaled to the largest. With one of `ends` nothing is reduced at a single rank.
    """
    ranks, paths = machine.num_ranks, len(machine.delays.src)
    rooted = ranks if len(ends) > 1 else 0
    count = len(ends) * paths + rooted + 1
    loads = hstack([*[crossings] * len(ends), csr_array((len(machine.links), rooted + 1))])
    needs = []
    for half, end in enumerate(ends):
        rows = np.concatenate([end, np.arange(rooted), np.arange(ranks)])
        columns = np.concatenate([np.arange(paths) + half * paths, np.arange(rooted) + len(ends) * paths])
        columns = np.concatenate([columns, np.full(ranks, count - 1)])
        values = np.concatenate([-np.ones(paths + rooted), np.ones(ranks)])
        needs.append(csr_array((values, (rows, columns)), shape=(ranks, count)))
    capacity = machine.rates / machine.rates.max()
    cost = np.zeros(count)
    cost[-1] = -1.0
    shares = None
    if rooted:
        shares = csr_array(np.concatenate([np.zeros(len(ends) * paths), np.ones(rooted), [-1.0]])[None, :])
    limits = np.concatenate([capacity, np.zeros(len(ends) * ranks)])
    answer = solve_lp(cost, vstack([loads, *needs]).tocsr(), limits, shares, [0.0] if rooted else None)
    return without_noise(np.maximum(-answer.duals_ub[: len(machine.links)], 0.0))


def _limit(machine: Machine, ends: list[Ints], crossings: Matrix, prices: Floats) -> Limit:
    """What prices of edges prove: every rank pays at least its cheapest path for what it takes in or gives away."""
    ranks = machine.num_ranks
    paid = prices @ crossings
    cheapest = np.zeros(ranks)
    for end in ends:
        least = np.full(ranks, np.inf)
        np.minimum.at(least, end, paid)
        cheapest += least
    # What is reduced at a rank it need not take in nor give away: at worst all at the one that pays the most.
    share = cheapest.sum() - cheapest.max() if len(ends) > 1 else cheapest.sum() * (ranks - 1) / ranks
    everyone = range(ranks)
    return Limit.of(float(share), machine.rates * prices, machine.delays.between(everyone, everyone))
