"""`nvidia-smi topo -m`: the tree that the labels stand for, NVLinks and switches, and tables in every state."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synth.doubts import Hints, Imported
from synth.errors import InputError
from synth.inputs.load import import_topology, load_topology, parse_imported
from synth.inputs.topology_json import parse_topology, to_json
from synth.paths import find_paths
from synth.topology import DeviceKind
from tests.graphs import DGX1_NVLINK
from tests.intake import DATA, isomorphic, lanes, neighbours, out_GBps, outcome

TABLES = sorted(DATA.glob("smi-*.txt"))
MESH = {pair: count for a, b, count in DGX1_NVLINK for pair in ((a, b), (b, a))}
PAIR = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV4\t0-7\t0\nGPU1\tNV4\t X \t8-15\t1\n"


def read(name: str, hints: Hints | None = None) -> Imported:
    return import_topology(str(DATA / name), hints)


def said(imported: Imported, *words: str) -> bool:
    return any(all(word in str(doubt) for word in words) for doubt in imported.doubts)


def test_a_dgx1_is_what_the_catalogue_has() -> None:
    topology = read("smi-mesh.txt", Hints(arch="sm_70")).topology
    catalogue = load_topology("dgx1")
    assert lanes(topology) == lanes(catalogue) == MESH
    assert [out_GBps(topology, rank) for rank in range(8)] == [120.0] * 8
    for device in catalogue.devices:
        if device.kind is DeviceKind.PCIE_SWITCH:
            gpus = {end for end in neighbours(catalogue, device.id) if end.startswith("gpu")}
            (switch,) = {end for end in neighbours(topology, min(gpus)) if end.startswith("plx")}
            assert {end for end in neighbours(topology, switch) if end.startswith("gpu")} == gpus
            assert sum(end.startswith("mlx5") for end in neighbours(topology, switch)) == 1
    assert neighbours(topology, "cpu0") == {"plx0", "plx1", "cpu1"}


def test_another_numbering_is_another_graph_of_the_same_shape() -> None:
    topology = read("smi-mesh-renumbered.txt").topology
    assert lanes(topology) != MESH
    assert isomorphic(lanes(topology), MESH, 8)
    assert not isomorphic({**lanes(topology), (0, 1): 7}, MESH, 8)


def test_a_gpu_that_lost_its_links() -> None:
    imported = read("smi-lost-nvlink.txt", Hints(arch="sm_100"))
    topology = imported.topology
    assert [out_GBps(topology, rank) for rank in range(8)] == [0.0 if rank == 2 else 721.8 for rank in range(8)]
    assert said(imported, "gpu2", "no links, where its twins have 18", "PCIe")
    assert neighbours(topology, "plx0") == {"gpu0", "mlx5_10", "cpu0"}
    assert neighbours(topology, "plx1") == {"gpu4", "mlx5_bond_0", "cpu1"}
    assert neighbours(topology, "gpu2") == {"cpu0"}


def test_old_labels_colours_and_cells_run_together() -> None:
    imported = read("smi-old-ansi.txt")
    topology = imported.topology
    assert neighbours(topology, "plx0") == {"gpu0", "gpu1", "cpu0"}
    assert neighbours(topology, "cpu0") == {"plx0", "mlx4_0", "cpu1"}
    assert neighbours(topology, "cpu1") == {"gpu2", "gpu3", "cpu0"}
    assert said(imported, "line 4, GPU2", "'SO6-11'", "SYS")
    assert said(imported, "topo -mp hides them", "--nvlink")


def test_missing_rows_are_read_from_the_others() -> None:
    imported = read("smi-blanks-clipped.txt")
    assert imported.topology.num_ranks == 3
    assert lanes(imported.topology) == {(0, 1): 4, (1, 0): 4}
    assert said(imported, "GPU2, NIC0 are missing")


def test_a_virtual_machine_is_doubted() -> None:
    imported = read("smi-vm.txt")
    assert said(imported, "virtual machine")
    assert neighbours(imported.topology, "cpu0") == {"gpu0", "gpu1", "gpu2", "gpu3"}


def test_gpus_joined_by_nvlink_alone_are_where_the_table_says() -> None:
    topology = parse_imported(PAIR, "p.txt").topology
    assert neighbours(topology, "gpu0") == {"gpu1", "cpu0"}
    assert neighbours(topology, "gpu1") == {"gpu0", "cpu1"}
    same = parse_imported(PAIR.replace("8-15\t1", "0-7\t0"), "p.txt").topology
    assert neighbours(same, "gpu1") == {"gpu0", "cpu0"}


def test_labels_against_the_numa_nodes_are_doubted() -> None:
    imported = parse_imported(PAIR.replace("NV4", "NODE"), "p.txt")
    assert said(imported, "NUMA 0, NUMA 1", "one CPU")


@pytest.mark.parametrize(
    ("arch", "count", "switched"),
    [(None, 12, True), (None, 4, False), ("sm_70", 6, True), ("sm_70", 2, False), ("sm_90", 9, False)],
)
def test_a_switch_is_told_by_what_a_gpu_has(arch: str | None, count: int, switched: bool) -> None:
    rows = [f"GPU{a}\t" + "\t".join("X" if a == b else f"NV{count}" for b in range(3)) for a in range(3)]
    topology = parse_imported("\n".join(["\tGPU0\tGPU1\tGPU2", *rows]), "m.txt", Hints(arch=arch)).topology
    assert ("nvswitch" in topology.by_id) == switched
    assert lanes(topology) == ({} if switched else {(a, b): count for a in range(3) for b in range(3) if a != b})


def test_counts_that_differ_by_direction_are_kept_and_said() -> None:
    imported = parse_imported(PAIR.replace("GPU1\tNV4", "GPU1\tNV1"), "p.txt")
    assert lanes(imported.topology) == {(0, 1): 4, (1, 0): 1}
    assert said(imported, "gpu0-gpu1", "4 links one way and 1 the other")


def test_the_nearer_of_two_labels_is_taken() -> None:
    text = PAIR.replace("NV4", "SYS", 1).replace("NV4", "PIX")
    imported = parse_imported(text.replace("8-15\t1", "0-7\t0"), "p.txt")
    assert neighbours(imported.topology, "plx0") == {"gpu0", "gpu1", "cpu0"}
    assert said(imported, "SYS in one row and PIX in the other")


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.name)
def test_what_is_read_survives_our_own_format(path: object) -> None:
    topology = import_topology(str(path)).topology
    assert parse_topology(to_json(topology), "again") == topology
    assert len(find_paths(topology)) >= topology.num_ranks
    kinds = {(device.kind, link.kind) for link in topology.links for device in (topology.by_id[link.src],)}
    assert (DeviceKind.NIC, "network") not in kinds  # a table knows no speeds


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (PAIR.split("\n", 1)[1], 'line 1: "no header above'),
        ("\tGPU0\tGPU1\n", "rows: 'none of a GPU'"),
        (PAIR + PAIR.split("\n")[1], "line 4: 'GPU0', expected a row for each device"),
        (PAIR.replace("GPU1\tNV4\t X ", "GPU1\t X \tNV4"), "line 3, GPU1: 'X NV4', expected an X in its own column"),
        (PAIR.replace("NV4", "CNS"), "line 2, GPU0: 'CNS', expected 2 cells"),
        ("\tGPU0\tGPU0\nGPU0\tX\tX\n", "line 1: .*a column for each device"),
        (PAIR.replace("GPU1\tNV4", "GPU7\tNV4"), "line 3: 'GPU7', expected a row of GPU0, GPU1"),
        ("+-----+\n| NVIDIA-SMI 550.54 Driver |\nGPU0", "summary of nvidia-smi"),
        ("0 1\n1 0\n", "a matrix of numbers, which --nvlink takes"),
    ],
)
def test_what_is_refused_names_the_line(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        parse_imported(text, "m.txt")
    assert str(caught.value).startswith("m.txt: ")


@given(st.sampled_from(TABLES), st.data())
def test_a_damaged_table_is_read_or_refused(path: object, data: st.DataObject) -> None:
    text = DATA.joinpath(str(path)).read_text()
    for _ in range(data.draw(st.integers(1, 5))):
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, min(len(text), start + 30)))
        word = data.draw(
            st.sampled_from(
                ["", "\t", " ", "\n", "X", "NV", "NV99", "GPU0", "GPU9", "PIXPIX", "\x1b[0m", "NIC0", "\u0085"]
            )
        )
        text = text[:start] + word + text[end:]
    outcome(text)


@given(st.sampled_from(TABLES), st.data())
def test_a_truncated_table_is_read_with_doubts_or_refused(path: object, data: st.DataObject) -> None:
    text = DATA.joinpath(str(path)).read_text()
    found = outcome(text[: data.draw(st.integers(0, len(text)))])
    assert isinstance(found, InputError) or found.doubts
