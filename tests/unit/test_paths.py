"""Which way data goes between two GPUs: the nearest kind of connection, equal ones together, fallbacks only in need."""

from __future__ import annotations

import pytest

from synth.bounds.used import used_links
from synth.cluster import Cable, NetworkKind, NetworkPlan, merge
from synth.collective import Collective, CollectiveName
from synth.errors import NoAnswerError
from synth.inputs.load import load_topology
from synth.paths import MAX_EQUAL_PATHS, Path, find_all_paths, find_paths, reverse_path, strongly_connected
from synth.topology import Device, DeviceKind, Link, Topology, replicate

Ends = tuple[str, str, float]


def machine(num_gpus: int, others: dict[str, DeviceKind], ends: list[Ends]) -> Topology:
    """GPUs gpu0.. and other devices, joined both ways at the given GB/s, 1 us a link."""
    gpus = [Device(f"gpu{rank}", DeviceKind.GPU, 0, rank) for rank in range(num_gpus)]
    rest = [Device(name, kind, -1 if kind is DeviceKind.NETWORK else 0) for name, kind in others.items()]
    links = [Link(a, b, "wire", GBps, 1.0) for x, y, GBps in ends for a, b in ((x, y), (y, x))]
    return Topology("machine", (*gpus, *rest), tuple(links))


def crossed(topology: Topology, path: Path) -> list[str]:
    return [topology.links[link].src for link in path.links] + [topology.links[path.links[-1]].dst]


def ways(topology: Topology, src: int, dst: int) -> list[list[str]]:
    return [crossed(topology, path) for path in find_paths(topology) if (path.src, path.dst) == (src, dst)]


def test_a_direct_link_goes_before_a_faster_switch() -> None:
    direct = machine(2, {"s": DeviceKind.PCIE_SWITCH}, [("gpu0", "gpu1", 1.0), ("gpu0", "s", 9.0), ("gpu1", "s", 9.0)])
    assert ways(direct, 0, 1) == [["gpu0", "gpu1"]]


def test_a_pcie_switch_goes_before_the_cpu() -> None:
    others = {"s": DeviceKind.PCIE_SWITCH, "c": DeviceKind.CPU}
    both = machine(2, others, [("gpu0", "c", 9.0), ("gpu1", "c", 9.0), ("gpu0", "s", 1.0), ("gpu1", "s", 1.0)])
    assert ways(both, 0, 1) == [["gpu0", "s", "gpu1"]]


def test_of_equally_near_ways_the_widest_is_taken_and_ties_stay() -> None:
    others = {"s": DeviceKind.PCIE_SWITCH, "t": DeviceKind.PCIE_SWITCH, "u": DeviceKind.PCIE_SWITCH}
    ends = [(gpu, switch, GBps) for gpu in ("gpu0", "gpu1") for switch, GBps in (("s", 5.0), ("t", 5.0), ("u", 4.0))]
    tied = machine(2, others, ends)
    assert ways(tied, 0, 1) == [["gpu0", "s", "gpu1"], ["gpu0", "t", "gpu1"]]
    assert [(path.index, path.variant) for path in find_paths(tied)] == [(0, 0), (1, 1), (2, 0), (3, 1)]


def test_equal_ways_are_limited() -> None:
    others = {f"s{k}": DeviceKind.PCIE_SWITCH for k in range(6)}
    wide = machine(2, others, [(gpu, switch, 5.0) for gpu in ("gpu0", "gpu1") for switch in others])
    assert len(ways(wide, 0, 1)) == MAX_EQUAL_PATHS


def test_no_path_crosses_a_gpu() -> None:
    line = machine(3, {}, [("gpu0", "gpu1", 1.0), ("gpu1", "gpu2", 1.0)])
    assert ways(line, 0, 2) == []
    assert len(find_paths(line)) == 4


