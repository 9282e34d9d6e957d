"""`rocm-smi --showtopo`: links where one hop is between two GPUs, CPUs by NUMA node, and damaged tables."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synth.doubts import Hints
from synth.errors import InputError
from synth.inputs.load import import_topology, parse_imported
from synth.inputs.topology_json import parse_topology, to_json
from synth.paths import find_paths
from tests.intake import DATA, lanes, neighbours, out_GBps, outcome

TEXT = (DATA / "rocm-ring.txt").read_text()
RING = {(a, b): 1 for a in range(4) for b in ((a + 1) % 4, (a - 1) % 4)}


def test_a_ring_with_two_numa_nodes() -> None:
    imported = import_topology(str(DATA / "rocm-ring.txt"), Hints(arch="gfx90a"))
    topology = imported.topology
    assert lanes(topology) == RING
    assert [out_GBps(topology, rank) for rank in range(4)] == [72.0] * 4
    assert neighbours(topology, "cpu0") == {"gpu0", "gpu1", "cpu1"}
    assert neighbours(topology, "cpu1") == {"gpu2", "gpu3", "cpu0"}
    assert len(find_paths(topology)) == 8
    assert any("one each" in doubt.what for doubt in imported.doubts)
    assert parse_topology(to_json(topology), "again") == topology


def test_an_unknown_gpu_is_said() -> None:
    assert any("24 GB/s a link" in doubt.what for doubt in parse_imported(TEXT, "r.txt").doubts)


def test_weights_stand_in_for_hops_and_neither_is_said() -> None:
    start, end = TEXT.index("=============================== Hops"), TEXT.index("============================= Link")
    without_hops = TEXT[:start] + TEXT[end:]
    assert lanes(parse_imported(without_hops, "r.txt").topology) == RING
    alone = parse_imported(TEXT[end:], "r.txt")
    assert len(lanes(alone.topology)) == 12
    assert any("no table of hops" in doubt.what for doubt in alone.doubts)


def test_pcie_pairs_and_a_table_of_single_blanks() -> None:
    imported = parse_imported("== Link Type between two GPUs ==\nGPU0 GPU1\nGPU0 0 PCIE\nGPU1 PCIE 0\n", "r.txt")
    assert lanes(imported.topology) == {}
    assert neighbours(imported.topology, "cpu0") == {"gpu0", "gpu1"}
    assert any("one CPU is taken" in doubt.cost for doubt in imported.doubts)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TEXT.replace("Link Type", "Other"), "no table of link types"),
        (TEXT.replace("GPU3   XGMI", "GPU3   XGMI         XGMI"), r"line \d+, GPU3: '5 cells', expected 4"),
        (TEXT.replace("XGMI         0", "NVLINK         0", 1), r"line \d+, GPU1: 'NVLINK', expected XGMI or PCIE"),
        (TEXT[: TEXT.rindex("GPU3   XGMI")], "Link Type between two GPUs: '12 cells', expected 16"),
        ("ROCm System Management Interface\nGPU[0]: 35 C\n", "--showtopo prints them"),
    ],
)
def test_what_is_refused_names_the_line(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_imported(text, "r.txt")


@given(st.data())
def test_damaged_tables_are_read_or_refused(data: st.DataObject) -> None:
    text = TEXT
    for _ in range(data.draw(st.integers(1, 5))):
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, min(len(text), start + 30)))
        word = data.draw(st.sampled_from(["", " ", "\n", "XGMI", "15", "GPU0", "GPU[9]", "N/A", "===", "-1"]))
        text = text[:start] + word + text[end:]
    outcome(text)
