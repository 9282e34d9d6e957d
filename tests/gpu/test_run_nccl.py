"""The rounds over NCCL, one GPU for each rank: what the tests over gloo cannot show."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from msccl_xml.write import write_algo
from synth.cli.main import main
from tests.algos import all_pairs_allreduce, alltoall, ring_allreduce

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="NCCL takes one rank a GPU: two GPUs are the least"),
]


@pytest.mark.parametrize("dtype", ["float", "half", "int32"])
@pytest.mark.parametrize("build", [ring_allreduce, all_pairs_allreduce, alltoall])
def test_every_element_is_right(build: object, dtype: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    algo = build(min(torch.cuda.device_count(), 8))  # type: ignore[operator]
    path = tmp_path / "file.xml"
    path.write_text(write_algo(algo))
    args = ["run", str(path), "--backend", "nccl", "--sizes", "1KB:64MB", "--dtype", dtype, "--compare", "--json"]
    assert main(args) == 0
    for row in json.loads(capsys.readouterr().out)["sizes"]:
        halves = [half for half in (row["out_of_place"], row["in_place"]) if half is not None]
        assert halves
        assert all(half["wrong"] == 0 for half in halves)
        assert row["torch"] is not None