def test_a_cpu_is_crossed_only_where_gpus_are_not_connected_without() -> None:
    uplinks: list[Ends] = [(f"gpu{rank}", "c", 5.0) for rank in range(3)]
    chain: list[Ends] = [("gpu0", "gpu1", 9.0), ("gpu1", "gpu2", 9.0)]
    assert ways(machine(3, {"c": DeviceKind.CPU}, chain + uplinks), 0, 2) == []
    broken = machine(3, {"c": DeviceKind.CPU}, chain[:1] + uplinks)
    assert ways(broken, 0, 2) == [["gpu0", "c", "gpu2"]]
    assert ways(broken, 0, 1) == [["gpu0", "gpu1"]]


def test_a_kind_that_may_not_be_crossed_is_not() -> None:
    uplinks: list[Ends] = [("gpu0", "c", 5.0), ("gpu1", "c", 5.0)]
    closed = machine(2, {"c": DeviceKind.CPU}, uplinks)
    barred = Topology("barred", closed.devices, closed.links, relay_through=frozenset({DeviceKind.NVSWITCH}))
    with pytest.raises(NoAnswerError, match="barred: links: gpu0 cannot reach gpu1"):
        find_paths(barred)


def test_one_way_only_is_not_connected() -> None:
    gpus = (Device("gpu0", DeviceKind.GPU, 0, 0), Device("gpu1", DeviceKind.GPU, 0, 1))
    with pytest.raises(NoAnswerError, match="gpu1 cannot reach gpu0"):
        find_paths(Topology("one-way", gpus, (Link("gpu0", "gpu1", "wire", 1.0, 1.0),)))


@pytest.mark.parametrize(
    ("name", "root", "group", "left"),
    [
        ("broadcast", 1, None, [(0, 2), (1, 0)]),
        ("scatter", 0, (0, 2), [(0, 2)]),
        ("gather", 2, None, [(0, 2), (1, 0)]),
        ("reduce", 0, (0, 1), [(1, 0)]),
    ],
)
def test_of_a_chain_what_leads_somewhere_is_left(
    name: str, root: int, group: tuple[int, ...] | None, left: list[tuple[int, int]]
) -> None:
    gpus = tuple(Device(f"gpu{rank}", DeviceKind.GPU, 0, rank) for rank in range(3))
    chain = Topology("chain", gpus, (Link("gpu1", "gpu0", "wire", 1.0, 1.0), Link("gpu0", "gpu2", "wire", 1.0, 1.0)))
    collective = Collective(CollectiveName(name), 3, 3, root, group)
    paths = find_paths(chain, collective)
    assert [(path.src, path.dst) for path in paths] == left
    assert used_links(chain, collective) == sorted({link for path in paths for link in path.links})


@pytest.mark.parametrize(
    ("name", "root", "said"),
    [
        ("broadcast", 0, "gpu0 cannot reach gpu1 \\(no link leads into gpu1\\)"),
        ("reduce", 0, "gpu2 cannot reach gpu0"),
        ("allgather", None, "gpu0 cannot reach gpu1"),
    ],
)
def test_what_a_collective_lacks_is_said(name: str, root: int | None, said: str) -> None:
    gpus = tuple(Device(f"gpu{rank}", DeviceKind.GPU, 0, rank) for rank in range(3))
    chain = Topology("chain", gpus, (Link("gpu1", "gpu0", "wire", 1.0, 1.0), Link("gpu0", "gpu2", "wire", 1.0, 1.0)))
    collective = Collective(CollectiveName(name), 3, 3, root)
    for find in (find_paths, used_links):
        with pytest.raises(NoAnswerError, match=said):
            find(chain, collective)


def test_figures_of_a_path() -> None:
    gpus = (
        Device("gpu0", DeviceKind.GPU, 0, 0),
        Device("gpu1", DeviceKind.GPU, 0, 1),
        Device("s", DeviceKind.NVSWITCH),
    )
    links = [
        Link("gpu0", "s", "w", 10.0, 1.0, 0.5),
        Link("s", "gpu1", "w", 5.0, 2.0),
        Link("gpu1", "gpu0", "w", 1.0, 0.0),
    ]
    path = find_paths(Topology("t", gpus, tuple(links)))[0]
    assert (path.alpha_us, path.GBps, path.links) == (3.0, 5.0, (0, 1))
    assert path.busy_us(10_000) == pytest.approx((1.5, 2.0))
    assert path.latency_us(10_000) == pytest.approx(5.0)
    back = reverse_path(path)
    assert (back.src, back.dst, back.links, back.index) == (1, 0, (1, 0), path.index)
    assert back.busy_us(10_000) == path.busy_us(10_000)[::-1]


