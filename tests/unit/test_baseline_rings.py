"""The rings that the search finds: right everywhere, and as many as each machine is known to have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.baselines import Ring, find_rings
from synth.inputs.load import load_topology
from synth.paths import find_paths
from synth.topology import Device, DeviceKind, Link, Topology, replicate
from tests import graphs


def rings_of(topology: Topology) -> tuple[Ring, ...]:
    """The rings found, after `check_rings`."""
    rings = find_rings(topology, find_paths(topology))
    check_rings(topology, rings)
    return rings


def check_rings(topology: Topology, rings: Sequence[Ring]) -> None:
    """Every ring visits every rank once and every node in one go, over paths that exist; no link carries more than it can."""
    paths = find_paths(topology)
    loads: Counter[int] = Counter()
    for ring in rings:
        assert sorted(ring.ranks) == list(range(topology.num_ranks))
        assert len(ring.paths) == len(ring.ranks)
        onward = (*ring.ranks[1:], ring.ranks[0])
        for src, dst, path in zip(ring.ranks, onward, ring.paths, strict=True):
            assert (paths[path].src, paths[path].dst) == (src, dst)
            loads.update(paths[path].links)
        crossings = sum(
            topology.node_of(src) != topology.node_of(dst) for src, dst in zip(ring.ranks, onward, strict=True)
        )
        assert crossings == (topology.num_nodes if topology.num_nodes > 1 else 0)
    for link, count in loads.items():
        assert count * rings[0].GBps <= topology.links[link].GBps * (1 + 1e-9)


def directed_ring(count: int, GBps: float = 10.0, alpha_us: float = 0.0) -> Topology:
    """GPU i reaches GPU i+1 only, the last the first."""
    links = [Link(f"gpu{i}", f"gpu{(i + 1) % count}", "nvlink", GBps, alpha_us) for i in range(count)]
    return Topology(f"cycle{count}", tuple(graphs.gpus(count)), tuple(links))


def test_a_dgx1_mesh_has_three_rings_each_way_of_one_lane() -> None:
    rings = rings_of(graphs.dgx1())
    assert [ring.GBps for ring in rings] == [22.0] * 6
    cycles = {tuple(zip(ring.ranks, (*ring.ranks[1:], ring.ranks[0]), strict=True)) for ring in rings}
    turned = {tuple(sorted((dst, src) for src, dst in cycle)) for cycle in cycles}
    assert turned == {tuple(sorted(cycle)) for cycle in cycles}


@pytest.mark.parametrize(
    ("name", "nodes", "total_GBps"),
    [
        ("dgx1", 1, 6 * 22.0),  # all six NVLinks of every GPU
        ("dgx1-p100", 1, 4 * 18.0),
        ("dgx2", 1, 132.0),
        ("mi250", 1, 6 * 36.0),  # six of a die's seven lanes: from a package only six lead away
        ("mi300x", 1, 7 * 48.0),  # all links, at half their rate
        ("pcie8-1nic", 1, 10.0),  # the link between the sockets
        ("dgx1", 2, 4 * 12.0),  # four NICs behind PCIe
        ("dgx2", 2, 8 * 12.0),
        ("dgx-a100", 2, 8 * 24.0),
        ("dgx-h100", 4, 8 * 48.0),
        ("ndv2", 2, 12.0),
        ("pcie8-1nic", 2, 10.0),
    ],
)
def test_rings_of_the_catalogue_fill_what_limits_them(name: str, nodes: int, total_GBps: float) -> None:
    rings = rings_of(replicate(load_topology(name), nodes))
    assert sum(ring.GBps for ring in rings) == pytest.approx(total_GBps)


def test_a_ring_of_links_is_used_both_ways_and_a_cycle_one_way() -> None:
    assert [ring.ranks for ring in rings_of(graphs.ring(5))] == [(0, 1, 2, 3, 4), (0, 4, 3, 2, 1)]
    assert [ring.ranks for ring in rings_of(directed_ring(4))] == [(0, 1, 2, 3)]
    assert [ring.ranks for ring in rings_of(graphs.ring(2))] == [(0, 1)]


@pytest.mark.parametrize("topology", [graphs.line(4), graphs.mesh(3, 3)], ids=["line", "odd-mesh"])
def test_no_ring_where_no_cycle_visits_every_rank_once(topology: Topology) -> None:
    assert rings_of(topology) == ()


def test_rings_enter_and_leave_a_box_over_its_nics() -> None:
    topology = graphs.two_boxes(graphs.full(4), (0, 2), GBps=10.0)
    rings = rings_of(topology)
    assert sum(ring.GBps for ring in rings) == pytest.approx(20.0)
    for ring in rings:
        ends = {
            rank % 4
            for src, dst in zip(ring.ranks, (*ring.ranks[1:], ring.ranks[0]), strict=True)
            if topology.node_of(src) != topology.node_of(dst)
            for rank in (src, dst)
        }
        assert ends <= {0, 2}


def test_the_reversal_of_a_ring_is_a_ring_of_the_reversed_machine() -> None:
    topology = graphs.dgx1()
    for ring in rings_of(topology):
        turned = ring.reversed()
        paths = find_paths(topology)
        onward = (*turned.ranks[1:], turned.ranks[0])
        assert [(paths[p].dst, paths[p].src) for p in turned.paths] == list(zip(turned.ranks, onward, strict=True))
        assert turned.reversed() == ring


@st.composite
def small_machines(draw: st.DrawFn) -> Topology:
    """Up to five ranks in a cycle (so that paths are found), with more one-way links of one or two lanes of 10 GB/s."""
    count = draw(st.integers(3, 5))
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b and b != (a + 1) % count]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True))
    lanes = {(rank, (rank + 1) % count): 1 for rank in range(count)} | {
        pair: draw(st.integers(1, 2)) for pair in chosen
    }
    links = tuple(Link(f"gpu{a}", f"gpu{b}", "nvlink", 10.0 * n, 1.0) for (a, b), n in sorted(lanes.items()))
    return Topology("small", tuple(Device(f"gpu{rank}", DeviceKind.GPU, 0, rank) for rank in range(count)), links)


def most_rings(lanes: Counter[tuple[int, int]], cycles: Sequence[tuple[int, ...]]) -> int:
    """The most cycles that fit into the lanes together, by trying all."""
    best = 0
    for position, cycle in enumerate(cycles):
        steps = list(zip(cycle, (*cycle[1:], cycle[0]), strict=True))
        if all(lanes[step] for step in steps):
            best = max(best, 1 + most_rings(lanes - Counter(steps), cycles[position:]))
    return best


@settings(max_examples=60)
@given(small_machines())
def test_the_search_is_no_worse_than_trying_all_sets_of_rings(topology: Topology) -> None:
    lanes = Counter({(int(link.src[3:]), int(link.dst[3:])): round(link.GBps / 10) for link in topology.links})
    cycles = [(0, *rest) for rest in permutations(range(1, topology.num_ranks))]
    assert sum(ring.GBps for ring in rings_of(topology)) >= 10.0 * most_rings(lanes, cycles) - 1e-6
