"""The exact bounds, by hand: worst cuts with their names, concurrent flow, roots of allreduce, and how late things are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from synth.bounds import Bound, Limit, bound_of
from synth.bounds.cases import cases_of
from synth.bounds.machine import Machine
from synth.bounds.oracle import Case, CutOracle
from synth.bounds.rooted import rooted_allreduce
from synth.bounds.search import worst_cut
from synth.bounds.turning import Classes
from synth.bounds.used import used_links
from synth.bounds.words import names
from synth.collective import ROOTED, SHARED, Collective, CollectiveName
from synth.errors import NoAnswerError
from synth.inputs.load import load_topology
from synth.paths import find_paths
from synth.pipeline import synthesize
from synth.topology import Device, DeviceKind, Link, Topology, replicate
from tests.graphs import both_ways, dgx1, from_pairs, full, gpus, line, mesh, ring, star, two_boxes
from tests.jobs import request

PEERS = Path(__file__).resolve().parents[3] / "shared" / "peers" / "instances"
CATALOGUE = ("dgx1", "dgx2", "dgx-a100", "dgx-h100", "mi250", "mi300x", "pcie8-1nic", "pcie-2x2-nvlink", "line4")


def bound(topology: Topology, name: str, root: int | None = None) -> Bound:
    kind = CollectiveName(name)
    chunks = topology.num_ranks if kind in SHARED else 1
    if kind in ROOTED and root is None:
        root = 0
    return bound_of(topology, Collective(kind, topology.num_ranks, chunks, root), find_paths(topology))


def test_what_gpus_share_lets_a_byte_in_once_for_each() -> None:
    """Two boxes of two GPUs on one PCIe switch: either GPU may have the NIC's 10 GB/s beside its NVLink's 5, but both have 20 of
    the 30 that the cuts of single GPUs count.
    """
    devices, links = [Device("network", DeviceKind.NETWORK, -1)], []
    for node in range(2):
        devices += gpus(2, 2 * node, node)
        devices += [Device(f"pcie{node}", DeviceKind.PCIE_SWITCH, node), Device(f"nic{node}", DeviceKind.NIC, node)]
        links += both_ways(f"gpu{2 * node}", f"gpu{2 * node + 1}", 5.0)
        for end in (f"gpu{2 * node}", f"gpu{2 * node + 1}", f"nic{node}"):
            links += both_ways(end, f"pcie{node}", 10.0)
        links += both_ways(f"nic{node}", "network", 10.0)
    topology = Topology("shared-nic", tuple(devices), tuple(links))
    for name, share in (("allgather", 1.5), ("reduce-scatter", 1.5), ("allreduce", 3.0)):
        found = bound(topology, name)
        assert found.us_per_byte == pytest.approx(share / 20e3, rel=1e-9)
        assert found.what.startswith("limit of copies")
        assert found.cut is None
        assert any("nic" in link for link in found.full)
        result = synthesize(request(topology, name, 64 << 20, objective="schedule", chunks=8))
        assert 0.9 <= result.sizes[0].bound_us / result.sizes[0].schedule_us <= 1.0


def test_a_limit_counts_only_links_that_are_in_time() -> None:
    # 10 bytes a us from the start and 30 from 4 us on: 40 bytes by 4 us, then 40 a us.
    limit = Limit.of(0.5, [10.0, 20.0, 10.0], [0.0, 4.0, 4.0])
    assert limit.us_per_byte == 0.5 / 40
    assert limit.time_us(0) == 0.0
    assert limit.time_us(40) == 2.0
    assert limit.time_us(80) == 4.0
    assert limit.time_us(160) == 5.0


@pytest.mark.parametrize(
    ("topology", "name", "algbw_GBps"),
    [
        (ring(4), "allgather", 20 * 4 / 3),
        (line(3), "reduce-scatter", 10 * 3 / 2),
        (line(4), "alltoall", 10.0),  # 2 of 4 ranks send 2/4 of their buffers over the middle
        (ring(5), "alltoall", 10 * 5 / 3),  # from each rank two at one hop, two at two: 6/5 over two links
        (star(4), "alltoall", 10 * 4 / 3),
        (mesh(2, 2), "broadcast", 20.0),
        (line(3), "gather", 15.0),  # the end of the line as the root
        (full(4), "allreduce", 20.0),  # 2 (k - 1) / k of 30
        (star(4), "allreduce", 10 * 4 / 6),  # a switch neither copies nor adds
        (line(3), "allreduce", 10.0),  # all of it reduced in the middle
    ],
)
def test_limits_by_hand(topology: Topology, name: str, algbw_GBps: float) -> None:
    assert bound(topology, name).algbw_GBps == pytest.approx(algbw_GBps, rel=1e-7)


def test_a_mesh_is_better_than_two_halves_for_allreduce() -> None:
    # A corner is as good a root as the middle only where every rank has to be one.
    halves = bound(mesh(4, 4, GBps=50.0), "allgather").algbw_GBps / 2
    found = bound(mesh(4, 4, GBps=50.0), "allreduce")
    assert halves == pytest.approx(53.333, rel=1e-4)
    assert found.algbw_GBps == pytest.approx(80.0, rel=1e-6)
    assert found.any_us_per_byte == pytest.approx(1e-3 / 100, rel=1e-9)
    assert found.any_cut is not None
    assert len(found.any_cut.gpus) == 1


def test_roots_weigh_what_their_place_is_worth() -> None:
    machine = Machine.of(line(3), find_paths(line(3)))
    found = rooted_allreduce(CutOracle(machine))
    assert found.settled
    assert found.weights.tolist() == pytest.approx([0.0, 1.0, 0.0], abs=1e-6)


def test_the_cut_is_named() -> None:
    machine = two_boxes(full(4))
    cut = bound(machine, "allgather").cut
    assert cut is not None
    assert (cut.GBps, cut.into) == (10.0, False)
    assert cut.gpus in (("gpu0", "gpu1", "gpu2", "gpu3"), ("gpu4", "gpu5", "gpu6", "gpu7"))
    assert len(cut.links) == 1
    tail = bound(from_pairs("tail", 4, [(0, 1), (1, 2), (0, 2), (2, 3)]), "allgather")
    assert tail.what == "cut bound: what must get into gpu3 (10 GB/s)"
    assert tail.cut is not None
    assert tail.cut.links == ("gpu2->gpu3",)


def test_links_that_are_full_are_named_where_no_cut_is() -> None:
    found = bound(mesh(4, 4), "alltoall")
    assert found.cut is None
    assert found.what == "maximum concurrent flow: 16 of 48 links are full"
    assert "gpu1->gpu2" in found.full


def test_one_way_links_and_rates_that_differ_by_a_thousand() -> None:
    links = [Link("gpu0", "gpu1", "nvlink", 1000.0, 1.0), Link("gpu1", "gpu2", "nvlink", 1.0, 1.0)]
    links.append(Link("gpu2", "gpu0", "nvlink", 1 / 3, 1.0))
    machine = Topology("one way", tuple(gpus(3)), tuple(links))
    # gpu1 and gpu2's shares have to get back to gpu0 over the slowest link.
    found = bound(machine, "allgather")
    assert found.us_per_byte == pytest.approx(2 / 3 / (1e3 / 3), rel=1e-15)
    assert found.cut is not None
    assert found.cut.links == ("gpu2->gpu0",)
    assert found.latency_us == 2.0
    assert bound(machine, "broadcast", root=0).us_per_byte == pytest.approx(1e-3, rel=1e-12)


def test_exact_fractions_tell_cuts_apart_that_differ_by_little() -> None:
    # Two thirds into an end over 10 GB/s, or over 10.000001.
    links = both_ways("gpu0", "gpu1", 10.0) + both_ways("gpu1", "gpu2", 10.000001)
    found = bound(Topology("nearly even", tuple(gpus(3)), tuple(links)), "allgather")
    assert found.cut is not None
    assert found.cut.gpus == ("gpu0",)
    links = both_ways("gpu0", "gpu1", 10.000001) + both_ways("gpu1", "gpu2", 10.0)
    found = bound(Topology("nearly even", tuple(gpus(3)), tuple(links)), "allgather")
    assert found.cut is not None
    assert found.cut.gpus == ("gpu2",)


def test_unequal_boxes_make_the_larger_one_wait() -> None:
    # 3 GPUs and 1: three quarters have to get into the box of one, over 5 GB/s.
    devices = [*gpus(3), Device("gpu3", DeviceKind.GPU, 1, 3), Device("net", DeviceKind.NETWORK, -1)]
    links = [link for a, b in ((0, 1), (1, 2), (0, 2)) for link in both_ways(f"gpu{a}", f"gpu{b}", 100.0)]
    links += both_ways("gpu0", "net", 5.0) + both_ways("gpu3", "net", 5.0)
    machine = Topology("3 and 1", tuple(devices), tuple(links))
    assert bound(machine, "allgather").algbw_GBps == pytest.approx(5 * 4 / 3)
    assert bound(machine, "alltoall").algbw_GBps == pytest.approx(5 * 4 / 3)


def test_what_is_far_comes_late_in_small_buffers() -> None:
    # The far end of a line of 3 waits two alphas and a share of what crosses the last link; large buffers wait one alpha.
    found = bound(line(3), "allgather")
    assert found.latency_us == 2.0
    assert found.time_us(3e3) == pytest.approx(2.0 + 1e3 / 1e4)
    assert found.time_us(3e8) == pytest.approx(1.0 + 2e8 / 1e4)
    assert found.time_us(1) > 2.0


def test_all_that_is_far_waits_for_the_same_links() -> None:
    """What the four corners of a 3 x 3 mesh have for its middle is two hops away, and comes over the four links there."""
    found = bound(mesh(3, 3), "gather", root=4)
    assert found.latency_us == 2.0
    assert found.time_us(9e3) == pytest.approx(2.0 + 4e3 / 4e4)
    assert bound(mesh(3, 3), "scatter", root=4).time_us(9e3) == pytest.approx(found.time_us(9e3))
    assert found.time_us(9e8) == pytest.approx(1.0 + 8e8 / 4e4)


def test_a_sum_of_many_crosses_late_and_a_vector_of_each_takes_long() -> None:
    """Four GPUs at a switch, two us a hop: three vectors come into each in one hop, or sums in two."""
    found = bound(star(4), "allreduce")
    assert found.time_us(100) == pytest.approx(2 + 3 * 0.01)
    assert found.time_us(1e4) == pytest.approx((2 + 2 * 4) / 3 + 1)
    assert found.time_us(1e6) == pytest.approx(2 + 1.5 * 100)


def test_boxes_add_up_before_they_cross_or_copy_after_it() -> None:
    """Two boxes of two GPUs at a switch, each with a NIC: 2 us inside, 8 us across, and four pairs of GPUs need each other."""
    found = bound(two_boxes(star(2), (0, 1)), "allreduce")
    assert found.time_us(1e4) == pytest.approx(8 + 4 * 0.5)
    assert found.time_us(4e4) == pytest.approx((8 + 2 * 10 + 12) / 4 + 2)


def test_no_connection_is_told_with_and_without_paths() -> None:
    machine = Topology("apart", tuple(gpus(3)), tuple(both_ways("gpu0", "gpu1")))
    collective = Collective(CollectiveName.ALLGATHER, 3, 3)
    with pytest.raises(NoAnswerError, match="apart: links: gpu0 cannot reach gpu2"):
        bound_of(machine, collective)
    with pytest.raises(NoAnswerError, match="gpu0 cannot reach gpu2"):
        bound_of(machine, collective, find_paths(machine))


def test_one_gpu_has_nothing_to_wait_for() -> None:
    alone = bound(Topology("alone", tuple(gpus(1)), ()), "allreduce")
    assert (alone.latency_us, alone.us_per_byte, alone.time_us(1e9)) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("name", "nodes"), [*((name, 1) for name in CATALOGUE), *((name, 3) for name in CATALOGUE[:-1])]
)
def test_links_found_without_paths_are_those_of_the_paths(name: str, nodes: int) -> None:
    machine = replicate(load_topology(name), nodes)
    assert used_links(machine) == sorted({link for path in find_paths(machine) for link in path.links})


@pytest.mark.parametrize("name", CollectiveName)
def test_many_boxes_have_the_limit_with_paths_and_without(name: CollectiveName) -> None:
    machine = replicate(load_topology("dgx1"), 3)
    root = 1 if name in ROOTED else None
    collective = Collective(name, 24, 24, root)
    with_paths = bound_of(machine, collective, find_paths(machine))
    without = bound_of(machine, collective)
    assert without.us_per_byte == pytest.approx(with_paths.us_per_byte, rel=1e-6)
    assert without.latency_us <= with_paths.latency_us


@pytest.mark.parametrize("name", ["allreduce", "alltoall"])
def test_rotations_make_programs_small_and_change_nothing(name: str) -> None:
    machine = two_boxes(dgx1(), (0, 5))
    turns = Classes.of(Machine.of(machine, find_paths(machine)))
    assert (len(turns.ranks), int(turns.ranks.max()) + 1) == (16, 8)
    # One link that is a little faster, and matters to nobody, spoils the rotation.
    links = tuple(replace(link, GBps=link.GBps + 1e-6) if at == 0 else link for at, link in enumerate(machine.links))
    spoilt = replace(machine, links=links)
    assert int(Classes.of(Machine.of(spoilt, find_paths(spoilt))).ranks.max()) + 1 == 16
    assert bound(spoilt, name).us_per_byte == pytest.approx(bound(machine, name).us_per_byte, rel=1e-6)


@pytest.mark.parametrize("most_edges", [1, 200, 1 << 16], ids=["apart", "by-twos", "together"])
def test_cuts_that_are_looked_for_together_are_those_of_each_alone(
    most_edges: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine.of(mesh(3, 4), None)
    one = CutOracle(machine)
    cases = cases_of(Collective(CollectiveName.ALLTOALL, machine.num_ranks, machine.num_ranks))
    enough = worst_cut(one, cases)
    assert enough is not None
    capacities = [machine.rates * (1 + index) * 1e-5 for index in range(len(cases))]
    weights = np.arange(machine.num_ranks) / sum(range(machine.num_ranks))
    ranks = range(machine.num_ranks)
    sets = [frozenset({rank, (rank + step) % machine.num_ranks}) for rank in ranks for step in (0, 1)]

    def asked(oracle: CutOracle, each: Sequence[int]) -> list[list[Any]]:
        some = [cases[index] for index in each]
        roots = [index % machine.num_ranks for index in each]
        return [
            oracle.cuts(some, enough.per_GBps * Fraction(4, 5)),
            oracle.late_cuts(some, [capacities[index] for index in each]),
            *(oracle.root_cuts(weights, roots, machine.rates * 4e-5, reduces, 1e-7) for reduces in (False, True)),
            *(oracle.narrowest([sets[index] for index in each], into=into) for into in (False, True)),
        ]

    monkeypatch.setattr("synth.bounds.oracle._MOST_EDGES", most_edges)
    together = asked(one, range(len(cases)))
    alone = [asked(CutOracle(machine), [index]) for index in range(len(cases))]
    for kind, found in enumerate(together):
        kinds = {None if side is None else tuple(side) for side in found}
        assert len(kinds) > 2
        assert (None in kinds) == (kind < 4)  # some get through, but for what is narrowest
        for index, side in enumerate(found):
            np.testing.assert_array_equal(side, alone[index][kind][0])


@pytest.mark.parametrize("name", ["allgather", "reduce-scatter", "alltoall"])
def test_of_equal_boxes_one_is_asked_what_is_late_and_answers_for_all(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = two_boxes(dgx1(), (0, 5))
    asked: list[Case] = []
    late_cuts = CutOracle.late_cuts

    def counted(oracle: CutOracle, cases: Sequence[Case], *rest: Any) -> Any:
        asked.extend(cases)
        return late_cuts(oracle, cases, *rest)

    monkeypatch.setattr(CutOracle, "late_cuts", counted)
    once = bound(machine, name)
    few = len(asked)
    with monkeypatch.context() as patched:
        apart = Classes(*(np.arange(len(each)) for each in astuple(Classes.of(Machine.of(machine, None)))))
        patched.setattr(Classes, "of", lambda _: apart)
        every = bound(machine, name)
    assert few < 0.6 * (len(asked) - few)
    assert [once.time_us(1 << power) for power in range(8, 31)] == pytest.approx(
        [every.time_us(1 << power) for power in range(8, 31)], rel=1e-9
    )


@pytest.mark.parametrize("name", ["broadcast", "reduce", "gather", "scatter"])
@pytest.mark.parametrize(
    ("box", "far"), [(dgx1(), (1, 9)), (from_pairs("one", 1, []), (0, 1))], ids=["dgx1", "one-gpu"]
)
def test_what_is_late_from_or_to_a_rank_is_the_same_in_every_box(
    name: str, box: Topology, far: tuple[int, int]
) -> None:
    machine = two_boxes(box, (0,))
    here, there = ([bound(machine, name, root).time_us(1 << power) for power in range(4, 31)] for root in far)
    assert here == pytest.approx(there, rel=1e-9)


def test_names_are_joined_where_they_count_on() -> None:
    assert names(["gpu0", "gpu1", "gpu2", "gpu4"]) == "gpu0-gpu2, gpu4"
    assert names(["gpu0.1", "gpu1.1"]) == "gpu0.1-gpu1.1"
    assert names([f"gpu{k}" for k in range(0, 20, 2)]) == "gpu0, gpu2, gpu4, gpu6, gpu8 and 5 more"


def test_shares_of_a_case_are_exact() -> None:
    machine = Machine.of(line(3), find_paths(line(3)))
    assert machine.GBps == (Fraction(10),) * 4


PUBLISHED = [
    ("teccl-dgx1", "allgather", 171.43),
    ("teccl-ndv2-2", "allgather", 25.0),
    ("teccl-ndv2-4", "allgather", 16.67),
    ("teccl-dgx2-2", "allgather", 129.03),
    ("forestcoll-a100-2", "allgather", 346.67),
    ("forestcoll-a100-4", "allgather", 266.67),
    ("forestcoll-mi250-1", "allgather", 342.86),
    ("h100-rails-2", "allgather", 533.33),
    ("teccl-dgx1", "alltoall", 75.0),
    ("teccl-ndv2-2", "alltoall", 3.125),
    ("teccl-ndv2-4", "alltoall", 2.083),
    ("teccl-dgx2-2", "alltoall", 12.5),
]


@pytest.mark.skipif(not PEERS.is_dir(), reason="no published instances beside the repository")
@pytest.mark.parametrize(("instance", "name", "algbw_GBps"), PUBLISHED)
def test_published_limits(instance: str, name: str, algbw_GBps: float) -> None:
    found = bound(load_topology(str(PEERS / f"{instance}.json")), name)
    assert found.algbw_GBps == pytest.approx(algbw_GBps, rel=3e-4)


@pytest.mark.skipif(not PEERS.is_dir(), reason="no published instances beside the repository")
def test_the_mesh_of_the_peers_allows_more_than_any_of_them_reached() -> None:
    assert bound(load_topology(str(PEERS / "mesh-4x4.json")), "allreduce").algbw_GBps == pytest.approx(80.0, rel=1e-6)
