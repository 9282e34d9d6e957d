"""What is alike in all boxes is run for one: the same times as of the whole, and the whole where boxes differ in anything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from msccl_xml.model import Algo
from synth.baselines import BaselineOptions, build
from synth.candidates import Candidate
from synth.candidates.candidate import LARGE_VIEW
from synth.collective import CollectiveName
from synth.constants import Constants
from synth.ir import Message
from synth.lowering import LoweringOptions, lower
from synth.paths import find_paths
from synth.plan import Plan
from synth.search import Ledger, Search
from synth.simulate import Simulator
from synth.simulate.alike import Alike, one_box
from synth.simulate.program import Code, Compiler
from synth.simulate.routes import paths_by_pair, routes_of
from synth.timing import retime
from synth.topology import Topology
from synth.verify import verify_algo
from tests.graphs import full, instance_of, line, ring, star, two_boxes
from tests.jobs import request

KB, MB, GB = 1 << 10, 1 << 20, 1 << 30
SIZES = (3 * KB, MB, 40 * MB)


def ring_of(topology: Topology, name: str = "ring", collective: str = "allreduce", proto: str = "Simple") -> Algo:
    options = BaselineOptions(protocol=proto)  # type: ignore[arg-type]
    return build(name, topology, CollectiveName(collective), MB, options).algo


def found(algo: Algo, topology: Topology) -> Alike | None:
    protocol = Constants.for_topology(topology).of(algo.proto)
    program = Compiler(algo, protocol.tile_bytes).program(MB)
    routes = routes_of(topology, paths_by_pair(topology), program, protocol)
    capacity = [link.GBps * 1e3 for link in topology.links]
    return one_box(Code(program.blocks, program.connections), routes, capacity, topology.num_ranks)


def whole_us(algo: Algo, topology: Topology, size: int) -> float:
    """The time of a run of all ranks, tile by tile: that of its trace."""
    launch_us = Constants.for_topology(topology).of(algo.proto).launch_us
    return launch_us + max(activity.end_us for activity in Simulator(algo, topology).trace(size).activities)


@pytest.mark.parametrize("threadblocks", [13, 6])
def test_receives_and_sends_that_share_threadblocks_do_so_alike_at_all_ranks(threadblocks: int) -> None:
    topology = full(6)
    instance = instance_of(topology, "alltoall")
    over = {(path.src, path.dst): path.index for path in instance.paths}
    messages = [Message((each.chunk,), over[each.source, min(each.dests)], False) for each in instance.demands]
    options = LoweringOptions(max_threadblocks=threadblocks, reuses_scratch=False)
    algo = lower(instance, retime(instance, messages), options)
    verify_algo(algo, instance.collective)
    assert len(algo.gpus[0].threadblocks) == min(threadblocks, 11)
    alike = found(algo, topology)
    assert alike is not None
    assert {block.rank for block in alike.code.blocks} == {0}


@pytest.mark.parametrize(
    ("topology", "name", "collective", "ranks"),
    [
        (star(4), "all-pairs", "allgather", 1),
        (full(6), "all-pairs", "alltoall", 1),
        (star(8), "halving-doubling", "reduce-scatter", 4),
        (ring(6), "ring", "allgather", 1),
        (two_boxes(full(4), range(4)), "ring", "allgather", 4),
        (two_boxes(star(4), range(4)), "hierarchical", "reduce-scatter", 4),
        (two_boxes(star(4), range(4)), "all-pairs", "alltoall", 4),
        (line(4), "all-pairs", "alltoall", None),
    ],
    ids=lambda value: value.name if isinstance(value, Topology) else str(value),
)
@pytest.mark.parametrize("proto", ["Simple", "LL"])
def test_one_box_takes_as_long_as_all(
    topology: Topology, name: str, collective: str, ranks: int | None, proto: str
) -> None:
    algo = ring_of(topology, name, collective, proto)
    alike = found(algo, topology)
    assert (len({block.rank for block in alike.code.blocks}) if alike else None) == ranks
    for size in SIZES:
        assert Simulator(algo, topology, full=True).time_us(size) == pytest.approx(
            whole_us(algo, topology, size), rel=1e-9
        )


def slower_link(topology: Topology) -> Topology:
    first, *others = topology.links
    return replace(topology, links=(replace(first, GBps=first.GBps / 3), *others))


def later_link(topology: Topology) -> Topology:
    first, *others = topology.links
    return replace(topology, links=(replace(first, alpha_us=first.alpha_us + 5.0), *others))


@pytest.mark.parametrize("change", [slower_link, later_link])
def test_a_machine_whose_boxes_differ_is_run_as_a_whole(change: Callable[[Topology], Topology]) -> None:
    topology = full(4)
    algo = ring_of(topology, "all-pairs", "allgather")
    other = change(topology)
    assert found(algo, topology) is not None
    assert found(algo, other) is None
    for size in SIZES:
        taken = Simulator(algo, other, full=True).time_us(size)
        assert taken == pytest.approx(whole_us(algo, other, size), rel=1e-9)
        assert taken > Simulator(algo, topology, full=True).time_us(size)


def test_a_program_in_which_one_threadblock_does_less_is_run_as_a_whole() -> None:
    topology = ring(4)
    algo = ring_of(topology, "ring", "allgather")
    assert found(algo, topology) is not None
    first, *others = algo.gpus
    shorter = [replace(tb, steps=tb.steps[:-1]) if tb.id == 0 else tb for tb in first.threadblocks]
    assert found(replace(algo, gpus=(replace(first, threadblocks=tuple(shorter)), *others)), topology) is None


def test_a_link_that_all_boxes_share_is_not_one_boxs() -> None:
    """All pairs of a line cross its middle: nothing maps that to another link."""
    assert found(ring_of(line(4), "all-pairs", "alltoall"), line(4)) is None


@pytest.mark.parametrize("collective", ["allgather", "reduce-scatter", "allreduce"])
def test_what_is_made_for_one_box_in_rounds_is_alike_in_all(collective: str) -> None:
    topology = two_boxes(star(4), range(4))
    plan = Plan(request(topology, collective, GB, objective="time"), find_paths(topology))
    count = 8 * (8 if collective == "allreduce" else 1)
    solution = Search(plan, Ledger(), lambda _: None).solve(
        Candidate("hierarchy-ring", count, GB, LARGE_VIEW, in_rounds=True)
    )
    assert solution is not None
    algo = solution.program(LoweringOptions(protocol=LARGE_VIEW, instances=2))
    verify_algo(algo, replace(solution.collective, chunks=2 * solution.collective.chunks))
    alike = found(algo, topology)
    assert alike is not None
    assert {block.rank for block in alike.code.blocks} == {0, 1, 2, 3}


def test_what_goes_across_boxes_is_alike_in_all() -> None:
    """Relays keep a slot for every chunk: which one is free when would differ between boxes."""
    topology = two_boxes(star(4), range(4))
    plan = Plan(request(topology, "alltoall", GB, objective="time"), find_paths(topology))
    solution = Search(plan, Ledger(), lambda _: None).solve(Candidate("hierarchy-direct", 2, GB))
    assert solution is not None
    algo = solution.program(LoweringOptions())
    verify_algo(algo, solution.collective)
    alike = found(algo, topology)
    assert alike is not None
    assert {block.rank for block in alike.code.blocks} == {0, 1, 2, 3}
    assert Simulator(algo, topology).time_us(GB) == pytest.approx(whole_us(algo, topology, GB), rel=1e-6)
