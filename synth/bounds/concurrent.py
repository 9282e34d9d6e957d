"""alltoall: the maximum concurrent flow, by a linear program whose prices are then the proof.

All pairs send the same at the same time; what one source sends is one flow, whoever it is for (docs/formulation.md, eq. 37). What is
quoted is not the program's optimum but what its prices prove: everything sent pays at least its cheapest way, and links together are
paid at most what they carry (eq. 38). That holds for any prices, however they were found.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array, vstack
from scipy.sparse.csgraph import shortest_path

from synth.bounds.machine import Floats, Ints, Machine
from synth.bounds.refine import Matrix, classes, joined
from synth.bounds.turning import Classes
from synth.bounds.value import Limit
from synth.errors import NoAnswerError, SolverError
from synth.milp.lp import solve_lp

#: Flow variables up to which the program is written down, and up to which it is solved once alike ones are joined.
MOST_VARIABLES = 1_500_000
MOST_JOINED = 12_000
#: Prices below this share of the largest are rounding.
_NOISE = 1e-9


class Priced(NamedTuple):
    """What prices of edges prove, and the edges that have one: they are full in every best answer."""

    limit: Limit
    edges: tuple[int, ...]


def without_noise(prices: Floats) -> Floats:
    """The prices (at least one) without those that are rounding."""
    kept: Floats = np.where(prices < prices.max() * _NOISE, 0.0, prices)
    return kept


def concurrent_flow(machine: Machine) -> Priced | None:
    """The limit of alltoall; None where the program would be too large."""
    turns = Classes.of(machine)
    if (int(turns.ranks.max()) + 1) * len(machine.links) > MOST_VARIABLES:
        return None
    matrix, rhs, kinds = _program(machine, turns)
    rows, columns = classes(matrix, kinds, np.append(np.zeros(matrix.shape[1] - 1, dtype=np.int64), 1))
    if int(columns.max()) > MOST_JOINED:
        return None
    small = joined(matrix, rows, columns)
    first, counts = np.unique(rows, return_index=True, return_counts=True)[1:]
    loads = int(turns.edges.max()) + 1
    capacity = first < loads
    cost = np.zeros(small.shape[1])
    cost[columns[-1]] = 1.0
    try:
        answer = solve_lp(cost, small[capacity], rhs[first][capacity], small[~capacity], rhs[first][~capacity])
    except (SolverError, NoAnswerError):
        return None
    duals = np.zeros(len(first))
    duals[capacity] = np.maximum(-answer.duals_ub, 0.0)
    # The price of a class is that of all its members together.
    prices = without_noise(((duals / counts)[rows[:loads]] / np.bincount(turns.edges))[turns.edges])
    return Priced(priced_limit(machine, prices), tuple(np.flatnonzero(prices).tolist()))


def priced_limit(machine: Machine, prices: Floats) -> Limit:
    """What prices of edges prove of alltoall (eq. 38), delays included."""
    ranks, size = machine.num_ranks, len(machine.topology.devices)
    keys, slot = np.unique(machine.tails * size + machine.heads, return_inverse=True)
    # Of parallel links the cheapest is taken. A price of 0 would be read as no link at all.
    least = np.full(len(keys), np.inf)
    np.minimum.at(least, slot, prices)
    tiny = float(prices.max()) * 1e-14
    graph = csr_array((np.maximum(least, tiny), (keys // size, keys % size)), shape=(size, size))
    paid: Floats = shortest_path(graph, method="D", indices=machine.gpus)[:, machine.gpus]
    # Every way of at most `size` links was overpaid by at most `size` tiny prices.
    share = max(float(paid.sum()) - tiny * size * ranks * ranks, 0.0) / ranks
    everyone = range(ranks)
    return Limit.of(share, machine.rates * prices, machine.delays.between(everyone, everyone))


def _program(machine: Machine, turns: Classes) -> tuple[Matrix, Floats, Ints]:
    """Rows: one for each class of edges (its load is at most T), then one for each source and device (what comes in, less what goes
    out). Columns: the flow of source s on edge e at s E + e, and T. Rates are scaled to the largest.

    Only one source of every class has flows; on an edge are all their rotations. Kinds tell rows apart that may not be joined.
    """
    sources = np.unique(turns.ranks, return_index=True)[1]
    edges, size = len(machine.links), len(machine.topology.devices)
    flows = len(sources) * edges
    first, members = np.unique(turns.edges, return_index=True, return_counts=True)[1:]
    source, edge = np.divmod(np.arange(flows), edges)
    images = machine.num_ranks / len(sources) / members[turns.edges[edge]]
    loads, column = len(first), np.arange(flows)
    rates = machine.rates[first] / machine.rates.max()
    values = np.concatenate([images, -rates])
    at = (np.concatenate([turns.edges[edge], np.arange(loads)]), np.concatenate([column, np.full(loads, flows)]))
    capacity = csr_array((values, at), shape=(loads, flows + 1))
    signs = np.repeat([1.0, -1.0], flows)
    at = (np.concatenate([source * size + end[edge] for end in (machine.heads, machine.tails)]), np.tile(column, 2))
    balance = csr_array((signs, at), shape=(len(sources) * size, flows + 1))
    wanted = np.zeros((len(sources), size))
    wanted[:, machine.gpus] = 1.0
    wanted[np.arange(len(sources)), machine.gpus[sources]] = 1.0 - machine.num_ranks
    rhs = np.concatenate([np.zeros(loads), wanted.ravel()])
    kinds = np.concatenate([np.full(loads, 2), np.sign(wanted.ravel()).astype(np.int64)])
    return vstack([capacity, balance]).tocsr(), rhs, kinds
