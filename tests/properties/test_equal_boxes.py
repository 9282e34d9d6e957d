"""Random clusters of equal boxes: what the hierarchy makes is feasible, verified as a program, and no better than the bound."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from synth.bounds import bound_of
from synth.boxes import Boxes
from synth.build import Builder
from synth.collective import Collective, CollectiveName
from synth.hierarchical import chained, hierarchical, hierarchical_in_rounds, over_boxes
from synth.instance import Instance
from synth.ir import Send
from synth.lowering import LoweringOptions
from synth.ordering import Rounds
from synth.paths import find_paths
from synth.reductions.rotation import rotations
from synth.reductions.symmetry import find_symmetries
from synth.routing.across import AcrossRouting
from synth.routing.hierarchy import HierarchyRouting
from synth.routing.patterns import DIRECT, FROM_ONE, TO_ALL
from synth.solve import Solution, Stages
from synth.strategies import rotated
from synth.timing import check_schedule, messages_of
from synth.topology import Device, DeviceKind, Topology, replicate
from synth.verify import verify_algo
from tests.graphs import both_ways, from_pairs

SIZE = 1 << 26
RATES = st.sampled_from([1.0, 7.5, 25.0, 300.0])


@st.composite
def clusters(draw: st.DrawFn) -> Topology:
    """Two to five copies of a box of one to four GPUs, any links that connect them, NICs of any rates on some."""
    size = draw(st.integers(1, 4))
    pairs = {(draw(st.integers(0, rank - 1)), rank) for rank in range(1, size)}
    pairs |= draw(st.sets(st.sampled_from([(a, b) for b in range(size) for a in range(b)]))) if size > 1 else set()
    box = from_pairs("box", size, sorted(pairs))
    links = [replace(link, GBps=draw(RATES), gap_us=draw(st.sampled_from([0.0, 0.5]))) for link in box.links]
    devices = [*box.devices]
    for rank in draw(st.sets(st.integers(0, size - 1), min_size=1)):
        devices.append(Device(f"nic{rank}", DeviceKind.NIC, 0))
        links += both_ways(f"gpu{rank}", f"nic{rank}", draw(RATES), 1.0)
    return replicate(replace(box, devices=tuple(devices), links=tuple(links)), draw(st.integers(2, 5)))


@given(
    topology=clusters(),
    name=st.sampled_from([CollectiveName.ALLGATHER, CollectiveName.REDUCE_SCATTER, CollectiveName.ALLREDUCE]),
    count=st.integers(1, 3),
    pattern=st.sampled_from(sorted(TO_ALL)),
    view=st.sampled_from([None, "Simple", "LL128"]),
)
@settings(max_examples=40, deadline=None)
def test_what_the_hierarchy_makes_is_right(
    topology: Topology, name: CollectiveName, count: int, pattern: str, view: str | None
) -> None:
    paths = find_paths(topology)
    collective = Collective(name, topology.num_ranks, count * topology.num_ranks)
    found = Builder(topology, None, paths).boxed(collective, SIZE, pattern)
    assert found is not None
    solution = hierarchical(*found, Stages(), over_boxes(HierarchyRouting(pattern)), view)
    check_schedule(found[0], solution.schedule)
    if solution.interpreted is not None:
        check_schedule(found[0], solution.interpreted)
        assert sorted(messages_of(solution.interpreted)) == sorted(messages_of(solution.schedule))
    assert (solution.interpreted is None) == (view is None)
    bound = bound_of(topology, Collective(name, topology.num_ranks, topology.num_ranks), paths)
    if name is not CollectiveName.ALLREDUCE:
        assert solution.schedule.makespan_us >= bound.time_us(SIZE) * (1 - 1e-6)
    algo = solution.program(LoweringOptions(max_threadblocks=200))
    verify_algo(algo, collective)


@st.composite
def rotating_boxes(draw: st.DrawFn) -> Topology:
    """One box in which two to four runs of one to three GPUs do alike: what a GPU of the first is joined to, over any links,
    those of the others are as far on.
    """
    size, count = draw(st.integers(1, 3)), draw(st.integers(2, 4))
    ranks = size * count
    steps = {(rank, 1): draw(RATES) for rank in range(size)}
    further = st.tuples(st.integers(0, size - 1), st.integers(1, ranks - 1))
    steps |= draw(st.dictionaries(further, RATES, max_size=4))
    links = [
        replace(link, GBps=rate)
        for run in range(count)
        for (rank, step), rate in sorted(steps.items())
        for link in both_ways(f"gpu{run * size + rank}", f"gpu{(run * size + rank + step) % ranks}")
    ]
    return replace(from_pairs("runs", ranks, []), links=tuple(links))


@given(
    topology=rotating_boxes(),
    name=st.sampled_from(["allgather", "reduce-scatter", "allreduce", "alltoall"]),
    count=st.integers(1, 3),
    paced=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_what_runs_of_ranks_do_alike_is_right(topology: Topology, name: str, count: int, paced: bool) -> None:
    paths = find_paths(topology)
    collective = Collective(CollectiveName(name), topology.num_ranks, count * topology.num_ranks)
    symmetries = find_symmetries(topology, paths)
    found = [*rotations(Instance(topology, collective, paths, collective.chunk_bytes(SIZE), symmetries))]
    assume(found)
    for turned in found:
        route = rotated("flow" if name == "alltoall" else "trees")
        if paced:
            solution = hierarchical_in_rounds(*turned, Stages(), route, Rounds("Simple"))
        else:
            solution = hierarchical(*turned, Stages(), route, "Simple")
        check_schedule(turned[0], solution.schedule)
        bound = bound_of(topology, collective, paths)
        assert solution.schedule.makespan_us >= bound.time_us(SIZE) * (1 - 1e-6)
        algo = solution.program(LoweringOptions(max_threadblocks=200))
        verify_algo(algo, collective)


def _boxes_of(instance: Instance, boxes: Boxes, send: Send) -> tuple[int, int]:
    path = instance.paths[send.path]
    return boxes.box_of[path.src], boxes.box_of[path.dst]


@given(topology=clusters(), count=st.integers(1, 3), view=st.sampled_from([None, "Simple"]))
@settings(max_examples=30, deadline=None)
def test_what_goes_across_boxes_is_right(topology: Topology, count: int, view: str | None) -> None:
    paths = find_paths(topology)
    collective = Collective(CollectiveName.ALLTOALL, topology.num_ranks, count * topology.num_ranks)
    found = Builder(topology, None, paths).boxed(collective, SIZE, DIRECT)
    assert found is not None
    instance, boxes = found
    solution = hierarchical(instance, boxes, Stages(), over_boxes(AcrossRouting()), view)
    check_schedule(instance, solution.schedule)
    assert solution.schedule.makespan_us >= bound_of(topology, collective, paths).time_us(SIZE) * (1 - 1e-6)
    ends = [(chunk, *_boxes_of(instance, boxes, send)) for send in solution.schedule.sends for chunk in send.chunks]
    crossings = Counter(chunk for chunk, src, dst in ends if src != dst)
    box = boxes.box_of
    leaving = [d.chunk for d in instance.demands if box[d.source] != box[min(d.dests)]]
    assert crossings == Counter(leaving)
    verify_algo(solution.program(LoweringOptions(max_threadblocks=200)), collective)


def _chained_rightly(topology: Topology, collective: Collective, pattern: str) -> tuple[Boxes, Solution]:
    """The collective from or to the root's box, checked as a schedule, against the bound, and as a program; and the boxes."""
    paths = find_paths(topology)
    found = Builder(topology, None, paths).boxed(collective, SIZE, pattern)
    assert found is not None
    instance, boxes = found
    solution = Stages()(instance, partial(chained, boxes=boxes, pattern=pattern))
    check_schedule(instance, solution.schedule)
    assert solution.schedule.makespan_us >= bound_of(topology, collective, paths).time_us(SIZE) * (1 - 1e-6)
    verify_algo(solution.program(LoweringOptions(max_threadblocks=200)), collective)
    return boxes, solution


