"""Cheapest trees against the arborescence polytope, whose corners are whole (J. Edmonds, 1967), solved by another solver."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from synth.routing.arborescence import Costs, Parents, cheapest_tree, min_arborescence, prune, shallow_tree, tree_cost

INF = np.inf


@st.composite
def costs(draw: st.DrawFn, max_ranks: int = 7) -> Costs:
    """A cost matrix with holes, in which rank 0 reaches everybody."""
    size = draw(st.integers(2, max_ranks))
    price = st.one_of(st.just(INF), st.integers(0, 9).map(float), st.floats(0.01, 5.0))
    matrix = np.array([[draw(price) for _ in range(size)] for _ in range(size)])
    for rank in range(1, size):
        matrix[draw(st.integers(0, rank - 1)), rank] = draw(st.integers(0, 9))
    np.fill_diagonal(matrix, INF)
    return matrix


def least_cost(cost: Costs, root: int, dests: frozenset[int] | None = None) -> float:
    """The linear program over edges: at least one enters every set without the root that has a destination."""
    size = len(cost)
    wanted = dests if dests is not None else frozenset(range(size)) - {root}
    edges = [(u, v) for u in range(size) for v in range(size) if u != v and np.isfinite(cost[u, v])]
    others = [rank for rank in range(size) if rank != root]
    sets = [frozenset(s) for k in range(1, size) for s in combinations(others, k) if wanted & set(s)]
    entering = np.array([[-float(v in s and u not in s) for u, v in edges] for s in sets])
    answer = linprog([cost[edge] for edge in edges], entering, -np.ones(len(sets)), bounds=(0, None))
    assert answer.status == 0
    return float(answer.fun)


def climb(parent: Parents, rank: int) -> list[int]:
    """From the rank to the top of its tree."""
    way = [rank]
    while parent[way[-1]] >= 0:
        way.append(int(parent[way[-1]]))
        assert len(way) <= len(parent), "parents run in a circle"
    return way


@settings(max_examples=80)
@given(cost=costs())
def test_spanning_tree_is_the_cheapest(cost: Costs) -> None:
    parent = min_arborescence(cost, 0)
    assert all(climb(parent, rank)[-1] == 0 for rank in range(len(cost)))
    assert tree_cost(cost, parent) == pytest.approx(least_cost(cost, 0), abs=1e-9)


@settings(max_examples=60)
@given(cost=costs(), lost=st.integers(1, 2), onward=st.booleans(), price=st.floats(0.0, 1.0))
def test_ranks_out_of_reach_change_nothing(cost: Costs, lost: int, onward: bool, price: float) -> None:
    """Whether or not they could send themselves."""
    size = len(cost)
    more = np.full((size + lost, size + lost), INF)
    more[:size, :size] = cost
    more[size:, :size] = 0.0 if onward else INF
    dests = frozenset(range(1, size))
    with_them, without = cheapest_tree(more, 0, dests), cheapest_tree(cost, 0, dests)
    assert tree_cost(more, with_them) <= tree_cost(cost, without) + 1e-9
    assert all(climb(with_them, rank)[-1] == 0 for rank in dests)
    delays = np.ones_like(more)
    shallow = shallow_tree(more, delays, 0, price)
    assert shallow[:size].tolist() == shallow_tree(cost, delays[:size, :size], 0, price).tolist()
    assert shallow[size:].tolist() == [-1] * lost


@settings(max_examples=40)
@given(cost=costs(6), data=st.data())
def test_tree_to_some_destinations(cost: Costs, data: st.DataObject) -> None:
    dests = data.draw(st.frozensets(st.integers(1, len(cost) - 1), min_size=1))
    parent = cheapest_tree(cost, 0, dests)
    ways = [climb(parent, dest) for dest in sorted(dests)]
    assert all(way[-1] == 0 for way in ways)
    on_a_way = {rank for way in ways for rank in way}
    assert {rank for rank in range(len(cost)) if parent[rank] >= 0} == on_a_way - {0}
    least = least_cost(cost, 0, dests)
    assert tree_cost(cost, parent) >= least - 1e-9
    if len(dests) in (1, len(cost) - 1):
        assert tree_cost(cost, parent) == pytest.approx(least, abs=1e-9)
    else:
        spanning = prune(min_arborescence(cost, 0), dests)
        assert tree_cost(cost, parent) <= tree_cost(cost, spanning)


def test_the_circle_that_the_cheapest_edges_make_is_opened_where_that_costs_least() -> None:
    # 1 and 2 are cheapest from each other; entering at 1 costs 5 - 1 more than the circle, entering at 2 costs 7 - 2.
    cost = np.array([[INF, 5.0, 7.0], [INF, INF, 2.0], [INF, 1.0, INF]])
    assert min_arborescence(cost, 0).tolist() == [-1, 0, 1]


def test_nested_circles() -> None:
    # 1-2 and 3-4 are circles, and so are the two together; the root's only edge enters at 3.
    cost = np.full((5, 5), INF)
    for (u, v), price in {(1, 2): 1, (2, 1): 1, (3, 4): 1, (4, 3): 1, (2, 3): 2, (4, 1): 2, (0, 3): 9}.items():
        cost[u, v] = price
    assert min_arborescence(cost, 0).tolist() == [-1, 4, 1, 0, 3]


def test_one_destination_gets_the_shortest_path_over_a_relay() -> None:
    cost = np.array([[INF, 9.0, 1.0, 1.0], [INF] * 4, [INF, 1.0, INF, 1.0], [INF] * 4])
    assert cheapest_tree(cost, 0, frozenset({1})).tolist() == [-1, 2, 0, -1]


def test_prune_keeps_what_leads_to_a_destination() -> None:
    parent = np.array([-1, 0, 1, 1, 3, 0])
    assert prune(parent, [3]).tolist() == [-1, 0, -1, 1, -1, -1]
    assert prune(parent, [2, 4]).tolist() == [-1, 0, 1, 1, 3, -1]
    assert prune(parent, [0]).tolist() == [-1] * 6


def test_a_matrix_given_is_not_changed() -> None:
    cost = np.array([[3.0, 1.0], [2.0, 4.0]])
    min_arborescence(cost, 0)
    assert cost.tolist() == [[3.0, 1.0], [2.0, 4.0]]


def arrivals(parent: Parents, delay: Costs) -> list[float]:
    """When every rank is reached along its tree."""
    ways = [climb(parent, rank) for rank in range(len(parent))]
    return [sum(float(delay[a, b]) for b, a in pairwise(way)) for way in ways]


@settings(max_examples=40)
@given(cost=costs(), price=st.floats(0.0, 10.0))
def test_a_shallow_tree_reaches_all_over_the_edges_that_there_are(cost: Costs, price: float) -> None:
    parent = shallow_tree(cost, np.ones_like(cost), 0, price)
    assert all(climb(parent, rank)[-1] == 0 for rank in range(len(cost)))
    assert least_cost(cost, 0) - 1e-9 <= tree_cost(cost, parent) < INF


@settings(max_examples=40)
@given(cost=costs())
def test_where_waiting_is_dear_every_rank_is_reached_at_once(cost: Costs) -> None:
    """The growth is then E. W. Dijkstra's (1959)."""
    delay = np.where(np.isfinite(cost), cost + 1.0, 0.0)
    found = arrivals(shallow_tree(cost, delay, 0, 1e9), delay)
    shortest = cost + 1.0
    np.fill_diagonal(shortest, 0.0)
    for via in range(len(cost)):
        shortest = np.minimum(shortest, shortest[:, via, None] + shortest[None, via])
    assert found == pytest.approx(shortest[0].tolist())


@settings(max_examples=40)
@given(cost=costs())
def test_where_waiting_is_free_the_growth_is_that_of_a_least_spanning_tree(cost: Costs) -> None:
    """R. C. Prim (1957): where both directions cost the same, no tree is cheaper."""
    both = np.minimum(cost, cost.T)
    parent = shallow_tree(both, np.ones_like(both), 0, 0.0)
    assert tree_cost(both, parent) == pytest.approx(least_cost(both, 0), abs=1e-9)