def test_two_dgx_a100_share_two_nics_between_two_gpus() -> None:
    cluster = replicate(load_topology("dgx-a100"), 2)
    nics = {tuple(hop for hop in way if hop.startswith("nic")) for way in ways(cluster, 0, 9)}
    assert nics == {(a, f"{b}.1") for a in ("nic0", "nic1") for b in ("nic0", "nic1")}


def test_far_gpus_of_an_ndv2_reach_its_nic_over_the_cpus() -> None:
    cluster = replicate(load_topology("ndv2"), 2)
    way = ["gpu7", "plx3", "cpu1", "cpu0", "plx0", "nic0", "network", "nic0.1", "plx0.1", "gpu0.1"]
    assert ways(cluster, 7, 8) == [way]


def test_strongly_connected() -> None:
    assert strongly_connected(1, []) is None
    assert strongly_connected(3, [(0, 1), (1, 2), (2, 0)]) is None
    assert strongly_connected(3, [(0, 1), (1, 0)]) == (0, 2)
    assert strongly_connected(2, [(1, 0)]) == (0, 1)
    assert strongly_connected(3, [(0, 1), (1, 2), (0, 2)]) == (1, 0)


def test_no_box_forwards_what_is_for_others() -> None:
    """Boxes in a line, cable by cable: data between the ends is received and sent on by a GPU in the middle, not by its NIC."""
    cables = tuple(Cable(((box, "nic0"), (box + 1, "nic0"))) for box in (0, 1))
    line = merge([load_topology("pcie-2x2-nvlink")] * 3, NetworkPlan(NetworkKind.CABLES, cables=cables))
    crossed = {frozenset((line.node_of(path.src), line.node_of(path.dst))) for path in find_paths(line)}
    assert crossed == {frozenset(pair) for pair in ((0,), (1,), (2,), (0, 1), (1, 2))}


def test_all_paths_are_those_in_use_and_the_fallbacks_that_are_not() -> None:
    """On a DGX-1 some pairs have no NVLink: ours go around, a runtime takes the CPUs."""
    for topology in (load_topology("dgx1"), replicate(load_topology("ndv2"), 2)):
        used, everything = (
            {(path.src, path.dst, path.variant): path.links for path in found(topology)}
            for found in (find_paths, find_all_paths)
        )
        assert used.items() <= everything.items()
        ranks = topology.num_ranks
        assert {pair[:2] for pair in everything} == {(a, b) for a in range(ranks) for b in range(ranks) if a != b}
        for pair in everything.keys() - used.keys():
            kinds = {topology.by_id[topology.links[link].dst].kind for link in everything[pair]}
            assert DeviceKind.CPU in kinds


def test_a_nic_of_another_box_passes_nothing_on() -> None:
    """Three boxes in a row, each cabled to the next: the first reaches the last over GPUs of the middle one alone."""
    gpus = [Device(f"gpu{node}", DeviceKind.GPU, node, node) for node in range(3)]
    nics = [Device(f"nic{node}", DeviceKind.NIC, node) for node in range(3)]
    ends = [*((f"gpu{node}", f"nic{node}") for node in range(3)), ("nic0", "nic1"), ("nic1", "nic2")]
    links = [Link(a, b, "wire", 1.0, 1.0) for x, y in ends for a, b in ((x, y), (y, x))]
    row = Topology("row", (*gpus, *nics), tuple(links))
    assert {(path.src, path.dst) for path in find_paths(row)} == {(0, 1), (1, 0), (1, 2), (2, 1)}
