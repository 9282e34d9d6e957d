"""Twin paths: on a machine that is its own reversal, an answer serves the reversed machine as well."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from synth.instance import Instance
from synth.ir import Routing
from synth.reductions.mirror import mirror_routing, mirror_schedule, twin_paths
from synth.timing import check_schedule
from synth.topology import Link, Topology
from tests.graphs import dgx1, full, gpus, instance_of, line, mesh, ring, star, two_boxes
from tests.schedules import random_schedule

TWO_WAY = (line(3), ring(4), full(4), mesh(2, 3), star(4), dgx1(), two_boxes(ring(3)), two_boxes(star(2), (0, 1)))


def one_way(extra_GBps: float | None = None) -> Topology:
    """A ring of one-way links; with a rate, the links back at that rate, too."""
    pairs = [(0, 1), (1, 2), (2, 0)]
    links = [Link(f"gpu{a}", f"gpu{b}", "nvlink", 10.0, 1.0) for a, b in pairs]
    if extra_GBps is not None:
        links += [Link(f"gpu{b}", f"gpu{a}", "nvlink", extra_GBps, 1.0) for a, b in pairs]
    return Topology("one-way", tuple(gpus(3)), tuple(links))


def twins_of(instance: Instance) -> tuple[int, ...]:
    twins = twin_paths(instance)
    assert twins is not None
    return twins


@pytest.mark.parametrize("machine", TWO_WAY, ids=lambda machine: machine.name)
def test_twins_lead_back_at_the_same_cost(machine: Topology) -> None:
    instance = instance_of(machine, "allgather")
    twins = twins_of(instance)
    for path in instance.paths:
        back = instance.paths[twins[path.index]]
        assert (back.src, back.dst, back.occupancy) == (path.dst, path.src, path.occupancy[::-1])
        assert twins[back.index] == path.index


@pytest.mark.parametrize("machine", TWO_WAY, ids=lambda machine: machine.name)
def test_an_answer_on_twins_is_one_of_the_reversed_machine(machine: Topology) -> None:
    instance = instance_of(machine, "allgather", 2)
    schedule = random_schedule(instance, random.Random(7), most_together=2)
    mirrored = mirror_schedule(twins_of(instance), schedule)
    routing = mirror_routing(twins_of(instance), Routing(schedule.transfers(), 3.0))
    assert routing.relaxed_us == 3.0
    check_schedule(instance.reversed(), mirrored, routing)
    assert mirrored.makespan_us == schedule.makespan_us


def test_links_without_a_way_back_have_no_twin() -> None:
    assert twin_paths(instance_of(one_way(), "allgather")) is None
    assert twin_paths(instance_of(one_way(5.0), "allgather")) is None
    assert twin_paths(instance_of(one_way(10.0), "allgather")) is not None


def test_a_path_whose_way_back_may_not_be_used_has_no_twin() -> None:
    instance = instance_of(line(2), "allgather")
    assert twin_paths(replace(instance, paths=instance.paths[:1])) is None


def test_parallel_links_are_paired_one_to_one() -> None:
    double = [Link(a, b, "nvlink", 10.0, 1.0) for a, b in (("gpu0", "gpu1"), ("gpu1", "gpu0")) for _ in range(2)]
    instance = instance_of(Topology("double", tuple(gpus(2)), tuple(double)), "allgather", 2)
    twins = twins_of(instance)
    assert sorted(twins) == list(range(len(instance.paths)))
