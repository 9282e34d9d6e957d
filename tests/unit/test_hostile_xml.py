"""Hostile files: entity bombs, huge counts, negative ids, very many steps. One clear line each, in bounded memory.

All of them go through `synth verify` and `synth explain` in one process each, which may not have more memory than a gigabyte or
two; and through `synth simulate` one by one.
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from msccl_xml.write import write_algo
from synth.cli.main import main
from tests.algos import ring_allreduce

ROOT = Path(__file__).resolve().parents[2]
GOOD = write_algo(ring_allreduce(4))
MEMORY_BYTES = 2 << 30
STEP = '<step s="0" type="cpy" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>'
HUGE = "1000000000000"


def changed(element: str, **attributes: str) -> str:
    """GOOD with attributes of the first such element changed."""
    text = GOOD
    for key, value in attributes.items():
        text, times = re.subn(rf'(<{element} [^>]*\b{key}=")[^"]*"', rf'\g<1>{value}"', text, count=1)
        assert times == 1
    return text


def filled(steps: int, tbs: int = 1, gpus: int = 4) -> str:
    """An allreduce of 4 ranks with so many local steps."""
    head = GOOD[: GOOD.index("<gpu")]
    block = '<tb id="{}" send="-1" recv="-1" chan="0">' + STEP * steps + "</tb>"
    body = "".join(
        f'<gpu id="{gpu}" i_chunks="4" o_chunks="4" s_chunks="0">{"".join(block.format(tb) for tb in range(tbs))}</gpu>'
        for gpu in range(gpus)
    )
    return f"{head}{body}</algo>"


def bomb() -> str:
    """Twenty entities, each ten times the one before: ten to the twentieth characters."""
    entities = "".join(f'<!ENTITY e{k + 1} "{f"&e{k};" * 10}">' for k in range(20))
    return f'<!DOCTYPE algo [<!ENTITY e0 "x">{entities}]>{changed("algo", name="&e20;")}'


#: name -> (text, what verify says of it)
HOSTILE = {
    "bomb": (bomb(), "not XML"),
    "outside": (f'<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/hostname">]>{changed("algo", name="&x;")}', "not XML"),
    "ngpus": (changed("algo", ngpus="1000000000"), "ngpus is 1000000000, expected 1 to 1024"),
    "negative-ngpus": (changed("algo", ngpus="-4"), "ngpus is -4, expected 1 to 1024"),
    "no-gpus": (changed("algo", ngpus="0"), "ngpus is 0, expected 1 to 1024"),
    "other-ngpus": (changed("algo", ngpus="5"), "ngpus is 5, but the file has 4 gpus"),
    "chunks": (changed("algo", nchunksperloop=HUGE), f"nchunksperloop is {HUGE}, expected 1 to 32838"),
    "no-chunks": (changed("algo", nchunksperloop="0"), "nchunksperloop is 0, expected 1 to 32838"),
    "negative-chunks": (changed("algo", nchunksperloop="-4"), "nchunksperloop is -4"),
    "channels": (changed("algo", nchannels="1000000000"), "nchannels is 1000000000, msccl has 32"),
    "digits": (changed("algo", maxBytes="9" * 400), "maxBytes='999"),
    "input-chunks": (changed("gpu", i_chunks=HUGE), f"i_chunks is {HUGE}, msccl expects 4"),
    "negative-scratch": (changed("gpu", s_chunks="-1"), "negative number of chunks"),
    "negative-gpu": (changed("gpu", id="-1"), "gpu ids must be 0..3"),
    "far-gpu": (changed("gpu", id="1000000000"), "gpu ids must be 0..3"),
    "twice-a-gpu": (GOOD.replace('<gpu id="1"', '<gpu id="0"'), "gpu ids must be 0..3"),
    "negative-tb": (changed("tb", id="-1"), "gpu 0"),
    "negative-peer": (changed("tb", send="-7"), "send is -7"),
    "far-peer": (changed("tb", recv="1000000"), "recv is 1000000"),
    "far-channel": (changed("tb", chan="1000000000"), "chan is 1000000000"),
    "count": (changed("step", cnt=HUGE), "is outside buffer i of 4 chunks"),
    "negative-count": (changed("step", cnt="-3"), "cnt is -3"),
    "negative-offset": (changed("step", srcoff="-9"), "is outside buffer i of 4 chunks"),
    "far-wait": (changed("step", depid="1000000000", deps="1000000000"), "which does not exist"),
    "steps": (filled(10_000), "elements as this rank reads the file, msccl reads 4095"),
    "threadblocks": (filled(0, tbs=10_000), "10000 threadblocks, msccl takes 216"),
    "gpus": (filled(0, gpus=20_000), "ngpus is 4, but the file has 20000 gpus"),
    "depth": ("<algo>" * 100_000, "Excessive depth"),
    "cut": (GOOD[: len(GOOD) // 2], "not XML"),
    "empty": ("", "Document is empty"),
}
#: Of these, what simulate runs nevertheless: the fault is in what it does not look at, or in what no run reaches.
RUNS = {"channels", "input-chunks", "negative-scratch", "negative-offset", "chunks", "negative-tb"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hostile")
    for name, (text, _) in HOSTILE.items():
        (path / f"{name}.xml").write_text(text, encoding="utf-8")
    return path


def limited(folder: Path, *args: str) -> Any:
    """The JSON that a command prints in a process of bounded memory, and which ends in 1."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))

    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    files = [f"{name}.xml" for name in HOSTILE]
    done = subprocess.run(
        [sys.executable, "-m", "synth", *args, *files, "--json"],
        cwd=folder,
        env=environment,
        preexec_fn=limit,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)["files"]


def test_verify_refuses_each_with_its_reason(folder: Path) -> None:
    verdicts = limited(folder, "verify")
    for verdict, (name, (_, told)) in zip(verdicts, HOSTILE.items(), strict=True):
        assert not verdict["ok"], name
        assert told in verdict["reason"]
        assert "\n" not in verdict["reason"]


def test_explain_has_an_answer_for_each(folder: Path) -> None:
    reports = limited(folder, "explain")
    for report, name in zip(reports, HOSTILE, strict=True):
        for runtime, load in report["loads"].items():
            assert load["ok"] or load["reason"], (name, runtime)
    loads = {name: report["loads"]["executor"] for report, name in zip(reports, HOSTILE, strict=True)}
    assert {name for name, load in loads.items() if load["crash"]} >= {"steps", "threadblocks", "gpus"}
    assert not loads["bomb"]["ok"]


@pytest.mark.parametrize("name", HOSTILE)
def test_simulate_refuses_in_one_line_or_runs(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine = str(ROOT / "topologies" / "ring4.json")
    code = main(["simulate", str(folder / f"{name}.xml"), "--topo", machine, "--size", "1MB"])
    told = capsys.readouterr()
    assert code == (0 if name in RUNS else 1), told.err
    assert told.err.count("\n") == (0 if name in RUNS else 1)
    assert "Traceback" not in told.err


def test_scratch_that_no_step_reaches_takes_no_memory(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "scratch.xml"
    path.write_text(changed("gpu", s_chunks=HUGE), encoding="utf-8")
    assert main(["verify", str(path)]) == 0
