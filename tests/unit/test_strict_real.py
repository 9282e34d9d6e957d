"""Our strict readers against the runtimes' own parsers, run on published files and on probes (verdicts.csv)."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from msccl_xml.strict import load_as

REAL = Path(__file__).resolve().parents[3] / "shared" / "real"
COLUMNS = {"msccl": "msccl", "executor": "executor_64_steps", "rccl": "rccl"}


def _verdicts() -> list[tuple[Path, dict[str, str]]]:
    rows = []
    for folder in (REAL / "msccl-probes", REAL / "msccl-xml"):
        if (folder / "verdicts.csv").exists():
            with (folder / "verdicts.csv").open(newline="") as lines:
                rows += [(folder / row["file"], row) for row in csv.DictReader(lines)]
    return rows


VERDICTS = [pytest.param(path, row, id=path.name) for path, row in _verdicts()]
pytestmark = pytest.mark.skipif(not VERDICTS, reason="no published files beside the repository")


@pytest.mark.parametrize("runtime", COLUMNS)
@pytest.mark.parametrize(("path", "row"), VERDICTS)
def test_the_verdict_is_that_of_the_runtime(path: Path, row: dict[str, str], runtime: str) -> None:
    verdict = load_as(path.read_bytes(), runtime)
    found = "crash" if verdict.crash else "accept" if verdict.ok else "reject"
    assert found == row[COLUMNS[runtime]], verdict.reason
