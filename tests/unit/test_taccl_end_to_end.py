"""TACCL's own kind of input, profile and sketch, from the command line to a file that verifies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from msccl_xml.read import read_algo
from synth.cli.main import main

DATA = Path(__file__).resolve().parents[1] / "data" / "taccl"
#: Collective, profile, sketch (None: none), size of the buffer, ranks of the machine that both describe.
CASES = [
    ("allgather", "topo-ndv2-1MB", "sk-ndv2-n1", "1MB", 8),
    ("allgather", "topo-ndv2-1MB", "sk1-ndv2-n2", "1MB", 16),
    ("allgather", "topo-ndv2-32KB", "sk2-ndv2-n2", "32KB", 16),
    ("allgather", "topo-ndv2-1KB", "sk3-ndv2-n2", "1KB", 16),
    ("allgather", "topo-custom-1MB", None, "1MB", 3),
    ("allreduce", "topo-ndv2-1MB", "sk1-ndv2-n2", "1MB", 16),
    ("alltoall", "topo-ndv2-1MB", "sk1-ndv2-n2", "1MB", 16),
]
SLOW = [
    ("allgather", "topo-ndv2-1MB", "sk1-ndv2-n4", "1MB", 32),
    ("allgather", "topo-dgx2-1MB", "sk1-dgx2-n2", "1MB", 32),
    ("allgather", "topo-dgx2-1MB", "sk2-dgx2-n2", "1MB", 32),
    ("reduce-scatter", "topo-ndv2-1MB", "sk2-ndv2-n2", "1MB", 16),
    ("allreduce", "topo-ndv2-1MB", "sk-ndv2-n1", "1MB", 8),
    ("alltoall", "topo-ndv2-1MB", "sk-ndv2-n1", "1MB", 8),
]


@pytest.mark.parametrize(
    ("collective", "profile", "sketch", "size", "ranks"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)],
)
def test_a_profile_and_its_sketch_make_a_file(
    collective: str,
    profile: str,
    sketch: str | None,
    size: str,
    ranks: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As many nodes as the sketch says, and its chunks; the file passes verification."""
    target, report = tmp_path / "plan.xml", tmp_path / "report.json"
    hints = [] if sketch is None else ["--sketch", str(DATA / f"{sketch}.json")]
    command = [collective, "--topo", str(DATA / f"{profile}.json"), *hints, "--size", size, "--quiet"]
    assert main([*command, "-o", str(target), "--report", str(report)]) == 0
    assert main(["verify", "--collective", collective, str(target)]) == 0
    assert capsys.readouterr().err == ""
    algo = read_algo(target.read_bytes())
    assert algo.ngpus == ranks
    if sketch is not None:
        asked = json.loads((DATA / f"{sketch}.json").read_text(encoding="utf-8"))["hyperparameters"]["input_chunkup"]
        assert algo.nchunksperloop == asked * ranks
    rows = json.loads(report.read_text(encoding="utf-8"))["sizes"]
    assert all(0 < row["efficiency"] <= 1 for row in rows)
