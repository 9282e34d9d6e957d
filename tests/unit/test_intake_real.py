"""Every machine description from the wild: read into a machine that a verified plan is made for, or refused with the reason."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.intake_table import DOCUMENT, HINTS, allgather, files, hints_for, read, table, with_table
from synth.doubts import Hints
from synth.errors import InputError
from synth.inputs.load import load_topology
from synth.inputs.nccl_xml_write import to_nccl_xml
from synth.inputs.topology_json import parse_topology, to_json
from tests.intake import REAL, isomorphic, lanes, out_GBps, outcome

FILES = files(REAL)
pytestmark = pytest.mark.skipif(not FILES, reason="no machine descriptions beside the repository")
#: Files that no option makes usable, with why.
REFUSED = {
    "aws-g5-48xl-a10g-8gpu.xml": "class: 'missing', expected a class that tells GPUs",
    "b200-8gpu-one-gpu-lost-nvlink-partial.txt": "no header above",
    "azure-ncv4-nccl-graph.xml": "an NCCL graph file",
    "superbench-dtk26-topo-mapping.xml": "a mapping of GPUs to NICs",
}
#: GB/s of a link, written down from NCCL's and RCCL's src/graph/topo.h apart from the importer's own table.
LINK_GBPS = {"70": 20.0, "80": 20.0, "86": 12.0, "90": 20.6, "100": 40.1, "103": 40.1}
XGMI_GBPS = {"906": 24.0, "908": 24.0, "910": 36.0, "942": 48.0, "gfx942": 48.0}
DUMPS = [path for path in FILES if path.suffix == ".xml" and re.search(r"<(nvlink|xgmi) ", path.read_text())]
#: The one whose switches are the other GPUs, so that NCCL counts seven times what is there (facts on NCCL's rules).
PEERS = "modal-b200-vm-8gpu-peer-nvlink.xml"
DGX1V = (
    "dgx1-v100-microway.txt",
    "v100-8gpu-aliyun-renumbered.txt",
    "v100-8gpu-vm-phb.txt",
    "lambda-v100-sxm2-8gpu-dgx1v-vm.xml",
)


def named(name: str) -> Path:
    return next(path for path in FILES if path.name == name)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_is_read_or_refused_and_what_is_read_can_be_planned_for(path: Path) -> None:
    hints = hints_for(path)
    if path.name in REFUSED:
        with pytest.raises(InputError, match=re.escape(REFUSED[path.name])) as caught:
            read(path)
        assert str(caught.value).startswith(f"{path.name}: ")
        return
    if hints is not None:
        with pytest.raises(InputError, match=f"{path.name}: NVLinks: .*--nvlink"):
            read(path)
    topology = read(path, hints).topology
    assert parse_topology(to_json(topology), "again") == topology
    assert allgather(topology) == (topology.num_ranks > 1)


def test_every_hint_of_the_table_is_for_a_file() -> None:
    assert all(any(path.name.startswith(name) for path in FILES) for name in HINTS)
    assert REFUSED.keys() <= {path.name for path in FILES}


def nccl_rates(path: Path) -> tuple[dict[tuple[int, int], float], dict[int, float]]:
    """What NCCL makes of a dump's links: GB/s from rank to rank, and from each rank to the switches."""
    pairs: dict[tuple[int, int], float] = defaultdict(float)
    switched: dict[int, float] = defaultdict(float)
    root = ElementTree.parse(path).getroot()
    rank_of: dict[tuple[str, str], int] = {}
    found = []
    for cpu in root.iter("cpu"):
        for pci in cpu.iter("pci"):
            gpu = pci.find("gpu")
            if gpu is not None:
                host = cpu.get("host_hash", "")
                rank_of[host, pci.get("busid", "")] = int(gpu.get("rank", ""))
                found.append((host, gpu))
    for host, gpu in found:
        rank = int(gpu.get("rank", ""))
        lane = XGMI_GBPS[gpu.get("gcn", "")] if gpu.get("gcn") else LINK_GBPS[gpu.get("sm", "")]
        for link in [*gpu.iter("nvlink"), *gpu.iter("xgmi")]:
            rate = int(link.get("count", "")) * lane
            if link.get("tclass", "").startswith("0x068000"):
                switched[rank] += rate
            elif (host, link.get("target", "")) in rank_of:
                pairs[rank, rank_of[host, link.get("target", "")]] += rate
    return pairs, switched


@pytest.mark.parametrize("path", DUMPS, ids=lambda path: path.name)
def test_rates_between_gpus_are_those_of_nccl(path: Path) -> None:
    topology = read(path).topology
    pairs, switched = nccl_rates(path)
    rates: dict[tuple[int, int], float] = defaultdict(float)
    for link in topology.links:
        src, dst = topology.by_id[link.src].rank, topology.by_id[link.dst].rank
        if src is not None and dst is not None:
            rates[src, dst] += link.GBps
    assert rates == pytest.approx(pairs)
    each = 7 if path.name == PEERS else 1
    for rank in range(topology.num_ranks):
        total = switched.get(rank, 0.0) / each + sum(rate for (src, _), rate in pairs.items() if src == rank)
        assert out_GBps(topology, rank) == pytest.approx(total)


