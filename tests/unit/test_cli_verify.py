"""`synth verify`: one line a file, the proof beside it, and the exit code."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from msccl_xml.model import Algo, Buffer
from msccl_xml.write import write_algo
from synth.cli.main import main
from tests.algos import ring_allgather, step, with_steps
from tests.fake_pipeline import allgather_of_two


def wrong_offset() -> Algo:
    """An allgather whose rank 1 receives rank 0's chunk where its own belongs."""
    algo = allgather_of_two()
    gpu = algo.gpus[1]
    exchange, own = gpu.threadblocks
    send, recv = exchange.steps
    steps = (send, recv._replace(dst_offset=1))
    return replace(algo, gpus=(algo.gpus[0], replace(gpu, threadblocks=(replace(exchange, steps=steps), own))))


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("good.xml").write_text(write_algo(allgather_of_two()), encoding="utf-8")
    Path("bad.xml").write_text(write_algo(wrong_offset()), encoding="utf-8")
    Path("text.xml").write_text("no xml", encoding="utf-8")
    Path("binary.xml").write_bytes(b"\xff\xfe\x00\x01")
    return tmp_path


@pytest.mark.parametrize("runtime", ["msccl", "executor", "rccl", "all"])
def test_a_good_file_is_ok(runtime: str, files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "good.xml", "--runtime", runtime]) == 0
    told = capsys.readouterr()
    assert told.out == "OK   good.xml\n"
    assert told.err == ""


def test_one_bad_file_fails_all_but_each_is_told(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "good.xml", "bad.xml", "text.xml", "binary.xml", "none.xml"]) == 1
    told = capsys.readouterr()
    lines = told.out.splitlines()
    assert lines[0] == "OK   good.xml"
    for line, name in zip(lines[1:], ("bad", "text", "binary", "none"), strict=True):
        assert line.startswith(f"FAIL {name}.xml: ")
    assert "No such file" in lines[4]
    assert told.err != ""


def test_json(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "good.xml", "bad.xml", "--json"]) == 1
    good, bad = json.loads(capsys.readouterr().out)["files"]
    assert good == {"path": "good.xml", "ok": True, "reason": None, "witness": [], "warning": None, "group": None}
    assert (bad["path"], bad["ok"]) == ("bad.xml", False)
    assert bad["reason"]
    assert bad["witness"]


def test_a_file_is_judged_by_what_it_is_said_to_do(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "good.xml", "--collective", "allgather"]) == 0
    assert main(["verify", "good.xml", "--collective", "alltoall"]) == 1
    assert main(["verify", "good.xml", "--collective", "broadcast", "--root", "0"]) == 1
    assert capsys.readouterr().out.count("FAIL") == 2


def test_standard_input(files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(Path("good.xml").read_bytes())))
    assert main(["verify", "-"]) == 0
    assert capsys.readouterr().out == "OK   -\n"


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["good.xml", "--runtime", "nccl"],
        ["good.xml", "--collective", "allsum"],
        ["good.xml", "--collective", "allgather", "--root", "0"],
        ["good.xml", "--root", "one"],
    ],
)
def test_usage(args: list[str], files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", *args]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1


def test_what_only_strictness_refuses_is_a_warning(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    algo = ring_allgather(2)
    write_back = step("cpy", (Buffer.OUTPUT, 0), (Buffer.INPUT, 0))
    algo = with_steps(algo, 0, 0, (*algo.gpus[0].threadblocks[0].steps, write_back))
    Path("writes.xml").write_text(write_algo(algo), encoding="utf-8")
    assert main(["verify", "writes.xml"]) == 0
    assert "warning: writes the send buffer" in capsys.readouterr().err
    assert main(["verify", "writes.xml", "--strict"]) == 1
    assert "FAIL writes.xml: writes the send buffer" in capsys.readouterr().out
