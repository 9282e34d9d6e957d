"""Exchanges by hand: who has which part when, what is given, what waits for what, and what is no allreduce."""

from __future__ import annotations

from itertools import permutations

import pytest

from synth.errors import CheckError
from synth.exchange import Exchange, Given, Kind, Level, Phase, Slices

PAIRS = ((0, 1), (2, 3))
ACROSS = ((0, 2), (1, 3))


def exchange(*levels: Level) -> Exchange:
    """Over four ranks that are all joined, by a path of each pair; the number of a path says which."""
    pairs = list(permutations(range(4), 2))
    return Exchange(4, levels, {pair: (number,) for number, pair in enumerate(pairs)})


def test_a_name_says_the_groups_and_which_of_them_part_the_vector() -> None:
    assert exchange(Level(PAIRS, True), Level(ACROSS)).name == "exchange-2p-2"
    assert exchange(Level(((0, 1, 2, 3),))).name == "exchange-4"


def test_parted_levels_come_back_in_reverse() -> None:
    both = exchange(Level(PAIRS, True), Level(ACROSS, True))
    assert both.parts == 4
    assert both.phases == (Phase(0, Kind.PART), Phase(1, Kind.PART), Phase(1, Kind.FINISHED), Phase(0, Kind.FINISHED))


def test_parts_are_halves_of_halves() -> None:
    both = exchange(Level(PAIRS, True), Level(ACROSS, True))
    assert both.spans(1, 8) == [range(4), range(4, 8), range(4), range(4, 8)]
    assert both.spans(2, 8) == [range(2), range(4, 6), range(2, 4), range(6, 8)]


def test_what_is_given() -> None:
    one = exchange(Level(PAIRS, True), Level(ACROSS))
    assert one.given(Phase(0, Kind.PART), 4)[:2] == [Given(0, 1, range(2, 4)), Given(1, 0, range(0, 2))]
    assert one.given(Phase(1, Kind.ALL), 4)[:2] == [Given(0, 2, range(0, 2)), Given(2, 0, range(0, 2))]
    assert one.given(Phase(0, Kind.FINISHED), 4)[:2] == [Given(0, 1, range(0, 2)), Given(1, 0, range(2, 4))]


def test_who_owns_no_part_goes_on_with_nothing_and_is_given_it_all() -> None:
    """Ranks 0 and 2 own what they and their neighbours add up."""
    one = exchange(Level(PAIRS, True, frozenset({0, 2})), Level(ACROSS))
    assert (one.name, one.parts) == ("exchange-2p1-2", 1)
    assert one.given(Phase(0, Kind.PART), 1) == [Given(1, 0, range(1)), Given(3, 2, range(1))]
    assert one.given(Phase(1, Kind.ALL), 1) == [Given(0, 2, range(1)), Given(2, 0, range(1))]
    assert one.given(Phase(0, Kind.FINISHED), 1) == [Given(0, 1, range(1)), Given(2, 3, range(1))]
    assert set(one.pairs) == {*permutations((0, 1)), *permutations((2, 3)), *permutations((0, 2))}
    steps, hops = Slices((one,)).listed(1)
    assert [(step.there.chunks, step.back.chunks) for step in steps[:2]] == [(range(0), range(1))] * 2
    # What is finished waits for what came across, though nothing comes to it in between.
    assert [hops[other].pair for hop in hops if hop.pair == (0, 1) for other in hop.waits] == [(1, 0), (2, 0)]


def test_a_phase_waits_for_all_that_came_before_and_a_hop_for_the_hop_before() -> None:
    _, hops = Slices((exchange(Level(PAIRS), Level(ACROSS)),)).listed(1)
    assert len(hops) == 8
    assert [hop.waits for hop in hops[:4]] == [(), (), (), ()]
    for hop in hops[4:]:
        assert [hops[other].pair[1] for other in hop.waits] == [hop.pair[0]]
    over = Exchange(2, (Level(((0, 1),)),), {(0, 1): (0, 1), (1, 0): (2, 3)})
    steps, hops = Slices((over,)).listed(1)
    assert [hop.message.path for hop in hops] == [0, 2, 1, 3]
    assert [hop.waits for hop in hops] == [(), (), (0,), (1,)]
    assert {hop.step for hop in hops} == {0}
    assert [(step.there, step.back) for step in steps] == [(Given(0, 1, range(1)), Given(1, 0, range(1)))]


