"""Large clusters: how near the answer for equal boxes comes to the limit, and how much less of it is searched than written."""

from __future__ import annotations

import pytest

from synth.bounds import bound_of
from synth.build import Builder
from synth.collective import SHARED, Collective, CollectiveName
from synth.hierarchical import hierarchical
from synth.inputs.load import load_topology
from synth.lowering import LoweringOptions, lower
from synth.paths import find_paths
from synth.solve import Solution, Stages
from synth.topology import replicate
from synth.verify import verify_algo

GB = 1 << 30


def solved(machine: str, nodes: int, name: str, per_rank: int) -> tuple[Solution, float]:
    """The hierarchy's answer at 1 GB round the ring of boxes, and the share of the bound that its schedule reaches."""
    topology = replicate(load_topology(machine), nodes)
    paths = find_paths(topology)
    kind, ranks = CollectiveName(name), topology.num_ranks
    found = Builder(topology, None, paths).boxed(Collective(kind, ranks, per_rank * ranks), GB, "ring")
    assert found is not None
    solution = hierarchical(*found, Stages())
    bound = bound_of(topology, Collective(kind, ranks, ranks if kind in SHARED else 1), paths)
    return solution, bound.time_us(GB) / solution.schedule.makespan_us


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


@pytest.mark.slow
def test_the_program_of_256_ranks_is_verified_and_small() -> None:
    solution, _ = solved("dgx-a100", 32, "allreduce", 1)
    algo = lower(solution.instance, solution.schedule, LoweringOptions(inplace=True))
    verify_algo(algo, solution.collective)
    peers = [{tb.send for tb in gpu.threadblocks if tb.send >= 0} for gpu in algo.gpus]
    assert max(map(len, peers)) <= 7 + 2
    assert max(len(gpu.threadblocks) for gpu in algo.gpus) <= 64
    assert max(len(tb.steps) for gpu in algo.gpus for tb in gpu.threadblocks) <= 64
