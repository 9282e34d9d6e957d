"""Others' algorithms as candidates: which cuts are tried, and rings that the chunks do not divide by."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

import pytest

from synth.baselines import Machine, instance_of
from synth.candidates.transfers import with_count
from synth.collective import Collective, CollectiveName
from synth.errors import NoAnswerError
from synth.inputs.load import load_topology
from synth.ir import Transfer
from synth.known import LOOPS, around_rings, known_counts, known_solution, looped_counts
from synth.lowering import LoweringOptions
from synth.ordering import Loops, Turns
from synth.paths import find_paths
from synth.simulate import Simulator
from synth.solve import Solution, Stages
from synth.timing import check_schedule, link_loads_us
from synth.topology import Topology
from synth.verify import VerifyError, verify_algo
from tests.graphs import full, line, ring

POWERS = tuple(1 << exponent for exponent in range(10))
MB = 1 << 20


def machine(topology: Topology) -> Machine:
    return Machine(topology, find_paths(topology))


def test_what_divides_is_cut_as_it_is() -> None:
    two_ways = machine(ring(4))
    assert known_counts("ring", two_ways, Collective(CollectiveName.ALLGATHER, 4, 4), POWERS) == [2]
    assert known_counts("ring", two_ways, Collective(CollectiveName.ALLREDUCE, 4, 4), POWERS) == [8]
    assert known_counts("tree", two_ways, Collective(CollectiveName.ALLGATHER, 4, 4), POWERS) == []


@pytest.mark.parametrize("name", [CollectiveName.ALLGATHER, CollectiveName.REDUCE_SCATTER])
def test_six_rings_are_dealt_a_power_of_two_as_evenly_as_it_goes(name: CollectiveName) -> None:
    """A DGX-1 has six. Of 256 chunks four rings carry 43 and two 42, other ones of the next share; each share in a message a hop: a
    link carries 300 chunks at most, 0.4 % more than a sixth of seven shares.
    """
    topology = load_topology("dgx1")
    six = machine(topology)
    (count,) = known_counts("ring", six, Collective(name, 8, 8), POWERS)
    assert count == 256
    collective = Collective(name, 8, 8 * count)
    solution = known_solution("ring", six, collective, 16 * MB)
    assert Counter(len(send.chunks) for send in solution.schedule.sends) == {43: 4 * 8 * 7, 42: 2 * 8 * 7}
    loads = link_loads_us(solution.instance, [transfer.path for transfer in solution.schedule.transfers()])
    assert max(loads.values()) <= 300 * 2 * MB / 256 / 22e3 * (1 + 1e-6)
    verify_algo(solution.program(LoweringOptions(max_threadblocks=64)), collective)


def test_where_that_takes_too_many_chunks_rings_are_dealt_less_evenly() -> None:
    """An allreduce has a ring for every rank to begin at: 48 shares of 2048 chunks are 42 or 43, of 512 10 or 11, 3 % more than
    even; and so are six of 64. What is as even and finer has longer messages, and gains nothing; what has more chunks than a step
    holds is two steps.
    """
    six = machine(load_topology("dgx1"))
    powers = (*POWERS, 1024, 2048, 4096)
    assert known_counts("ring", six, Collective(CollectiveName.ALLREDUCE, 8, 8), powers) == [2048]
    assert known_counts("ring", six, Collective(CollectiveName.ALLREDUCE, 8, 8), powers[:-2]) == [512]
    assert known_counts("ring", six, Collective(CollectiveName.ALLGATHER, 8, 8), (1, 8, 64, 128)) == [64]
    # 96 shares of 1000 chunks are 11 or 10: 5.6 % more than even; of 625, which is 7 or 6, 7.5 %.
    node, sums = machine(load_topology("mi250")), Collective(CollectiveName.ALLREDUCE, 16, 16)
    assert known_counts("ring", node, Collective(CollectiveName.ALLGATHER, 16, 16), POWERS) == [256]
    assert known_counts("ring", node, sums, (1, 250, 500, 625, 1000)) == [1000]
    assert known_counts("ring", node, sums, (1, 250, 500, 625)) == []
    assert known_counts("ring", six, Collective(CollectiveName.ALLGATHER, 8, 8), (1, 512)) == []


@pytest.mark.parametrize("name", [CollectiveName.BROADCAST, CollectiveName.REDUCE])
def test_from_one_rank_or_to_one_six_rings_are_dealt_about_as_many_pieces_as_they_would_have(
    name: CollectiveName,
) -> None:
    """6, 12, 24, 48, 96 and 192 of their own. Where these divide the buffer the coarsest and the finest are tried."""
    collective = Collective(name, 8, 1, root=0)
    six = machine(load_topology("dgx1"))
    assert known_counts("ring", six, collective, POWERS) == [8, 16, 32, 64, 128, 256]
    assert known_counts("ring", six, collective, (1, 2, 16, 64)) == [16, 64]
    assert known_counts("ring", six, collective, (1, 2, 4)) == []
    assert known_counts("ring", six, collective, (6, 12, 96)) == [6, 96]


def test_a_ring_that_is_for_small_buffers_alone_needs_no_threadblock_but_its_own() -> None:
    """22 chunks are one transfer of 8 MB, but 22 of 1 GB: more than a connection holds, so that a GPU sends and receives apart."""
    collective = Collective(CollectiveName.ALLREDUCE, 8, 1024)
    solution = known_solution("ring", machine(load_topology("dgx1")), collective, 8 * MB)
    small, large = (solution.program(LoweringOptions(inplace=True, max_bytes=size)) for size in (8 * MB, 1 << 30))
    assert small.threadblocks == 6 < large.threadblocks
    for algo in (small, large):
        verify_algo(algo, collective, runtime="msccl")
    with pytest.raises(VerifyError, match="deadlock"):
        verify_algo(replace(small, max_bytes=1 << 30), collective, runtime="msccl")


@pytest.mark.parametrize("name", [CollectiveName.BROADCAST, CollectiveName.REDUCE])
def test_chunks_follow_each_other_around_rings(name: CollectiveName) -> None:
    """Every rank but one sends each chunk once, and every one but one gets it once: no sum waits for two."""
    six = machine(load_topology("dgx1"))
    instance = instance_of(six, Collective(name, 8, 96, 3), 16 * MB)
    sums = name is CollectiveName.REDUCE
    around = partial(around_rings, six.reversed() if sums else six)
    solution = Stages().in_turns(instance, around, Turns())
    taken = [transfer for transfer in solution.schedule.transfers() if transfer.chunk == 40]
    assert {transfer.reduce for transfer in taken} == {sums}
    ends = [{six.paths[each.path].dst for each in taken}, {six.paths[each.path].src for each in taken}]
    assert [len(ranks) for ranks in ends] == [7, 7] == [len(taken)] * 2
    assert 3 not in ends[sums]
    assert 3 in ends[not sums]
    assert len({tuple(sorted(ways)) for ways in paths_of(solution.schedule.transfers()).values()}) == 6
    loads = link_loads_us(instance, [transfer.path for transfer in solution.schedule.transfers()])
    assert max(loads.values()) == pytest.approx(16 * MB / 6 / 22e3)
    verify_algo(solution.program(LoweringOptions(max_threadblocks=64)), instance.collective)


def in_loops(six: Machine, collective: Collective, size: int, loops: int) -> Solution:
    """All ranks' chunks around the rings of a machine, as many `loops` of them."""
    instance = instance_of(six, collective, size)
    return Stages().in_rounds(
        instance, lambda shown: around_rings(six if shown is instance else six.reversed(), shown), Loops(loops)
    )


