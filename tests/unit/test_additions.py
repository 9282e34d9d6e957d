"""Sums take an interpreter time, one message after another: cases by hand, and what must hold of every schedule."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.additions import Additions
from synth.instance import Instance
from synth.interpreted import as_described, as_interpreted
from synth.ir import Message, Schedule
from synth.list_scheduler import Work, list_schedule
from synth.ordering import Ordering
from synth.reductions.reverse import reverse_routing, reverse_schedule
from synth.routing.trees import TreesRouting
from synth.timing import check_schedule, retime
from tests.graphs import full, instance_of, line, mesh, ring, star

CHUNK = 1e4  # 1 us on a link of 10 GB/s
ADDING_US = 2.0


def summing(instance: Instance) -> Instance:
    """The instance on which adding a chunk takes twice as long as its link, and that much is in every latency."""
    paths = tuple(replace(path, message_us_per_byte=ADDING_US / CHUNK) for path in instance.paths)
    return replace(instance, paths=paths, reduce_us_per_byte=ADDING_US / CHUNK)


def towards(instance: Instance, root: int) -> list[Message]:
    """Everybody's contribution to chunk 0 straight to the root, in order of rank."""
    return [
        Message((0,), next(p.index for p in instance.paths if (p.src, p.dst) == (rank, root)), True)
        for rank in range(instance.num_ranks)
        if rank != root
    ]


def test_at_cost_level_2_sums_take_no_time() -> None:
    instance = instance_of(full(4), "reduce", 1, CHUNK, root=0)
    assert [send.arrive_us for send in retime(instance, towards(instance, 0)).sends] == [2.0, 2.0, 2.0]


def test_contributions_to_one_sum_are_added_one_after_another() -> None:
    """Each is there after 1 + 2 us; the second waits in its connection until the first is added, the third is sent later."""
    instance = summing(instance_of(full(4), "reduce", 1, CHUNK, root=0))
    sends = retime(instance, towards(instance, 0)).sends
    assert [(send.start_us, send.arrive_us) for send in sends] == [(0.0, 3.0), (0.0, 5.0), (2.0, 7.0)]


def test_another_sum_goes_first_while_one_is_made() -> None:
    """Rank 1 has contributions to two chunks of rank 0, and rank 2 is first with the one whose turn it is."""
    instance = summing(instance_of(full(3), "reduce", 2, CHUNK, root=0))
    over = {(path.src, path.dst): path.index for path in instance.paths}
    messages = [Message((0,), over[2, 0], True), Message((0,), over[1, 0], True), Message((1,), over[1, 0], True)]
    schedule = list_schedule(instance, Work.of(instance, messages), range(3))
    assert schedule is not None
    first = next(send for send in schedule.sends if send.path == over[1, 0])
    assert first.chunks == (1,)


def test_backwards_what_leaves_a_rank_is_what_is_added_there() -> None:
    instance = summing(instance_of(full(3), "reduce", 1, CHUNK, root=0)).reversed()
    out = [Message((0,), path.index) for path in instance.paths if path.src == 0]
    assert [send.start_us for send in retime(instance, out).sends] == [0.0, ADDING_US]
    assert instance.reversed().backwards is False


def test_copies_are_no_sums() -> None:
    instance = summing(instance_of(full(3), "allreduce", 3, CHUNK))
    additions = Additions(instance)
    assert not additions.counts(Message((0,), 0))
    assert additions.counts(Message((0,), 0, True))


@pytest.mark.parametrize("machine", [ring(4), full(4), line(3), mesh(2, 3), star(5)], ids=lambda machine: machine.name)
@settings(max_examples=10)
@given(per_rank=st.integers(1, 4), chunk_bytes=st.sampled_from([1e3, 1e5, 2e6]))
def test_no_rank_adds_two_messages_to_a_chunk_at_once(machine: object, per_rank: int, chunk_bytes: float) -> None:
    plain = instance_of(machine, "reduce-scatter", per_rank, chunk_bytes)  # type: ignore[arg-type]
    viewed = as_interpreted(plain, "Simple")
    backwards = viewed.reversed()
    routing, _ = TreesRouting()(as_described(backwards))
    mirrored, _ = Ordering()(backwards, routing)
    turned = reverse_schedule(viewed, mirrored)
    forward, _ = Ordering()(viewed, reverse_routing(routing), (turned, "reversed"))
    for schedule in (turned, forward):
        check_schedule(viewed, schedule)
        _one_at_a_time(viewed, schedule)


def _one_at_a_time(instance: Instance, schedule: Schedule) -> None:
    added: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for send in schedule.sends:
        took_us = len(send.chunks) * instance.chunk_bytes * instance.reduce_us_per_byte
        for chunk in send.chunks:
            added[instance.paths[send.path].dst, chunk].append((send.arrive_us - took_us, send.arrive_us))
    for times in added.values():
        for (_, end), (begin, _) in pairwise(sorted(times)):
            assert begin >= end - 1e-6
