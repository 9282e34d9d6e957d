"""The packing against what is known of it: Edmonds' cuts for allgather, another linear program for alltoall.

For plain GPU graphs the least load of (16) for allgather is the worst cut (J. Edmonds, Edge-disjoint branchings, 1973): over
sets S of ranks, what starts outside S over what links let into S.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from synth.bounds import ingress_bound
from synth.instance import Instance
from synth.paths import strongly_connected
from synth.reductions.symmetry import find_symmetries
from synth.routing.apart import PathsApart
from synth.routing.packing import Packing, TreePacking
from synth.topology import Device, DeviceKind, Link, Topology
from tests.graphs import both_ways, dgx1, full, gpus, instance_of, mesh, ring, star, two_boxes

GAP = 2e-3
#: Every solve goes on from the one before, or begins anew.
PACKINGS = st.sampled_from([TreePacking(few_ranks=0), TreePacking()])


@st.composite
def machines(draw: st.DrawFn, max_ranks: int = 5) -> Topology:
    """One-way links between GPUs: a ring that connects them all, and others, of unequal rates."""
    count = draw(st.integers(2, max_ranks))
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    circle = {(rank, (rank + 1) % count) for rank in range(count)}
    chosen = sorted(circle | draw(st.sets(st.sampled_from(pairs))))
    rate = st.sampled_from([1.0, 2.0, 5.0, 10.0, 12.5])
    links = [Link(f"gpu{a}", f"gpu{b}", "nvlink", draw(rate), 1.0) for a, b in chosen]
    return Topology("drawn", tuple(gpus(count)), tuple(links))


@st.composite
def behind_switches(draw: st.DrawFn) -> Topology:
    """GPUs each behind one of a row of PCIe switches, some of them bridged, rates unequal."""
    count, switches = draw(st.integers(3, 5)), draw(st.integers(1, 3))
    rate = st.sampled_from([4.0, 10.0, 12.5, 16.0])
    links: list[Link] = []
    for number in range(switches - 1):
        links += both_ways(f"plx{number}", f"plx{number + 1}", draw(rate))
    for rank in range(count):
        links += both_ways(f"gpu{rank}", f"plx{draw(st.integers(0, switches - 1))}", draw(rate))
    pairs = [(a, b) for a in range(count) for b in range(a)]
    for a, b in sorted(draw(st.sets(st.sampled_from(pairs), max_size=3))):
        links += both_ways(f"gpu{a}", f"gpu{b}", draw(st.sampled_from([10.0, 25.0])))
    devices = tuple(Device(f"plx{number}", DeviceKind.PCIE_SWITCH) for number in range(switches))
    return Topology("drawn", (*gpus(count), *devices), tuple(links))


def worst_cut_us(instance: Instance) -> float:
    """The largest, over sets of ranks, of what must enter over how fast it can (a link joins two GPUs here)."""
    ranks = range(instance.num_ranks)
    worst = 0.0
    for inside in (set(s) for k in range(1, len(ranks)) for s in combinations(ranks, k)):
        entering = sum(len(demand.dests & inside) > 0 and demand.source not in inside for demand in instance.demands)
        rate = sum(path.GBps * 1e3 for path in instance.paths if path.dst in inside and path.src not in inside)
        worst = max(worst, entering * instance.chunk_bytes / rate)
    return worst


def concurrent_flow_us(instance: Instance) -> float:
    """The least load of any fractional routing of one-destination demands: a linear program over flows on paths."""
    ranks, paths, num_links = instance.num_ranks, instance.paths, len(instance.topology.links)
    columns = ranks * len(paths) + 1
    wanted = np.zeros((ranks, ranks))
    for demand in instance.demands:
        for dest in demand.dests:
            wanted[demand.source, dest] += 1
    balance, amounts = np.zeros((ranks * ranks, columns)), np.zeros(ranks * ranks)
    load = np.zeros((num_links, columns))
    load[:, -1] = -1.0
    for source in range(ranks):
        for path in paths:
            column = source * len(paths) + path.index
            balance[source * ranks + path.dst, column] += 1
            balance[source * ranks + path.src, column] -= 1
            load[list(path.links), column] = path.busy_us(instance.chunk_bytes)
        for rank in range(ranks):
            amounts[source * ranks + rank] = wanted[source, rank] if rank != source else -wanted[source].sum()
    objective = np.zeros(columns)
    objective[-1] = 1.0
    answer = linprog(objective, load, np.zeros(num_links), balance, amounts, bounds=(0, None))
    assert answer.status == 0
    return float(answer.fun)


def check_columns(instance: Instance, packing: Packing) -> None:
    """Every commodity's chunks are all on trees, and each tree leads from its source to its destinations."""
    amounts: dict[int, float] = defaultdict(float)
    for column in packing.columns:
        amounts[column.commodity] += column.amount
        commodity = packing.commodities[column.commodity]
        parent = {instance.paths[path].dst: instance.paths[path].src for path in column.paths}
        assert len(parent) == len(column.paths), "a rank receives twice"
        for dest in commodity.dests:
            rank, steps = dest, 0
            while rank != commodity.source:
                rank, steps = parent[rank], steps + 1
                assert steps <= instance.num_ranks, "a tree runs in a circle"
    for index, commodity in enumerate(packing.commodities):
        assert amounts[index] == pytest.approx(len(commodity.chunks), rel=1e-5)