@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.parametrize("loops", [1, 2, 3])
def test_loops_go_around_rings_in_step(name: CollectiveName, loops: int) -> None:
    """In every round a rank sends a message around each ring, and gets one: a hop of one loop of every owner's."""
    six = machine(load_topology("dgx1"))
    hops = 14 if name is CollectiveName.ALLREDUCE else 7
    collective = Collective(name, 8, 8 * 36)
    solution = in_loops(six, collective, 16 * MB, loops)
    assert solution.rounds == hops * loops
    assert solution.interpreted is not None
    check_schedule(solution.instance, solution.schedule)
    round_us = solution.interpreted.makespan_us / solution.rounds
    sent: Counter[tuple[int, int]] = Counter()
    for send in solution.interpreted.sends:
        number = round(send.start_us / round_us)
        assert send.arrive_us == pytest.approx((number + 1) * round_us)
        assert len(send.chunks) == 6 // loops
        assert send.reduce == (name is not CollectiveName.ALLGATHER and number % hops < 7)
        sent[number, six.paths[send.path].src] += 1
    assert sum(sent.values()) == solution.rounds * 6 * 8
    assert set(sent.values()) == {6}
    verify_algo(solution.program(LoweringOptions(max_threadblocks=64)), collective)


@pytest.mark.parametrize("name", LOOPS)
def test_in_loops_a_gigabyte_fills_no_connection(name: CollectiveName) -> None:
    """In the order of exact times, a message a hop, the same rings take at least 1.25 times as long."""
    topology = load_topology("dgx1")
    six, uncut, counts = machine(topology), Collective(name, 8, 8), (*POWERS, 1024, 2048)
    (count,) = looped_counts(six, uncut, counts)
    assert count == (2048 if name is CollectiveName.ALLREDUCE else 512)
    (known,) = known_counts("ring", six, uncut, counts)
    looped = in_loops(six, with_count(uncut, count), 1 << 30, LOOPS[name])
    listed = known_solution("ring", six, with_count(uncut, known), 1 << 30)
    options = LoweringOptions(instances=4, few_steps=False)
    looped_us, listed_us = (Simulator(each.program(options), topology).time_us(1 << 30) for each in (looped, listed))
    assert looped_us * 1.25 < listed_us
    halves = 2 if name is CollectiveName.ALLREDUCE else 1
    assert looped_us * 0.95 < halves * 7 / 8 * (1 << 30) / (6 * 22e3)