@given(
    topology=clusters(),
    name=st.sampled_from([CollectiveName.BROADCAST, CollectiveName.REDUCE]),
    count=st.integers(1, 6),
    pattern=st.sampled_from(FROM_ONE),
    data=st.data(),
)
@settings(max_examples=40, deadline=None)
def test_what_goes_through_boxes_is_right(
    topology: Topology, name: CollectiveName, count: int, pattern: str, data: st.DataObject
) -> None:
    root = data.draw(st.integers(0, topology.num_ranks - 1))
    collective = Collective(name, topology.num_ranks, count, root)
    boxes, solution = _chained_rightly(topology, collective, pattern)
    instance = solution.instance
    ends = [(chunk, *_boxes_of(instance, boxes, send)) for send in solution.schedule.sends for chunk in send.chunks]
    reached = {(chunk, src if collective.combining else dst) for chunk, src, dst in ends if src != dst}
    assert reached == {
        (chunk, box) for chunk in range(count) for box in range(boxes.count) if box != boxes.box_of[root]
    }


@given(
    topology=clusters(),
    name=st.sampled_from([CollectiveName.GATHER, CollectiveName.SCATTER]),
    count=st.integers(1, 3),
    data=st.data(),
)
@settings(max_examples=30, deadline=None)
def test_what_fans_out_over_boxes_is_right(
    topology: Topology, name: CollectiveName, count: int, data: st.DataObject
) -> None:
    root = data.draw(st.integers(0, topology.num_ranks - 1))
    _chained_rightly(topology, Collective(name, topology.num_ranks, count * topology.num_ranks, root), DIRECT)
