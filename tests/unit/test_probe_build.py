"""From recordings to topologies: the catalogue's machines come out, and what is wrong with a machine is said."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from synth.doubts import Imported
from synth.inputs.load import load_topology
from synth.inputs.topology_json import parse_topology, to_json
from synth.paths import find_paths
from synth.probe.build import build_topology
from synth.probe.codec import parse_recording
from synth.probe.errors import ProbeError
from synth.probe.read import read_machine
from synth.probe.recording import Cpu, Fabric, Gpu, KfdLink, Nic, NvLink, Pair, PciDevice, Port, Recording
from synth.topology import Topology
from tests.probe_machines import DATA, FakeNvml, kfd_tree, sysfs_tree


def recorded(name: str) -> Recording:
    return parse_recording((DATA / f"{name}.json").read_text(encoding="utf-8"), name)


def about(imported: Imported, text: str) -> list[str]:
    """The doubts in whose words `text` stands."""
    return [str(doubt) for doubt in imported.doubts if text in str(doubt)]


def wires(topology: Topology, kinds: set[str]) -> Counter[tuple[Any, ...]]:
    """The links of some kinds by what they join, rank by rank where they join GPUs."""

    def end(name: str) -> object:
        device = topology.by_id[name]
        return str(device.kind) if device.rank is None else device.rank

    return Counter(
        (end(link.src), end(link.dst), link.kind, round(link.GBps, 6), link.alpha_us, link.count)
        for link in topology.links
        if link.kind in kinds
    )


@pytest.mark.parametrize(
    ("recording", "catalogue", "kinds"),
    [
        ("mi250-kfd", "mi250", {"xgmi", "pcie", "socket", "network"}),
        ("a100-pcie-bridged-pairs", "pcie-2x2-nvlink", {"nvlink", "pcie", "socket", "network"}),
        ("h100-vm-hidden-nvswitch", "dgx-h100", {"nvlink", "socket", "network"}),
        ("v100-cube-mesh", "dgx1", {"pcie", "socket", "network"}),
    ],
)
def test_the_machines_of_the_catalogue_come_out(recording: str, catalogue: str, kinds: set[str]) -> None:
    built = build_topology(recorded(recording), "box").topology
    assert built.name == "box"
    assert wires(built, kinds) == wires(load_topology(catalogue), kinds)
    assert {gpu.arch for gpu in built.gpus} == {gpu.arch for gpu in load_topology(catalogue).gpus}


def test_the_cube_mesh_is_that_of_the_catalogue_at_the_newer_rate() -> None:
    built = build_topology(recorded("v100-cube-mesh")).topology
    expected = {(link.src, link.dst): link.count for link in load_topology("dgx1").links if link.kind == "nvlink"}
    found = {(link.src, link.dst): link for link in built.links if link.kind == "nvlink"}
    assert {ends: link.count for ends, link in found.items()} == expected
    assert {link.GBps / link.count for link in found.values()} == {20.0}
    assert "V100: 22.0 in NCCL 2.12" in built.about


@pytest.mark.parametrize(
    "name", ["v100-cube-mesh", "v100-broken-link", "h100-vm-hidden-nvswitch", "a100-pcie-bridged-pairs", "mi250-kfd"]
)
def test_what_is_written_is_read_back(name: str) -> None:
    topology = build_topology(recorded(name)).topology
    again = parse_topology(to_json(topology), "x.json")
    assert (again.devices, again.links, again.about) == (topology.devices, topology.links, topology.about)
    assert len(find_paths(topology)) > topology.num_ranks


def test_a_healthy_machine_raises_no_doubt_about_its_links() -> None:
    imported = build_topology(recorded("v100-cube-mesh"))
    assert [doubt.where for doubt in imported.doubts] == ["network"]


def test_a_broken_nvlink_is_pointed_at_with_its_cost() -> None:
    imported = build_topology(recorded("v100-broken-link"))
    (said,) = about(imported, "active NVLinks")
    assert "gpu0 and 1 more: 5 active NVLinks, others of its model have 6" in said
    assert "probably the link gpu0-gpu3 is down" in said
    assert "20 of 120 GB/s" in said
    link = next(link for link in imported.topology.links if (link.src, link.dst) == ("gpu0", "gpu3"))
    assert (link.count, link.GBps) == (1, 20.0)


def test_a_link_that_one_end_calls_up_is_planned_as_down() -> None:
    healthy, broken = recorded("v100-cube-mesh"), recorded("v100-broken-link")
    imported = build_topology(replace(healthy, gpus=(broken.gpus[0], *healthy.gpus[1:])))
    (said,) = about(imported, "which knows of")
    assert "gpu3: 2 active NVLinks to gpu0, which knows of 1: planned with 1" in said
    counts = [link.count for link in imported.topology.links if {link.src, link.dst} == {"gpu0", "gpu3"}]
    assert counts == [1, 1]


def with_links(recording: Recording, index: int, *links: NvLink) -> Recording:
    gpus = list(recording.gpus)
    gpus[index] = replace(gpus[index], nvlinks=links)
    return replace(recording, gpus=tuple(gpus))


def test_a_gpu_without_its_links_on_an_nvswitch() -> None:
    inactive = [NvLink(number, "inactive") for number in range(18)]
    imported = build_topology(with_links(recorded("h100-vm-hidden-nvswitch"), 5, *inactive))
    assert about(imported, "gpu5: 0 active NVLinks, others of its model have 18 (370.8 of 370.8 GB/s)")
    switch = [link for link in imported.topology.links if link.dst == "nvswitch0"]
    assert len(switch) == 7


def test_no_link_is_up_at_all() -> None:
    recording = recorded("h100-vm-hidden-nvswitch")
    for index in range(8):
        recording = with_links(recording, index, *(NvLink(number, "inactive") for number in range(18)))
    imported = build_topology(recording)
    (said,) = about(imported, "none of 18 NVLinks is active")
    assert "fabric manager" in said
    assert not any(link.kind == "nvlink" for link in imported.topology.links)


def test_links_to_itself_and_to_strangers_are_left_out() -> None:
    recording = recorded("a100-pcie-bridged-pairs")
    own = recording.gpus[0].busid
    links = [NvLink(number, "active", "3.1", "gpu", own if number < 4 else "0000:ff:00.0") for number in range(12)]
    imported = build_topology(with_links(recording, 0, *links))
    assert about(imported, "gpu0: 4 NVLinks lead to itself: left out (80 GB/s)")
    assert about(imported, "gpu0: 8 NVLinks lead to a GPU that NVML does not name here: left out (160 GB/s)")
    assert about(imported, "gpu1: 12 active NVLinks to gpu0, which knows of 0: planned with 0 (240 GB/s)")


def test_an_unnamed_end_is_told_by_its_pci_class() -> None:
    recording = recorded("a100-pcie-bridged-pairs")
    switch = PciDevice("0000:c4:00.0", pci_class="0x068000")
    gpus = tuple(replace(gpu, nvlinks=(NvLink(0, "active", "3.0", "", switch.busid),)) for gpu in recording.gpus)
    topology = build_topology(replace(recording, gpus=gpus, pci=(*recording.pci, switch))).topology
    assert [link.GBps for link in topology.links if link.dst == "nvswitch0"] == [20.0] * 4


def test_links_to_the_cpu() -> None:
    recording = recorded("a100-pcie-bridged-pairs")
    gpus = (
        replace(recording.gpus[0], nvlinks=(NvLink(0, "active", "2.0", "cpu", "0004:00:00.0"),), arch="sm_70"),
        replace(recording.gpus[1], nvlinks=(), c2c_links=5, c2c_MBps=44712),
    )
    topology = build_topology(replace(recording, gpus=gpus, pairs=())).topology
    ends = {(link.src, link.dst, link.kind): round(link.GBps, 2) for link in topology.links}
    assert ends["gpu0", "cpu0", "nvlink"] == ends["cpu0", "gpu0", "nvlink"] == 20.0
    assert ends["gpu1", "cpu0", "c2c"] == 223.56


def with_pci(recording: Recording, busid: str, **changes: Any) -> Recording:
    pci = tuple(replace(device, **changes) if device.busid == busid else device for device in recording.pci)
    return replace(recording, pci=pci)


def pcie_rate(imported: Imported, device: str) -> float:
    return next(link.GBps for link in imported.topology.links if link.src == device and link.kind == "pcie")


def test_lanes_that_are_missing_are_planned_without() -> None:
    imported = build_topology(with_pci(recorded("v100-cube-mesh"), "0000:06:00.0", width=4))
    assert about(imported, "gpu0: PCIe runs on 4 of 16 lanes (planned so)")
    assert about(imported, "(9 of 12 GB/s)")
    assert pcie_rate(imported, "gpu0") == 3.0
    assert pcie_rate(imported, "gpu1") == 12.0


def test_an_idle_speed_is_doubted_and_not_planned() -> None:
    imported = build_topology(recorded("a100-pcie-bridged-pairs"))
    (said,) = about(imported, "PCIe runs at 2.5 of 16 GT/s")
    assert "gpu0 and 3 more" in said
    assert "look under load" in said
    assert pcie_rate(imported, "gpu0") == 24.0


def test_the_slower_end_of_a_pcie_link_holds() -> None:
    imported = build_topology(with_pci(recorded("a100-pcie-bridged-pairs"), "0000:20:01.0", max_speed=8.0))
    assert pcie_rate(imported, "gpu0") == 12.0


def test_a_virtual_bridge_is_passed_over() -> None:
    recording = with_pci(recorded("a100-pcie-bridged-pairs"), "0000:20:01.0", max_speed=2.5, max_width=1)
    imported = build_topology(with_pci(recording, "0000:21:00.0", speed=16.0))
    assert about(imported, "gpu0: the bridge above it tells a slower link than it runs")
    assert pcie_rate(imported, "gpu0") == 24.0


def test_figures_of_nvml_fill_in_for_sysfs() -> None:
    recording = with_pci(
        recorded("a100-pcie-bridged-pairs"), "0000:21:00.0", speed=0.0, max_speed=0.0, width=0, max_width=0
    )
    assert pcie_rate(build_topology(recording), "gpu0") == 24.0
    blind = replace(recording.gpus[0], pcie_gen=0, pcie_gen_max=0, pcie_width=0, pcie_width_max=0)
    recording = with_pci(recording, "0000:20:01.0", max_speed=0.0, max_width=0)
    imported = build_topology(replace(recording, gpus=(blind, *recording.gpus[1:])))
    assert about(imported, "gpu0: its PCIe link is not told (generation 3, 16 lanes are taken, as NCCL does)")
    assert pcie_rate(imported, "gpu0") == 12.0


def test_two_levels_of_one_broadcom_switch_are_one() -> None:
    """A switch of Broadcom's shows as two levels of bridges; other switches below one another stay two."""
    chip: dict[str, Any] = {"vendor": "0x1000", "device": "0xc010", "subsystem_vendor": "0x1000"}
    way: list[tuple[str, dict[str, Any]]] = [
        ("00", {}),
        ("01", {**chip, "subsystem_device": "0xa000"}),
        ("02", chip),
        ("03", {**chip, "subsystem_device": "0xa010"}),
    ]
    above = ""
    pci = []
    for bus, words in [*way, ("04", chip), ("05", {"vendor": "0x10de"})]:
        pci.append(PciDevice(f"0000:{bus}:00.0", above, speed=16.0, max_speed=16.0, width=16, max_width=16, **words))
        above = pci[-1].busid
    recording = Recording("nvml", gpus=(Gpu(0, "0000:05:00.0", arch="sm_80"),), pci=tuple(pci), cpus=(Cpu(0),))
    assert [device.id for device in build_topology(recording).topology.devices] == ["gpu0", "plx0", "cpu0"]
    other = replace(pci[3], subsystem_device="0x1234")
    two = replace(recording, pci=(*pci[:3], other, *pci[4:]))
    assert [device.id for device in build_topology(two).topology.devices] == ["gpu0", "plx0", "plx1", "cpu0"]


