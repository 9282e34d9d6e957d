"""The program as a whole: help, version, unknown verbs, pipes that close, and what is imported when."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from synth import __version__
from synth.cli import output
from synth.cli.main import main
from synth.errors import SynthError

ROOT = Path(__file__).resolve().parents[2]


def run_synth(*args: str, stdout: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-m", "synth", *args],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        check=False,
    )


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([option]) == 0
    told = capsys.readouterr()
    assert "allreduce" in told.out
    assert "verify" in told.out
    assert told.err == ""


def test_help_of_a_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["allreduce", "-h"]) == 0
    assert "--topo" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"synth {__version__}\n"


@pytest.mark.parametrize("args", [[], ["topo"]])
def test_no_verb_shows_help_on_standard_error(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(args) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "Usage: synth" in told.err


def test_an_unknown_verb_gets_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["allredcue"]) == 2
    told = capsys.readouterr()
    assert told.err.startswith("synth: ")
    assert "'allreduce'" in told.err
    assert told.err.count("\n") == 1


def test_usage_errors_show_a_traceback_only_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["allreduce"]) == 2
    assert "Traceback" not in capsys.readouterr().err
    assert main(["allreduce", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from synth.cli.main import main; main(['--help']); "
        "heavy = {'numpy', 'scipy', 'lxml', 'rich', 'pulp', 'highspy', 'networkx', 'torch'}; "
        "sys.exit(' '.join(sorted(heavy & set(sys.modules))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ}
    )
    assert done.stderr == "\n"
    assert "Usage" in done.stdout


def test_a_closed_pipe_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = run_synth("--help", stdout=writer)
    finally:
        os.close(writer)
    assert done.stderr == ""
    assert done.returncode == 0


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_standard_output_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(SynthError, match="standard output: cannot be written"):
            output.print_result("text")
        monkeypatch.undo()
        full.close = lambda: None  # type: ignore[method-assign]


def test_a_path_that_is_no_text_is_printed_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, encoding="utf-8"))
    output.print_result("caf\udce9.xml")
    assert printed.getvalue() == b"caf\xe9.xml\n"


def test_errors_are_told_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_error("a\n  b")
    assert capsys.readouterr().err == "synth: a b\n"
