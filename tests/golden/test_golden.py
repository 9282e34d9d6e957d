"""Whole files, byte for byte: a change of what comes out has to be seen and agreed to.

To renew them after such a change: `RENEW_GOLDEN=1 .venv/bin/python -m pytest tests/golden`, then read the difference
(`git diff tests/golden/data`) before it is committed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from msccl_xml.read import read_algo
from synth.collective import ROOTED, SHARED, Collective
from synth.verify import verify_algo
from tests.golden.cases import CASES, job, text_of

DATA = Path(__file__).resolve().parent / "data"
ROOT = DATA.parents[2]
RENEW = bool(os.environ.get("RENEW_GOLDEN"))


@pytest.mark.parametrize("name", CASES)
def test_bytes_are_what_they_were(name: str) -> None:
    made, kept = text_of(name), DATA / f"{name}.xml"
    if RENEW:
        kept.write_bytes(made.encode("ascii"))
    assert made.encode("ascii") == kept.read_bytes(), "see the head of this file for how to agree to a change"


@pytest.mark.parametrize("name", CASES)
def test_what_is_kept_is_right(name: str) -> None:
    asked = job(name)
    algo = read_algo((DATA / f"{name}.xml").read_bytes())
    root = (asked.root or 0) if asked.collective in ROOTED else None
    collective = Collective(asked.collective, asked.topology.num_ranks, algo.nchunksperloop, root)
    verify_algo(algo, collective, runtime=asked.runtime)
    if asked.chunks is not None:
        shares = asked.topology.num_ranks if asked.collective in SHARED else 1
        assert algo.nchunksperloop == asked.chunks * (asked.instances or 1) * shares


def test_nothing_is_kept_that_no_case_makes() -> None:
    assert sorted(path.name for path in DATA.iterdir()) == sorted(f"{name}.xml" for name in CASES)


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_bytes_do_not_depend_on_the_process(hash_seed: str) -> None:
    """Sets of strings iterate in another order under another PYTHONHASHSEED."""
    name = "ring4-allreduce-64KB"
    command = [sys.executable, "-m", "tests.golden.cases", name]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    made = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=True)
    assert made.stdout == (DATA / f"{name}.xml").read_bytes()


def test_cases_differ_in_what_they_show() -> None:
    kept = [read_algo((DATA / f"{name}.xml").read_bytes()) for name in CASES]
    assert len({algo.proto for algo in kept}) > 1
    assert len({step.type for algo in kept for _, _, _, step in algo.steps()}) > 4
