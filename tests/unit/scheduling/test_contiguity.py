"""Contiguity: chunks travel together where that costs nothing, and the routing stays what it was."""

from __future__ import annotations

import pytest

from synth.instance import Instance
from synth.ir import Message, Schedule
from synth.scheduling.contiguity import Contiguity
from synth.timing import check_schedule, retime
from synth.topology import Topology
from tests.graphs import both_ways, gpus, instance_of, line
from tests.schedules import tree_schedule

CHUNK = 1e4  # keeps a link of 10 GB/s for 1 us


def over(instance: Instance, src: int, dst: int) -> int:
    return next(path.index for path in instance.paths if (path.src, path.dst) == (src, dst))


def grouped(instance: Instance, schedule: Schedule, max_group: int = 64) -> Schedule:
    """What contiguity makes of it; the same transfers, feasible, no later."""
    result = Contiguity(max_group)(instance, schedule)
    check_schedule(instance, result)
    assert set(result.transfers()) == set(schedule.transfers())
    assert result.makespan_us <= schedule.makespan_us + 1e-6
    return result


def chunks_of(schedule: Schedule) -> list[tuple[int, ...]]:
    return [send.chunks for send in schedule.sends]


def one_by_one(instance: Instance, chunks: int) -> Schedule:
    """All chunks from rank 0 to rank 1."""
    return retime(instance, [Message((chunk,), over(instance, 0, 1)) for chunk in range(chunks)])


def test_chunks_that_nobody_waits_for_become_one_message() -> None:
    instance = instance_of(line(2), "broadcast", 4, CHUNK, root=0)
    schedule = grouped(instance, one_by_one(instance, 4))
    assert chunks_of(schedule) == [(0, 1, 2, 3)]
    assert schedule.makespan_us == 5.0


def test_a_relay_that_would_lose_its_pipelining_stays_apart() -> None:
    instance = instance_of(line(3), "broadcast", 2, CHUNK, root=0)
    ways = (over(instance, 0, 1), over(instance, 1, 2))
    schedule = retime(instance, [Message((chunk,), way) for way in ways for chunk in (0, 1)])
    assert chunks_of(grouped(instance, schedule)) == [(0,), (1,), (0,), (1,)]


def test_only_the_hop_that_nobody_waits_for_is_merged() -> None:
    # Rank 2 needs chunk 2 alone, over rank 1, which keeps chunks 0 and 1 of the others' shares.
    instance = instance_of(line(3), "scatter", 2, CHUNK, root=0)
    first, second = over(instance, 0, 1), over(instance, 1, 2)
    order = [(4, first), (5, first), (2, first), (3, first), (4, second), (5, second)]
    schedule = grouped(instance, retime(instance, [Message((chunk,), way) for chunk, way in order]))
    assert [send.chunks for send in schedule.sends if send.path == first] == [(4,), (5,), (2, 3)]


def test_a_gap_for_every_message_makes_grouping_pay() -> None:
    links = tuple(both_ways("gpu0", "gpu1", 10.0, 1.0, gap_us=1.0))
    instance = instance_of(Topology("gapped", tuple(gpus(2)), links), "broadcast", 2, CHUNK, root=0)
    apart = one_by_one(instance, 2)
    assert apart.makespan_us == 5.0  # 2 us a message on the link, then alpha
    assert grouped(instance, apart).makespan_us == 4.0  # 3 us on the link, then alpha


def test_no_message_is_longer_than_allowed() -> None:
    instance = instance_of(line(2), "broadcast", 8, CHUNK, root=0)
    sizes = [len(chunks) for chunks in chunks_of(grouped(instance, one_by_one(instance, 8), max_group=3))]
    assert sum(sizes) == 8
    assert max(sizes) <= 3


def test_chunks_of_different_owners_do_not_travel_together() -> None:
    # Rank 1 sends its own chunk 1 and rank 0's chunk 0 to rank 2: neighbours by number, not in any buffer of rank 0.
    instance = instance_of(line(3), "allgather", 1, CHUNK)
    schedule = grouped(instance, tree_schedule(instance))
    assert all(len(chunks) == 1 for chunks in chunks_of(schedule))


@pytest.mark.parametrize("name", ["allgather", "alltoall"])
def test_shares_of_several_chunks_travel_in_fewer_messages(name: str) -> None:
    instance = instance_of(line(4), name, 4, 1e3)
    schedule = tree_schedule(instance)
    assert len(grouped(instance, schedule).sends) < len(schedule.sends)


def test_an_empty_schedule_stays_empty() -> None:
    instance = instance_of(Topology("alone", tuple(gpus(1)), ()), "allgather")
    assert Contiguity()(instance, Schedule(())) == Schedule(())
