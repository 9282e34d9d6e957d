"""`synth explain`: what it prints, its JSON, and the exit code."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from msccl_xml.write import write_algo
from synth.cli.main import main
from tests.algos import ring_allreduce
from tests.fake_pipeline import TOPOLOGY, allgather_of_two


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    good = write_algo(allgather_of_two(1 << 12, 1 << 20))
    Path("good.xml").write_text(good, encoding="utf-8")
    Path("tab.xml").write_text(good.replace(" proto", "\tproto"), encoding="utf-8")
    Path("old.xml").write_text(good.replace(' minBytes="4096" maxBytes="1048576"', ""), encoding="utf-8")
    Path("crash.xml").write_text("<root>" + good + "</root>", encoding="utf-8")
    Path("ar.xml").write_text(write_algo(ring_allreduce(2)), encoding="utf-8")
    Path("pair.json").write_text(TOPOLOGY, encoding="utf-8")
    return tmp_path


def test_a_file_that_all_load(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "good.xml", "--out-of-place"]) == 0
    told = capsys.readouterr()
    assert told.err == ""
    lines = [" ".join(line.split()) for line in told.out.splitlines()]
    assert lines[0] == "good.xml: allgather on 2 ranks, Simple, 2 chunks, minBytes 4KB, maxBytes 1MB"
    assert "all loads it" in lines
    assert "all out of place 4KB..1MB chosen" not in lines, "msccl leaves the end out, the others do not"
    assert "msccl out of place 4KB..512KB chosen" in lines
    assert "executor, rccl out of place 4KB..1MB chosen" in lines
    assert 'msccl to mend: write maxBytes="1073741825" or more if the file is right there (synth verify tells)' in lines
    assert "note msccl: not used within a group of several operations" in lines


def test_json(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "good.xml", "old.xml", "--json", "--sizes", "512KB:1MB", "--topo", "pair.json"]) == 0
    document = json.loads(capsys.readouterr().out)
    good, old = document["files"]
    assert good["path"] == "good.xml"
    assert {runtime: load["ok"] for runtime, load in good["loads"].items()} == {
        "msccl": True,
        "executor": True,
        "rccl": True,
    }
    assert old["loads"]["executor"]["ok"] is False
    assert old["loads"]["executor"]["reason"] == "<algo> has no attribute minBytes, executor requires it"
    assert old["loads"]["executor"]["mend"] == 'add minBytes="0" to <algo>'
    row = next(row for row in good["sizes"] if row["bytes"] == 1 << 20 and not row["in_place"])
    assert row["msccl"]["chosen"] is False
    assert row["msccl"]["file"] == "old.xml"
    assert set(row) == {"bytes", "in_place", "count", "total_bytes", "msccl", "executor", "rccl"}
    assert good["cost"]["threadblocks"] == 2


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["good.xml", "old.xml"], 0),
        (["good.xml", "tab.xml"], 1),
        (["old.xml", "--runtime", "executor"], 1),
        (["old.xml", "--runtime", "msccl"], 0),
        (["crash.xml"], 1),
        (["none.xml"], 1),
        (["good.xml", "--type", "complex"], 2),
        (["good.xml", "--ranks", "2", "--topo", "pair.json"], 2),
        (["good.xml", "--nodes", "2"], 2),
        (["good.xml", "--sizes", "1GB:1KB"], 2),
        (["good.xml", "--topo", "nowhere"], 1),
        ([], 2),
    ],
)
def test_exit_codes(files: Path, args: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", *args]) == code
    assert "Traceback" not in capsys.readouterr().err


def test_a_crash_is_called_one(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["explain", "crash.xml"])
    assert "crashes: no <algo> at the top level of the document" in capsys.readouterr().out


def test_two_files_share_the_sizes(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "good.xml", "old.xml", "--runtime", "msccl", "--out-of-place", "--sizes", "1MB:2MB"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert any(line.startswith("msccl out of place 1MB..2MB left to old.xml: 2MB") for line in lines)
    assert "msccl out of place 1MB..2MB chosen" in lines


def test_standard_input_and_the_environment(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO((files / "ar.xml").read_bytes())))
    assert main(["explain", "-", "--runtime", "msccl"]) == 0
    assert "NCCL_ALGO=MSCCL,RING,TREE" in capsys.readouterr().out


def test_a_configuration_names_the_files_and_their_bounds(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load = '<load path="good.xml" minbytes="2097152" proto="LL"/>'
    Path("config.xml").write_text(f"<msccl_algos>{load}</msccl_algos>", encoding="utf-8")
    assert main(["explain", "--config", "config.xml", "--out-of-place"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "good.xml: allgather on 2 ranks, LL, 2 chunks, minBytes 2MB, without maxBytes"
    assert "msccl out of place 2MB..1GB chosen" in lines
    assert 'msccl to mend: write minbytes="1024" or less in its <load>' in lines
    assert "set for msccl: MSCCL_CONFIG=config.xml" in lines
    assert main(["explain", "--config", "config.xml", "--runtime", "msccl", "--json"]) == 0
    [report] = json.loads(capsys.readouterr().out)["files"]
    assert set(report["loads"]) == {"msccl"}


@pytest.mark.parametrize(
    ("args", "code", "told"),
    [
        (["good.xml", "--config", "config.xml"], 2, "give FILEs, or --config"),
        (["--config", "config.xml", "--runtime", "rccl"], 2, "only msccl does"),
        (["--config", "none.xml"], 1, "none.xml: cannot be read"),
        (["--config", "lost.xml"], 1, "nowhere.xml: cannot be read"),
        (["--config", "good.xml"], 1, "good.xml: 'no <msccl_algos>'"),
    ],
)
def test_configurations_that_do_not_work(
    files: Path, args: list[str], code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("lost.xml").write_text('<msccl_algos><load path="nowhere.xml" proto="LL"/></msccl_algos>', encoding="utf-8")
    Path("config.xml").write_text('<msccl_algos><load path="good.xml" proto="LL"/></msccl_algos>', encoding="utf-8")
    assert main(["explain", *args]) == code
    said = capsys.readouterr().err
    assert told in said
    assert said.count("\n") == 1
