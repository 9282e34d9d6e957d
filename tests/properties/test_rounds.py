"""Laws of ordering in rounds, on random routings: what a round may hold, and what it may not."""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.instance import Instance
from synth.ir import Message, Routing, Schedule, predecessors
from synth.list_scheduler import Work
from synth.lowering import LoweringOptions, lower
from synth.ordering import Rounds
from synth.reductions.reverse import reverse_routing
from synth.routing.hierarchy import HierarchyRouting
from synth.routing.trees import TreesRouting
from synth.solve import Stages
from synth.strategies import StrategyOptions, over_few_ways, strategy
from synth.timing import busiest_link_us, check_schedule
from synth.topology import Topology
from synth.verify import verify_algo
from tests.folding import boxed, cluster, unfolded
from tests.graphs import full, instance_of, line, mesh, ring, star, two_boxes
from tests.schedules import random_schedule

MACHINES = (line(3), ring(4), full(4), mesh(2, 3), star(4), two_boxes(ring(3)), two_boxes(star(2), (0, 1)))
NAMES = ("allgather", "reduce-scatter", "allreduce", "broadcast", "alltoall")
MB = 1 << 20
TREES = strategy("trees", StrategyOptions())


def instances(names: tuple[str, ...] = NAMES) -> st.SearchStrategy[Instance]:
    return st.builds(
        lambda machine, name, chunks, size: instance_of(
            machine, name, chunks, size, root=0 if name == "broadcast" else None
        ),
        st.sampled_from(MACHINES),
        st.sampled_from(names),
        st.integers(1, 4),
        st.sampled_from([16.0, 4e5, 4e6]),
    )


def rounds_of(schedule: Schedule, count: int) -> list[list[int]]:
    """By round, the places in the schedule of its messages."""
    found: list[list[int]] = [[] for _ in range(count)]
    round_us = schedule.makespan_us / count
    for place, send in enumerate(schedule.sends):
        found[round(send.arrive_us / round_us) - 1].append(place)
    return found


@settings(max_examples=40)
@given(instance=instances(), seed=st.integers(0, 99))
def test_a_round_holds_what_links_can_carry_and_connections_can_add(instance: Instance, seed: int) -> None:
    routing = Routing(tuple(sorted(random_schedule(instance, random.Random(seed)).transfers())))
    schedule, count = Rounds("Simple")(instance, routing)
    assert sorted(schedule.transfers()) == list(routing.transfers)
    obeys_the_laws(instance, schedule, count)


@settings(max_examples=30)
@given(
    box=st.sampled_from([ring(3), full(4), star(2), star(4)]),
    nics=st.integers(1, 2),
    nodes=st.integers(2, 4),
    per_rank=st.integers(1, 3),
    size=st.sampled_from([1e4, 64e6]),
    name=st.sampled_from(["allgather", "reduce-scatter"]),
)
def test_what_is_in_rounds_for_one_box_is_for_all(
    box: Topology, nics: int, nodes: int, per_rank: int, size: float, name: str
) -> None:
    topology = cluster(box, nodes, tuple((rank, 5.0) for rank in range(nics)))
    instance, answer = boxed(topology, name, per_rank, size)
    folded = answer.instance
    if name == "reduce-scatter":
        routing = reverse_routing(HierarchyRouting()(folded.reversed(), answer.boxes)[0])
    else:
        routing, _ = HierarchyRouting()(folded, answer.boxes)
    one, count = Rounds("Simple")(folded, routing, boxes=answer.boxes)
    schedule = answer.unfold(one)
    assert sorted(schedule.transfers()) == list(unfolded(answer, routing).transfers)
    obeys_the_laws(instance, schedule, count)


