"""What a protocol makes of paths: its share of the wire, and what a hop takes beyond LL's; and where LL128 is safe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle

import pytest

from synth.constants import Constants, Generation
from synth.errors import InputError
from synth.inputs.load import load_topology
from synth.paths import find_paths
from synth.protocols import keeps_lines, ll128_is_safe, under_protocol
from synth.topology import Device, DeviceKind, Link, Topology, replicate
from tests.graphs import gpus, instance_of, line, star, two_boxes


def with_archs(topology: Topology, archs: Sequence[str]) -> Topology:
    """The topology whose GPUs, in order, are of these architectures, over and over."""
    named = cycle(archs)
    devices = tuple(
        replace(device, arch=next(named)) if device.kind is DeviceKind.GPU else device for device in topology.devices
    )
    return replace(topology, devices=devices)


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
    extra = getattr(Constants().of(name), kind)
    assert extra > 0
    for before, after in zip(instance.paths, under_protocol(instance, name).paths, strict=True):
        assert after.alpha_us - before.alpha_us == pytest.approx(extra)


def test_paths_keep_everything_else() -> None:
    instance = instance_of(star(3), "alltoall")
    for before, after in zip(instance.paths, under_protocol(instance, "LL").paths, strict=True):
        assert (after.index, after.src, after.dst, after.links) == (before.index, before.src, before.dst, before.links)


def test_a_protocol_that_nobody_has() -> None:
    with pytest.raises(InputError, match="proto: 'LL64', expected Simple or LL or LL128"):
        under_protocol(instance_of(line(2), "allgather"), "LL64")


def test_estimates_are_those_of_the_gpus() -> None:
    """RCCL's LL128 sends 56 bytes of data in 64, and its hops take 1.4 us more than LL's."""
    instance = instance_of(with_archs(line(2), ["gfx90a"]), "allgather")
    path = under_protocol(instance, "LL128").paths[0]
    assert path.busy_us(56.0) == pytest.approx((64 / 1e4,))
    assert path.alpha_us - instance.paths[0].alpha_us == pytest.approx(2.2 - 0.8)
    assert Constants.for_topology(instance.topology) == Constants.for_generation(Generation.AMD)


@pytest.mark.parametrize(
    ("topology", "safe"),
    [
        (with_archs(line(3), ["sm_70"]), True),
        (with_archs(star(4), ["sm_80"]), True),
        (load_topology("dgx1"), True),
        (load_topology("dgx2"), True),
        (load_topology("dgx-a100"), True),
        (load_topology("dgx-h100"), False),
        (load_topology("mi250"), False),
        (with_archs(star(4), ["sm_70", "sm_80"]), False),
        (with_archs(star(4), ["sm_80", ""]), False),
        (line(3), False),
        (with_archs(star(4), ["sm_86"]), False),
        (replicate(load_topology("dgx-a100"), 2), True),
        (replicate(load_topology("a100x4"), 2), False),
        (load_topology("pcie8-1nic"), False),
        (with_archs(over_a_switch_of(DeviceKind.PCIE_SWITCH, "pcie"), ["sm_80"]), False),
        (with_archs(over_a_switch_of(DeviceKind.NIC, "pcie"), ["sm_80"]), False),
        (with_archs(replace(line(3), links=line(3).links[:2]), ["sm_70"]), False),
    ],
    ids=lambda value: value if isinstance(value, bool) else f"{value.name}-{value.gpus[0].arch}-{value.gpus[-1].arch}",
)
def test_where_ll128_is_safe(topology: Topology, safe: bool) -> None:
    assert ll128_is_safe(topology) is safe


def test_nccl_runs_ll128_on_later_gpus_too() -> None:
    assert keeps_lines(load_topology("dgx-h100"))
    assert not keeps_lines(load_topology("mi250"))
    assert not keeps_lines(with_archs(star(4), ["sm_86"]))


def test_only_the_paths_in_question_count_for_ll128() -> None:
    """Two pairs of A100 with NVLink bridges, joined over PCIe: safe within a pair."""
    topology = with_archs(load_topology("pcie-2x2-nvlink"), ["sm_80"])
    paths = find_paths(topology)
    assert not ll128_is_safe(topology, paths)
    assert ll128_is_safe(topology, [path for path in paths if {path.src, path.dst} == {0, 1}])