def test_nics_that_nccl_would_not_use() -> None:
    imported = build_topology(recorded("a100-pcie-bridged-pairs"))
    assert about(imported, "mlx5_1: no port is active (down): left out")
    assert about(imported, "mlx5_0: its ports are shared with 4 virtual functions")
    nics = [device.id for device in imported.topology.devices if device.kind == "nic"]
    assert nics == ["nic0"]


def test_two_functions_of_a_card_share_its_slot() -> None:
    recording = recorded("a100-pcie-bridged-pairs")
    nics = tuple(replace(nic, ports=(Port(1, "active", 200.0),)) for nic in recording.nics[:2])
    imported = build_topology(replace(recording, nics=nics))
    links = [(link.kind, link.GBps, link.count) for link in imported.topology.links if link.src == "nic0"]
    assert links == [("pcie", 24.0, 1), ("network", 50.0, 2)]
    assert about(imported, "nic0 (mlx5_0+mlx5_1): its ports carry 50 GB/s, its PCIe link 24 (26 GB/s")


def test_ethernet_counts_where_there_is_no_rdma() -> None:
    recording = recorded("a100-pcie-bridged-pairs")
    wired = replace(recording, nics=recording.nics[2:])
    rates = [link.GBps for link in build_topology(wired).topology.links if link.kind == "network"]
    assert rates == [12.5, 12.5]
    slow = Nic("eth0", "ethernet", recording.nics[2].busid, (Port(1, "active", 0.0),))
    imported = build_topology(replace(recording, nics=(slow,)))
    assert about(imported, "a port does not tell its rate (1.25 GB/s are taken, as NCCL does)")


