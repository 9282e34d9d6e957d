"""Reversal and composition on cases worked out by hand."""

from __future__ import annotations

from synth.instance import Instance
from synth.ir import Message, Routing, Transfer
from synth.reductions.compose import compose_routings, compose_schedules
from synth.reductions.reverse import reverse_messages, reverse_routing, reverse_schedule
from synth.timing import check_schedule, retime
from tests.graphs import instance_of, line

CHUNK = 1e4  # keeps a link of 10 GB/s for 1 us


def over(instance: Instance, src: int, dst: int) -> int:
    return next(path.index for path in instance.paths if (path.src, path.dst) == (src, dst))


def test_a_broadcast_backwards_is_a_reduction() -> None:
    instance = instance_of(line(3), "reduce", 1, CHUNK, root=0)
    up, top = over(instance, 2, 1), over(instance, 1, 0)
    mirror = instance.reversed()  # path `top` leads from rank 0 to rank 1 there
    forwards = retime(mirror, [Message((0,), top), Message((0,), up)])
    assert forwards.makespan_us == 4.0
    assert reverse_messages(forwards) == [Message((0,), up, True), Message((0,), top, True)]
    backwards = reverse_schedule(instance, forwards)
    check_schedule(instance, backwards)
    assert [(send.path, send.start_us, send.arrive_us) for send in backwards.sends] == [(up, 0, 2), (top, 2, 4)]


def test_what_arrived_last_leaves_first() -> None:
    instance = instance_of(line(2), "reduce", 3, CHUNK, root=0)
    path = over(instance, 1, 0)
    forwards = retime(instance.reversed(), [Message((1,), path), Message((0,), path), Message((2,), path)])
    assert [message.chunks for message in reverse_messages(forwards)] == [(2,), (0,), (1,)]


def test_a_routing_turns_around_and_back() -> None:
    routing = Routing((Transfer(0, 3), Transfer(1, 2)), relaxed_us=7.0)
    turned = reverse_routing(routing)
    assert turned == Routing((Transfer(0, 3, True), Transfer(1, 2, True)), relaxed_us=7.0)
    assert reverse_routing(turned) == routing


def test_there_is_no_barrier_between_the_halves() -> None:
    # Chunk 0 is reduced at rank 0 over two hops (done at 4 us), chunk 1 at rank 1 over one (done at 3 us).
    instance = instance_of(line(3), "allreduce", 2, CHUNK)
    assert [demand.source for demand in instance.demands] == [0, 1]
    right, left = (over(instance, 0, 1), over(instance, 1, 2)), (over(instance, 2, 1), over(instance, 1, 0))
    up = [Message((0,), left[0]), Message((1,), left[0]), Message((0,), left[1]), Message((1,), right[0])]
    down = [Message((1,), right[1]), Message((1,), left[1]), Message((0,), right[0]), Message((0,), right[1])]
    halves = [retime(instance, [m._replace(reduce=True) for m in up]), retime(instance, down)]
    both = compose_schedules(instance, *halves)
    check_schedule(instance, both)
    last_reduction = max(send.arrive_us for send in both.sends if send.reduce)
    first_copy = min(send.start_us for send in both.sends if not send.reduce)
    assert (last_reduction, first_copy) == (4.0, 3.0)
    # Chunk 0 goes down from 4 us on: 2 us to rank 1, 2 us to rank 2. In halves it would be 4 us up and 4 us down.
    assert both.makespan_us == 8.0


def test_composed_routings_hold_both_halves() -> None:
    up, down = Routing((Transfer(1, 0, True),), 2.0), Routing((Transfer(0, 1),), 3.0)
    assert compose_routings(up, down) == Routing((Transfer(0, 1), Transfer(1, 0, True)), 5.0)
