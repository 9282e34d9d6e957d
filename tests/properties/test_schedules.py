"""Laws of list scheduling, contiguity and the reductions, on random routings in random orders."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.collective import CollectiveName
from synth.instance import Instance
from synth.ir import Routing, Schedule, causes
from synth.list_scheduler import Rule, Work, list_schedule
from synth.ordering import SORT_KEYS, Ordering
from synth.ordering.orderer import RULES
from synth.reductions.compose import compose_routings, compose_schedules
from synth.reductions.reverse import reverse_routing, reverse_schedule
from synth.scheduling import Contiguity, Justification
from synth.timing import TOLERANCE_US, busiest_link_us, check_routing, check_schedule, messages_of, retime
from synth.topology import Topology
from tests.graphs import full, instance_of, line, mesh, ring, star, two_boxes
from tests.schedules import random_schedule

#: In the first, every path is one link; in the others, paths share links.
PLAIN = (line(3), ring(4), full(4), mesh(2, 3))
SHARED = (star(4), two_boxes(ring(3)), two_boxes(star(2), (0, 1)))
#: Over the NIC a message takes a hundred times as long as inside.
UNEQUAL = two_boxes(full(3, GBps=100.0), (0,), GBps=1.0)
NAMES = ("allgather", "reduce-scatter", "allreduce", "alltoall")


def instances(machines: tuple[Topology, ...], names: tuple[str, ...] = NAMES) -> st.SearchStrategy[Instance]:
    sizes = st.sampled_from([16.0, 1e4, 4e5])
    return st.builds(
        lambda machine, name, chunks, size: instance_of(machine, name, chunks, size),
        st.sampled_from(machines),
        st.sampled_from(names),
        st.integers(1, 3),
        sizes,
    )


@pytest.mark.parametrize(
    "rule", [*RULES.values(), Rule(fitting=True)], ids=[*(name or "plain" for name in RULES), "fitting"]
)
@settings(max_examples=12)
@given(instance=instances((*PLAIN, *SHARED)), seed=st.integers(0, 99))
def test_list_schedules_are_feasible_and_cut_off_where_they_end(rule: Rule, instance: Instance, seed: int) -> None:
    given_schedule = random_schedule(instance, random.Random(seed), most_together=2)
    messages = messages_of(given_schedule)
    work = Work.of(instance, messages)
    places = random.Random(seed).sample(range(len(messages)), len(messages))
    schedule = list_schedule(instance, work, places, rule=rule)
    assert schedule is not None
    check_schedule(instance, schedule, Routing(given_schedule.transfers()))
    assert sorted(messages_of(schedule)) == sorted(messages)
    end_us = schedule.makespan_us
    assert list_schedule(instance, work, places, rule=rule, cutoff_us=end_us + 1e-6) == schedule
    assert list_schedule(instance, work, places, rule=rule, cutoff_us=end_us * 0.999) is None


@settings(max_examples=20)
@given(instance=instances((*PLAIN, *SHARED)), seed=st.integers(0, 99))
def test_retiming_a_schedule_in_its_own_order_is_never_later(instance: Instance, seed: int) -> None:
    work_of = random_schedule(instance, random.Random(seed))
    schedule = list_schedule(instance, Work.of(instance, messages_of(work_of)), range(len(work_of.sends)))
    assert schedule is not None
    again = retime(instance, messages_of(schedule))
    assert again.makespan_us <= schedule.makespan_us + TOLERANCE_US


@settings(max_examples=20)
@given(instance=instances((*PLAIN, *SHARED)), seed=st.integers(0, 99), most=st.integers(1, 8))
def test_contiguity_keeps_the_routing_and_is_never_later(instance: Instance, seed: int, most: int) -> None:
    schedule = random_schedule(instance, random.Random(seed))
    grouped = Contiguity(most)(instance, schedule)
    check_schedule(instance, grouped, Routing(schedule.transfers()))
    assert grouped.makespan_us <= schedule.makespan_us + TOLERANCE_US
    assert len(grouped.sends) <= len(schedule.sends)
    assert max(len(send.chunks) for send in grouped.sends) <= most


@settings(max_examples=30)
@given(instance=instances((*PLAIN, *SHARED)), seed=st.integers(0, 99), most=st.integers(1, 3))
def test_justification_keeps_the_messages_and_is_never_later(instance: Instance, seed: int, most: int) -> None:
    schedule = random_schedule(instance, random.Random(seed), most_together=most)
    justified = Justification()(instance, schedule)
    check_schedule(instance, justified, Routing(schedule.transfers()))
    assert sorted(messages_of(justified)) == sorted(messages_of(schedule))
    assert justified.makespan_us <= schedule.makespan_us
    assert retime(instance, messages_of(justified)).makespan_us <= justified.makespan_us + TOLERANCE_US


@settings(max_examples=20)
@given(instance=instances((*PLAIN, *SHARED)), seed=st.integers(0, 99))
def test_any_causal_order_is_justified_into_a_schedule(instance: Instance, seed: int) -> None:
    exact = random_schedule(instance, random.Random(seed), most_together=2)
    # As soon as what they wait for allows, whatever else is on their links.
    alone = dict.fromkeys(range(len(exact.sends)), 0.0)
    for place, before in enumerate(causes(instance, exact.sends)):
        alone[place] = max(
            (alone[other] + exact.sends[other].arrive_us - exact.sends[other].start_us for other in before), default=0.0
        )
    order = Schedule(tuple(send._replace(start_us=alone[place]) for place, send in enumerate(exact.sends)))
    justified = Justification().in_order(instance, order)
    check_schedule(instance, justified, Routing(exact.transfers()))


@settings(max_examples=60)
@given(instance=instances((*SHARED, UNEQUAL)), seed=st.integers(0, 999), round_us=st.sampled_from([1e-3, 1.0, 20.0]))
def test_rounds_that_are_shorter_than_messages_are_justified_into_a_schedule(
    instance: Instance, seed: int, round_us: float
) -> None:
    """What is waited for starts a round earlier at least, and may end later."""
    exact = random_schedule(instance, random.Random(seed))
    turn = random.Random(seed)
    rounds: list[float] = []
    for before in causes(instance, exact.sends):
        rounds.append(max((rounds[other] for other in before), default=-1) + 1 + turn.choice([0, 0, 0, 5]))
    sends = [send._replace(start_us=at * round_us) for send, at in zip(exact.sends, rounds, strict=True)]
    justified = Justification().in_order(instance, Schedule.of(sends))
    check_schedule(instance, justified, Routing(exact.transfers()))


@settings(max_examples=12)
@given(instance=instances((*PLAIN, *SHARED)), seed=st.integers(0, 99), keys=st.sets(st.sampled_from(sorted(SORT_KEYS))))
def test_more_keys_are_never_worse(instance: Instance, seed: int, keys: set[str]) -> None:
    routing = Routing(tuple(sorted(random_schedule(instance, random.Random(seed)).transfers())))
    some = tuple(sorted(keys)) or ("in-turns",)
    best, rule = Ordering(enough=0.0)(instance, routing)
    check_schedule(instance, best, routing)
    assert rule.split(",")[0] in SORT_KEYS
    assert best.makespan_us <= Ordering(some, enough=0.0)(instance, routing)[0].makespan_us + TOLERANCE_US
    assert best.makespan_us >= busiest_link_us(instance, routing.transfers) - TOLERANCE_US


@settings(max_examples=20)
@given(instance=instances((*PLAIN, *SHARED), ("reduce-scatter",)), seed=st.integers(0, 99))
def test_an_allgather_backwards_is_a_reduce_scatter(instance: Instance, seed: int) -> None:
    gather = replace(instance.collective, name=CollectiveName.ALLGATHER)
    mirror = replace(instance.reversed(), collective=gather)
    forwards = random_schedule(mirror, random.Random(seed), most_together=2)
    routing = reverse_routing(Routing(forwards.transfers()))
    check_routing(instance, routing)
    backwards = reverse_schedule(instance, forwards)
    check_schedule(instance, backwards, routing)
    if instance.topology in PLAIN:
        assert backwards.makespan_us <= forwards.makespan_us + TOLERANCE_US


@settings(max_examples=20)
@given(instance=instances((*PLAIN, *SHARED), ("allreduce",)), seed=st.integers(0, 99))
def test_halves_composed_take_no_longer_than_one_after_the_other(instance: Instance, seed: int) -> None:
    whole = messages_of(random_schedule(instance, random.Random(seed)))
    up = retime(instance, [message for message in whole if message.reduce])
    down = retime(instance, [message for message in whole if not message.reduce])
    both = compose_schedules(instance, up, down)
    check_schedule(instance, both, compose_routings(Routing(up.transfers()), Routing(down.transfers())))
    assert both.makespan_us <= up.makespan_us + down.makespan_us + TOLERANCE_US
