"""The programs against exhaustive search on tiny machines, and against the checkers on small ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.errors import CheckError
from synth.instance import Demand, Instance
from synth.ir import Message, Routing, Schedule, Transfer
from synth.milp import SolveOptions
from synth.ordering.orderer import Ordering
from synth.reductions.symmetry import find_symmetries
from synth.routing.milp import TIE_SHARE, MilpRouting
from synth.routing.relaxed import relaxed_cost, shortest_routing, tree_of
from synth.scheduling.milp import TIE_SHARE as SCHEDULE_TIE_SHARE
from synth.scheduling.milp import MilpScheduling
from synth.timing import check_routing, check_schedule, retime
from synth.topology import Topology
from tests.graphs import from_pairs, full, instance_of, line, mesh, ring, star

EXACT = SolveOptions(gap=0.0)
#: No detour is pruned, so the exhaustive search and the program look at the same routings.
ANY_DETOUR = 100.0
rates = st.sampled_from([1.0, 2.0, 5.0, 10.0])
sizes = st.sampled_from([1e3, 3e4, 1e6])


@st.composite
def tiny_machines(draw: st.DrawFn, most: int = 4) -> Topology:
    """2 to `most` GPUs: a line plus some chords, every link with a rate and a latency of its own."""
    count = draw(st.integers(2, most))
    chords = [(a, b) for a in range(count) for b in range(a + 2, count)]
    extra = draw(st.lists(st.sampled_from(chords), unique=True)) if chords else []
    bare = from_pairs("tiny", count, [*((i, i + 1) for i in range(count - 1)), *sorted(extra)])
    return replace(
        bare,
        links=tuple(replace(link, GBps=draw(rates), gap_us=draw(st.sampled_from([0.0, 5.0]))) for link in bare.links),
    )


@st.composite
def small_machines(draw: st.DrawFn) -> Topology:
    build = draw(st.sampled_from([ring, line, full, star, lambda count, rate: mesh(2, (count + 1) // 2, rate)]))
    return build(draw(st.integers(2, 6)), draw(rates))


def every_tree(instance: Instance, demand: Demand) -> Iterator[frozenset[int]]:
    """Every tree of paths from the demand's source to its destinations without idle transfers, each once."""
    others = [rank for rank in range(instance.num_ranks) if rank != demand.source]
    choices = [[path.index for path in instance.incoming[rank]] + [None] for rank in others]
    seen = set()
    for parents in product(*choices):
        used = frozenset(path for path in parents if path is not None)
        try:
            tree = tree_of(instance, demand, used)
        except CheckError:
            continue
        if tree == used and tree not in seen:
            seen.add(tree)
            yield tree


def cheapest(instance: Instance) -> float:
    """The least relaxed cost of any routing, by trying all."""
    trees = [[(d.chunk, tree) for tree in every_tree(instance, d)] for d in instance.demands]
    routings = (
        Routing(tuple(Transfer(chunk, path) for chunk, tree in choice for path in sorted(tree)))
        for choice in product(*trees)
    )
    return min(relaxed_cost(instance, routing) for routing in routings)


@given(tiny_machines(), st.integers(1, 2), sizes, st.data())
@settings(max_examples=25, deadline=None, derandomize=True)
def test_broadcast_routing_is_the_cheapest_of_all(
    topology: Topology, chunks: int, chunk_bytes: float, data: st.DataObject
) -> None:
    root = data.draw(st.integers(0, topology.num_ranks - 1))
    compare(instance_of(topology, "broadcast", chunks, chunk_bytes, root=root))


@given(tiny_machines(most=3), st.sampled_from(["allgather", "alltoall"]), sizes)
@settings(max_examples=25, deadline=None, derandomize=True)
def test_exchange_routing_is_the_cheapest_of_all(topology: Topology, name: str, chunk_bytes: float) -> None:
    compare(instance_of(topology, name, 1, chunk_bytes))


def compare(instance: Instance) -> None:
    routing, report = MilpRouting(EXACT, stretch=ANY_DETOUR)(instance)
    check_routing(instance, routing)
    best = cheapest(instance)
    assert best * (1 - 1e-9) <= routing.relaxed_us <= best * (1 + TIE_SHARE + 1e-6)
    assert report.bound is not None
    assert report.bound <= best * (1 + 1e-6)