def obeys_the_laws(instance: Instance, schedule: Schedule, count: int) -> None:
    """No link carries more than it can, no sum is added to twice in a round, and what a message needs is two rounds older."""
    round_us = schedule.makespan_us / count
    number = {}
    loads: dict[int, list[float]] = defaultdict(lambda: [0.0] * count)
    largest_us: dict[int, float] = defaultdict(float)
    for place, places in enumerate(rounds_of(schedule, count)):
        added = Counter()
        for send in (schedule.sends[each] for each in places):
            assert place * round_us - 1e-6 <= send.start_us < send.arrive_us
            path = instance.paths[send.path]
            number[send.chunks[0], send.path, send.reduce] = place
            added[path.dst, send.chunks] += send.reduce
            for link, busy_us in zip(path.links, path.busy_us(instance.chunk_bytes), strict=True):
                loads[link][place] += busy_us
                largest_us[link] = max(largest_us[link], busy_us)
        assert max(added.values(), default=0) <= 1
    for transfer, before in predecessors(instance, schedule.transfers()).items():
        assert all(number[tuple(other)] + 2 <= number[tuple(transfer)] for other in before)
    for link, carried in loads.items():
        # What was left idle in the round before may be made up for by one message.
        assert max(carried) <= round_us + largest_us[link] + 1e-3
        assert all(sum(pair) <= 2 * round_us + largest_us[link] + 1e-3 for pair in pairwise(carried))


@settings(max_examples=25, deadline=None)
@given(instance=instances(), seed=st.integers(0, 99), channels=st.sampled_from([None, 2]))
def test_programs_made_in_rounds_are_right(instance: Instance, seed: int, channels: int | None) -> None:
    routing = Routing(tuple(sorted(random_schedule(instance, random.Random(seed)).transfers())))
    schedule, _ = Rounds("Simple")(instance, routing)
    root = 0 if instance.collective.root is not None else None
    algo = lower(instance, schedule, LoweringOptions(inplace=root is not None, channels=channels))
    verify_algo(algo, instance.collective)


@pytest.mark.parametrize("ranks", [3, 4, 6, 8])
@pytest.mark.parametrize("name", ["allgather", "reduce-scatter"])
def test_behind_one_switch_no_link_is_ever_idle(name: str, ranks: int) -> None:
    """The oracle is the load of the busiest link: sums are made in groups of one size, so that all ranks end at once."""
    instance = instance_of(star(ranks), name, 8 * (ranks - 1), 2.0 * MB)
    backwards = name == "reduce-scatter"
    routing, _ = TreesRouting()(instance.reversed() if backwards else instance)
    whole = reverse_routing(routing) if backwards else routing
    schedule, _ = Rounds("Simple")(instance, whole)
    assert schedule.makespan_us == pytest.approx(busiest_link_us(instance, whole.transfers), rel=5e-3)


@pytest.mark.parametrize(("steps", "apart"), [(256, 2), (8, 2), (4, 3), (2, 5)])
def test_messages_that_share_a_link_with_more_threadblocks_are_given_more_rounds(steps: int, apart: int) -> None:
    """Eight chunks down a line: two steps a threadblock make four of them, which share the link for four rounds."""
    instance = instance_of(line(3, GBps=5.0), "broadcast", 8, 4.0 * MB, root=0)
    schedule, count = Rounds("Simple", steps=steps)(instance, TREES(instance).routing)
    number = {
        (schedule.sends[place].path, *schedule.sends[place].chunks): each
        for each, places in enumerate(rounds_of(schedule, count))
        for place in places
    }
    assert {number[second, chunk] - number[first, chunk] for (first, second), chunk in _hops(instance, schedule)} == {
        apart
    }
    assert count == 8 + apart


@pytest.mark.parametrize(("alpha_us", "chunk_bytes", "apart"), [(1.0, 4.0 * MB, 2), (50.0, 0.25 * MB, 3)])
def test_a_message_over_a_link_of_long_latency_is_given_more_rounds(
    alpha_us: float, chunk_bytes: float, apart: int
) -> None:
    """A chunk keeps the line for 52 us or more, so that 50 us more on the way are about a round."""
    instance = instance_of(line(3, GBps=5.0, alpha_us=alpha_us), "broadcast", 8, chunk_bytes, root=0)
    _, count = Rounds("Simple")(instance, TREES(instance).routing)
    assert count == 8 + apart


def _hops(instance: Instance, schedule: Schedule) -> list[tuple[tuple[int, int], int]]:
    """The paths into a rank that passes a chunk on and out of it, and the chunk."""
    before = predecessors(instance, schedule.transfers())
    return [((other[1], transfer.path), transfer.chunk) for transfer, others in before.items() for other in others]


@settings(max_examples=15, deadline=None)
@given(instance=instances(("allgather", "reduce-scatter", "allreduce")), seed=st.integers(0, 99))
def test_more_paces_are_never_worse(instance: Instance, seed: int) -> None:
    routing = Routing(tuple(sorted(random_schedule(instance, random.Random(seed)).transfers())))
    all_us = Rounds("Simple")(instance, routing)[0].makespan_us
    assert all_us <= Rounds("Simple", turns=Rounds.turns[:1])(instance, routing)[0].makespan_us + 1e-6
    assert all_us <= Rounds("Simple", abreast=())(instance, routing)[0].makespan_us + 1e-6


