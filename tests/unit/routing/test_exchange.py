"""Which exchanges a machine has: few hops on machines whose answer is known by hand."""

from __future__ import annotations

import pytest

from synth.exchange import Exchange, Slices
from synth.inputs.load import load_topology
from synth.instance import Instance
from synth.routing.exchange import ExchangeRouting
from synth.topology import Topology
from tests import graphs
from tests.graphs import instance_of


def exchanges(topology: Topology) -> dict[str, Exchange]:
    found = ExchangeRouting()(instance_of(topology, "allreduce"))
    return {each.name: each.exchanges[0] for each in found if each.count == 1}


def turned(topology: Topology) -> dict[str, Slices]:
    found = ExchangeRouting()(instance_of(topology, "allreduce"))
    return {each.name: each for each in found if each.count > 1}


def hops(exchange: Exchange) -> int:
    """The most that anything crosses: of every level the longest way."""
    return sum(
        max(len(exchange.routes[a, b]) for group in level.groups for a in group for b in group if a != b)
        for level in exchange.levels
    )


@pytest.mark.parametrize(("topology", "name", "most"), [
    (graphs.full(8), "exchange-8", 1),
    (graphs.dgx1(), "exchange-4-2", 2),
    (graphs.dgx1(), "exchange-2-2-2", 3),
    (graphs.mesh(4, 4), "exchange-2-2-2-2", 6),
    (graphs.mesh(3, 3), "exchange-3-3", 4),
    (graphs.line(2), "exchange-2", 1),
    (graphs.full(6), "exchange-2-3", 2),
    (graphs.ring(5), "exchange-5", 2),
])  # fmt: skip
def test_hops_are_as_many_as_the_machine_is_wide(topology: Topology, name: str, most: int) -> None:
    assert hops(exchanges(topology)[name]) == most


def test_boxes_are_crossed_once_and_the_gpus_of_a_place_meet() -> None:
    found = exchanges(graphs.two_boxes(graphs.star(4), range(4)))
    assert {frozenset(group) for group in found["exchange-4-2"].levels[1].groups} == {
        frozenset((rank, rank + 4)) for rank in range(4)
    }


def test_gates_own_what_their_boxes_add_up_and_give_it_to_each_other() -> None:
    """Of each box of four GPUs 0 and 1 have NICs: one of them or both own what all four add up."""
    found = exchanges(graphs.two_boxes(graphs.star(4), (0, 1)))
    inside, across = found["exchange-4p2-2"].levels
    assert inside.owners == {0, 1, 4, 5}
    assert {(0, 4), (1, 5)} <= set(across.groups)
    assert found["exchange-4p1-2"].levels[0].owners == {0, 4}
    assert {pair for pair in found["exchange-4p1-2"].routes if pair[0] < 4 <= pair[1]} == {(0, 4)}


def test_gates_may_be_given_what_others_have_added() -> None:
    """GPU 0 of each box of 2x2 has a NIC: one of the two that are added up first gives it the sum."""
    exchange = exchanges(graphs.two_boxes(graphs.mesh(2, 2), (0,)))["exchange-2p1-2p1-2"]
    first, second, _ = exchange.levels
    assert second.owners == {0, 4}
    assert first.owners == {rank for group in second.groups if {0, 4} & {*group} for rank in group}


def test_ranks_that_are_as_near_to_all_others_are_no_gates() -> None:
    for topology in (graphs.full(8), graphs.star(6), graphs.two_boxes(graphs.star(4), range(4))):
        assert all(level.owners is None for each in exchanges(topology).values() for level in each.levels)


def test_a_torus_has_its_rows_and_columns() -> None:
    rows, columns = exchanges(load_topology("torus-3x3"))["exchange-3-3"].levels
    assert {frozenset(group) for group in (*rows.groups, *columns.groups)} == {
        *(frozenset(range(3 * row, 3 * row + 3)) for row in range(3)),
        *(frozenset(range(column, 9, 3)) for column in range(3)),
    }


def test_slices_of_a_torus_begin_with_its_rows_or_its_columns() -> None:
    rows, columns = turned(load_topology("torus-3x3"))["exchange-3p-3-turned-in-2"].exchanges
    assert rows.levels[0].groups == columns.levels[1].groups
    assert rows.levels[1].groups == columns.levels[0].groups
    assert [level.parted for level in columns.levels] == [True, False]


def test_slices_begin_alike_where_another_level_cannot_come_first() -> None:
    """On a chain of six what three pairs make up is not what two triples do."""
    assert all(exchange.fault() is None for each in turned(graphs.line(6)).values() for exchange in each.exchanges)


def test_every_number_of_first_levels_may_be_parted() -> None:
    assert {"exchange-4-2", "exchange-4p-2", "exchange-4p-2p"} <= set(exchanges(graphs.dgx1()))


def test_ways_end_where_some_links_take_next_to_no_time() -> None:
    """On a line whose last link is ten million times as slow the others count for nothing; no way goes back and forth on them."""
    rates = (1e4, 1e4, 1e-3)
    links = [
        link for rank, rate in enumerate(rates) for link in graphs.both_ways(f"gpu{rank}", f"gpu{rank + 1}", rate, 0.0)
    ]
    found = exchanges(Topology("slow end", tuple(graphs.gpus(4)), tuple(links)))
    assert max(len(route) for exchange in found.values() for route in exchange.routes.values()) <= 3


def test_a_single_rank_has_none() -> None:
    alone: Instance = instance_of(Topology("alone", tuple(graphs.gpus(1)), ()), "allreduce")
    assert ExchangeRouting()(alone) == []


def test_groups_are_no_larger_than_asked() -> None:
    found = ExchangeRouting(most=4)(instance_of(graphs.full(8), "allreduce"))
    assert found
    assert max(level.size for each in found for level in each.exchanges[0].levels) == 4