def test_virtual_functions_and_hidden_nics_are_left_out() -> None:
    recording = with_pci(recorded("a100-pcie-bridged-pairs"), "0000:c1:00.1", physfn="0000:c1:00.0")
    nics: tuple[Nic, ...] = (recording.nics[0], replace(recording.nics[1], ports=(Port(1, "active", 40.0),)))
    nics += (Nic("mlx5_9", "infiniband", "0000:77:00.0", (Port(1, "active", 100.0),)),)
    imported = build_topology(replace(recording, nics=nics))
    assert about(imported, "mlx5_1: a virtual function of 0000:c1:00.0, which is here too: left out")
    assert about(imported, "mlx5_9: its place on the PCIe tree is hidden: left out (12.5 GB/s to other boxes)")
    assert sum(device.kind == "nic" for device in imported.topology.devices) == 1


def test_peer_access_that_is_refused() -> None:
    imported = build_topology(recorded("a100-pcie-bridged-pairs"))
    (said,) = about(imported, "no peer access")
    assert said.startswith("gpu0-gpu2, gpu0-gpu3, gpu1-gpu2, gpu1-gpu3: no peer access: chipset not supported")


@pytest.mark.parametrize(
    ("cpus", "rate"),
    [
        (Cpu(0, "GenuineIntel", 6, 79), 6.0),
        (Cpu(0, "GenuineIntel", 6, 106), 10.0),
        (Cpu(0, "GenuineIntel", 6, 143), 22.0),
        (Cpu(0, "GenuineIntel", 6, 207), 40.0),
        (Cpu(0, "AuthenticAMD", 25, 1), 16.0),
        (Cpu(0, "ARM"), 6.0),
        (Cpu(0, "POWER9"), 32.0),
        (Cpu(0, "Shanghai", 7, 91), 9.0),
        (Cpu(0, "NobodyKnows"), 10.0),
    ],
)
def test_sockets_have_the_figure_of_their_cpu(cpus: Cpu, rate: float) -> None:
    imported = build_topology(replace(recorded("v100-cube-mesh"), cpus=(cpus, replace(cpus, numa=1))))
    assert {link.GBps for link in imported.topology.links if link.kind == "socket"} == {rate}
    assert bool(about(imported, "NCCL has no figure")) == (cpus.vendor == "NobodyKnows")


