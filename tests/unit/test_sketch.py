"""Sketches cut paths down, never too far, and say so when they do not fit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from synth.build import build_instance, sketch_symmetries
from synth.collective import Collective, CollectiveName
from synth.default_sketch import default_sketch
from synth.errors import InputError
from synth.paths import Path, find_paths, strongly_connected
from synth.sketch import Sketch, SwitchPolicy, apply_sketch
from synth.topology import Device, DeviceKind, Link, Topology, replicate
from tests import graphs


def pairs_of(paths: Iterable[Path]) -> set[tuple[int, int]]:
    return {(path.src, path.dst) for path in paths}


def crossing(topology: Topology, paths: Iterable[Path]) -> set[tuple[int, int]]:
    return {(src, dst) for src, dst in pairs_of(paths) if topology.node_of(src) != topology.node_of(dst)}


def box_on_pcie(
    nvlink: Topology | None, nic_switches: Iterable[int], gpus: int = 4, GBps: float = 12.0, nic_GBps: float = 12.0
) -> Topology:
    """A box whose GPUs hang on PCIe switches by twos, those on CPUs by two, with a NIC on the switches named."""
    devices = graphs.gpus(gpus)
    links = list(nvlink.links) if nvlink else []
    if nvlink:
        devices += [device for device in nvlink.devices if device.kind is not DeviceKind.GPU]
    for switch in range(gpus // 2):
        devices.append(Device(f"plx{switch}", DeviceKind.PCIE_SWITCH))
        for gpu in (2 * switch, 2 * switch + 1):
            links += graphs.both_ways(f"gpu{gpu}", f"plx{switch}", GBps)
        links += graphs.both_ways(f"plx{switch}", "cpu0", GBps)
    devices.append(Device("cpu0", DeviceKind.CPU))
    for switch in nic_switches:
        devices.append(Device(f"nic{switch}", DeviceKind.NIC))
        links += graphs.both_ways(f"nic{switch}", f"plx{switch}", nic_GBps)
    return Topology("box", tuple(devices), tuple(links))


def derived(topology: Topology, name: CollectiveName = CollectiveName.ALLGATHER) -> tuple[Path, ...]:
    """The paths that the derived sketch leaves."""
    paths = find_paths(topology)
    return apply_sketch(topology, paths, default_sketch(topology, paths, name))


def test_the_free_sketch_changes_nothing() -> None:
    topology = graphs.dgx1()
    paths = find_paths(topology)
    assert apply_sketch(topology, paths, Sketch("s")) == paths


def test_paths_are_numbered_anew() -> None:
    topology = graphs.full(3)
    ring = (("gpu0", "gpu1"), ("gpu1", "gpu2"), ("gpu2", "gpu0"))
    kept = apply_sketch(topology, find_paths(topology), Sketch("s", within=ring))
    assert [path.index for path in kept] == [0, 1, 2]
    assert pairs_of(kept) == {(0, 1), (1, 2), (2, 0)}


def test_only_named_senders_and_receivers_cross() -> None:
    topology = graphs.two_boxes(graphs.full(4), nic_gpus=range(4))
    sketch = Sketch("s", across=(("gpu1", "gpu4"), ("gpu5", "gpu0")))
    kept = apply_sketch(topology, find_paths(topology), sketch)
    assert crossing(topology, kept) == {(1, 4), (5, 0)}
    assert len(kept) == 2 * 12 + 2


def test_a_gpu_that_is_nobodys_sender_does_not_cross() -> None:
    topology = graphs.two_boxes(graphs.full(2), nic_gpus=range(2))
    leaves = (("gpu0", "gpu1"), ("gpu1", "gpu1"), ("gpu2", "gpu3"), ("gpu3", "gpu3"))
    kept = apply_sketch(topology, find_paths(topology), Sketch("s", leaves_by=leaves))
    assert {src for src, _ in crossing(topology, kept)} == {1, 3}


@pytest.mark.parametrize("count", [2, 3, 5, 8, 16])
def test_few_connections_are_about_log_n_and_as_many_hops(count: int) -> None:
    topology = graphs.star(count)
    policy = SwitchPolicy(tuple(gpu.id for gpu in topology.gpus), few=True)
    kept = pairs_of(apply_sketch(topology, find_paths(topology), Sketch("s", switches=(policy,))))
    degree = (count - 1).bit_length()
    assert all(sum(src == rank for src, _ in kept) == degree for rank in range(count))
    reached, hops = {0}, 0
    while len(reached) < count:
        reached |= {dst for src, dst in kept if src in reached}
        hops += 1
    assert hops <= degree


def test_a_pair_under_two_policies_is_kept_if_one_keeps_it() -> None:
    topology = graphs.star(8)
    gpus = tuple(gpu.id for gpu in topology.gpus)
    both = Sketch("s", switches=(SwitchPolicy(gpus, few=True), SwitchPolicy(gpus, few=False)))
    assert len(apply_sketch(topology, find_paths(topology), both)) == 8 * 7


@pytest.mark.parametrize(
    ("sketch", "field", "says"),
    [
        (Sketch("s", num_nodes=2), "nodes", "1 nodes"),
        (Sketch("s", num_ranks=16), "gpus", "4 GPUs"),
        (Sketch("s", within=(("gpu0", "gpu9"),)), "within", "gpu9"),
        (Sketch("s", within=(("gpu0", "gpu2"),)), "within", "joins"),
        (Sketch("s", across=(("gpu0", "gpu1"),)), "across", "different nodes"),
        (Sketch("s", switches=(SwitchPolicy(("gpu0", "gpu1", "gpu2"), few=False),)), "switches", "joins"),
        (Sketch("s", within=(("gpu0", "gpu1"),)), "", "reach"),
    ],
)
def test_a_sketch_for_another_machine_says_so(sketch: Sketch, field: str, says: str) -> None:
    topology = graphs.ring(4)
    with pytest.raises(InputError) as caught:
        apply_sketch(topology, find_paths(topology), sketch)
    assert (caught.value.source, caught.value.field) == ("s", field)
    assert says in str(caught.value)


def test_far_gpus_relay_over_nvlink_to_those_near_the_nic() -> None:
    topology = replicate(box_on_pcie(graphs.ring(4, GBps=50), nic_switches=[0]), 2)
    assert len(crossing(topology, find_paths(topology))) == 32
    assert crossing(topology, derived(topology)) == {(0, 4), (1, 5), (4, 0), (5, 1)}


def test_near_gpus_whose_pcie_does_not_fill_the_nic_are_not_left_alone() -> None:
    topology = replicate(box_on_pcie(graphs.ring(4, GBps=200), nic_switches=[0], GBps=12, nic_GBps=48), 2)
    senders = {src for src, _ in crossing(topology, derived(topology))}
    assert senders == set(range(8))


def test_where_every_gpu_has_its_nic_all_cross_to_their_mates() -> None:
    topology = replicate(box_on_pcie(graphs.star(4, GBps=200), nic_switches=[0, 1]), 3)
    kept = crossing(topology, derived(topology, CollectiveName.ALLTOALL))
    assert kept == {(a, b) for a in range(12) for b in range(12) if a // 4 != b // 4 and a % 4 == b % 4}


def test_nvlink_that_is_too_narrow_for_a_detour_keeps_direct_ways_in_alltoall() -> None:
    topology = replicate(box_on_pcie(graphs.star(4, GBps=20), nic_switches=[0, 1]), 2)
    assert len(crossing(topology, derived(topology, CollectiveName.ALLTOALL))) == 32
    assert len(crossing(topology, derived(topology, CollectiveName.ALLGATHER))) == 8


def test_pcie_boxes_and_boxes_joined_without_nics_keep_everything() -> None:
    on_pcie = replicate(box_on_pcie(None, nic_switches=[0]), 2)
    devices = (*graphs.gpus(2), *graphs.gpus(2, first=2, node=1))
    pairs = [("gpu0", "gpu1"), ("gpu2", "gpu3"), ("gpu0", "gpu2"), ("gpu1", "gpu3"), ("gpu0", "gpu3")]
    wired = Topology("wired", devices, tuple(link for a, b in pairs for link in graphs.both_ways(a, b)))
    for topology in (on_pcie, wired):
        paths = find_paths(topology)
        assert default_sketch(topology, paths, CollectiveName.ALLGATHER) == Sketch("default")


@pytest.mark.parametrize("nic_switches", [[0], [1], [0, 1]])
@pytest.mark.parametrize("nodes", [2, 4])
@pytest.mark.parametrize("name", list(CollectiveName))
def test_the_derived_sketch_never_disconnects_and_idles_no_nic(
    nic_switches: list[int], nodes: int, name: CollectiveName
) -> None:
    topology = replicate(box_on_pcie(graphs.ring(4, GBps=50), nic_switches), nodes)
    kept = derived(topology, name)
    assert strongly_connected(topology.num_ranks, pairs_of(kept)) is None
    used = {topology.links[link].dst for path in kept for link in path.links}
    assert {device.id for device in topology.devices if device.kind is DeviceKind.NIC} <= used


def test_describe_is_one_line_of_names() -> None:
    gpus = tuple(f"gpu{i}" for i in range(8))
    sketch = Sketch(
        "mine.json", switches=(SwitchPolicy(gpus, few=True),), symmetry_offsets=((2, 8),), chunks_per_rank=3
    )
    line = sketch.describe()
    assert "\n" not in line
    assert line.startswith("mine.json: few connections between gpu0, gpu1, gpu2, gpu3, ... (8 GPUs)")
    assert "rotation by 2 in groups of 8; chunks 3" in line
    assert Sketch("default").describe() == "default: all paths"


def test_an_instance_has_the_sketchs_paths_chunks_and_symmetries() -> None:
    topology = graphs.star(8)
    collective = Collective(CollectiveName.ALLGATHER, 8, 16)
    instance = build_instance(topology, collective, 1600, Sketch("s", symmetry_offsets=((2, 8),)))
    assert instance.chunk_bytes == 100
    assert [symmetry.ranks for symmetry in instance.symmetries] == [tuple((rank + 2) % 8 for rank in range(8))]
    assert [path.index for path in instance.paths] == list(range(len(instance.paths)))
    for symmetry in instance.symmetries:
        for path in instance.paths:
            image = instance.paths[symmetry.paths[path.index]]
            assert (image.src, image.dst) == (symmetry.ranks[path.src], symmetry.ranks[path.dst])
            assert image.links == tuple(symmetry.links[link] for link in path.links)


def test_symmetry_is_that_of_the_links_in_use() -> None:
    """A spur that no path needs neither hides a symmetry nor moves."""
    ring = graphs.ring(4)
    spur = Link("gpu0", "cpu0", "pcie", 10.0, 1.0)
    topology = replace(ring, devices=(*ring.devices, Device("cpu0", DeviceKind.CPU)), links=(spur, *ring.links))
    paths = find_paths(topology)
    (symmetry,) = sketch_symmetries(topology, paths, Sketch("s", symmetry_offsets=((1, 4),)))
    assert symmetry.links[0] == 0
    assert sorted(symmetry.links) == list(range(len(topology.links)))


@pytest.mark.parametrize(
    ("offsets", "says"),
    [(((1, 4),), "unchanged"), (((2, 8), (2, 4)), "combine")],
)
def test_a_rotation_that_is_no_symmetry_is_refused(offsets: tuple[tuple[int, int], ...], says: str) -> None:
    topology = graphs.line(4) if says == "unchanged" else graphs.star(8)
    with pytest.raises(InputError, match=says):
        sketch_symmetries(topology, find_paths(topology), Sketch("s", symmetry_offsets=offsets))


def test_a_nic_is_full_at_the_rate_of_its_own_slot() -> None:
    """A 25 GB/s port behind a 24 GB/s slot needs no second, farther GPU."""
    box = box_on_pcie(graphs.ring(4, GBps=200), nic_switches=[0], GBps=12, nic_GBps=24)
    devices = (*box.devices, Device("network", DeviceKind.NETWORK, node=-1))
    topology = replicate(replace(box, devices=devices, links=(*box.links, *graphs.both_ways("nic0", "network", 25))), 2)
    assert {src for src, _ in crossing(topology, derived(topology))} == {0, 1, 4, 5}
