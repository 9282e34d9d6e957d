"""Topologies varied: a subset of ranks, several boxes, all links turned around."""

from __future__ import annotations

import pytest

from synth.errors import InputError
from synth.inputs.load import load_topology
from synth.paths import find_paths
from synth.topology import Device, DeviceKind, Link, Topology, replicate, restrict

GPU = DeviceKind.GPU
NIC = DeviceKind.NIC


def box(rate: float = 10.0) -> Topology:
    """Two GPUs, joined both ways, each with a NIC of `rate` GB/s."""
    devices = (
        Device("gpu0", GPU, 0, 0),
        Device("gpu1", GPU, 0, 1),
        Device("nic0", NIC),
        Device("nic1", NIC),
    )
    ends = (("gpu0", "gpu1", 20.0), ("gpu0", "nic0", rate), ("gpu1", "nic1", rate))
    links = [Link(a, b, "nvlink", GBps, 1.0) for x, y, GBps in ends for a, b in ((x, y), (y, x))]
    return Topology("box", devices, tuple(links))


def test_restrict_keeps_and_renumbers_what_is_asked_for() -> None:
    dgx1 = load_topology("dgx1")
    part = restrict(dgx1, [5, 2])
    assert part.name == "dgx1[5,2]"
    assert [(gpu.id, gpu.rank) for gpu in part.gpus] == [("gpu5", 0), ("gpu2", 1)]
    assert len(part.devices) == len(dgx1.devices) - 6
    assert all(link.src in part.by_id and link.dst in part.by_id for link in part.links)
    # No NVLink is left between the two, so data crosses the CPUs.
    assert {path.GBps for path in find_paths(part)} == {6.0}


def test_restrict_to_all_changes_nothing() -> None:
    dgx1 = load_topology("dgx1")
    assert restrict(dgx1, range(8)) == dgx1


@pytest.mark.parametrize(
    ("ranks", "message"),
    [([], "different ranks"), ([1, 1], "different ranks"), ([0, 8], "ranks from 0 to 7"), ([-1], "ranks from 0 to 7")],
)
def test_restrict_refuses(ranks: list[int], message: str) -> None:
    with pytest.raises(InputError, match=f"--ranks: .*{message}"):
        restrict(load_topology("dgx1"), ranks)


def test_replicate_joins_boxes_over_one_network() -> None:
    cluster = replicate(box(), 3)
    assert cluster.name == "boxx3"
    assert [(gpu.id, gpu.rank, gpu.node) for gpu in cluster.gpus] == [
        ("gpu0", 0, 0),
        ("gpu1", 1, 0),
        ("gpu0.1", 2, 1),
        ("gpu1.1", 3, 1),
        ("gpu0.2", 4, 2),
        ("gpu1.2", 5, 2),
    ]
    networks = [device for device in cluster.devices if device.kind is DeviceKind.NETWORK]
    assert [device.node for device in networks] == [-1]
    up = [link for link in cluster.links if link.dst == networks[0].id]
    assert sorted(link.src for link in up) == ["nic0", "nic0.1", "nic0.2", "nic1", "nic1.1", "nic1.2"]
    assert {link.GBps for link in up} == {10.0}
    assert len(set(cluster.by_id)) == len(cluster.devices)


def test_replicate_shares_the_network_of_the_description() -> None:
    dgx1 = load_topology("dgx1")
    cluster = replicate(dgx1, 2)
    assert [device.id for device in cluster.devices if device.kind is DeviceKind.NETWORK] == ["network"]
    assert len(cluster.links) == 2 * len(dgx1.links)
    assert {link.GBps for link in cluster.links if link.kind == "network"} == {12.5}
    assert cluster.num_nodes == 2


def test_links_among_networks_are_not_copied() -> None:
    spine = (Device("leaf", DeviceKind.NETWORK, -1), Device("spine", DeviceKind.NETWORK, -1))
    links = (Link("nic0", "leaf", "network", 10.0, 1.0), Link("leaf", "spine", "network", 40.0, 1.0))
    described = Topology("b", (*box().devices, *spine), (*box().links, *links))
    cluster = replicate(described, 2)
    assert [(link.src, link.dst) for link in cluster.links if link.kind == "network"] == [
        ("nic0", "leaf"),
        ("leaf", "spine"),
        ("nic0.1", "leaf"),
    ]


def test_replicate_once_is_the_same() -> None:
    assert replicate(box(), 1) == box()


def test_replicate_refuses() -> None:
    with pytest.raises(InputError, match="--nodes: 0, expected 1 or more"):
        replicate(box(), 0)
    with pytest.raises(InputError, match="already describes 2 nodes"):
        replicate(replicate(box(), 2), 2)
    with pytest.raises(InputError, match="a topology with NICs or a network"):
        replicate(load_topology("ring4"), 2)


def test_reversed_turns_links_and_keeps_their_index() -> None:
    dgx1 = load_topology("ndv2")
    turned = dgx1.reversed()
    assert [(link.dst, link.src, link.GBps) for link in turned.links] == [
        (link.src, link.dst, link.GBps) for link in dgx1.links
    ]
    assert turned.reversed() == dgx1
