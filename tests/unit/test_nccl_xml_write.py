"""NCCL_TOPO_FILE from our topologies: valid for NCCL's reader, and back again as far as the format holds a machine."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from synth.cluster import NetworkPlan, merge
from synth.degrade import with_link, without
from synth.inputs.catalogue import catalogue_names
from synth.inputs.load import load_topology, parse_any
from synth.inputs.nccl_xml_write import to_nccl_xml
from synth.topology import Device, DeviceKind, Link, Topology, replicate
from synth.topology_diff import differences

#: Machines that NCCL's format holds but for the two things that it never does: bus ids are made up, latencies are defaults.
WHOLE = {
    *(
        "a100-pcie6",
        "a100x4",
        "aws-p4d",
        "azure-nc96v4",
        "azure-ndv4",
        "dgx-a100",
        "dgx-h100",
        "dgx1-p100",
        "gb300-tray",
    ),
    *("h800", "hgx-b200", "mi100x8", "mi250", "mi300x", "mi50x8", "pcie-2x2-nvlink", "pcie8-1nic"),
}
PATTERNS = {"line4", "mesh-3x3", "mesh-4x4", "ring4", "ring8", "torus-3x3"}


def there_and_back(topology: Topology) -> Topology:
    """The topology as it is read back, with our name for its NVSwitch."""
    read = parse_any(to_nccl_xml(topology)[0], "written.xml")
    switches = [device.id for device in topology.devices if device.kind is DeviceKind.NVSWITCH]
    new = {"nvswitch": switches[0]} if switches else {}
    return replace(
        read,
        devices=tuple(replace(device, id=new.get(device.id, device.id)) for device in read.devices),
        links=tuple(
            replace(link, src=new.get(link.src, link.src), dst=new.get(link.dst, link.dst)) for link in read.links
        ),
    )


def lost(topology: Topology) -> list[str]:
    """What the writer says that the format does not hold, but for what it says of every machine."""
    told = [str(doubt) for doubt in to_nccl_xml(topology)[1]]
    assert told[0].startswith("bus ids: made up")
    assert told[1].startswith("latencies: ")
    return told[2:]


@pytest.mark.parametrize("name", sorted(WHOLE))
def test_a_machine_survives_the_way_there_and_back(name: str) -> None:
    topology = load_topology(name)
    assert lost(topology) == []
    assert differences(topology, there_and_back(topology)) == ()


@pytest.mark.parametrize("name", ["dgx1", "ndv2"])
def test_a_rate_that_nccl_does_not_give_is_told(name: str) -> None:
    topology = load_topology(name)
    assert lost(topology) == ["nvlink: 22 GB/s a link (NCCL takes 20 for sm_70)"]
    slower = replace(
        topology,
        links=tuple(
            replace(link, GBps=20.0 * link.count) if link.kind == "nvlink" else link for link in topology.links
        ),
    )
    assert differences(slower, there_and_back(topology)) == ()


@pytest.mark.parametrize("name", sorted(PATTERNS))
def test_a_pattern_gets_a_cpu_that_is_told(name: str) -> None:
    topology = load_topology(name)
    told = lost(topology)
    assert told[0].startswith("node 0: no CPU")
    assert "not connected to a CPU" in told[1]
    back = there_and_back(topology)
    pairs = {(link.src, link.dst): link.count for link in topology.links}
    assert {(link.src, link.dst): link.count for link in back.links if link.kind == "nvlink"} == pairs


@pytest.mark.parametrize("name", catalogue_names())
def test_the_file_is_within_the_limits_of_nccls_reader(name: str) -> None:
    text = to_nccl_xml(load_topology(name))[0]
    assert to_nccl_xml(load_topology(name))[0] == text
    root = etree.fromstring(text.encode())
    amd = name.startswith("mi")
    assert root.get("version") == ("2" if amd else "1")
    assert text.isascii()
    assert "&" not in text
    ids = [element.get("busid") for element in root.iter("pci")]
    assert len(set(ids)) == len(ids)
    for element in root.iter():
        assert len(element.attrib) <= 16
        assert len(element) <= 640
        assert all(len(value) <= 255 for value in element.attrib.values())
    for gpu in root.iter("gpu"):
        assert {"dev", "sm", "rank", "gdr"} <= set(gpu.keys())
        assert (gpu.get("gcn") is not None) == amd
    for link in root.iter("nvlink", "xgmi"):
        assert link.get("target") in ids or link.get("tclass") == "0x068000"
    for net in root.iter("net"):
        assert {"name", "dev", "speed", "port", "guid", "maxconn", "gdr"} <= set(net.keys())


def test_words_of_a_small_machine() -> None:
    lines = to_nccl_xml(load_topology("pcie-2x2-nvlink"))[0].splitlines()
    assert lines[0] == '<system version="1">'
    assert '        <nvlink target="0000:02:00.0" count="12" tclass="0x030200"/>' in lines
    assert any('link_speed="16.0 GT/s PCIe" link_width="16"' in line and 'class="0x030200"' in line for line in lines)
    assert any('<net name="nic0" dev="0" speed="100000"' in line for line in lines)
    assert sum('vendor="AuthenticAMD"' in line for line in lines) == 2


def test_several_boxes_are_told_apart_by_host() -> None:
    topology = replicate(load_topology("pcie-2x2-nvlink"), 2)
    root = etree.fromstring(to_nccl_xml(topology)[0].encode())
    assert [cpu.get("host_hash") for cpu in root.iter("cpu")] == ["0x1", "0x1", "0x2", "0x2"]
    assert any("several hosts" in line for line in lost(topology))
    back = parse_any(to_nccl_xml(topology)[0], "written.xml")
    assert [(gpu.rank, gpu.node, gpu.arch) for gpu in back.gpus] == [
        (gpu.rank, gpu.node, gpu.arch) for gpu in topology.gpus
    ]
    assert sorted((link.kind, link.GBps, link.count) for link in back.links) == sorted(
        (link.kind, link.GBps, link.count) for link in topology.links
    )


@pytest.mark.parametrize(
    ("topology", "told"),
    [
        (
            with_link(load_topology("dgx-h100"), "nic2-plx2=10"),
            "nic2-plx2: 10 GB/s (written as 12, the nearest that PCIe has)",
        ),
        (
            with_link(load_topology("dgx-h100"), "cpu0-cpu1=15"),
            "sockets: 15 GB/s between CPUs of node 0 (NCCL takes 16 ",
        ),
        (
            without(load_topology("dgx-a100"), "cpu0-cpu2"),
            "sockets: not every two CPUs of node 0 are linked (NCCL links all",
        ),
        (merge([load_topology("dgx-h100")] * 2, NetworkPlan()), "NVSwitches: 2 of them (NCCL takes all for one)"),
    ],
)
def test_what_is_lost_is_told(topology: Topology, told: str) -> None:
    assert any(line.startswith(told) for line in lost(topology))


def test_links_beside_the_tree_and_odd_names_are_told_or_mended() -> None:
    topology = load_topology("pcie-2x2-nvlink")
    links = (*topology.links, Link("nic0", "gpu3", "cable", 3.0, 1.0), Link("gpu0", "cpu1", "pcie", 24.0, 0.5, 2.0))
    odd = replace(
        topology,
        devices=tuple(replace(device, id='n"<0') if device.id == "nic0" else device for device in topology.devices),
        links=tuple(
            replace(link, src=link.src.replace("nic0", 'n"<0'), dst=link.dst.replace("nic0", 'n"<0')) for link in links
        ),
    )
    told = lost(odd)
    assert any(line.startswith('n"<0-gpu3, gpu0-cpu1: beside the tree') for line in told)
    assert any(line.startswith("gap_us") for line in told)
    assert 'name="n__0"' in to_nccl_xml(odd)[0]


@given(st.sampled_from(catalogue_names()), st.data())
def test_any_part_of_a_machine_is_written_and_read_back(name: str, data: st.DataObject) -> None:
    topology = load_topology(name)
    kept = data.draw(st.lists(st.booleans(), min_size=len(topology.links), max_size=len(topology.links)))
    part = replace(topology, links=tuple(link for link, keep in zip(topology.links, kept, strict=True) if keep))
    text, told = to_nccl_xml(part)
    back = parse_any(text, "written.xml")
    assert [gpu.rank for gpu in back.gpus] == [gpu.rank for gpu in part.gpus]
    wanted = {(link.src, link.dst): link.count for link in part.links if _between_gpus(part, link)}
    assert {(link.src, link.dst): link.count for link in back.links if _between_gpus(back, link)} == wanted
    assert len(told) >= 2


def _between_gpus(topology: Topology, link: Link) -> bool:
    return {topology.by_id[link.src].kind, topology.by_id[link.dst].kind} == {DeviceKind.GPU}


def test_a_gpu_with_a_nic_of_its_own() -> None:
    devices = (
        Device("gpu0", DeviceKind.GPU, 0, 0, "sm_80"),
        Device("nic0", DeviceKind.NIC),
        Device("net", DeviceKind.NETWORK, -1),
    )
    ends = [("gpu0", "nic0", "pcie"), ("nic0", "net", "network")]
    links = tuple(Link(a, b, kind, 10.0, 1.0) for x, y, kind in ends for a, b in ((x, y), (y, x)))
    topology = Topology("t", devices, links)
    assert any("on gpu0 itself" in line for line in lost(topology))
    back = parse_any(to_nccl_xml(topology)[0], "written.xml")
    assert [device.kind for device in back.devices if device.id == "nic0"] == [DeviceKind.NIC]
