"""List scheduling on cases worked out by hand: 10 GB/s is 10,000 bytes a µs, so a chunk of 1e4 bytes keeps a link for 1 µs."""

from __future__ import annotations

import pytest

from synth.errors import CheckError
from synth.instance import Instance
from synth.ir import Message, Schedule
from synth.list_scheduler import Rule, Work, list_schedule
from synth.topology import Device, DeviceKind, Topology
from tests.graphs import both_ways, full, gpus, instance_of, line, star

CHUNK = 1e4


def over(instance: Instance, src: int, dst: int) -> int:
    return next(path.index for path in instance.paths if (path.src, path.dst) == (src, dst))


def starts(schedule: Schedule | None) -> list[tuple[tuple[int, ...], float, float]]:
    assert schedule is not None
    return [(send.chunks, round(send.start_us, 6), round(send.arrive_us, 6)) for send in schedule.sends]


def test_two_messages_on_one_link_follow_each_other() -> None:
    instance = instance_of(line(2), "broadcast", 2, CHUNK, root=0)
    work = Work.of(instance, [Message((0,), over(instance, 0, 1)), Message((1,), over(instance, 0, 1))])
    assert starts(list_schedule(instance, work, [0, 1])) == [((0,), 0, 2), ((1,), 1, 3)]
    assert starts(list_schedule(instance, work, [1, 0])) == [((1,), 0, 2), ((0,), 1, 3)]


def test_messages_of_two_senders_share_the_receivers_port() -> None:
    instance = instance_of(star(3), "gather", 1, CHUNK, root=0)
    work = Work.of(instance, [Message((rank,), over(instance, rank, 0)) for rank in (1, 2)])
    assert starts(list_schedule(instance, work, [0, 1])) == [((1,), 0, 3), ((2,), 1, 4)]


def test_the_two_directions_of_a_link_do_not_wait_for_each_other() -> None:
    instance = instance_of(line(2), "allgather", 1, CHUNK)
    work = Work.of(instance, [Message((0,), over(instance, 0, 1)), Message((1,), over(instance, 1, 0))])
    assert starts(list_schedule(instance, work, [0, 1])) == [((0,), 0, 2), ((1,), 0, 2)]


def test_what_is_forwarded_waits_for_the_whole_message() -> None:
    instance = instance_of(line(3), "broadcast", 2, CHUNK, root=0)
    work = Work.of(instance, [Message((0,), over(instance, 1, 2)), Message((0, 1), over(instance, 0, 1))])
    assert work.before == (1, 0)
    assert work.after == ((), (0,))
    assert starts(list_schedule(instance, work, [0, 1])) == [((0, 1), 0, 3), ((0,), 3, 5)]


def test_a_message_that_cannot_start_does_not_hold_up_the_next() -> None:
    instance = instance_of(line(3), "broadcast", 1, CHUNK, root=1)
    work = Work.of(instance, [Message((0,), over(instance, 1, 0)), Message((0,), over(instance, 1, 2))])
    assert starts(list_schedule(instance, work, [1, 0])) == [((0,), 0, 2), ((0,), 0, 2)]


def test_a_cutoff_that_cannot_be_met_gives_none() -> None:
    instance = instance_of(line(2), "broadcast", 2, CHUNK, root=0)
    work = Work.of(instance, [Message((0,), over(instance, 0, 1)), Message((1,), over(instance, 0, 1))])
    assert list_schedule(instance, work, [0, 1], cutoff_us=2.9) is None
    assert starts(list_schedule(instance, work, [0, 1], cutoff_us=3.0))[-1] == ((1,), 1, 3)


def test_the_busiest_link_goes_first_where_asked() -> None:
    # gpu2's port has a quarter of the rate: two chunks for it keep that port 8 us, all three the sender's port 3 us.
    links = [*both_ways("gpu0", "s"), *both_ways("gpu1", "s"), *both_ways("gpu2", "s", 2.5)]
    machine = Topology("uneven", (*gpus(3), Device("s", DeviceKind.NVSWITCH)), tuple(links))
    instance = instance_of(machine, "scatter", 2, CHUNK, root=0)
    to_1, to_2 = over(instance, 0, 1), over(instance, 0, 2)
    work = Work.of(instance, [Message((2,), to_1), Message((4,), to_2), Message((5,), to_2)])
    assert starts(list_schedule(instance, work, [0, 1, 2])) == [((2,), 0, 3), ((4,), 1, 7), ((5,), 5, 11)]
    busiest = list_schedule(instance, work, [0, 1, 2], rule=Rule(busiest_first=True))
    assert starts(busiest) == [((4,), 0, 6), ((2,), 1, 4), ((5,), 4, 10)]


def test_a_shared_link_is_left_when_another_path_can_take_it() -> None:
    # Between the switches is room for both senders, half of the time for each: a chunk is on their own links 1 us, there 0.5 us.
    ends = [*both_ways("gpu0", "a"), *both_ways("gpu1", "a"), *both_ways("b", "gpu2"), *both_ways("b", "gpu3")]
    switches = [Device(name, DeviceKind.NVSWITCH) for name in "ab"]
    machine = Topology("shared", (*gpus(4), *switches), (*ends, *both_ways("a", "b", 20.0)))
    instance = instance_of(machine, "alltoall", 3, CHUNK)
    of_pair = {pair: [3 * (4 * pair[0] + pair[1]) + chunk for chunk in range(3)] for pair in ((0, 2), (1, 3))}
    (first, second), (third, fourth) = (
        (Message((one,), over(instance, *pair)), Message(tuple(two), over(instance, *pair)))
        for pair, (one, *two) in of_pair.items()
    )
    work = Work.of(instance, [second, first, third, fourth])
    plain = list_schedule(instance, work, range(4))
    fitting = list_schedule(instance, work, range(4), rule=Rule(fitting=True))
    assert plain is not None
    assert fitting is not None
    assert [(len(send.chunks), send.path, send.start_us) for send in plain.sends] == [
        (2, first.path, 0), (1, third.path, 1), (1, first.path, 2), (2, third.path, 2.5),
    ]  # fmt: skip
    assert [(len(send.chunks), send.path, send.start_us) for send in fitting.sends] == [
        (1, first.path, 0), (1, third.path, 0.5), (2, first.path, 1), (2, third.path, 2),
    ]  # fmt: skip
    assert fitting.makespan_us == plain.makespan_us - 0.5


def test_messages_that_wait_for_each_other_are_refused() -> None:
    instance = instance_of(full(3), "broadcast", 1, CHUNK, root=0)
    work = Work.of(instance, [Message((0,), over(instance, 1, 2)), Message((0,), over(instance, 2, 1))])
    with pytest.raises(CheckError, match="circle"):
        list_schedule(instance, work, [0, 1])
    with pytest.raises(CheckError, match="circle"):
        work.causal_order()


def test_causal_order_puts_everything_after_what_it_waits_for() -> None:
    instance = instance_of(line(4), "broadcast", 1, CHUNK, root=0)
    ways = [over(instance, *pair) for pair in ((2, 3), (1, 2), (0, 1))]
    assert Work.of(instance, [Message((0,), path) for path in ways]).causal_order() == [2, 1, 0]


def test_nothing_to_send_is_an_empty_schedule() -> None:
    instance = instance_of(line(2), "broadcast", 1, CHUNK, root=0)
    assert list_schedule(instance, Work.of(instance, []), []) == Schedule(())
