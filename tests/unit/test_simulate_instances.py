"""Equal instances are run for one: the same times as of the whole, and the whole where instances differ in anything."""

from __future__ import annotations

from dataclasses import replace

import pytest

from msccl_xml.model import Algo, Gpu
from synth.baselines import BaselineOptions, build
from synth.collective import CollectiveName
from synth.constants import Constants
from synth.simulate import Simulator
from synth.simulate.alike import Alike
from synth.simulate.instances import one_instance
from synth.simulate.program import Code, Compiler
from synth.simulate.routes import paths_by_pair, routes_of
from synth.topology import Topology
from tests.graphs import line, ring, star, two_boxes

KB, MB = 1 << 10, 1 << 20
SIZES = (3 * KB, MB, 40 * MB)


def algo_of(topology: Topology, name: str, collective: str, instances: int, proto: str = "Simple") -> Algo:
    options = BaselineOptions(protocol=proto, instances=instances, inplace=False)  # type: ignore[arg-type]
    return build(name, topology, CollectiveName(collective), MB, options).algo


def found(algo: Algo, topology: Topology) -> Alike | None:
    protocol = Constants.for_topology(topology).of(algo.proto)
    program = Compiler(algo, protocol.tile_bytes).program(MB)
    routes = routes_of(topology, paths_by_pair(topology), program, protocol)
    return one_instance(Code(program.blocks, program.connections), routes)


def whole_us(algo: Algo, topology: Topology, size: int) -> float:
    """The time of a run of all instances, tile by tile: that of its trace."""
    launch_us = Constants.for_topology(topology).of(algo.proto).launch_us
    return launch_us + max(activity.end_us for activity in Simulator(algo, topology).trace(size).activities)


def with_gpu(algo: Algo, gpu: Gpu) -> Algo:
    return replace(algo, gpus=tuple(gpu if gpu.id == other.id else other for other in algo.gpus))


@pytest.mark.parametrize("proto", ["Simple", "LL"])
@pytest.mark.parametrize("instances", [2, 3, 8])
@pytest.mark.parametrize(
    ("topology", "name", "collective"),
    [
        (star(4), "all-pairs", "allgather"),
        (ring(4), "ring", "allreduce"),
        (line(5), "tree", "allreduce"),
        (ring(5), "all-pairs", "reduce-scatter"),
        (two_boxes(star(4), range(4)), "hierarchical", "allreduce"),
    ],
    ids=lambda value: value.name if isinstance(value, Topology) else str(value),
)
def test_one_instance_takes_as_long_as_all(
    topology: Topology, name: str, collective: str, instances: int, proto: str
) -> None:
    algo = algo_of(topology, name, collective, instances, proto)
    alike = found(algo, topology)
    assert alike is not None
    assert alike.sharing % instances == 0
    assert len(alike.code.blocks) * alike.sharing == sum(len(gpu.threadblocks) for gpu in algo.gpus)
    for size in SIZES:
        assert Simulator(algo, topology, full=True).time_us(size) == pytest.approx(
            whole_us(algo, topology, size), rel=1e-9
        )


def test_a_program_of_one_instance_is_run_as_it_is() -> None:
    assert found(algo_of(line(4), "tree", "allreduce", 1), line(4)) is None


def test_an_instance_that_does_less_is_no_other() -> None:
    algo = algo_of(ring(4), "ring", "allgather", 2)
    gpu = algo.gpus[0]
    *before, last = gpu.threadblocks
    shorter = replace(gpu, threadblocks=(*before, replace(last, steps=last.steps[:-1])))
    assert found(algo, ring(4)) is not None
    assert found(with_gpu(algo, shorter), ring(4)) is None


def test_an_instance_that_waits_for_another_is_not_run_alone() -> None:
    """Two threadblocks that wait for each other are alike, but one of them alone would wait for nobody."""
    algo = algo_of(star(4), "all-pairs", "allgather", 2)
    gpu = algo.gpus[0]
    one, other = (next(tb for tb in gpu.threadblocks if tb.send == 1 and tb.channel == channel) for channel in (0, 1))
    waiting = {}
    for tb, awaited in ((one, other), (other, one)):
        steps = (tb.steps[0]._replace(depid=awaited.id, deps=0, hasdep=True), *tb.steps[1:])
        waiting[tb.id] = replace(tb, steps=steps)
    crossed = replace(gpu, threadblocks=tuple(waiting.get(tb.id, tb) for tb in gpu.threadblocks))
    assert found(algo, star(4)) is not None
    assert found(with_gpu(algo, crossed), star(4)) is None


def test_instances_over_other_links_are_not_alike() -> None:
    algo = algo_of(ring(4), "ring", "allgather", 2)
    protocol = Constants.for_topology(ring(4)).of(algo.proto)
    program = Compiler(algo, protocol.tile_bytes).program(MB)
    code = Code(program.blocks, program.connections)
    first, *others = routes_of(ring(4), paths_by_pair(ring(4)), program, protocol)
    assert one_instance(code, [first, *others]) is not None
    for changed in (first._replace(links=(*first.links, 99)), first._replace(latency_us=7.0)):
        assert one_instance(code, [changed, *others]) is None