def test_numa_nodes_that_nobody_tells() -> None:
    recording = recorded("v100-cube-mesh")
    imported = build_topology(replace(recording, pci=tuple(replace(device, numa=-1) for device in recording.pci)))
    assert about(imported, "gpu0 and 7 more: NUMA node not told, of 2: taken as node 0")
    assert sum(device.kind == "cpu" for device in imported.topology.devices) == 1


def test_gpus_that_are_lost_mixed_or_parts_of_one() -> None:
    recording = recorded("a100-pcie-bridged-pairs")
    gpus = (replace(recording.gpus[0], name="NVIDIA A30"), *recording.gpus[1:3])
    imported = build_topology(replace(recording, gpus=gpus, lost=("gpu3: gpu is lost",), pairs=()))
    assert about(imported, "gpu3: NVML cannot open it (gpu is lost)")
    assert about(imported, "different models (NVIDIA A100 80GB PCIe, NVIDIA A30)")
    gpus = (recording.gpus[0], replace(recording.gpus[0], index=1))
    imported = build_topology(replace(recording, gpus=gpus, pairs=()))
    assert about(imported, "gpu0: one card with gpu1 (compute partitions)")


def test_a_fabric_that_is_not_ready_degraded_or_of_a_rack() -> None:
    recording = recorded("h100-vm-hidden-nvswitch")
    states = (Fabric("in progress"), Fabric("completed", "cluster0", 3), Fabric("completed", "", 0, True))
    gpus = tuple(replace(gpu, fabric=fabric) for gpu, fabric in zip(recording.gpus, states, strict=False))
    imported = build_topology(replace(recording, gpus=gpus, pairs=()))
    assert about(imported, "gpu0: registering with the NVLink fabric is in progress")
    assert about(imported, "gpu1: part of NVLink cluster0, clique 3")
    assert about(imported, "gpu2: the NVLink fabric reports degraded bandwidth")


