"""Justification on schedules whose slack is known."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from operator import itemgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synth.ir import Message, Routing, Schedule
from synth.scheduling import Justification
from synth.scheduling.justification import _Busy, _deciding_links, _Span
from synth.timing import check_schedule, messages_of, retime
from tests.graphs import instance_of, line, ring, star, two_boxes
from tests.schedules import direct_schedule, tree_schedule


def test_what_has_a_long_way_to_go_overtakes_what_has_not() -> None:
    # A line 0-1-2 of allgather: rank 1 gets to rank 2 both its own chunk and that of rank 0, which has a hop more.
    instance = instance_of(line(3), "allgather", 4, 1e6)
    over = {(path.src, path.dst): path.index for path in instance.paths}
    hop_us = instance.paths[0].latency_us(instance.chunk_bytes)
    ends = [Message((chunk,), over[0, 1]) for chunk in range(4)] + [
        Message((chunk,), over[2, 1]) for chunk in range(8, 12)
    ]
    middle = [Message((chunk,), over[1, dst]) for dst in (0, 2) for chunk in range(4, 8)]
    onward = [Message((chunk,), over[1, 2]) for chunk in range(4)] + [
        Message((chunk,), over[1, 0]) for chunk in range(8, 12)
    ]
    # The middle's own chunks wait until all else is over.
    late = retime(instance, [*ends, *onward, *middle])
    justified = Justification()(instance, late)
    check_schedule(instance, justified, Routing(late.transfers()))
    busy_us = max(instance.paths[0].busy_us(instance.chunk_bytes))
    assert late.makespan_us == pytest.approx(2 * hop_us + 7 * busy_us)
    # At best every link is busy from the start; a link may wait an alpha for what comes over another.
    best_us = hop_us + 7 * busy_us
    assert best_us - 1e-6 <= justified.makespan_us <= best_us + instance.paths[0].alpha_us + 1e-6


def test_what_ends_with_its_busiest_link_stays_as_it_is() -> None:
    instance = instance_of(line(2), "allgather", 4, 1e9)
    schedule = direct_schedule(instance)
    assert Justification()(instance, schedule) is schedule


def test_sums_that_take_time_are_timed_with_it() -> None:
    instance = replace(instance_of(ring(4), "reduce-scatter", 2, 1e6), reduce_us_per_byte=1e-3)
    slow = tree_schedule(instance)
    justified = Justification()(instance, slow)
    assert justified.makespan_us <= slow.makespan_us
    again = retime(instance, messages_of(justified))
    assert again.makespan_us == pytest.approx(justified.makespan_us)


def test_messages_that_overlap_become_a_schedule() -> None:
    instance = instance_of(star(4), "alltoall", 2, 1e6)
    schedule = direct_schedule(instance)
    at_once = Schedule(tuple(send._replace(start_us=0.0, arrive_us=1.0) for send in schedule.sends))
    exact = Justification().in_order(instance, at_once)
    check_schedule(instance, exact, Routing(schedule.transfers()))


@pytest.mark.parametrize(("later_us", "pushed"), [(0.0, 1), (1.0, 2)])
def test_what_is_listed_is_pushed_if_it_ends_at_another_time(
    later_us: float, pushed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = instance_of(line(3), "allgather", 4, 1e6)
    order = tree_schedule(instance)
    found = Justification(idle=math.inf).in_order(instance, order)

    def listed(*_: object, **__: object) -> Schedule:
        *sends, last = found.sends
        return Schedule((*sends, last._replace(arrive_us=found.makespan_us + later_us)))

    runs = []
    push = Justification._pushed
    monkeypatch.setattr(Justification, "_pushed", lambda *each: runs.append(each) or push(*each))
    monkeypatch.setattr("synth.scheduling.justification.list_schedule", listed)
    assert Justification(idle=0.0, busy=0.0).in_order(instance, order).makespan_us <= found.makespan_us
    assert len(runs) == pushed


def test_links_that_others_cover_do_not_decide() -> None:
    # Every path of a star crosses two GPUs' ports, which others' paths cross, too.
    ports = instance_of(star(3), "allgather")
    assert _deciding_links(ports.paths) == {link for path in ports.paths for link in path.links}
    # Between two GPUs the same messages cross all links of the way: one of them decides.
    boxes = instance_of(two_boxes(line(2), (0, 1)), "allgather")
    across = [path for path in boxes.paths if len(path.links) > 1]
    assert across
    assert all(len(_deciding_links([path]).intersection(path.links)) == 1 for path in across)


def test_the_slowest_of_links_that_the_same_messages_cross_decides() -> None:
    topology = two_boxes(line(2), (0,), GBps=4.0)
    links = [replace(link, GBps=1.0) if link.dst == "network" else link for link in topology.links]
    path = next(
        path for path in instance_of(replace(topology, links=tuple(links)), "allgather").paths if len(path.links) > 1
    )
    (decides,) = _deciding_links([path])
    assert links[decides].dst == "network"


def test_what_waits_for_a_late_block_starts_at_its_end() -> None:
    """Half a minute is rounded by more than what counts as one moment: nobody waits for the same block again and again."""
    long_us, first_us, second_us = 26843545.6, 26306675.488, 0.8000000007450581
    assert long_us + first_us - first_us < long_us - 1e-9
    late, both = (_Span(1, second_us, long_us),), (_Span(0, first_us, 1.0), _Span(1, second_us, long_us))
    busy = _Busy([0.0, 0.0], [late, both])
    busy.take(0, 0.0)
    (end_us,) = busy.ends[1]
    assert busy.take(1, 0.0) == end_us - second_us


#: Kinds of messages over up to three links: by kind, of each link it occupies which, how long after its start, and how long.
_KINDS = st.lists(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(1, 3)),
        min_size=1,
        max_size=3,
        unique_by=itemgetter(0),
    ),
    min_size=1,
    max_size=4,
)


@given(_KINDS, st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12)), max_size=30))
def test_a_message_takes_the_first_time_that_its_links_leave_free(
    kinds: list[list[tuple[int, int, int]]], asked: list[tuple[int, int]]
) -> None:
    """Whatever has been asked for before, from whenever on."""
    busy = _Busy([1.0] * 3, [tuple(_Span(link, after, us) for link, after, us in kind) for kind in kinds])
    taken: set[tuple[int, int]] = set()
    for kind, from_us in ((which % len(kinds), from_us) for which, from_us in asked):
        starts = itertools.count(from_us)
        first = next(start for start in starts if taken.isdisjoint(_moments(kinds[kind], start)))
        assert busy.take(kind, float(from_us)) == first
        taken.update(_moments(kinds[kind], first))


def _moments(kind: list[tuple[int, int, int]], start: int) -> list[tuple[int, int]]:
    """What a message that starts then occupies: links, each in one unit of time."""
    return [(link, start + after + us) for link, after, busy in kind for us in range(busy)]
