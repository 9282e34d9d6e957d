"""`--nvlink`, `--nics` and `--arch`: what a file cannot say, read, put in its place, and refused where it does not fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from synth.doubts import Hints, Imported
from synth.errors import InputError
from synth.inputs.hints import parse_matrix, parse_nics
from synth.inputs.load import import_topology, load_topology
from synth.topology import DeviceKind, Topology, replicate
from tests.intake import DATA, lanes, neighbours, out_GBps, rate

MESH_PCIE = "smi-vm.txt"


def read(name: str, **hints: str) -> Imported:
    return import_topology(str(DATA / name), Hints(**hints))


def nics(topology: Topology) -> list[str]:
    return [device.id for device in topology.devices if device.kind is DeviceKind.NIC]


def test_a_machine_of_the_catalogue_gives_its_links_and_names_its_gpus() -> None:
    imported = read("skeleton-crlf.xml", nvlink="a100x4")
    assert lanes(imported.topology) == lanes(load_topology("a100x4"))
    assert [gpu.arch for gpu in imported.topology.gpus] == ["sm_80"] * 4
    assert any("GPU i of a100x4" in doubt.what for doubt in imported.doubts)


def test_a_switch_is_the_same_from_every_gpu_and_needs_no_doubt() -> None:
    imported = read("smi-mesh.txt", nvlink="dgx-h100")
    assert [out_GBps(imported.topology, gpu) for gpu in range(8)] == [370.8] * 8
    assert lanes(imported.topology) == {}
    said = [str(doubt) for doubt in imported.doubts]
    assert any("those of the file (24 links) are replaced" in line for line in said)
    assert not any("GPU i of" in line for line in said)


def test_the_table_of_the_same_machine(tmp_path: Path) -> None:
    table = tmp_path / "topo.txt"
    table.write_text("\n".join(["\tGPU0\tGPU1\tGPU2\tGPU3", *(
        f"GPU{a}\t" + "\t".join("X" if a == b else "NV18" for b in range(4)) for a in range(4)
    )]))  # fmt: skip
    topology = read("vm-hidden-switch.xml", nvlink=str(table)).topology
    assert [out_GBps(topology, gpu) for gpu in range(4)] == [370.8] * 4  # at the rate of the file's own GPUs


def test_a_matrix_of_counts(tmp_path: Path) -> None:
    path = tmp_path / "links.txt"
    path.write_text("# a square\n0, 2, 0, 1\n2 0 1 0\n0 1 0 2\n1 0 2 0\n")
    topology = read(MESH_PCIE, nvlink=str(path), arch="sm_70").topology
    assert lanes(topology)[0, 1] == 2
    assert rate(topology, "gpu0", "gpu1") == 40.0
    assert rate(topology, "gpu0", "gpu3") == 20.0
    amd = read(MESH_PCIE, nvlink=str(path), arch="gfx90a").topology
    assert rate(amd, "gpu0", "gpu1") == 72.0
    assert {link.kind for link in amd.links if link.src == "gpu0"} == {"xgmi", "pcie"}


def test_none_takes_links_away() -> None:
    topology = read("vm-hidden-switch.xml", nvlink="none").topology
    assert [out_GBps(topology, gpu) for gpu in range(4)] == [0.0] * 4
    assert "nvswitch" not in topology.by_id


def test_hints_for_a_box_hold_for_every_box() -> None:
    topology = read("two-hosts-one-domain.xml", nvlink="none", nics="1x50").topology
    assert rate(topology, "mlx5_bond_0", "network") == rate(topology, "mlx5_bond_0.1", "network") == 50.0
    with pytest.raises(InputError, match=r"--nvlink: dgx1: '8 GPUs', expected 2, as many as two-hosts"):
        read("two-hosts-one-domain.xml", nvlink="dgx1")


def test_a_number_of_nics_rates_those_that_are_there() -> None:
    topology = read("smi-mesh.txt", nics="4x12.5").topology
    assert [rate(topology, nic, "network") for nic in nics(topology)] == [12.5] * 4
    assert replicate(topology, 2).num_ranks == 16
    with pytest.raises(InputError, match=r"--nics: 8x25: 8, expected 4, as many as smi-mesh has"):
        read("smi-mesh.txt", nics="8x25")
    assert nics(read("smi-mesh.txt", nics="0").topology) == []


def test_nics_without_a_place_are_spread_and_said() -> None:
    imported = read("smi-mesh-renumbered.txt", nics="4x25")
    assert [neighbours(imported.topology, nic) for nic in nics(imported.topology)] == [
        *({"cpu0", "network"}, {"cpu0", "network"}, {"cpu1", "network"}, {"cpu1", "network"})
    ]
    assert any("spread over the CPUs" in doubt.what for doubt in imported.doubts)
    unrated = read("smi-mesh-renumbered.txt", nics="2")
    assert rate(unrated.topology, "nic1", "network") == 12.5
    assert any("no rate given" in doubt.what for doubt in unrated.doubts)


def test_a_file_of_nics(tmp_path: Path) -> None:
    path = tmp_path / "nics.json"
    entries = [{"id": "mlx5_0", "GBps": 25}, {"id": "roce9", "GBps": 50, "beside": "gpu7"}]
    path.write_text(json.dumps({"nics": entries}))
    topology = read("smi-mesh.txt", nics=str(path)).topology
    assert nics(topology) == ["mlx5_0", "roce9"]
    assert neighbours(topology, "roce9") == {"plx3", "network"}
    assert [rate(topology, nic, "network") for nic in nics(topology)] == [25.0, 50.0]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"id": "new", "GBps": 25}, r"nics\[0\].id: 'new', expected a NIC of the file"),
        ({"id": "new", "GBps": 25, "beside": "gpu99"}, r"nics\[0\].beside: 'gpu99'"),
        ({"id": "gpu0", "GBps": 25, "beside": "gpu1"}, r"nics\[0\].id: 'gpu0'"),
        ({"id": "mlx5_0"}, r"nics\[0\].GBps: 'missing'"),
        ({"id": "mlx5_0", "GBps": 0}, r"nics\[0\].GBps"),
        ({"id": "mlx5_0", "rate": 25}, r"nics\[0\]: 'rate', expected one of the keys"),
    ],
)
def test_a_file_of_nics_that_does_not_fit(tmp_path: Path, entry: dict[str, object], message: str) -> None:
    path = tmp_path / "nics.json"
    path.write_text(json.dumps({"nics": [entry]}))
    with pytest.raises(InputError, match=message):
        read("smi-mesh.txt", nics=str(path))


@pytest.mark.parametrize(
    ("hints", "message"),
    [
        (Hints(nvlink="dgx"), r"--nvlink: 'dgx', expected a file, or a name .*dgx1"),
        (Hints(nvlink="pcie8-1nic"), "--nvlink: pcie8-1nic: 'no links between GPUs'"),
        (Hints(nvlink="a100x4"), "'4 GPUs', expected 8, as many as smi-mesh has"),
        (Hints(nics="many"), "--nics: 'many', expected a number of NICs"),
        (Hints(nics="4x0"), "--nics: '4x0', expected a rate above 0"),
        (Hints(arch="H100"), "--arch: 'H100', expected a GPU architecture"),
    ],
)
def test_hints_that_do_not_fit(hints: Hints, message: str) -> None:
    with pytest.raises(InputError, match=message):
        import_topology(str(DATA / "smi-mesh.txt"), hints)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0 1\n1\n", "row 1: '1 counts', expected 2"),
        ("0 1\n1 1\n", "row 1: '1', expected 0 for the links of a GPU to itself"),
        ("0 x\n1 0\n", "row 0: 'x', expected a number of links"),
        ("", "'0 rows'"),
    ],
)
def test_matrices_that_are_none(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_matrix(text, "m.txt")


def test_numbers_of_nics() -> None:
    spellings = ["8", "8x25", "8x12.5GBps", "8x25GB/s"]
    assert [(hint.count, hint.GBps) for text in spellings if (hint := parse_nics(text))] == [
        *((8, None), (8, 25.0), (8, 12.5), (8, 25.0))
    ]
    assert parse_nics("nics.json") is None


def test_without_hints_the_catalogue_is_as_it_was_and_without_doubts() -> None:
    imported = import_topology("dgx1")
    assert imported.doubts == ()
    assert imported.topology == load_topology("dgx1")
    assert import_topology("dgx1", Hints(nics="4x50")).topology.num_ranks == 8
