"""`synth topo list|show`."""

from __future__ import annotations

from pathlib import Path

import pytest

from synth.cli.main import main
from tests.fake_pipeline import write_topology


def test_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["topo", "list"]) == 0
    assert "dgx1" in capsys.readouterr().out


def test_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topo", "show", str(write_topology(tmp_path))]) == 0
    told = capsys.readouterr()
    assert "pair" in told.out
    assert told.err == ""


def test_show_what_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topo", "show", "no-such-machine"]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("synth: ")
    assert told.err.count("\n") == 1


@pytest.mark.parametrize("args", [["topo", "show"], ["topo", "shwo", "dgx1"], ["topo", "list", "dgx1"]])
def test_usage(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(args) == 2
    assert capsys.readouterr().err.count("\n") == 1
