"""Whatever the machine, the collective and the options: a baseline passes the judge, or says why it does not exist."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from msccl_xml.limits import check_limits
from synth.baselines import BASELINES, BaselineOptions, build
from synth.bounds import ingress_bound
from synth.collective import ROOTED, CollectiveName
from synth.errors import NoAnswerError
from synth.lowering import Runtime
from synth.paths import find_paths
from synth.timing import check_schedule
from synth.topology import Link, Topology
from synth.verify import verify_algo
from tests import graphs

BOXES = [
    graphs.two_boxes(graphs.ring(3), (0, 1)),
    graphs.two_boxes(graphs.full(2), (0, 1)),
    graphs.two_boxes(graphs.star(4), (0, 2)),
    graphs.two_boxes(graphs.mesh(2, 2), (3,)),
]


@st.composite
def machines(draw: st.DrawFn, name: str) -> Topology:
    """One box of two to six GPUs or (always for what needs them) two boxes.

    The GPUs of a box are joined in a cycle or all to all, or by a random tree; then come more links, one way or both, fast
    or slow.
    """
    if name == "hierarchical" or draw(st.integers(0, 3)) == 0:
        return draw(st.sampled_from(BOXES))
    count = draw(st.integers(2, 6))
    pairs = draw(st.sampled_from([_tree_pairs, _cycle_pairs, _all_pairs]))(draw, count)
    others = sorted({(a, b) for a in range(count) for b in range(count) if a != b} - pairs)
    if others:
        more = draw(st.lists(st.sampled_from(others), unique=True))
        pairs |= set(more) | ({(b, a) for a, b in more} if draw(st.booleans()) else set())
    rates, latencies = st.sampled_from([10.0, 20.0, 25.0]), st.sampled_from([0.5, 2.0])
    links = [Link(f"gpu{a}", f"gpu{b}", "nvlink", draw(rates), draw(latencies)) for a, b in sorted(pairs)]
    return Topology("random", tuple(graphs.gpus(count)), tuple(links))


def _tree_pairs(draw: st.DrawFn, count: int) -> set[tuple[int, int]]:
    edges = [(draw(st.integers(0, rank - 1)), rank) for rank in range(1, count)]
    return {pair for a, b in edges for pair in ((a, b), (b, a))}


def _cycle_pairs(draw: st.DrawFn, count: int) -> set[tuple[int, int]]:
    return {(rank, (rank + 1) % count) for rank in range(count)}


def _all_pairs(draw: st.DrawFn, count: int) -> set[tuple[int, int]]:
    return {(a, b) for a in range(count) for b in range(count) if a != b}


@st.composite
def options(draw: st.DrawFn, collective: CollectiveName, ranks: int) -> BaselineOptions:
    return BaselineOptions(
        chunks=draw(st.sampled_from([None, None, 1, 2, 5])),
        protocol=draw(st.sampled_from(["Simple", "LL", "LL128"])),
        runtime=draw(st.sampled_from(["msccl", "executor", "rccl"])),
        inplace=collective is not CollectiveName.ALLTOALL and draw(st.booleans()),
        instances=draw(st.integers(1, 2)),
        root=draw(st.integers(0, ranks - 1)) if collective in ROOTED else 0,
    )


def kinds(of: Collection[CollectiveName]) -> st.SearchStrategy[CollectiveName]:
    return st.sampled_from(sorted(of))


@pytest.mark.parametrize("name", BASELINES)
@settings(max_examples=60)
@given(st.data(), st.sampled_from([1e3, 1e6, 1e8]))
def test_every_baseline_passes_the_judge_and_beats_no_bound(name: str, data: st.DataObject, size: float) -> None:
    machine = data.draw(machines(name))
    collective = data.draw(kinds(BASELINES[name].collectives))
    chosen = data.draw(options(collective, machine.num_ranks))
    paths = find_paths(machine)
    try:
        built = build(name, machine, collective, size, chosen, paths)
    except NoAnswerError as refusal:
        event(f"refused: {refusal}")
        assert name in str(refusal)  # noqa: PT017 - not refusing is as good
        return
    check_schedule(built.instance, built.schedule)
    verify_algo(built.algo, built.collective, runtime=chosen.runtime)
    assert check_limits(built.algo, chosen.runtime, full_ops=False) == []
    if name != "one-shot":  # the bound quoted for allreduce is that of reducing each piece at one rank
        bound = ingress_bound(machine, built.instance.collective, paths)
        assert built.schedule.makespan_us >= bound.time_us(size) * (1 - 1e-9)


BOX, TWO_BOXES = graphs.full(4), graphs.two_boxes(graphs.full(2), (0, 1))
EVERYBODY_JOINED = [
    (name, machine) for name in BASELINES for machine in (BOX, TWO_BOXES) if machine != BOX or name != "hierarchical"
]


@pytest.mark.parametrize(("name", "topology"), EVERYBODY_JOINED)
def test_a_baseline_exists_for_all_its_collectives_where_everybody_is_joined(name: str, topology: Topology) -> None:
    runtimes: tuple[Runtime, ...] = ("msccl", "executor", "rccl")
    for collective in sorted(BASELINES[name].collectives):
        for runtime in runtimes:
            built = build(name, topology, collective, 1e6, BaselineOptions(runtime=runtime))
            verify_algo(built.algo, built.collective, runtime=runtime)