@settings(max_examples=15, deadline=None)
@given(instance=instances(), seed=st.integers(0, 99))
def test_there_and_back_nothing_takes_longer(instance: Instance, seed: int) -> None:
    routing = Routing(tuple(sorted(random_schedule(instance, random.Random(seed)).transfers())))
    all_us = Rounds("Simple")(instance, routing)[0].makespan_us
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("synth.ordering.rounds._NEARLY_ENOUGH", math.inf)
        assert all_us <= Rounds("Simple")(instance, routing)[0].makespan_us + 1e-6


@pytest.mark.parametrize(
    ("machine", "name", "count", "later"),
    [(mesh(3, 3), "reduce-scatter", 8, 1.0), (mesh(4, 4), "allreduce", 128, 1.01)],
    ids=lambda value: getattr(value, "name", value),
)
def test_there_and_back_links_are_busy_at_either_end(
    machine: Topology, name: str, count: int, later: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one direction alone links wait for the first sums, or idle while the last are on their way."""
    instance = instance_of(machine, name, count, 16e6)

    def taken() -> float:
        solution = Stages().in_rounds(instance, over_few_ways(TREES), Rounds("Simple"))
        assert solution.interpreted is not None
        return solution.interpreted.makespan_us / busiest_link_us(instance, solution.interpreted.transfers())

    settled = taken()
    assert 1.0 - 1e-6 <= settled <= later + 1e-3
    monkeypatch.setattr("synth.ordering.rounds._NEARLY_ENOUGH", math.inf)
    assert taken() > settled * 1.01


@settings(max_examples=15, deadline=None)
@given(instance=instances(("allgather", "reduce-scatter", "allreduce")))
def test_a_solution_in_rounds_has_an_exact_schedule_of_its_own(instance: Instance) -> None:
    solution = Stages().in_rounds(instance, TREES, Rounds("Simple"))
    assert solution.interpreted is not None
    check_schedule(instance, solution.schedule, Routing(solution.interpreted.transfers()))
    assert solution.rounds >= 1


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
@pytest.mark.parametrize("name", ["allgather", "allreduce"])
def test_few_ways_are_taken_where_they_load_links_as_evenly(machine: Topology, name: str) -> None:
    each = machine.num_ranks if name == "allreduce" else 1
    instance, whole = instance_of(machine, name, 4 * each, 4e5), instance_of(machine, name, each, 4 * 4e5)
    many, few = TREES(instance).routing, over_few_ways(TREES)(instance).routing
    least_us = busiest_link_us(instance, many.transfers)
    assert busiest_link_us(instance, few.transfers) <= least_us * 1.005 + 1e-6
    if busiest_link_us(whole, TREES(whole).routing.transfers) <= least_us * 1.005:
        assert sorted(_ways(instance, few).values()) == [4] * machine.num_ranks
    else:
        assert few == many


def _ways(instance: Instance, routing: Routing) -> Counter[tuple[int, tuple[int, ...]]]:
    """By owner and the paths that its chunks take, how many do."""
    paths: dict[int, list[int]] = defaultdict(list)
    for transfer in routing.transfers:
        paths[transfer.chunk].append(transfer.path)
    return Counter((instance.owner(chunk), tuple(sorted(taken))) for chunk, taken in paths.items())


def test_one_chunk_a_rank_has_no_parts() -> None:
    instance = instance_of(ring(4), "allgather", 1, 4e5)
    assert over_few_ways(TREES)(instance) == TREES(instance)


@settings(max_examples=40)
@given(instance=instances(("reduce-scatter",)), seed=st.integers(0, 99))
def test_backwards_copies_are_waited_for_by_what_they_wait_for_as_contributions(instance: Instance, seed: int) -> None:
    transfers = sorted(random_schedule(instance, random.Random(seed)).transfers())
    sums = [Message((chunk,), path, reduce=True) for chunk, path, _ in transfers]
    copies = [message._replace(reduce=False) for message in sums]
    turned = Work.waiting(copies, Work.of(instance, sums).after)
    assert turned == Work.of(instance.reversed(), copies)
