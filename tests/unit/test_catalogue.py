"""The catalogue: every entry is valid and sourced, and its paths are those of the machine."""

from __future__ import annotations

import itertools
import json
from typing import Any

import jsonschema
import pytest

from synth.check_topology import find_doubts
from synth.cli.topo_text import list_text, show_text
from synth.errors import InputError
from synth.inputs.catalogue import catalogue_file, catalogue_folder, catalogue_names
from synth.inputs.load import load_topology
from synth.inputs.topology_json import parse_topology, to_json
from synth.paths import Path, find_paths
from synth.topology import DeviceKind, Topology, replicate

NAMES = catalogue_names()
#: GPUs that reach every GPU of the box over NVLink or xGMI: itself, over a switch, or over other GPUs.
FAST = {
    *("a100x4", "aws-p4d", "azure-ndv4", "dgx-a100", "dgx-h100", "dgx1", "dgx1-p100", "dgx2", "gb300-tray", "h800"),
    *("hgx-b200", "mi250", "mi300x", "ndv2"),
}
#: Boxes with GPUs that no NIC is beside.
FAR = {
    *(
        "a100-pcie6",
        "a100x4",
        "azure-nc96v4",
        "gb300-tray",
        "mi100x8",
        "mi50x8",
        "ndv2",
        "pcie-2x2-nvlink",
        "pcie8-1nic",
    ),
}
PATTERNS = {"ring4", "ring8", "line4", "mesh-3x3", "mesh-4x4", "torus-3x3"}


def read(name: str) -> dict[str, Any]:
    path = catalogue_file(name)
    assert path is not None
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def schema() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json.loads((catalogue_folder() / "schema.json").read_text(encoding="utf-8")))


def kinds_of(topology: Topology, path: Path) -> set[str]:
    return {topology.links[link].kind for link in path.links}


def lanes(topology: Topology, gpu: str, kind: str) -> int:
    return sum(link.count for link in topology.links if link.src == gpu and link.kind == kind)


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(schema().schema)


@pytest.mark.parametrize("name", NAMES)
def test_an_entry_is_valid_and_survives_writing(name: str) -> None:
    content = read(name)
    schema().validate(content)
    assert content["name"] == name
    topology = load_topology(name)
    assert load_topology(f"{name}.json") == topology
    written = to_json(topology)
    schema().validate(json.loads(written))
    assert parse_topology(written, name) == topology


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_has_a_source(name: str) -> None:
    content = read(name)
    kinds = {link["kind"] for link in content["links"]}
    assert len(content["about"]) > 40
    if name not in PATTERNS:
        assert set(content["sources"]) == kinds
        assert all("GBps" in text and "alpha" in text for text in content["sources"].values())
    assert all("GBps" in link and "alpha_us" in link for link in content["links"])


@pytest.mark.parametrize(
    "change",
    [
        {"devices": []},
        {"devices": [{"id": "a", "kind": "gpu"}]},
        {"devices": [{"id": "a", "kind": "gpu", "rank": 0}, {"id": "b", "kind": "cpu", "rank": 0}]},
        {"links": [{"between": ["gpu0", "gpu1"], "from": "gpu0", "kind": "nvlink"}]},
        {"links": [{"kind": "nvlink"}]},
        {"links": [{"between": ["gpu0", "gpu1"], "kind": "mystery"}]},
        {"links": [{"between": ["gpu0", "gpu1"], "kind": "nvlink", "GBps": 0}]},
        {"paths": {"relay_through": ["gpu"]}},
        {"format": 2},
        {"extra": 1},
    ],
)
def test_schema_and_reader_refuse_the_same(change: dict[str, Any]) -> None:
    content = {**read("ring4"), **change}
    assert not schema().is_valid(content)
    with pytest.raises(InputError):
        parse_topology(json.dumps(content), "x")


def test_dgx1_has_six_nvlinks_a_gpu() -> None:
    for name in ("dgx1", "ndv2"):
        topology = load_topology(name)
        assert [lanes(topology, gpu.id, "nvlink") for gpu in topology.gpus] == [6] * 8
    doubled = {(link.src, link.dst) for link in load_topology("dgx1").links if link.count == 2}
    ring = [0, 3, 2, 1, 5, 6, 7, 4, 0]  # the pairs with two links make one ring over all GPUs
    expected = {(f"gpu{a}", f"gpu{b}") for a, b in itertools.pairwise(ring)}
    assert doubled == expected | {(b, a) for a, b in expected}


@pytest.mark.parametrize(
    ("name", "kind", "count"),
    [
        ("dgx1-p100", "nvlink", 4),
        ("dgx2", "nvlink", 6),
        ("dgx-a100", "nvlink", 12),
        ("dgx-h100", "nvlink", 18),
        ("hgx-b200", "nvlink", 18),
        ("mi250", "xgmi", 7),
        ("mi300x", "xgmi", 7),
        ("a100x4", "nvlink", 12),
        ("a100-pcie6", "nvlink", 12),
        ("aws-p4d", "nvlink", 12),
        ("azure-nc96v4", "nvlink", 12),
        ("azure-ndv4", "nvlink", 12),
        ("gb300-tray", "nvlink", 18),
        ("h800", "nvlink", 8),
        ("mi100x8", "xgmi", 3),
        ("mi50x8", "xgmi", 2),
    ],
)
def test_lanes_of_every_gpu(name: str, kind: str, count: int) -> None:
    topology = load_topology(name)
    assert {lanes(topology, gpu.id, kind) for gpu in topology.gpus} == {count}


