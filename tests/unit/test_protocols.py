"""What a protocol makes of paths: its share of the wire, and what a hop takes beyond LL's."""

from __future__ import annotations

import pytest

from synth.protocols import PROTOCOLS, under_protocol
from synth.topology import Device, DeviceKind, Link, Topology
from tests.graphs import gpus, instance_of, line, star, two_boxes


def over_a_switch_of(kind: DeviceKind, wire: str) -> Topology:
    """Two GPUs, joined over one device."""
    links = [Link(a, b, wire, 10.0, 1.0) for a, b in (("gpu0", "x"), ("x", "gpu1"), ("gpu1", "x"), ("x", "gpu0"))]
    return Topology(kind.value, (*gpus(2), Device("x", kind)), tuple(links))


def test_ll_halves_the_wire_and_keeps_the_latency() -> None:
    instance = instance_of(line(2), "allgather", chunk_bytes=1e4)
    path = under_protocol(instance, "LL").paths[0]
    assert (path.GBps, path.alpha_us) == (5.0, 1.0)
    assert path.latency_us(1e4) == pytest.approx(1.0 + 2.0)


def test_ll128_spends_8_bytes_of_128_on_flags() -> None:
    path = under_protocol(instance_of(line(2), "allgather"), "LL128").paths[0]
    assert path.busy_us(120.0) == pytest.approx((128 / 1e4,))


def test_simple_has_the_whole_wire() -> None:
    instance = instance_of(star(2), "allgather")
    assert under_protocol(instance, "Simple").paths[0].occupancy == instance.paths[0].occupancy


@pytest.mark.parametrize(
    ("machine", "kind"),
    [
        (line(2), "nvlink_us"),
        (star(2), "nvlink_us"),
        (over_a_switch_of(DeviceKind.PCIE_SWITCH, "pcie"), "pcie_us"),
        (over_a_switch_of(DeviceKind.CPU, "pcie"), "pcie_us"),
        (over_a_switch_of(DeviceKind.NIC, "pcie"), "network_us"),
        (two_boxes(line(1)), "network_us"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
@pytest.mark.parametrize("name", ["LL128", "Simple"])
def test_a_hop_takes_longer_by_its_kind(machine: Topology, kind: str, name: str) -> None:
    instance = instance_of(machine, "allgather")
    extra = getattr(PROTOCOLS[name], kind) - getattr(PROTOCOLS["LL"], kind)
    assert extra > 0
    for before, after in zip(instance.paths, under_protocol(instance, name).paths, strict=True):
        assert after.alpha_us - before.alpha_us == pytest.approx(extra)


def test_paths_keep_everything_else() -> None:
    instance = instance_of(star(3), "alltoall")
    for before, after in zip(instance.paths, under_protocol(instance, "LL").paths, strict=True):
        assert (after.index, after.src, after.dst, after.links) == (before.index, before.src, before.dst, before.links)


def test_a_protocol_that_nobody_has() -> None:
    with pytest.raises(KeyError):
        under_protocol(instance_of(line(2), "allgather"), "LL64")
