"""The rounds in which a program runs where messages have an order and no tags."""

from __future__ import annotations

from collections import Counter

import pytest

from synth.execute.errors import HangError
from synth.execute.program import compile_program
from synth.execute.rounds import Round, plan_rounds
from tests.algos import RIGHT, exchange_allgather, ring_allreduce


@pytest.mark.parametrize("tiles", [1, 3])
@pytest.mark.parametrize("name", RIGHT)
def test_both_ends_of_every_message_agree_on_round_and_order(name: str, tiles: int) -> None:
    program = compile_program(RIGHT[name][0], 1)
    ranks = plan_rounds(program, tiles)
    for together in zip(*ranks, strict=True):
        sent = [(send.connection, send.act) for one in together for send in one.sends]
        received = [(receive.connection, receive.sender) for one in together for receive in one.receives]
        assert Counter(sent) == Counter(received)
        assert len({connection for connection, _ in sent}) == len(sent)
        for one in together:
            assert one.sends == sorted(one.sends, key=lambda send: send.connection)
            assert one.receives == sorted(one.receives, key=lambda receive: receive.connection)


@pytest.mark.parametrize("name", RIGHT)
def test_every_part_is_done_once_and_in_order(name: str) -> None:
    program, tiles = compile_program(RIGHT[name][0], 1), 2
    for rank, rounds in enumerate(plan_rounds(program, tiles)):
        for number, block in enumerate(program.ranks[rank]):
            found = [act for one in rounds for act in _done(one) if act.block == number]
            expected = [
                (operation, part, tile)
                for tile in range(tiles)
                for operation, each in enumerate(block.operations)
                for part in range(len(each.parts))
            ]
            assert list(dict.fromkeys((act.operation, act.part, act.tile) for act in found)) == expected


def _done(one: Round) -> list:  # type: ignore[type-arg]
    return [send.act for send in one.sends] + one.acts


def test_a_connection_never_holds_more_than_its_slots() -> None:
    program = compile_program(exchange_allgather("Simple", 2), 1)
    for rounds in plan_rounds(program, 5):
        held = most = 0
        for one in rounds:
            held += len(one.receives)
            most = max(most, held)
            held -= sum(act.slot >= 0 for act in one.acts)
        assert (held, most) == (0, program.slots)


def test_what_is_parallel_shares_a_round() -> None:
    """A ring's ranks all send at once: an allreduce of n ranks takes 2 (n - 1) rounds of messages."""
    [rounds, *_] = plan_rounds(compile_program(ring_allreduce(6), 1), 1)
    assert sum(bool(one.sends) for one in rounds) == 10


def test_a_deadlock_is_told_before_anything_runs() -> None:
    with pytest.raises(HangError, match="gpu 0 tb 0 step 3 .* waits for room towards gpu 1") as caught:
        plan_rounds(compile_program(exchange_allgather("Simple", 3), 1), 1)
    assert len(caught.value.waits) == 2