@pytest.mark.parametrize(
    ("name", "GBps"),
    [
        ("lambda-v100-sxm2-8gpu-dgx1v-vm.xml", 120.0),
        ("oracle-BM.GPU4.8.xml", 240.0),
        ("ibm-gx3d-h100-8gpu-8subnet.xml", 370.8),
        ("oracle-H100-topology.xml", 370.8),
        ("modal-b200-vm-8gpu-hidden-nvswitch.xml", 721.8),
        (PEERS, 721.8),
        ("gb300-nvl72-2tray-8gpu-mnnvl-fused.xml", 721.8),
        ("topo_8p_942.xml", 336.0),
        ("topo_16p1h.xml", 252.0),
    ],
)
def test_a_gpu_has_what_nccl_gives_it(name: str, GBps: float) -> None:
    topology = read(named(name)).topology
    assert {out_GBps(topology, rank) for rank in range(topology.num_ranks)} == {GBps}


def test_the_dgx1v_is_one_machine_in_every_numbering() -> None:
    graphs = {name: lanes(read(named(name)).topology) for name in DGX1V}
    graphs |= {name: lanes(load_topology(name)) for name in ("dgx1", "ndv2")}
    first = graphs["dgx1"]
    assert all(isomorphic(graph, first, 8) for graph in graphs.values())
    assert len({tuple(sorted(graph.items())) for graph in graphs.values()}) >= 3
    assert not isomorphic({**first, (0, 3): 1}, first, 8)


def test_the_published_mi250_is_the_one_of_the_catalogue() -> None:
    degree = [
        sum(count for (src, _), count in lanes(read(named("topo_16p1h.xml")).topology).items() if src == r)
        for r in range(16)
    ]
    assert degree == [7] * 16
    assert isomorphic(lanes(read(named("topo_16p1h.xml")).topology), lanes(load_topology("mi250")), 16)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("a100pcie-2gpu-bridge-asymmetric-count.xml", "12 links one way and 1 the other"),
        ("a6000-2gpu-bridge-vnic-rank0-trimmed.xml", "which is no GPU of the file"),
        ("a6000-2gpu-dell-trimmed.xml", "a virtual interface"),
        ("rtx4090-4gpu-epyc-nps-virtual-nets.xml", "a virtual interface"),
        ("ibm-gx3d-h100-8gpu-8subnet.xml", "emulated"),
        ("gb300-nvl72-2tray-8gpu-mnnvl-fused.xml", "emulated"),
        ("gb300-nvl72-2tray-8gpu-mnnvl-fused.xml", "no hexadecimal number"),
        ("lambda-v100-sxm2-8gpu-dgx1v-vm.xml", "numaid -1"),
        ("lambda-v100-sxm2-8gpu-dgx1v-vm.xml", "no affinity"),
        ("azure-ncv4-crosspair.xml", "no link_speed"),
        ("topo_4p_942.xml", "200000000 Mbit/s, more than any NIC has"),
        ("oracle-H100-topology.xml", "180000 Mbit/s, a rate that no port has"),
        ("a100pcie-2gpu-nv12-bridge-aig.xml", "2500 Mbit/s"),
        ("hygon-dcu-8gpu-3level-switch-rccl-issue1185.xml", "gcn '21943'"),
        ("hygon-dcu-8gpu-3level-switch-rccl-issue1185.xml", "vendor 'AMD'"),
        (PEERS, "126 links to switches that are the file's GPUs"),
        ("dgx1-v100-mp-pcie-only.txt", "topo -mp hides them"),
        ("v100-8gpu-vm-phb.txt", "a virtual machine"),
        ("a100-8gpu-vm-8nic-phb-clipped.txt", "cut short"),
        ("h800-8gpu-nv8-9nic-partial.txt", "GPU7"),
        ("hopper-8gpu-della-k17g3-6nic.txt", "NUMA 0, NUMA 1"),
        ("rocm-8gpu-all-xgmi.txt", "the number of links of a pair"),
    ],
)
def test_what_is_odd_about_a_file_is_said(name: str, words: str) -> None:
    said = [str(doubt) for doubt in read(named(name)).doubts]
    assert any(words in line for line in said), said


@pytest.mark.parametrize("path", DUMPS, ids=lambda path: path.name)
def test_writing_as_nccl_xml_keeps_the_graph(path: Path) -> None:
    topology = read(path).topology
    text, _ = to_nccl_xml(topology)
    again = outcome(text)
    assert not isinstance(again, InputError)
    assert lanes(again.topology) == lanes(topology)
    assert [out_GBps(again.topology, r) for r in range(topology.num_ranks)] == pytest.approx(
        [out_GBps(topology, r) for r in range(topology.num_ranks)]
    )


@given(st.sampled_from(FILES or [Path()]), st.data())
def test_part_of_a_file_is_read_or_refused(path: Path, data: st.DataObject) -> None:
    text = path.read_bytes().decode()
    start = data.draw(st.sampled_from([0, data.draw(st.integers(0, len(text)))]))
    outcome(text[start : data.draw(st.integers(start, len(text)))], Hints(nvlink="none"))


def test_the_table_in_the_documentation_is_current() -> None:
    document = DOCUMENT.read_text(encoding="utf-8")
    assert with_table(document, table(REAL)) == document