def test_what_cannot_be_probed_says_what_to_give_instead() -> None:
    for name, word in (
        ("no-driver", "no NVIDIA driver"),
        ("a100-mig", "MIG is on (gpu0)"),
        ("l40s-container", "hidden"),
    ):
        with pytest.raises(ProbeError) as caught:
            build_topology(recorded(name))
        assert word in str(caught.value)
        assert "nvidia-smi topo -m > topo.txt" in str(caught.value)
        assert caught.value.exit_code == 1
    with pytest.raises(ProbeError, match="no GPU"):
        build_topology(Recording())


def levels(recording: Recording, near: str, far: str) -> tuple[Pair, ...]:
    return tuple(replace(pair, ancestor=near if pair.a // 2 == pair.b // 2 else far) for pair in recording.pairs)


@pytest.mark.parametrize(
    ("near", "far", "switches", "cpus", "crossed"),
    [
        ("single", "system", 2, 2, ["plx0", "cpu0", "cpu1", "plx1"]),
        ("internal", "multiple", 3, 1, ["plx0", "plx1", "plx2"]),
        ("hostbridge", "system", 0, 2, ["cpu0", "cpu1"]),
        ("single", "single", 1, 1, ["plx0"]),
        ("node", "node", 0, 1, ["cpu0"]),
    ],
)
def test_a_hidden_tree_is_built_from_common_ancestors(
    near: str, far: str, switches: int, cpus: int, crossed: list[str]
) -> None:
    recording = recorded("l40s-container")
    imported = build_topology(replace(recording, pairs=levels(recording, near, far)))
    topology = imported.topology
    kinds = Counter(str(device.kind) for device in topology.devices)
    assert (kinds["gpu"], kinds["pcie-switch"], kinds["cpu"]) == (4, switches, cpus)
    path = next(path for path in find_paths(topology) if (path.src, path.dst) == (0, 2))
    assert {topology.links[link].dst for link in path.links[:-1]} == set(crossed)
    assert {link.GBps for link in topology.links if link.kind == "pcie"} == {24.0}
    assert about(imported, "built from NVML's levels of common ancestors")


def test_a_hidden_tree_leaves_nvlinks() -> None:
    recording = replace(recorded("v100-cube-mesh"), pci=())
    blind = replace(recording, pairs=tuple(replace(pair, ancestor="") for pair in recording.pairs))
    imported = build_topology(blind)
    assert {link.kind for link in imported.topology.links} == {"nvlink"}
    assert about(imported, "only NVLinks are planned for")
    assert about(imported, "mlx5_0 and 3 more: its place on the PCIe tree is hidden: left out")


def test_one_gpu_alone() -> None:
    recording = recorded("l40s-container")
    topology = build_topology(replace(recording, gpus=recording.gpus[:1], pairs=())).topology
    assert [device.id for device in topology.devices] == ["gpu0", "cpu0"]


def test_kfd_counts_links_and_leaves_out_indirect_ones(tmp_path: Path) -> None:
    kfd_tree(tmp_path)
    recording = read_machine(tmp_path, FakeNvml([]))
    topology = build_topology(recording).topology
    assert {(link.src, link.dst): (link.count, link.GBps) for link in topology.links if link.kind == "xgmi"} == {
        ("gpu0", "gpu1"): (4, 144.0),
        ("gpu1", "gpu0"): (4, 144.0),
        ("gpu1", "gpu2"): (1, 36.0),
        ("gpu2", "gpu1"): (1, 36.0),
    }
    old = tuple(replace(node, links=tuple(_untold(link) for link in node.links)) for node in recording.kfd)
    imported = build_topology(replace(recording, kfd=old))
    assert about(imported, "gpu0 and 2 more: KFD does not tell how many xGMI links")
    assert {link.count for link in imported.topology.links if link.kind == "xgmi"} == {1}


def test_xgmi_to_the_cpu() -> None:
    recording = recorded("mi250-kfd")
    nodes = tuple(
        replace(node, links=(KfdLink(0, "xgmi", 15, 50_000, 50_000),)) if node.simds else node for node in recording.kfd
    )
    topology = build_topology(replace(recording, kfd=nodes)).topology
    ends = {(link.src, link.dst): link.GBps for link in topology.links if link.kind == "xgmi"}
    assert ends["gpu0", "cpu0"] == ends["cpu0", "gpu0"] == ends["gpu15", "cpu3"] == 36.0


def _untold(link: KfdLink) -> KfdLink:
    return replace(link, min_MBps=0, max_MBps=0)


def test_from_files_to_topology(tmp_path: Path) -> None:
    sysfs_tree(tmp_path)
    gpus = [{"busid": "0000:03:00.0", "cc": (8, 0), "pcie": (4, 4, 16, 16)}, {"busid": "0000:81:00.0", "cc": (8, 0)}]
    imported = build_topology(read_machine(tmp_path, FakeNvml(gpus)))
    topology = imported.topology
    assert [device.id for device in topology.devices] == [
        *("gpu0", "gpu1", "plx0", "cpu0", "cpu1", "nic0", "nic1", "network")
    ]
    joined = {(link.src, link.dst): link.GBps for link in topology.links}
    assert joined["gpu0", "plx0"] == joined["nic0", "plx0"] == joined["plx0", "cpu0"] == 24.0
    assert joined["gpu1", "cpu1"] == joined["nic1", "cpu1"] == 24.0
    assert joined["cpu0", "cpu1"] == 16.0
    assert (joined["nic0", "network"], joined["nic1", "network"]) == (25.0, 12.5)
    assert about(imported, "mlx5_3: a virtual function of 0000:82:00.0")