def test_what_rings_share_evenly_goes_in_no_loops() -> None:
    two_ways = machine(ring(4))
    assert looped_counts(two_ways, Collective(CollectiveName.ALLGATHER, 4, 4), POWERS) == []
    assert looped_counts(machine(line(3)), Collective(CollectiveName.ALLGATHER, 3, 3), POWERS) == []
    assert looped_counts(two_ways, Collective(CollectiveName.ALLTOALL, 4, 4), POWERS) == []
    assert looped_counts(machine(load_topology("dgx1")), Collective(CollectiveName.ALLGATHER, 8, 8), (1, 2, 4)) == []


def paths_of(transfers: Iterable[Transfer]) -> dict[int, list[int]]:
    paths: dict[int, list[int]] = defaultdict(list)
    for transfer in transfers:
        paths[transfer.chunk].append(transfer.path)
    return paths


def test_where_there_is_no_ring_none_is_followed() -> None:
    line_of_three = machine(line(3))
    instance = instance_of(line_of_three, Collective(CollectiveName.BROADCAST, 3, 4, 0), MB)
    with pytest.raises(NoAnswerError, match="ring"):
        around_rings(line_of_three, instance)


def test_few_chunks_are_not_dealt_to_six_rings() -> None:
    six = machine(load_topology("dgx1"))
    assert known_counts("ring", six, Collective(CollectiveName.ALLGATHER, 8, 8), (1, 2, 4, 8)) == []
    assert known_counts("ring", machine(full(4)), Collective(CollectiveName.ALLTOALL, 4, 4), POWERS) == []


def test_too_many_transfers_are_refused() -> None:
    with pytest.raises(NoAnswerError, match="at most 62000 are tried"):
        known_solution("ring", machine(ring(4)), Collective(CollectiveName.ALLGATHER, 4, 4 * 8192), MB)
