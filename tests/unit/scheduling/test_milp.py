"""The scheduling program: contiguity where it pays, reductions, and never worse than what was given."""

from __future__ import annotations

from dataclasses import replace

import pytest

from synth.instance import Instance
from synth.ir import Message, Routing, Schedule, Transfer
from synth.milp import SolveOptions, Status
from synth.ordering.orderer import Ordering
from synth.routing.relaxed import shortest_routing
from synth.scheduling.milp import MilpScheduling
from synth.timing import check_schedule, retime
from synth.topology import Topology
from tests.graphs import dgx1, instance_of, line, ring, star

EXACT = MilpScheduling(SolveOptions(gap=0.0))


def with_gap(topology: Topology, gap_us: float) -> Topology:
    return replace(topology, links=tuple(replace(link, gap_us=gap_us) for link in topology.links))


def in_order(instance: Instance, routing: Routing) -> Schedule:
    """One message a chunk, chunk by chunk along its tree: feasible and seldom good."""
    near = {path.index: path for path in instance.paths}
    left, messages, have = list(routing.transfers), [], {(d.chunk, d.source) for d in instance.demands}
    while left:
        ready = next(t for t in left if (t.chunk, near[t.path].src) in have)
        left.remove(ready)
        have.add((ready.chunk, near[ready.path].dst))
        messages.append(Message((ready.chunk,), ready.path))
    return retime(instance, messages)


def test_chunks_travel_together_where_a_message_costs_more_than_its_bytes() -> None:
    instance = instance_of(with_gap(line(3), 50.0), "broadcast", 4, 1e4, root=0)
    given = in_order(instance, shortest_routing(instance))
    assert given.makespan_us == pytest.approx(1 + 4 * 51 + 52)
    best, report = EXACT(instance, given)
    check_schedule(instance, best)
    # Two and two in a pipeline take (50 + 2) * 3 + 2 = 158 us, all four in one message 2 * (50 + 4 + 1) = 110 us.
    assert best.makespan_us == pytest.approx(2 * (50 + 4 + 1))
    assert [send.chunks for send in best.sends] == [(0, 1, 2, 3)] * 2
    assert report.status is Status.OPTIMAL
    assert report.objective == best.makespan_us


def test_chunks_travel_apart_where_a_pipeline_is_quicker() -> None:
    instance = instance_of(line(3), "broadcast", 4, 1e6, root=0)
    together = retime(instance, [Message((0, 1, 2, 3), path) for path in sorted(_way(instance))])
    best, _ = EXACT(instance, together)
    check_schedule(instance, best)
    assert together.makespan_us == pytest.approx(2 * 401)
    assert best.makespan_us == pytest.approx(5 * 100 + 2)


def _way(instance: Instance) -> list[int]:
    return sorted({transfer.path for transfer in shortest_routing(instance).transfers})


def test_order_on_a_shared_link_lets_the_longest_way_go_first() -> None:
    # Scatter down a line: the chunk for the far end has to leave first.
    instance = instance_of(line(4), "scatter", 1, 1e6, root=0)
    transfers = shortest_routing(instance).transfers
    given = in_order(instance, Routing(tuple(sorted(transfers, key=lambda transfer: transfer.chunk))))
    best, _ = EXACT(instance, given)
    check_schedule(instance, best, Routing(transfers))
    assert best.sends[0].chunks == (3,)
    assert best.makespan_us == pytest.approx(303.0)
    assert given.makespan_us > best.makespan_us


def test_reductions_are_scheduled_too() -> None:
    instance = instance_of(line(3), "reduce-scatter", 1, 1e6)
    broadcast = shortest_routing(instance.reversed())
    routing = Routing(tuple(Transfer(t.chunk, t.path, True) for t in broadcast.transfers))
    given, _ = Ordering()(instance, routing)
    check_schedule(instance, given, routing)
    best, report = EXACT(instance, given)
    check_schedule(instance, best, routing)
    assert best.makespan_us <= given.makespan_us
    # Two sums cross each link one after the other; the second may be the one that came a hop further.
    assert best.makespan_us == pytest.approx(202.0)
    assert report.bound == pytest.approx(202.0, rel=2e-3)


def test_given_schedule_is_kept_where_none_is_better() -> None:
    instance = instance_of(star(3), "allgather", 1, 1e6)
    given, _ = Ordering()(instance, shortest_routing(instance))
    best, report = EXACT(instance, given)
    assert report.status is Status.OPTIMAL
    assert best.makespan_us == given.makespan_us


def test_messages_of_the_given_schedule_stay_possible() -> None:
    # A message across owners, which the program would not propose itself.
    instance = instance_of(with_gap(line(3), 500.0), "allgather", 1, 1e3)
    by_ends = {(path.src, path.dst): path.index for path in instance.paths}
    messages = [
        Message((0,), by_ends[0, 1]),
        Message((2,), by_ends[2, 1]),
        Message((0, 1), by_ends[1, 2]),
        Message((1, 2), by_ends[1, 0]),
    ]
    given = retime(instance, messages)
    best, _ = EXACT(instance, given)
    check_schedule(instance, best)
    assert best.makespan_us == pytest.approx(given.makespan_us)


def test_fits_counts_binaries() -> None:
    small = instance_of(ring(4), "allgather", 1, 1e6)
    large = instance_of(dgx1(), "allgather", 4, 1e6)
    schedules = [(instance, in_order(instance, shortest_routing(instance))) for instance in (small, large)]
    assert [MilpScheduling().fits(*each) for each in schedules] == [True, False]
