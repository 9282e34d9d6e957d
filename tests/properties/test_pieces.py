"""Laws of pieces: chunks of one owner that take the same way, in messages that grow and shrink again."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.instance import Instance
from synth.ir import Routing, predecessors
from synth.lowering import LoweringOptions, lower
from synth.ordering import Rounds, in_pieces
from synth.ordering.pieces import sizes_of
from synth.solve import Stages
from synth.strategies import StrategyOptions, over_few_ways, strategy
from synth.timing import busiest_link_us, check_routing, check_schedule
from synth.verify import verify_algo
from tests.graphs import full, instance_of, line, mesh, ring, star, two_boxes
from tests.schedules import random_schedule

MACHINES = (line(3), ring(4), full(4), mesh(2, 3), star(4), two_boxes(ring(3)))
TREES = strategy("trees", StrategyOptions())


def instances() -> st.SearchStrategy[Instance]:
    return st.builds(
        lambda machine, name, share, size: instance_of(
            machine, name, share * (machine.num_ranks if name == "allreduce" else 1), size
        ),
        st.sampled_from(MACHINES),
        st.sampled_from(["allgather", "reduce-scatter", "allreduce"]),
        st.integers(1, 12),
        st.sampled_from([16.0, 4e5, 4e6]),
    )


def routings(instance: Instance, seed: int) -> Routing:
    """Chunks that take ways of their own for odd seeds, few ones for even ones."""
    if seed % 2:
        return Routing(tuple(sorted(random_schedule(instance, random.Random(seed)).transfers())))
    solution = Stages().in_rounds(instance, over_few_ways(TREES), Rounds("Simple"))
    assert solution.interpreted is not None
    return Routing(tuple(sorted(solution.interpreted.transfers())))


def ways_of(instance: Instance, routing: Routing) -> Counter[tuple[int, tuple[tuple[int, bool], ...]]]:
    """By owner and way, how many chunks take it."""
    ways: dict[int, list[tuple[int, bool]]] = defaultdict(list)
    for chunk, path, reduce in sorted(routing.transfers):
        ways[chunk].append((path, reduce))
    return Counter((instance.owner(chunk), tuple(way)) for chunk, way in ways.items())


@settings(max_examples=40, deadline=None)
@given(instance=instances(), seed=st.integers(0, 99), most=st.integers(1, 12))
def test_the_same_chunks_of_every_owner_take_the_same_ways(instance: Instance, seed: int, most: int) -> None:
    routing = routings(instance, seed)
    moved, pieces = in_pieces(instance, routing, most)
    check_routing(instance, moved)
    assert ways_of(instance, moved) == ways_of(instance, routing)
    assert busiest_link_us(instance, moved.transfers) == pytest.approx(busiest_link_us(instance, routing.transfers))
    assert sorted(chunk for piece in pieces for chunk in piece) == sorted({each.chunk for each in moved.transfers})
    alike: dict[int, set[tuple[int, bool]]] = defaultdict(set)
    for chunk, path, reduce in moved.transfers:
        alike[chunk].add((path, reduce))
    for piece in pieces:
        assert list(piece) == list(range(piece[0], piece[0] + len(piece)))
        assert len({instance.owner(chunk) for chunk in piece}) == 1
        assert all(alike[chunk] == alike[piece[0]] for chunk in piece)


@settings(max_examples=80)
@given(chunks=st.lists(st.integers(1, 60), min_size=1, max_size=6), most=st.integers(1, 80))
def test_as_many_pieces_as_are_allowed_and_small_ones_at_either_end(chunks: list[int], most: int) -> None:
    ways = dict(enumerate(chunks))
    pieces = sizes_of(ways, most)
    dealt: Counter[int] = Counter()
    for way, size in pieces:
        dealt[way] += size
    assert dealt == ways
    assert len(pieces) <= max(most, len(ways))
    if len(ways) == 1:
        sizes = [size for _, size in pieces]
        # Up to the largest they grow, and then they shrink.
        middle = sizes.index(max(sizes))
        assert sizes[: middle + 1] == sorted(sizes[: middle + 1])
        if most >= sum(chunks):
            assert sizes == [1] * sum(chunks)
        elif len(sizes) > 4:
            assert sizes[0] < max(sizes)


@settings(max_examples=30, deadline=None)
@given(instance=instances(), seed=st.integers(0, 99), most=st.integers(1, 8))
def test_a_message_waits_for_all_it_needs_and_a_sum_is_added_to_once_at_a_time(
    instance: Instance, seed: int, most: int
) -> None:
    moved, pieces = in_pieces(instance, routings(instance, seed), most)
    schedule, _ = Rounds("Simple")(instance, moved, pieces)
    assert sorted(schedule.transfers()) == list(moved.transfers)
    by_piece = {(send.chunks[0], send.path, send.reduce): send for send in schedule.sends}
    whole = {piece[0]: piece for piece in pieces}
    assert all(send.chunks == whole[send.chunks[0]] for send in schedule.sends)
    firsts = [each for each in moved.transfers if each.chunk in whole]
    for transfer, before in predecessors(instance, firsts).items():
        for other in before:
            earlier, later = by_piece[tuple(other)], by_piece[tuple(transfer)]
            assert earlier.arrive_us <= later.start_us + 1e-6
    added: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for send in schedule.sends:
        if send.reduce:
            added[instance.paths[send.path].dst, send.chunks[0]].append((send.start_us, send.arrive_us))
    for times in added.values():
        for (_, end), (start, _) in pairwise(sorted(times)):
            assert start >= end - 1e-6


@settings(max_examples=25, deadline=None)
@given(instance=instances(), seed=st.integers(0, 99), most=st.integers(1, 8))
def test_programs_in_pieces_are_right(instance: Instance, seed: int, most: int) -> None:
    moved, pieces = in_pieces(instance, routings(instance, seed), most)
    schedule, _ = Rounds("Simple")(instance, moved, pieces)
    algo = lower(instance, schedule, LoweringOptions())
    verify_algo(algo, instance.collective)


@settings(max_examples=15, deadline=None)
@given(instance=instances(), most=st.integers(1, 8))
def test_a_solution_in_pieces_has_an_exact_schedule_of_its_own(instance: Instance, most: int) -> None:
    solution = Stages().in_rounds(instance, over_few_ways(TREES), Rounds("Simple"), most)
    assert solution.interpreted is not None
    check_schedule(instance, solution.schedule, Routing(solution.interpreted.transfers()))


def test_links_wait_for_the_first_sums_as_long_as_the_first_pieces_take() -> None:
    """Over two boxes 16 messages a rank end 5 % later than the busiest link does; cut twice as finely into as many, 3 %."""
    machine = two_boxes(ring(6))
    later = {}
    for count in (16, 32):
        instance = instance_of(machine, "reduce-scatter", count, 16e6 * 16 / count)
        solution = Stages().in_rounds(instance, over_few_ways(TREES), Rounds("Simple"), 16)
        assert solution.interpreted is not None
        assert len(solution.interpreted.sends) <= 16 * 12 * 11
        busiest_us = busiest_link_us(instance, solution.interpreted.transfers())
        later[count] = solution.interpreted.makespan_us / busiest_us
    assert 1.0 <= later[32] < later[16] - 0.015


@pytest.mark.parametrize("count", [16, 32])
def test_on_a_mesh_links_wait_for_no_sums_whether_pieces_are_chunks_or_not(count: int) -> None:
    instance = instance_of(mesh(3, 3), "reduce-scatter", count, 16e6 * 16 / count)
    solution = Stages().in_rounds(instance, over_few_ways(TREES), Rounds("Simple"), 16)
    assert solution.interpreted is not None
    assert len(solution.interpreted.sends) <= 16 * 9 * 8
    busiest_us = busiest_link_us(instance, solution.interpreted.transfers())
    assert solution.interpreted.makespan_us == pytest.approx(busiest_us)
