"""Cheapest trees over ranks: minimum-cost arborescences (Chu-Liu/Edmonds) and cheapest paths, on dense cost matrices.

`cost[u, v]` is the price of sending from rank u to rank v, infinite where there is no path. Results are parents: `parent[v]` is
the rank that v receives from, -1 at the root and wherever the tree does not go.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

Costs = NDArray[np.float64]
Parents = NDArray[np.int64]


def cheapest_tree(cost: Costs, root: int, dests: frozenset[int]) -> Parents:
    """A tree from `root` that reaches all `dests`, as cheap as known how.

    Exact for one destination (Dijkstra) and where everything is a destination (Edmonds 1967). In between the problem is the
    Steiner arborescence: the better of the two exact answers, cut back to what leads to a destination.
    """
    if len(dests) == 1:
        return prune(_dijkstra(cost, root), dests)
    if len(dests) == len(cost) - 1:
        return min_arborescence(cost, root)
    shortest = _dijkstra(cost, root)
    lost = shortest < 0
    lost[root] = False
    spanning = min_arborescence(_within_reach(cost, root, lost), root)
    return min((prune(parent, dests) for parent in (spanning, shortest)), key=lambda parent: tree_cost(cost, parent))


def _within_reach(cost: Costs, root: int, lost: NDArray[np.bool_]) -> Costs:
    """The prices with an edge of their own from the root, and no other, for the ranks that it does not reach."""
    if not lost.any():
        return cost
    within = cost.copy()
    within[lost], within[:, lost] = np.inf, np.inf
    within[root, lost] = 0.0
    return within


def cheapest_trees(cost: Costs, root: int, ends: Sequence[frozenset[int]]) -> list[Parents]:
    """`cheapest_tree` for several sets of destinations: the paths to single ones are found together."""
    paths = _dijkstra(cost, root) if any(len(dests) == 1 for dests in ends) else None
    return [
        cheapest_tree(cost, root, dests) if paths is None or len(dests) > 1 else prune(paths, dests) for dests in ends
    ]


def shallow_tree(cost: Costs, delay_us: Costs, root: int, price_of_us: float) -> Parents:
    """A tree from `root` to every rank that it reaches, cheap and shallow: grown by the edge whose cost and arrival at its end, each
    us of it at `price_of_us`, are least together. A heuristic: the exact problem has a limit on every path of the tree.

    `cost` is infinite where there is no edge; what `delay_us` says there does not matter, as long as it is finite.
    """
    arrival = np.full(len(cost), np.inf)
    arrival[root] = 0.0
    parent = np.full(len(cost), -1, dtype=np.int64)
    outside = np.ones(len(cost), dtype=bool)
    outside[root] = False
    best = cost[root] + price_of_us * delay_us[root]
    via = np.full(len(cost), root)
    while outside.any():
        offers = np.where(outside, best, np.inf)
        rank = int(np.argmin(offers))
        if not np.isfinite(offers[rank]):
            break
        parent[rank], outside[rank] = via[rank], False
        arrival[rank] = arrival[via[rank]] + delay_us[via[rank], rank]
        offered = cost[rank] + price_of_us * (arrival[rank] + delay_us[rank])
        nearer = offered < best
        best, via = np.where(nearer, offered, best), np.where(nearer, rank, via)
    return parent


def tree_cost(cost: Costs, parent: Parents) -> float:
    """The sum of the prices of the tree's edges."""
    children = np.flatnonzero(parent >= 0)
    return float(cost[parent[children], children].sum())


def prune(parent: Parents, dests: Iterable[int]) -> Parents:
    """The tree without the branches that lead to no destination."""
    kept = np.full_like(parent, -1)
    for dest in dests:
        rank = dest
        while parent[rank] >= 0 and kept[rank] < 0:
            kept[rank] = parent[rank]
            rank = int(parent[rank])
    return kept


def _dijkstra(cost: Costs, root: int) -> Parents:
    size = len(cost)
    distance = np.full(size, np.inf)
    distance[root] = 0.0
    parent = np.full(size, -1, dtype=np.int64)
    open_ranks = np.ones(size, dtype=bool)
    for _ in range(size):
        here = int(np.argmin(np.where(open_ranks, distance, np.inf)))
        open_ranks[here] = False
        through = distance[here] + cost[here]
        better = open_ranks & (through < distance - 1e-15)
        distance[better] = through[better]
        parent[better] = here
    return parent


def min_arborescence(cost: Costs, root: int) -> Parents:
    """The cheapest spanning arborescence from `root` (Chu-Liu 1965, Edmonds 1967), by contraction of cycles.

    Every rank must be reachable from the root over finite prices.
    """
    work = cost.astype(np.float64).copy()
    np.fill_diagonal(work, np.inf)
    work[:, root] = np.inf
    size = len(work)
    parent: Parents = np.argmin(work, axis=0).astype(np.int64)
    parent[root] = -1
    component, num_components = _components(parent)
    if num_components == size:
        return parent
    cheapest = work[parent, np.arange(size)]
    cheapest[root] = 0.0
    reduced = work - cheapest
    enter_from, enter_at, contracted = _contract(reduced, component, num_components)
    outer = min_arborescence(contracted, int(component[root]))
    for place in range(num_components):
        above = outer[place]
        if above >= 0:
            into = int(enter_at[above, place])
            parent[into] = enter_from[above, place]
    return parent


def _components(parent: Parents) -> tuple[NDArray[np.int64], int]:
    """Number the ranks so that those on one cycle of the parent graph share a number."""
    size = len(parent)
    component = np.full(size, -1, dtype=np.int64)
    state = [0] * size
    count = 0
    for start in range(size):
        trail: list[int] = []
        rank = start
        while rank >= 0 and state[rank] == 0:
            state[rank] = 1
            trail.append(rank)
            rank = int(parent[rank])
        if rank >= 0 and state[rank] == 1:
            for member in trail[trail.index(rank) :]:
                component[member] = count
            count += 1
        for member in trail:
            state[member] = 2
            if component[member] < 0:
                component[member] = count
                count += 1
    return component, count


def _contract(
    reduced: Costs, component: NDArray[np.int64], count: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], Costs]:
    """The cheapest edge between any two components: where it leaves, where it enters, and its price."""
    order, sizes = np.argsort(component, kind="stable"), np.bincount(component, minlength=count)
    leave, rows = _first_least(reduced, order, sizes)
    enter_at, contracted = _first_least(rows.T, order, sizes)
    enter_from = leave[np.arange(count)[:, None], enter_at.T]
    np.fill_diagonal(contracted, np.inf)
    return enter_from, enter_at.T, contracted.T


def _first_least(values: Costs, order: NDArray[np.int64], sizes: NDArray[np.int64]) -> tuple[NDArray[np.int64], Costs]:
    """By group of rows, of which each has so many of those in `order`: what is least in every column, and the first row that holds
    it.
    """
    starts = sizes.cumsum() - sizes
    grouped = values[order]
    least: Costs = np.minimum.reduceat(grouped, starts, axis=0)
    held = grouped == least.repeat(sizes, axis=0)
    first: NDArray[np.int64] = np.minimum.reduceat(np.where(held, order[:, None], len(order)), starts, axis=0)
    return first, least