@pytest.mark.parametrize("name", sorted(FAST))
def test_boxes_with_fast_links_use_nothing_else_inside(name: str) -> None:
    for nodes in (1, 2):
        topology = replicate(load_topology(name), nodes)
        for path in find_paths(topology):
            if topology.node_of(path.src) == topology.node_of(path.dst):
                assert kinds_of(topology, path) <= {"nvlink", "xgmi"}


@pytest.mark.parametrize("name", sorted(set(NAMES) - PATTERNS))
@pytest.mark.parametrize("nodes", [2, 4])
def test_between_boxes_every_pair_has_a_path_over_its_near_nics(name: str, nodes: int) -> None:
    topology = replicate(load_topology(name), nodes)
    near = near_nics(load_topology(name))
    assert topology.num_ranks == nodes * load_topology(name).num_ranks
    seen = set()
    for path in find_paths(topology):
        if topology.node_of(path.src) == topology.node_of(path.dst):
            continue
        seen.add((path.src, path.dst))
        ends = [topology.links[link].dst for link in path.links]
        first, last = (end.partition(".")[0] for end in ends if topology.by_id[end].kind is DeviceKind.NIC)
        assert first in near[path.src % len(near)]
        assert last in near[path.dst % len(near)]
        assert path.alpha_us == pytest.approx(2.6) or name in FAR
    ranks = range(topology.num_ranks)
    assert seen == {(a, b) for a in ranks for b in ranks if topology.node_of(a) != topology.node_of(b)}


def near_nics(box: Topology) -> list[set[str]]:
    """For every rank of one box: the NICs on its PCIe switch, else those on its CPU, else all."""
    around: dict[str, set[str]] = {device.id: set() for device in box.devices}
    for link in box.links:
        around[link.src].add(link.dst)

    def of_kind(ids: set[str], *kinds: DeviceKind) -> set[str]:
        return {device for device in ids if box.by_id[device].kind in kinds}

    near = []
    for gpu in box.gpus:
        reached = of_kind(around[gpu.id], DeviceKind.PCIE_SWITCH, DeviceKind.CPU)
        nics: set[str] = set()
        while not nics:
            nics = of_kind({there for here in reached for there in around[here]}, DeviceKind.NIC)
            wider = reached | of_kind(
                {there for here in reached for there in around[here]}, DeviceKind.PCIE_SWITCH, DeviceKind.CPU
            )
            assert nics or wider != reached
            reached = wider
        near.append(nics)
    return near


def test_a_patterns_boxes_cannot_be_joined() -> None:
    for name in sorted(PATTERNS):
        find_paths(load_topology(name))
        with pytest.raises(InputError, match="a topology with NICs or a network"):
            replicate(load_topology(name), 2)


def test_names_are_found_from_anywhere(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "dgx1" in catalogue_names()
    assert load_topology("dgx1").name == "dgx1"
    assert catalogue_file("schema") is None


def test_the_readme_lists_every_entry() -> None:
    text = (catalogue_folder() / "README.md").read_text(encoding="utf-8")
    assert [name for name in NAMES if f"`{name}`" not in text] == []


def test_the_list_has_a_line_for_every_entry() -> None:
    lines = list_text().splitlines()
    assert [line.split()[0] for line in lines] == NAMES
    assert "dgx2              16 GPUs  NVIDIA DGX-2, sixteen V100 on NVSwitch" in lines


@pytest.mark.parametrize("name", NAMES)
def test_an_entry_can_be_shown(name: str) -> None:
    text = show_text(load_topology(name))
    assert text.startswith(f"{name}: ")
    assert max(map(len, text.splitlines())) <= 100
    assert "Diameter: " in text


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_suspicious_about_an_entry_but_how_far_its_nics_are(name: str) -> None:
    doubts = find_doubts(load_topology(name))
    assert [doubt for doubt in doubts if "far from any NIC" not in doubt.what] == []
    assert bool(doubts) == (name in FAR)


def test_what_is_shown_of_a_dgx1() -> None:
    lines = show_text(load_topology("dgx1")).splitlines()
    assert "  gpu0 gpu1 nic0 gpu2 gpu3 nic1 gpu4 gpu5 nic2 gpu6 gpu7 nic3" in lines
    assert "  +-22-+         +=44=+         +-22-+         +=44=+" in lines
    assert "  0      X   NV1   NV1   NV2   NV2 (SYS) (SYS) (SYS)" in lines
    assert "  NV2  2 NVLinks: 44 GB/s, 0.7 us" in lines
    assert "  nic1, 12.5 GB/s to the network: PIX 2 3" in lines
    assert "No link is shared by several pairs of GPUs." in lines
    assert "Diameter: 2 transfers (GPU 0 to 5); latency 1.4 us (GPU 0 to 5)" in lines


def test_what_is_shown_of_shared_links_and_far_nics() -> None:
    lines = show_text(load_topology("pcie8-1nic")).splitlines()
    assert "  cpu0 <-> cpu1 (socket, 10 GB/s): 16 pairs each way" in lines
    assert "  nic0, 12.5 GB/s to the network: SYS 0 1 2 3; PHB 4 5 6 7" in lines
    two = show_text(replicate(load_topology("dgx-a100"), 2))
    assert "nic1.1, 25 GB/s to the network: PIX 8 9" in two
    assert "NET  over the network: 24 GB/s, 2.6 us" in two
