"""The kernel's files, from a small tree of our own: PCIe, NUMA, CPUs, NICs and KFD; what must not get out does not."""

from __future__ import annotations

import json
from pathlib import Path

import pynvml
import pytest

from synth.probe.codec import to_json
from synth.probe.kfd import read_kfd
from synth.probe.nics import read_nics
from synth.probe.read import read_machine
from synth.probe.recording import Cpu, Port
from synth.probe.redact import Redactor
from synth.probe.sysfs import names_in, read_cpus, read_pci
from tests.probe_machines import SECRETS, FakeNvml, kfd_tree, sysfs_tree, write


@pytest.fixture
def root(tmp_path: Path) -> Path:
    sysfs_tree(tmp_path)
    return tmp_path


def test_the_tree_above_a_device(root: Path) -> None:
    found = {device.busid: device for device in read_pci(root, ["0000:03:00.0"])}
    assert list(found) == ["0000:00:01.0", "0000:01:00.0", "0000:02:08.0", "0000:03:00.0"]
    assert [device.parent for device in found.values()] == ["", "0000:00:01.0", "0000:01:00.0", "0000:02:08.0"]
    gpu = found["0000:03:00.0"]
    assert (gpu.speed, gpu.max_speed, gpu.width, gpu.max_width, gpu.numa) == (16.0, 16.0, 16, 16, 0)
    assert (gpu.pci_class, gpu.vendor, gpu.device) == ("0x030200", "0x10de", "0x20b2")
    assert found["0000:00:01.0"].root == "pci0000:00"


@pytest.mark.parametrize("busid", ["0000:99:00.0", "", "../../etc", "unknown-0", "0000:03:00.0/.."])
def test_what_is_not_there_is_not_read(root: Path, busid: str) -> None:
    assert read_pci(root, [busid]) == ()


@pytest.mark.parametrize(
    ("file", "text", "field", "value"),
    [
        ("current_link_speed", "Unknown", "speed", 0.0),
        ("max_link_speed", "2.5 GT/s", "max_speed", 2.5),
        ("current_link_width", "255", "width", 0),
        ("max_link_width", "", "max_width", 0),
        ("numa_node", "-1", "numa", -1),
        ("class", "\udcff", "pci_class", ""),
    ],
)
def test_files_that_say_little(root: Path, file: str, text: str, field: str, value: object) -> None:
    path = root / "sys/bus/pci/devices/0000:81:00.0" / file
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    gpu = read_pci(root, ["0000:81:00.0"])[-1]
    assert getattr(gpu, field) == value


def test_virtual_functions(root: Path) -> None:
    found = {device.busid: device for device in read_pci(root, ["0000:82:08.2", "0000:82:00.0"])}
    assert found["0000:82:08.2"].physfn == "0000:82:00.0"
    assert found["0000:82:00.0"].vfs == 1


def test_nics(root: Path) -> None:
    nics = read_nics(root, Redactor())
    assert [(nic.name, nic.kind, nic.busid) for nic in nics] == [
        ("mlx5_0", "infiniband", "0000:04:00.0"),
        ("mlx5_1", "roce", "0000:82:00.0"),
        ("mlx5_3", "roce", "0000:82:08.2"),
        ("rdma-0", "roce", "0000:82:00.1"),
        ("eno1", "ethernet", "0000:05:00.0"),
        ("net-0", "ethernet", "0000:06:00.0"),
    ]
    ports = {nic.name: nic.ports for nic in nics}
    assert ports["mlx5_0"] == (Port(1, "active", 200.0),)
    assert ports["rdma-0"] == (Port(1, "down", 40.0),)
    assert ports["eno1"] == (Port(1, "active", 25.0),)
    assert ports["net-0"] == (Port(1, "down", 0.0),)


def test_cpus(root: Path) -> None:
    assert read_cpus(root) == (Cpu(0, "AuthenticAMD", 23, 49, 0), Cpu(1, "AuthenticAMD", 23, 49, 1))