@given(small_machines(), st.sampled_from(["allgather", "alltoall", "scatter", "gather", "broadcast"]), sizes)
@settings(max_examples=30, deadline=None, derandomize=True)
def test_symmetric_routing_is_a_routing_and_no_worse_than_its_start(
    topology: Topology, name: str, chunk_bytes: float
) -> None:
    root = 0 if name in ("scatter", "gather", "broadcast") else None
    plain = instance_of(topology, name, 1, chunk_bytes, root=root)
    instance = replace(plain, symmetries=find_symmetries(topology, plain.paths))
    warm = shortest_routing(instance)
    routing, _ = MilpRouting(SolveOptions(node_limit=50, gap=0.05))(instance, warm)
    check_routing(instance, routing)
    assert routing.relaxed_us == relaxed_cost(instance, routing)
    assert routing.relaxed_us <= warm.relaxed_us * (1 + 1e-9)


def groupings(instance: Instance, routing: Routing) -> Iterator[list[Message]]:
    """Every way to put one owner's neighbouring chunks on each path into messages."""
    lines: dict[int, list[int]] = {}
    for transfer in sorted(routing.transfers):
        lines.setdefault(transfer.path, []).append(transfer.chunk)
    cuts = {path: list(_cut(instance, chunks)) for path, chunks in lines.items()}
    for choice in product(*cuts.values()):
        yield [Message(run, path) for path, runs in zip(cuts, choice, strict=True) for run in runs]


def _cut(instance: Instance, chunks: list[int]) -> Iterator[list[tuple[int, ...]]]:
    for joined in product([False, True], repeat=len(chunks) - 1):
        runs: list[tuple[int, ...]] = [(chunks[0],)]
        legal = True
        for chunk, join in zip(chunks[1:], joined, strict=True):
            if join:
                legal &= chunk == runs[-1][-1] + 1 and instance.owner(chunk) == instance.owner(runs[-1][-1])
                runs[-1] = (*runs[-1], chunk)
            else:
                runs.append((chunk,))
        if legal:
            yield runs


def quickest(instance: Instance, routing: Routing) -> float:
    """The least makespan over all groupings and all orders, by trying all."""
    best = float("inf")
    for messages in groupings(instance, routing):
        for order in permutations(messages):
            try:
                best = min(best, retime(instance, order).makespan_us)
            except CheckError:
                continue
    return best


def slow_schedule(instance: Instance, routing: Routing) -> Schedule:
    """One message a chunk, in an order that is feasible and no more."""
    left, messages, have = list(routing.transfers), [], {(d.chunk, d.source) for d in instance.demands}
    while left:
        ready = next(t for t in left if (t.chunk, instance.paths[t.path].src) in have)
        left.remove(ready)
        have.add((ready.chunk, instance.paths[ready.path].dst))
        messages.append(Message((ready.chunk,), ready.path))
    return retime(instance, messages)


@pytest.mark.parametrize(("name", "chunks"), [("broadcast", 2), ("broadcast", 3), ("allgather", 1), ("scatter", 2)])
@given(topology=tiny_machines(most=3), chunk_bytes=sizes)
@settings(max_examples=8, deadline=None, derandomize=True)
def test_schedule_is_the_quickest_of_all(name: str, chunks: int, topology: Topology, chunk_bytes: float) -> None:
    root = None if name == "allgather" else 0
    instance = instance_of(topology, name, chunks, chunk_bytes, root=root)
    routing = shortest_routing(instance)
    given_schedule = slow_schedule(instance, routing)
    schedule, report = MilpScheduling(EXACT)(instance, given_schedule)
    check_schedule(instance, schedule, routing)
    best = quickest(instance, routing)
    lost = SCHEDULE_TIE_SHARE * given_schedule.makespan_us
    assert best * (1 - 1e-9) <= schedule.makespan_us <= best + lost * (1 + 1e-3)
    assert report.bound is not None
    assert report.bound <= best * (1 + 1e-6)


@given(tiny_machines(), st.sampled_from(["reduce", "reduce-scatter"]), sizes)
@settings(max_examples=15, deadline=None, derandomize=True)
def test_schedule_of_reductions_is_feasible_and_no_worse(topology: Topology, name: str, chunk_bytes: float) -> None:
    instance = instance_of(topology, name, 1, chunk_bytes, root=0 if name == "reduce" else None)
    broadcast = shortest_routing(instance.reversed())
    routing = Routing(tuple(Transfer(t.chunk, t.path, True) for t in broadcast.transfers))
    ordered, _ = Ordering()(instance, routing)
    schedule, _ = MilpScheduling()(instance, ordered)
    check_schedule(instance, schedule, routing)
    assert schedule.makespan_us <= ordered.makespan_us
