"""Large clusters: how near the answer for equal boxes comes to the limit, and how much less of it is searched than written."""

from __future__ import annotations

import pytest

from synth.bounds import bound_of
from synth.build import Builder
from synth.collective import SHARED, Collective, CollectiveName
from synth.hierarchical import hierarchical, over_boxes
from synth.inputs.load import load_topology
from synth.lowering import LoweringOptions, lower
from synth.paths import find_paths
from synth.pipeline import synthesize
from synth.routing.hierarchy import HierarchyRouting
from synth.solve import Solution, Stages
from synth.topology import replicate
from synth.verify import verify_algo
from tests.jobs import request

KB, MB, GB = 1 << 10, 1 << 20, 1 << 30


def solved(
    machine: str, nodes: int, name: str, per_rank: int, size: int = GB, pattern: str = "ring"
) -> tuple[Solution, float]:
    """The hierarchy's answer along a pattern of boxes, and the share of the bound that its schedule reaches."""
    topology = replicate(load_topology(machine), nodes)
    paths = find_paths(topology)
    kind, ranks = CollectiveName(name), topology.num_ranks
    found = Builder(topology, None, paths).boxed(Collective(kind, ranks, per_rank * ranks), size, pattern)
    assert found is not None
    solution = hierarchical(*found, Stages(), over_boxes(HierarchyRouting(pattern)))
    bound = bound_of(topology, Collective(kind, ranks, ranks if kind in SHARED else 1), paths)
    return solution, bound.time_us(size) / solution.schedule.makespan_us


@pytest.mark.parametrize(
    ("machine", "nodes", "name", "per_rank", "share"),
    [
        ("dgx-h100", 4, "allgather", 4, 0.98),
        ("ndv2", 4, "allreduce", 2, 0.98),
        pytest.param("dgx-a100", 8, "allgather", 8, 0.985, marks=pytest.mark.slow),
        pytest.param("dgx-a100", 8, "allreduce", 4, 0.96, marks=pytest.mark.slow),
        pytest.param("dgx-a100", 8, "reduce-scatter", 8, 0.985, marks=pytest.mark.slow),
        pytest.param("ndv2", 8, "allgather", 4, 0.99, marks=pytest.mark.slow),
        pytest.param("dgx-a100", 32, "allgather", 2, 0.985, marks=pytest.mark.slow),
        pytest.param("dgx-h100", 32, "allreduce", 2, 0.98, marks=pytest.mark.slow),
    ],
)
def test_schedules_are_near_the_bound(machine: str, nodes: int, name: str, per_rank: int, share: float) -> None:
    solution, reached = solved(machine, nodes, name, per_rank)
    assert share <= reached <= 1 + 1e-6
    assert solution.folded is not None
    assert len(solution.schedule.sends) == nodes * len(solution.folded.schedule.sends)


@pytest.mark.parametrize("name", ["allgather", pytest.param("reduce-scatter", marks=pytest.mark.slow)])
def test_small_buffers_cross_a_network_once(name: str) -> None:
    solution, reached = solved("dgx-h100", 16, name, 1, 16 * KB, "star")
    assert 0.85 <= reached <= 1
    paths = solution.instance.paths
    crossing = [send for send in solution.schedule.sends if paths[send.path].src // 8 != paths[send.path].dst // 8]
    assert len(crossing) == 128 * 15  # what a rank has goes to each other box once, from itself
    assert {(paths[send.path].src - paths[send.path].dst) % 8 for send in crossing} == {0}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "size", "least"), [
    ("allreduce", KB, 0.9),
    ("allreduce", 16 * KB, 0.75),
    ("allgather", 16 * KB, 0.85),
    ("reduce-scatter", 256 * KB, 0.95),
])  # fmt: skip
def test_small_buffers_of_128_gpus_by_schedule(name: str, size: int, least: float) -> None:
    """Doubling from box to box takes three to six times as long."""
    (row,) = synthesize(request(replicate(load_topology("dgx-h100"), 16), name, size, objective="schedule")).sizes
    assert least <= row.bound_us / row.schedule_us <= 1


@pytest.mark.slow
@pytest.mark.parametrize(("name", "size", "least"), [
    ("allreduce", 16 * KB, 1.7),
    ("allreduce", 256 * KB, 2.0),
    ("allgather", 16 * KB, 1.5),
    ("allgather", MB, 1.0),
])  # fmt: skip
def test_small_buffers_of_128_gpus_are_faster_than_by_doubling(name: str, size: int, least: float) -> None:
    found = synthesize(request(replicate(load_topology("dgx-h100"), 16), name, size, objective="time"))
    by_strategy: dict[str, float] = {}
    for row in found.tried:
        for us in row.simulated_us.values():
            by_strategy[row.strategy] = min(us, by_strategy.get(row.strategy, us))
    assert {"hierarchy-star", "hierarchy-doubling"} <= by_strategy.keys()  # estimates tell them apart badly
    assert by_strategy["hierarchy-doubling"] >= least * found.sizes[0].time_us


@pytest.mark.slow
@pytest.mark.parametrize(("machine", "boxes", "name", "size", "least"), [
    ("dgx-h100", 6, "allreduce", 64 * MB, 0.68),
    ("mi250", 4, "allgather", 256 * MB, 0.83),
    ("dgx-h100", 8, "allgather", 256 * MB, 0.93),
    ("dgx-h100", 12, "allreduce", GB, 0.78),
    ("mi300x", 16, "reduce-scatter", 256 * MB, 0.8),
    ("mi300x", 16, "allreduce", GB, 0.85),
    ("mi300x", 16, "allgather", 256 * MB, 0.9),
    ("dgx-a100", 16, "allgather", GB, 0.96),
])  # fmt: skip
def test_large_buffers_of_many_boxes_are_made_for_an_interpreter(
    machine: str, boxes: int, name: str, size: int, least: float
) -> None:
    """What is made for links alone, or along rings of boxes alone, takes up to three times as long."""
    job = request(replicate(load_topology(machine), boxes), name, size, objective="time", time_limit_s=120)
    (row,) = synthesize(job).sizes
    assert row.bound_us >= least * row.time_us


@pytest.mark.slow
def test_the_program_of_256_ranks_is_verified_and_small() -> None:
    solution, _ = solved("dgx-a100", 32, "allreduce", 1)
    algo = lower(solution.instance, solution.schedule, LoweringOptions(inplace=True))
    verify_algo(algo, solution.collective)
    peers = [{tb.send for tb in gpu.threadblocks if tb.send >= 0} for gpu in algo.gpus]
    assert max(map(len, peers)) <= 7 + 2
    assert max(len(gpu.threadblocks) for gpu in algo.gpus) <= 64
    assert max(len(tb.steps) for gpu in algo.gpus for tb in gpu.threadblocks) <= 64
