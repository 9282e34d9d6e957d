"""Exact times by hand, and the checkers: every way to break a routing or a schedule is told."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from synth.errors import CheckError
from synth.instance import Instance
from synth.ir import Message, Routing, Schedule, Send, Transfer, predecessors
from synth.timing import Replay, busiest_link_us, check_routing, check_schedule, messages_of, retime
from tests.graphs import both_ways, from_pairs, full, gpus, instance_of, line, star
from tests.schedules import tree_schedule

CHUNK = 1e4  # keeps a link of 10 GB/s for 1 us


def over(instance: Instance, src: int, dst: int) -> int:
    return next(path.index for path in instance.paths if (path.src, path.dst) == (src, dst))


def relay() -> tuple[Instance, list[Message]]:
    """Two chunks from rank 0 over rank 1 to rank 2, one after the other."""
    instance = instance_of(line(3), "broadcast", 2, CHUNK, root=0)
    first, second = over(instance, 0, 1), over(instance, 1, 2)
    return instance, [Message((chunk,), path) for path in (first, second) for chunk in (0, 1)]


def test_times_of_a_relay() -> None:
    instance, messages = relay()
    assert Replay(instance, messages).times_us(instance) == [(0, 2), (1, 3), (2, 4), (3, 5)]
    assert Replay(instance, messages).makespan_us(instance) == 5


def test_one_message_of_two_chunks_arrives_as_a_whole() -> None:
    instance, (first, _, second, _) = relay()
    together = [Message((0, 1), first.path), Message((0, 1), second.path)]
    assert Replay(instance, together).times_us(instance) == [(0, 3), (3, 6)]


def test_a_gap_is_paid_by_the_message_and_occupies_the_link() -> None:
    gapped = from_pairs("gapped", 2, [])
    links = tuple(both_ways("gpu0", "gpu1", 10.0, 1.0, gap_us=0.5))
    instance = instance_of(type(gapped)("gapped", tuple(gpus(2)), links), "broadcast", 2, CHUNK, root=0)
    path = over(instance, 0, 1)
    apart = Replay(instance, [Message((0,), path), Message((1,), path)])
    assert apart.times_us(instance) == [(0, 2.5), (1.5, 4.0)]
    assert Replay(instance, [Message((0, 1), path)]).makespan_us(instance) == 3.5


def test_the_order_of_the_list_is_kept_on_a_shared_port() -> None:
    instance = instance_of(star(3), "gather", 1, CHUNK, root=0)
    messages = [Message((2,), over(instance, 2, 0)), Message((1,), over(instance, 1, 0))]
    assert Replay(instance, messages).times_us(instance) == [(0, 3), (1, 4)]


def test_replay_at_another_size() -> None:
    instance, messages = relay()
    assert Replay(instance, messages).makespan_us(instance.with_chunk_bytes(3 * CHUNK)) == 1 + 3 + 3 + 1 + 3


def test_replay_refuses_what_is_listed_before_its_cause() -> None:
    instance, messages = relay()
    with pytest.raises(CheckError, match="listed before"):
        Replay(instance, messages[::-1])


def test_retime_gives_sends_in_order_of_start() -> None:
    instance, (a, b, c, d) = relay()
    schedule = retime(instance, [a, c, b, d])
    assert [(send.start_us, send.chunks) for send in schedule.sends] == [(0, (0,)), (1, (1,)), (2, (0,)), (3, (1,))]
    assert messages_of(schedule) == [a, b, c, d]
    check_schedule(instance, schedule)


def test_link_load_is_that_of_the_busiest_link() -> None:
    instance = instance_of(star(3), "gather", 1, CHUNK, root=0)
    both = [Transfer(rank, over(instance, rank, 0)) for rank in (1, 2)]
    assert busiest_link_us(instance, both) == 2
    assert busiest_link_us(instance, both[:1]) == 1
    assert busiest_link_us(instance, []) == 0


def test_predecessors_of_an_allreduce() -> None:
    instance = instance_of(line(3), "allreduce", 1, CHUNK)  # owner of chunk 0 is rank 0
    up, top = Transfer(0, over(instance, 2, 1), True), Transfer(0, over(instance, 1, 0), True)
    down, last = Transfer(0, over(instance, 0, 1)), Transfer(0, over(instance, 1, 2))
    before = predecessors(instance, (up, top, down, last))
    assert before == {up: (), top: (up,), down: (top,), last: (down,)}


def broadcast_of(transfers: Sequence[tuple[int, int, int]], ranks: int = 3) -> tuple[Instance, Routing]:
    """A broadcast of one chunk from rank 0 between directly joined ranks, routed as (chunk, src, dst) say."""
    instance = instance_of(full(ranks), "broadcast", 1, CHUNK, root=0)
    return instance, Routing(tuple(Transfer(chunk, over(instance, src, dst)) for chunk, src, dst in transfers))


def test_a_good_routing_passes() -> None:
    check_routing(*broadcast_of([(0, 0, 1), (0, 1, 2)]))


@pytest.mark.parametrize(
    ("transfers", "problem"),
    [
        ([(0, 0, 1), (0, 0, 1), (0, 1, 2)], "twice"),
        ([(0, 0, 1), (0, 0, 2), (1, 0, 1)], "does not exist"),
        ([(0, 0, 1)], r"does not reach ranks \[2\]"),
        ([(0, 1, 2)], "rank 1 sends 0"),
        ([(0, 1, 2), (0, 2, 1)], "circle"),
    ],
)
def test_broken_routings(transfers: list[tuple[int, int, int]], problem: str) -> None:
    instance, routing = broadcast_of(transfers)
    with pytest.raises(CheckError, match=problem):
        check_routing(instance, routing)


def test_a_path_that_does_not_exist() -> None:
    instance, routing = broadcast_of([(0, 0, 1), (0, 0, 2)])
    with pytest.raises(CheckError, match="does not exist"):
        check_routing(instance, Routing((*routing.transfers, Transfer(0, len(instance.paths)))))


@pytest.mark.parametrize(
    ("reductions", "problem"),
    [
        ([(1, 0), (2, 1), (2, 0)], "sends 110 to rank 0 that holds 101"),  # rank 2's part would count twice
        ([(1, 0)], "does not reach"),
        ([(1, 2), (2, 1)], "circle"),
    ],
)
def test_broken_reductions(reductions: list[tuple[int, int]], problem: str) -> None:
    instance = instance_of(full(3), "reduce", 1, CHUNK, root=0)
    routing = Routing(tuple(Transfer(0, over(instance, *pair), True) for pair in reductions))
    with pytest.raises(CheckError, match=problem):
        check_routing(instance, routing)


def test_a_partial_sum_is_not_copied() -> None:
    instance = instance_of(full(3), "allreduce", 1, CHUNK)
    steps = [((1, 0), True), ((0, 1), False), ((0, 2), False)]
    routing = Routing(tuple(Transfer(0, over(instance, *pair), reduce) for pair, reduce in steps))
    with pytest.raises(CheckError, match="rank 0 sends 11 "):
        check_routing(instance, routing)


def test_good_schedules_pass() -> None:
    for name in ("allreduce", "allgather", "alltoall"):
        instance = instance_of(star(3), name, 2, CHUNK)
        check_schedule(instance, tree_schedule(instance, together=True))


@pytest.mark.parametrize(
    ("number", "change", "problem"),
    [
        (0, {"arrive_us": 1.9}, "takes less than"),
        (0, {"start_us": -1.0, "arrive_us": 1.0}, "takes less than"),
        (2, {"start_us": 1.5, "arrive_us": 3.5}, "leaves before"),
        (1, {"start_us": 0.5, "arrive_us": 2.5}, "overlap"),
    ],
)
def test_broken_schedules(number: int, change: dict[str, float], problem: str) -> None:
    instance, messages = relay()
    sends = list(retime(instance, messages).sends)
    sends[number] = sends[number]._replace(**change)  # type: ignore[arg-type]
    with pytest.raises(CheckError, match=problem):
        check_schedule(instance, Schedule(tuple(sends)))


def test_a_schedule_of_another_routing() -> None:
    instance, routing = broadcast_of([(0, 0, 1), (0, 1, 2)])
    other = broadcast_of([(0, 0, 1), (0, 0, 2)])[1]
    schedule = retime(instance, [Message((t.chunk,), t.path) for t in other.transfers])
    check_schedule(instance, schedule, other)
    with pytest.raises(CheckError, match="another routing"):
        check_schedule(instance, schedule, routing)


def test_an_arrival_later_than_need_be_is_allowed() -> None:
    instance = instance_of(line(2), "broadcast", 1, CHUNK, root=0)
    check_schedule(instance, Schedule((Send((0,), over(instance, 0, 1), False, 5.0, 9.0),)))
