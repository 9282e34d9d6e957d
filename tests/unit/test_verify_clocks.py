"""The cheap answers of races.py: never more than full clocks say, and enough for the programs of equal boxes."""

from __future__ import annotations

import numpy as np
import pytest

from msccl_xml.model import Algo
from synth.build import Builder
from synth.collective import Collective, CollectiveName
from synth.hierarchical import hierarchical
from synth.inputs.load import load_topology
from synth.lowering import LoweringOptions, lower
from synth.solve import Stages
from synth.topology import replicate
from synth.verify.clocks import Clocks, clocks_at_home, gpus_of_blocks
from synth.verify.flows import ordered_by_flow
from synth.verify.graph import Graph, build_graph, order_events
from synth.verify.layout import layouts_of
from synth.verify.races import _list_accesses, _questions


def program(machine: str, nodes: int, name: str) -> tuple[Algo, Collective]:
    topology = replicate(load_topology(machine), nodes)
    collective = Collective(CollectiveName(name), topology.num_ranks, 2 * topology.num_ranks)
    found = Builder(topology).boxed(collective, 1 << 28, "ring")
    assert found is not None
    solution = hierarchical(*found, Stages())
    return lower(solution.instance, solution.schedule, LoweringOptions(inplace=name == "allreduce")), collective


def full_clocks(graph: Graph, order: list[int]) -> Clocks:
    return Clocks(graph, order, graph.waits, np.arange(len(graph.start), dtype=np.int64))


@pytest.mark.parametrize(("machine", "name"), [("ndv2", "allreduce"), ("dgx-h100", "allreduce"), ("ndv2", "allgather")])
def test_cheap_answers_are_right_and_enough(machine: str, name: str) -> None:
    algo, collective = program(machine, 2, name)
    graph = build_graph(algo, 1)
    order = order_events(graph)
    accesses = _list_accesses(graph, order, layouts_of(algo, collective)[0])
    before, after, _ = _questions(accesses, np.asarray(graph.block, dtype=np.int64))
    home = clocks_at_home(graph, order)
    at_home = home.ordered(before, after)
    by_flow = ordered_by_flow(graph, order, home, (accesses.event, accesses.address), before, after)
    assert full_clocks(graph, order).ordered(before, after).all()
    assert (at_home | by_flow).all()
    if name == "allreduce":
        assert not at_home.all()


def test_cheap_answers_never_say_more_than_full_clocks() -> None:
    """Random pairs of events of one gpu, in either order: most are not ordered at all."""
    algo, collective = program("ndv2", 2, "allreduce")
    graph = build_graph(algo, 1)
    order = order_events(graph)
    accesses = _list_accesses(graph, order, layouts_of(algo, collective)[0])
    gpu = np.asarray(gpus_of_blocks(graph))[np.asarray(graph.block)]
    rng = np.random.default_rng(0)
    pairs = rng.integers(len(graph), size=(2, 60_000))
    block = np.asarray(graph.block)
    before, after = pairs[:, (gpu[pairs[0]] == gpu[pairs[1]]) & (block[pairs[0]] != block[pairs[1]])]
    home, full = clocks_at_home(graph, order), full_clocks(graph, order)
    truth = full.ordered(before, after)
    at_home = home.ordered(before, after)
    by_flow = ordered_by_flow(graph, order, home, (accesses.event, accesses.address), before, after)
    assert not (at_home & ~truth).any()
    assert not (by_flow & ~truth).any()
    assert 0 < truth.sum() < len(truth)
    assert at_home.sum() > 0
    assert by_flow.sum() > 0
