"""Exchanges by hand: who has which part when, what is given, what waits for what, and what is no allreduce."""

from __future__ import annotations

from itertools import permutations

import pytest

from synth.errors import CheckError
from synth.exchange import Exchange, Given, Kind, Level, Phase

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
    assert [both.span(rank, 1, 8) for rank in range(4)] == [range(4), range(4, 8), range(4), range(4, 8)]
    assert [both.span(rank, 2, 8) for rank in range(4)] == [range(2), range(4, 6), range(2, 4), range(6, 8)]


def test_what_is_given() -> None:
    one = exchange(Level(PAIRS, True), Level(ACROSS))
    assert one.given(Phase(0, Kind.PART), 4)[:2] == [Given(0, 1, range(2, 4)), Given(1, 0, range(0, 2))]
    assert one.given(Phase(1, Kind.ALL), 4)[:2] == [Given(0, 2, range(0, 2)), Given(2, 0, range(0, 2))]
    assert one.given(Phase(0, Kind.FINISHED), 4)[:2] == [Given(0, 1, range(0, 2)), Given(1, 0, range(2, 4))]


def test_a_phase_waits_for_all_that_came_in_the_one_before_and_a_hop_for_the_hop_before() -> None:
    messages, waits = exchange(Level(PAIRS), Level(ACROSS)).messages(1)
    assert len(messages) == 8
    assert waits[:4] == [(), (), (), ()]
    to = {path: pair[1] for pair, (path,) in exchange(Level(PAIRS)).routes.items()}
    sent_by = {path: pair[0] for pair, (path,) in exchange(Level(PAIRS)).routes.items()}
    for message, needed in list(zip(messages, waits, strict=True))[4:]:
        assert [to[messages[other].path] for other in needed] == [sent_by[message.path]]
    over = Exchange(2, (Level(((0, 1),)),), {(0, 1): (0, 1), (1, 0): (2, 3)})
    messages, waits = over.messages(1)
    assert [message.path for message in messages] == [0, 2, 1, 3]
    assert waits == [(), (), (0,), (1,)]


@pytest.mark.parametrize(("levels", "fault"), [
    ((Level(PAIRS),), "do not get every contribution"),
    ((Level(PAIRS), Level(PAIRS)), "adds something twice"),
    ((Level(((0, 1), (2, 2))),), "in no group, or in two"),
    ((Level(((0, 1), (2, 3)), True), Level(((0, 3), (1, 2)))), "has different parts"),
    ((Level(((0, 1, 2), (3,))),), "is no 3 ranks"),
])  # fmt: skip
def test_what_is_no_allreduce_is_told(levels: tuple[Level, ...], fault: str) -> None:
    with pytest.raises(CheckError, match=fault):
        exchange(*levels).check()


def test_what_is_one_has_no_fault() -> None:
    for parted in (False, True):
        exchange(Level(PAIRS, parted), Level(ACROSS, parted)).check()
        exchange(Level(((0, 1, 2, 3),), parted)).check()
