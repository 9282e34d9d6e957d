"""Bad input through the real pipeline: each case ends in its exit code and one line, and leaves the folder as it was."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from synth.cli import collectives, main
from synth.errors import NoAnswerError
from tests.fake_pipeline import FakePipeline, install

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
LINK = {"between": ["gpu0", "gpu1"], "kind": "nvlink", "GBps": 22.0, "alpha_us": 0.7}


def machine(gpus: int = 2, links: list[dict[str, Any]] | None = None, **more: Any) -> str:
    """Our JSON of a box called `box`."""
    devices = [{"id": f"gpu{rank}", "kind": "gpu", "rank": rank} for rank in range(gpus)]
    text = {"format": 1, "name": "box", "devices": devices, "links": [LINK] if links is None else links, **more}
    return json.dumps(text)


TWICE = '[{"id": "gpu0", "kind": "gpu", "rank": 0}, {"id": "gpu1", "kind": "gpu", "rank": 0}]'
PAIRS = [LINK, {**LINK, "between": ["gpu2", "gpu3"]}]
#: Text of the file, what the line has to name.
TOPOLOGIES = {
    "empty": ("", "an empty file"),
    "cut short": ('{"format": 1, "devices": [', "line 1, column 27"),
    "a list": ("[]", "'[]'"),
    "too deep": ('{"a":' * 100_000, "nesting"),
    "no object of ours": ("{}", "format: missing, expected 1"),
    "another object": ('{"hello": 1}', "'hello'"),
    "one GPU": (machine(1, []), "ranks: 1, expected 2 or more"),
    "in two parts": (machine(4, PAIRS), "gpu0 cannot reach gpu2"),
    "one way only": (machine(2, [{"from": "gpu0", "to": "gpu1", "kind": "nvlink"}]), "gpu1 cannot reach gpu0"),
    "negative rate": (machine(2, [{**LINK, "GBps": -5}]), "links[0].GBps: -5"),
    "no rate": (machine(2, [{**LINK, "GBps": 0}]), "links[0].GBps: 0"),
    "a rate that is no number": (machine(2, [{**LINK, "GBps": float("nan")}]), "links[0].GBps: nan"),
    "a rate without end": (machine(2, [{**LINK, "GBps": float("inf")}]), "links[0].GBps: inf"),
    "a device that is not there": (machine(2, [{**LINK, "between": ["gpu0", "gpu7"]}]), "between[1]: 'gpu7'"),
    "a rank twice": (machine(2, devices=json.loads(TWICE)), "devices[1].rank: 0"),
}


def fails(capsys: pytest.CaptureFixture[str], code: int, *args: str) -> str:
    """The last line on standard error of a command that has to end in `code` and change nothing."""
    before = sorted(os.listdir())
    assert main.main(list(args)) == code
    told = capsys.readouterr()
    assert told.out == ""
    assert "Traceback" not in told.err
    assert sorted(os.listdir()) == before
    return told.err.splitlines()[-1]


@pytest.fixture
def box(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty working directory with box.json, a machine of two GPUs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "box.json").write_text(machine(), encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(("text", "named"), TOPOLOGIES.values(), ids=TOPOLOGIES.keys())
def test_a_bad_topology(text: str, named: str, box: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (box / "bad.json").write_text(text, encoding="utf-8")
    line = fails(capsys, 1, "allgather", "--topo", "bad.json", "--size", "1MB")
    assert line.startswith("synth: bad.json: ")
    assert named in line


def test_a_file_is_named_as_the_user_did(box: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (box / "mine.json").write_text(machine(4, PAIRS), encoding="utf-8")
    assert fails(capsys, 1, "topo", "show", "mine.json").startswith("synth: mine.json: box: links: gpu0 cannot")
    (box / "box.json").write_text(machine(4, PAIRS), encoding="utf-8")
    assert fails(capsys, 1, "topo", "show", "./box.json").startswith("synth: box: links: gpu0 cannot")


@pytest.mark.parametrize("name", ["", ".", "none/box.json"])
def test_no_topology_there(name: str, box: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = fails(capsys, 1, "allgather", "--topo", name, "--size", "1MB")
    assert line.startswith(f"synth: --topo: {name!r}, expected a file")
    assert ("folder" in line) == (name == ".")


OPTIONS = {
    "copies without a NIC": (1, ["--nodes", "2"], "'no NIC'"),
    "one rank": (1, ["--ranks", "0"], "ranks: 1, expected 2 or more"),
    "no threadblocks": (1, ["--max-threadblocks", "1"], "--max-threadblocks"),
    "a solver that is not there": (1, ["--solver", "gurobi", "--strategy", "milp"], "--solver: gurobi"),
    "more chunks than can be moved": (2, ["--chunks", "18177"], "from 1 to 18176"),
    "more copies than channels": (2, ["--instances", "33"], "from 1 to 32"),
    "more than any memory": (2, ["--size", "1048577GB"], "1048576GB"),
    "digits without end": (2, ["--size", "9" * 5000], "1048576GB"),
    "digits of another script": (2, ["--size", "٣MB"], "1048576GB"),
}


@pytest.mark.parametrize(("code", "args", "named"), OPTIONS.values(), ids=OPTIONS.keys())
def test_a_bad_option(code: int, args: list[str], named: str, box: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if "gurobi" in args:
        pytest.importorskip("highspy")
        from synth.milp.backends import has_gurobi

        if has_gurobi():
            pytest.skip("Gurobi is here")
    line = fails(capsys, code, "allgather", "--topo", "box.json", "--size", "1MB", *args)
    assert line.startswith("synth: ")
    assert named in line


def test_more_nodes_than_can_be_solved(box: Path, capsys: pytest.CaptureFixture[str]) -> None:
    most = collectives.MAX_RANKS // 8
    line = fails(capsys, 1, "allgather", "--topo", "dgx1", "--nodes", str(most + 1))
    assert line == f"synth: --nodes: {most + 1}, expected at most {most} of dgx1 ({collectives.MAX_RANKS} GPUs in all)"


def test_more_files_than_the_runtime_loads(box: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = fails(capsys, 1, "allgather", "--topo", "dgx1", "--files", "5")
    assert line == "synth: --files: 5, expected at most 4, which is all that msccl loads"


def test_a_sketch_of_more_nodes_than_the_machine_can_have(box: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (box / "hints.json").write_text('{"format": 1, "nodes": 2, "across": "same"}', encoding="utf-8")
    line = fails(capsys, 1, "allgather", "--topo", "box.json", "--size", "1MB", "--sketch", "hints.json")
    assert line == "synth: hints.json: nodes: 2, expected 1 on box, which has no NIC"


@pytest.mark.parametrize("text", ['{"nnodes": 1,', "{}", '{"nnodes": "x", "intranode_sketch": {}}'])
def test_a_broken_sketch(text: str, box: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (box / "hints.json").write_text(text, encoding="utf-8")
    line = fails(capsys, 1, "allgather", "--topo", "box.json", "--size", "1MB", "--sketch", "hints.json")
    assert line.startswith("synth: hints.json: ")


def test_a_range_that_ends_off_a_power_of_two_is_named_by_its_end(
    box: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(monkeypatch, FakePipeline())
    assert main.main(["allgather", "--topo", "box.json", "--sizes", "1000:1000000", "--quiet"]) == 0
    assert capsys.readouterr().out == "allgather-box-1000-1000000.xml\n"


def test_a_device_that_is_full_is_no_bug_of_ours(
    box: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(monkeypatch, FakePipeline(raises=OSError(errno.ENOSPC, "No space left on device", "/tmp/model.mps")))
    line = fails(capsys, 1, "allgather", "--topo", "box.json", "--size", "1MB")
    assert line == "synth: /tmp/model.mps: cannot be written: No space left on device"


def test_an_error_that_names_no_machine_stays_as_it_is(
    box: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(monkeypatch, FakePipeline(raises=NoAnswerError("--instances: too many")))
    assert fails(capsys, 1, "allgather", "--topo", "box.json", "--size", "1MB") == "synth: --instances: too many"


def test_nobody_listens_on_standard_error(box: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakePipeline())
    monkeypatch.setattr(sys, "stderr", None)
    assert main.main(["allgather", "--topo", "box.json", "--size", "1MB"]) == 0
    assert sorted(os.listdir()) == ["allgather-box-1MB.xml", "box.json"]


def test_standard_output_is_closed(
    box: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert main.main(["topo", "list"]) == 1
    assert capsys.readouterr().err == "synth: standard output: cannot be written: it is closed\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
@pytest.mark.parametrize(
    ("redirection", "code", "said"), [(">/dev/full", 1, "No space left"), ("2>/dev/full", 0, ""), (">&-", 0, "")]
)
def test_help_to_nowhere(redirection: str, code: int, said: str) -> None:
    """Of the process as a whole: what the interpreter does on its way out counts too."""
    command = f"exec '{sys.executable}' -m synth topo --help {redirection}"
    done = subprocess.run(["sh", "-c", command], env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert said in done.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("strategy", ["greedy", "milp"])
def test_a_signal_ends_the_search_and_leaves_nothing(
    strategy: str, number: signal.Signals, code: int, tmp_path: Path
) -> None:
    """Sent once the search of a job that takes far longer has begun."""
    command = [sys.executable, "-m", "synth", "alltoall", "--topo", "dgx1", "--nodes", "4", "--size", "64MB"]
    process = subprocess.Popen(
        [*command, "--chunks", "16", "--strategy", strategy, "-o", "out/", "--report", "report.json"],
        cwd=tmp_path,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stderr is not None
    assert process.stderr.readline().startswith("search")
    time.sleep(0.3)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (code, "")
    assert err.splitlines()[-1] == f"synth: {'interrupted' if code == 130 else 'terminated'}"
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("verb", "shown"), [("allreduce", False), ("broadcast", True)])
def test_help_shows_options_in_groups(verb: str, shown: bool, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main([verb, "--help"]) == 0
    text = capsys.readouterr().out
    titles = ["The job:", "The machine:", "The search:", "The answer:"]
    assert [line for line in text.splitlines() if line.endswith(":")] == titles
    for option, after in (("--topo", 0), ("--without", 1), ("--strategy", 2), ("--report", 3), ("--help", 3)):
        at = text.index(f"{option} " if option != "--help" else "-h, --help")
        assert [title for title in titles if text.index(title) < at][-1] == titles[after]
    assert ("--root" in text) == shown


@pytest.mark.parametrize("columns", ["40", "80", "300"])
def test_prose_fits_the_terminal(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert main.main(["topo", "show", "mesh-4x4"]) == 0
    prose = capsys.readouterr().out.split("\n\n")[0].splitlines()[1:]
    assert max(map(len, prose)) <= min(int(columns), 100)


def test_ctrl_c_while_modules_load(monkeypatch: pytest.MonkeyPatch) -> None:
    from synth.__main__ import run

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "run", interrupted)
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == 130
