"""Rotations of the ranks: which machines have some, and that what is made for one run of ranks holds for all."""

from __future__ import annotations

import pytest

from synth.bounds import bound_of
from synth.boxes import Boxes
from synth.collective import Collective, CollectiveName
from synth.hierarchical import evenly_rotated, hierarchical, hierarchical_in_rounds
from synth.instance import Instance
from synth.lowering import LoweringOptions
from synth.ordering import Rounds
from synth.paths import find_paths
from synth.reductions.fold import fold
from synth.reductions.rotation import rotations
from synth.reductions.symmetry import find_symmetries
from synth.routing.trees import TreesRouting
from synth.solve import Stages
from synth.strategies import rotated
from synth.symmetry import free_group
from synth.timing import busiest_link_us, check_routing, check_schedule
from synth.topology import Topology
from synth.verify import verify_algo
from tests.folding import unfolded
from tests.graphs import dgx1, from_pairs, full, instance_of, line, mesh, ring, star

ALL = ("allgather", "reduce-scatter", "allreduce", "alltoall")


def rotating(topology: Topology, name: str = "allgather", per_rank: int = 1) -> list[tuple[Instance, Boxes]]:
    symmetries = find_symmetries(topology, find_paths(topology))
    return [*rotations(instance_of(topology, name, per_rank, symmetries=symmetries))]


@pytest.mark.parametrize(
    ("topology", "sizes"), [(ring(6), [1, 2, 3]), (dgx1(), [4]), (mesh(2, 3), [3]), (star(5), [1]), (line(4), [])]
)
def test_the_shortest_runs_come_first(topology: Topology, sizes: list[int]) -> None:
    found = rotating(topology)
    assert [boxes.size for _, boxes in found] == sizes
    for instance, boxes in found:
        assert instance.symmetries[0] is boxes.rotation
        assert [boxes.rotation.ranks[rank] for rank in boxes.ranks[0]] == [*boxes.ranks[1]]
        before = free_group(find_symmetries(topology, instance.paths))
        assert before is not None
        assert {member.ranks for member in before} == {member.ranks for member in free_group(instance.symmetries) or ()}


def test_chunks_go_to_chunks() -> None:
    assert [boxes.size for _, boxes in rotating(ring(6), "allreduce", 6)] == [1, 2, 3]
    # Of four chunks six ranks reduce none or one each, not every second or third of them.
    assert [boxes.size for _, boxes in rotating(ring(6), "allreduce", 4)] == [3]
    symmetries = find_symmetries(ring(6), find_paths(ring(6)))
    assert not [*rotations(instance_of(ring(6), "broadcast", 6, root=0, symmetries=symmetries))]


@pytest.mark.parametrize("topology", [ring(6), dgx1(), mesh(2, 3), full(4)])
def test_a_run_of_ranks_is_packed_as_well_as_all(topology: Topology) -> None:
    """The symmetries that are left make the program as small as all of them do."""
    for instance, boxes in rotating(topology, per_rank=4):
        answer = fold(instance, boxes)
        assert answer is not None
        routing, packing = TreesRouting()(answer.instance, sources=boxes.ranks[0])
        _, whole = TreesRouting()(instance)
        assert {commodity.source for commodity in packing.commodities} == {*boxes.ranks[0]}
        assert packing.load_us == pytest.approx(whole.load_us, rel=1e-3)
        assert packing.bound_us == pytest.approx(whole.bound_us, rel=1e-3)
        shown = unfolded(answer, routing)
        check_routing(instance, shown)
        assert busiest_link_us(instance, shown.transfers) == pytest.approx(
            busiest_link_us(answer.instance, routing.transfers)
        )


@pytest.mark.parametrize("topology", [ring(6), dgx1(), mesh(2, 3)])
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("paced", [False, True])
def test_what_all_runs_do_alike_is_right(topology: Topology, name: str, paced: bool) -> None:
    if name == "alltoall" and paced:
        return
    ranks = topology.num_ranks
    for instance, boxes in rotating(topology, name, 2 * ranks if name == "allreduce" else 2):
        route = rotated("flow" if name == "alltoall" else "trees")
        if paced:
            solution = hierarchical_in_rounds(instance, boxes, Stages(), route, Rounds("Simple"))
        else:
            solution = hierarchical(instance, boxes, Stages(), route, "Simple")
        check_schedule(instance, solution.schedule)
        assert solution.strategy == ("flow" if name == "alltoall" else "trees")
        assert solution.folded is not None
        assert solution.folded.schedule.makespan_us == pytest.approx(solution.schedule.makespan_us)
        alone = Collective(CollectiveName(name), ranks, ranks)
        size = instance.collective.chunks * instance.chunk_bytes
        assert solution.schedule.makespan_us >= bound_of(topology, alone, instance.paths).time_us(size) * (1 - 1e-6)
        verify_algo(solution.program(LoweringOptions(max_threadblocks=200)), instance.collective)


def torus(rows: int, columns: int) -> Topology:
    """Ranks row by row, each joined to the next in its row and in its column."""
    ranks = [divmod(rank, columns) for rank in range(rows * columns)]
    across = [(rank, row * columns + (column + 1) % columns) for rank, (row, column) in enumerate(ranks)]
    down = [(rank, (rank + columns) % len(ranks)) for rank in range(len(ranks))]
    return from_pairs("torus", len(ranks), sorted({(min(pair), max(pair)) for pair in across + down}))


@pytest.mark.parametrize(("per_rank", "size"), [(4, 8), (8, 8), (15, 4)])
def test_runs_are_as_long_as_it_takes_to_load_links_evenly(per_rank: int, size: int) -> None:
    """Of 4 chunks a rank the packing of runs of 4 ranks loads a link with 1.067 of what it has to carry, of 8 with 1.033."""
    found = rotating(torus(4, 4), per_rank=per_rank)
    assert [boxes.size for _, boxes in found] == [4, 8]
    chosen = evenly_rotated(found[0][0], found)
    assert chosen is not None
    assert chosen[1].size == size


def test_where_chunks_are_few_all_ranks_are_packed() -> None:
    found = rotating(torus(3, 4))
    assert [boxes.size for _, boxes in found] == [4]
    assert evenly_rotated(found[0][0], found) is None