@pytest.mark.parametrize(
    ("cpuinfo", "vendor", "family"),
    [
        ("processor\t: 0\nCPU implementer\t: 0x41\n", "ARM", -1),
        ("processor\t: 0\ncpu\t\t: POWER9, altivec supported\n", "POWER9", -1),
        ("vendor_id\t:   Shanghai  \ncpu family\t: 7\nmodel\t: 91\n", "Shanghai", 7),
        ("", "", -1),
    ],
)
def test_other_cpus(tmp_path: Path, cpuinfo: str, vendor: str, family: int) -> None:
    write(tmp_path / "proc/cpuinfo", cpuinfo)
    (cpu,) = read_cpus(tmp_path)
    assert (cpu.numa, cpu.vendor, cpu.family) == (0, vendor, family)


def test_names_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for name in ("mlx5_10", "mlx5_9", "2", "10", "ib0"):
        (tmp_path / name).mkdir()
    assert names_in(tmp_path) == ["2", "10", "ib0", "mlx5_9", "mlx5_10"]
    assert names_in(tmp_path / "none") == []


def test_kfd(tmp_path: Path) -> None:
    kfd_tree(tmp_path)
    gpus, nodes = read_kfd(tmp_path, Redactor())
    assert [(gpu.index, gpu.busid, gpu.arch, gpu.node) for gpu in gpus] == [
        (0, "0000:21:00.0", "gfx90a", 1),
        (1, "0000:22:00.0", "gfx90a", 2),
        (2, "0000:23:00.0", "gfx90a", 3),
    ]
    assert [(node.number, node.cpu_cores, node.simds, node.hive) for node in nodes][:2] == [
        (0, 64, 0, ""),
        (1, 0, 440, "hive0"),
    ]
    first = [(link.to, link.kind, link.weight, link.min_MBps, link.max_MBps) for link in nodes[1].links]
    assert first == [(0, "pcie", 20, 0, 16000), (2, "xgmi", 15, 50_000, 200_000), (3, "xgmi", 30, 50_000, 0)]


def test_a_whole_machine_without_its_secrets(root: Path) -> None:
    fake = FakeNvml([{"busid": "0000:03:00.0", "fabric": (3, b"GPU-5f3a-secret!", 1, 2)}, {"busid": "0000:81:00.0"}])
    recording = read_machine(root, fake)
    text = to_json(recording)
    assert [gpu.busid for gpu in recording.gpus] == ["0000:03:00.0", "0000:81:00.0"]
    assert {"0000:03:00.0", "0000:81:00.0", "0000:82:08.2"} <= {device.busid for device in recording.pci}
    for secret in (*SECRETS, "00:1b:21", b"GPU-5f3a-secret!".hex()):
        assert secret not in text
    assert json.loads(text)["gpus"][0]["fabric"]["cluster"] == "cluster0"


def test_kfd_speaks_where_nvml_does_not(tmp_path: Path) -> None:
    kfd_tree(tmp_path)
    fake = FakeNvml([], deny={"nvmlInit": pynvml.NVML_ERROR_LIBRARY_NOT_FOUND})
    recording = read_machine(tmp_path, fake)
    assert (recording.source, recording.problem, len(recording.gpus)) == ("kfd", "", 3)
    assert "1650921001234" not in to_json(recording)
    assert "987654321" not in to_json(recording)


def test_neither_speaks(tmp_path: Path) -> None:
    recording = read_machine(tmp_path, FakeNvml([]))
    assert recording.problem == "the NVIDIA driver knows of no GPU, and AMD's /sys/class/kfd is not here either"
    write(tmp_path / "sys/class/kfd/kfd/topology/nodes/0/properties", "cpu_cores_count 8")
    assert read_machine(tmp_path, FakeNvml([])).problem == "the NVIDIA driver knows of no GPU"