def test_slices_go_through_the_phases_one_after_another_and_wait_for_their_own_alone() -> None:
    steps, hops = Slices((exchange(Level(PAIRS), Level(ACROSS)),), 2).listed(4)
    assert [(step.slice, step.number) for step in steps] == [
        (slice_, number) for number in (0, 1) for slice_ in (0, 1) for _ in range(2)
    ]
    assert [hop.message.chunks for hop in hops] == [(0, 1)] * 4 + [(2, 3)] * 4 + [(0, 1)] * 4 + [(2, 3)] * 4
    for hop in hops:
        assert {hops[other].message.chunks for other in hop.waits} <= {hop.message.chunks}


def test_slices_that_are_turned_begin_at_different_levels() -> None:
    turned = Slices((exchange(Level(PAIRS, True), Level(ACROSS)), exchange(Level(ACROSS, True), Level(PAIRS))), 2)
    turned.check()
    assert turned.name == "exchange-2p-2-turned-in-2"
    assert turned.parts == 4
    steps, _ = turned.listed(4)
    first = {(step.slice, step.there.src, step.there.dst): step.there.chunks for step in steps if step.number == 0}
    assert first == {
        (0, 0, 1): range(1, 2),
        (0, 2, 3): range(1, 2),
        (1, 0, 2): range(3, 4),
        (1, 1, 3): range(3, 4),
    }


def test_so_many_slices_are_the_same_for_each_of_several_exchanges() -> None:
    one = exchange(Level(PAIRS), Level(ACROSS))
    assert Slices((one,)).cut(8).name == "exchange-2-2-in-8"
    assert Slices((one, one, one), 3).cut(8).count == 9


def test_what_cannot_be_shared_out_evenly_gives_another_more_at_every_turn() -> None:
    one = exchange(Level(PAIRS, True), Level(ACROSS))
    assert one.spans(1, 3)[:2] == [range(1), range(1, 3)]
    assert one.spans(1, 3, turn=1)[:2] == [range(2), range(2, 3)]
    assert one.spans(1, 3, turn=2)[:2] == [range(1), range(1, 3)]


@pytest.mark.parametrize(("levels", "fault"), [
    ((Level(PAIRS),), "do not get every contribution"),
    ((Level(PAIRS), Level(PAIRS)), "adds something twice"),
    ((Level(((0, 1), (2, 2))),), "in no group, or in two"),
    ((Level(((0, 1), (2, 3)), True), Level(((0, 3), (1, 2)))), "has different parts"),
    ((Level(((0, 1, 2), (3,))),), "is no 3 ranks"),
    ((Level(PAIRS, True, frozenset({0})), Level(ACROSS)), "has 0 ranks that own parts, not 1"),
    ((Level(PAIRS, True, frozenset({0, 3})), Level(ACROSS)), "has different parts"),
])  # fmt: skip
def test_what_is_no_allreduce_is_told(levels: tuple[Level, ...], fault: str) -> None:
    with pytest.raises(CheckError, match=fault):
        exchange(*levels).check()


def test_sums_that_ranks_would_add_in_different_orders_are_told() -> None:
    """Rank 0 would add ((0 + 2) + (5 + 7)) and ((1 + 3) + (4 + 6)), rank 2 other pairs of the same pairs."""
    pairs = [(a, b) for a in range(8) for b in range(8) if a != b]
    levels = (
        Level(((0, 2), (1, 3), (4, 6), (5, 7))),
        Level(((0, 7), (1, 6), (2, 4), (3, 5))),
        Level(((0, 1), (2, 3), (4, 5), (7, 6))),
    )
    fault = Exchange(8, levels, {pair: (number,) for number, pair in enumerate(pairs)}).fault()
    assert fault == "after level 1 ranks hold sums of one part that are different and share contributions"


def test_what_is_one_has_no_fault() -> None:
    for parted in (False, True):
        exchange(Level(PAIRS, parted), Level(ACROSS, parted)).check()
        exchange(Level(((0, 1, 2, 3),), parted)).check()