@settings(max_examples=25)
@given(topology=machines(), per_rank=st.integers(1, 3), pack=PACKINGS)
def test_allgather_reaches_the_worst_cut(topology: Topology, per_rank: int, pack: TreePacking) -> None:
    instance = instance_of(topology, "allgather", per_rank)
    packing = pack(instance)
    cut_us = worst_cut_us(instance)
    assert packing.bound_us <= cut_us * (1 + 1e-9) <= packing.load_us * (1 + 1e-6)
    assert packing.load_us <= packing.bound_us * (1 + GAP)
    buffer_bytes = instance.chunk_bytes * instance.collective.chunks
    ingress = ingress_bound(topology, instance.collective, instance.paths)
    assert ingress.us_per_byte * buffer_bytes <= cut_us * (1 + 1e-9)
    check_columns(instance, packing)


@settings(max_examples=15)
@given(topology=machines(), root=st.integers(0, 1), pack=PACKINGS)
def test_broadcast_reaches_the_least_flow_from_the_root(topology: Topology, root: int, pack: TreePacking) -> None:
    instance = instance_of(topology, "broadcast", 3, root=root)
    packing = pack(instance)
    assert packing.bound_us <= worst_cut_us(instance) * (1 + 1e-9) <= packing.load_us * (1 + 1e-6)
    assert packing.load_us <= packing.bound_us * (1 + GAP)
    check_columns(instance, packing)


@settings(max_examples=15)
@given(topology=machines(4), name=st.sampled_from(["alltoall", "gather", "scatter"]), pack=PACKINGS)
def test_one_destination_reaches_the_concurrent_flow(topology: Topology, name: str, pack: TreePacking) -> None:
    instance = instance_of(topology, name, 2, root=None if name == "alltoall" else 0)
    packing = pack(instance)
    flow_us = concurrent_flow_us(instance)
    assert packing.bound_us <= flow_us * (1 + 1e-6)
    assert packing.load_us == pytest.approx(flow_us, rel=GAP)
    check_columns(instance, packing)


@pytest.mark.parametrize("topology", [star(4), two_boxes(ring(3)), two_boxes(star(2), (0, 1))], ids=lambda t: t.name)
def test_alltoall_where_paths_share_links(topology: Topology) -> None:
    instance = instance_of(topology, "alltoall")
    packing = TreePacking()(instance)
    assert packing.load_us == pytest.approx(concurrent_flow_us(instance), rel=GAP)
    assert packing.bound_us <= packing.load_us * (1 + 1e-9)
    check_columns(instance, packing)


@pytest.mark.parametrize("topology", [ring(5), mesh(2, 3), star(5), dgx1()], ids=lambda t: t.name)
@pytest.mark.parametrize("name", ["allgather", "alltoall"])
def test_symmetries_change_neither_load_nor_bound(topology: Topology, name: str) -> None:
    plain = instance_of(topology, name)
    symmetries = find_symmetries(topology, plain.paths)
    assert symmetries
    packing = TreePacking()(instance_of(topology, name, symmetries=symmetries))
    assert packing.load_us == pytest.approx(TreePacking()(plain).load_us, rel=GAP)
    assert packing.load_us <= packing.bound_us * (1 + GAP)
    check_columns(plain, packing)


@settings(max_examples=25)
@given(topology=behind_switches(), name=st.sampled_from(["allgather", "reduce-scatter"]))
def test_paths_that_keep_apart_carry_as_much(topology: Topology, name: str) -> None:
    """All ranks reach each other over them, trees use nothing else, and the busiest link carries hardly more."""
    instance = instance_of(topology, name)
    kept = PathsApart()(instance)
    solved = instance.reversed() if instance.collective.combining else instance
    ends = [(solved.paths[path].src, solved.paths[path].dst) for path in kept]
    assert strongly_connected(solved.num_ranks, ends) is None
    packing = TreePacking()(solved, paths=kept)
    check_columns(solved, packing)
    assert {path for column in packing.columns for path in column.paths} <= kept
    assert packing.load_us <= TreePacking()(solved).load_us * (1 + PathsApart().loss + 2 * GAP)


def test_nothing_to_move_needs_no_time() -> None:
    packing = TreePacking()(instance_of(Topology("alone", tuple(gpus(1)), ()), "allgather"))
    assert (packing.columns, packing.load_us, packing.bound_us) == ((), 0.0, 0.0)


def test_one_rank_sends_over_every_other_and_no_further() -> None:
    """Of eight GPUs that are all joined, each that gets a piece from the root passes it on to all others."""
    instance = instance_of(full(8), "broadcast", 64, root=0)
    packing = TreePacking()(instance)
    first = [
        [instance.paths[path] for path in column.paths if instance.paths[path].src == 0] for column in packing.columns
    ]
    assert [len(hops) for hops in first] == [1] * 7
    for (hop,), column in zip(first, packing.columns, strict=True):
        assert {instance.paths[path].src for path in column.paths} == {0, hop.dst}


@pytest.mark.parametrize(
    ("topology", "name"), [(mesh(4, 5), "broadcast"), (mesh(4, 4), "allgather")], ids=["mesh4x5", "mesh4x4"]
)
def test_no_tree_carries_little_where_fewer_are_as_good(topology: Topology, name: str) -> None:
    packing = TreePacking()(instance_of(topology, name, 512, root=0 if name == "broadcast" else None))
    assert min(column.amount for column in packing.columns) > 512 / 16


def test_one_chunk_takes_few_rounds_and_a_tree_that_reaches_all() -> None:
    """It goes along one tree, whatever others could share it with that."""
    one, many = (instance_of(full(16), "broadcast", chunks, root=0) for chunks in (1, 2))
    packing = TreePacking()(one)
    assert packing.rounds <= 16 < TreePacking()(many).rounds
    check_columns(one, packing)
