"""`synth probe`: standard output is the topology, standard error the doubts, and failures are one line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from synth.cli.main import main
from synth.inputs.load import load_topology
from synth.probe.codec import parse_recording
from synth.probe.recording import Recording
from synth.units import transfer_us
from tests.probe_machines import DATA

MESH = str(DATA / "v100-broken-link.json")


def run(args: Sequence[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main(["probe", *args])
    told = capsys.readouterr()
    return code, told.out, told.err


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine is the one with the broken link."""
    recording = parse_recording(Path(MESH).read_text(encoding="utf-8"), MESH)
    monkeypatch.setattr("synth.probe.read.read_machine", lambda: recording)


def test_replay_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(["--replay", MESH], capsys)
    assert code == 0
    assert json.loads(out)["name"] == "probed"
    assert "probably the link gpu0-gpu3 is down" in err
    assert all(line.startswith("doubt: ") for line in err.splitlines())


def test_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(["--replay", MESH, "-q"], capsys)
    assert (code, err) == (0, "")
    assert run(["--replay", MESH, "-q"], capsys)[1] == out


def test_to_a_file_that_synth_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "lab.json"
    code, out, _ = run(["--replay", MESH, "-o", str(target)], capsys)
    assert (code, out) == (0, f"{target}\n")
    assert load_topology(str(target)).name == "lab"
    run(["--replay", MESH, "-o", str(target), "--name", "rack 7"], capsys)
    assert load_topology(str(target)).num_ranks == 8
    assert load_topology(str(target)).name == "rack 7"


@pytest.mark.usefixtures("machine")
def test_record_and_replay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "seen"
    first = run(["--record", str(folder)], capsys)
    assert (folder / "recording.json").read_text(encoding="utf-8") == Path(MESH).read_text(encoding="utf-8")
    assert run(["--replay", str(folder)], capsys) == first
    assert run(["--record", str(folder)], capsys) == first


def test_a_machine_that_tells_nothing_is_recorded_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("synth.probe.read.read_machine", lambda: Recording(problem="no NVIDIA driver"))
    code, out, err = run(["--record", str(tmp_path / "seen")], capsys)
    assert (code, out) == (1, "")
    assert err.startswith("synth: probe: no NVIDIA driver; give a table")
    assert run(["--replay", str(tmp_path / "seen")], capsys) == (code, out, err)


@pytest.mark.parametrize("name", ["no-driver", "a100-mig", "l40s-container"])
def test_what_cannot_be_probed_is_one_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(["--replay", str(DATA / f"{name}.json")], capsys)
    assert (code, out) == (1, "")
    assert err.startswith("synth: probe: ")
    assert "--topo topo.txt" in err
    assert err.count("\n") == 1


def test_here_and_now_it_never_breaks(capsys: pytest.CaptureFixture[str]) -> None:
    """On whatever machine the tests run: a topology, or one line on why there is none."""
    code, out, err = run([], capsys)
    assert (code == 0 and json.loads(out)["format"] == 1) or (code == 1 and out == "" and err.count("\n") == 1)


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["--replay", "none-such"], 1, "--replay: none-such"),
        (["--replay", "."], 1, "expected a folder with recording.json"),
        (["--replay", MESH, "--measure"], 2, "--measure"),
        (["--replay", MESH, "--calibration", "c.json"], 2, "needs --measure"),
        (["--replay", MESH, "-o", "no/such/dir.json"], 1, "cannot be written"),
        (["--replay", MESH, "--record", "no/such/dir"], 1, "cannot be written"),
        (["surplus"], 2, "surplus"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    args: list[str],
    code: int,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    found, out, err = run(args, capsys)
    assert (found, out) == (code, "")
    assert words in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_recording_that_is_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "recording.json").write_bytes(b"{\xff")
    code, _, err = run(["--replay", str(tmp_path)], capsys)
    assert code == 1
    assert "no UTF-8 text" in err


class SlowTimer:
    """Every pair copies at 10 GB/s, a launch takes 3 us, a way 1 us."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks

    def copy_us(self, pairs: Sequence[tuple[int, int]], size_bytes: int) -> tuple[float, ...]:
        return tuple(3.0 + (a != b) + transfer_us(size_bytes, 10.0) for a, b in pairs)


@pytest.mark.usefixtures("machine")
def test_measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("synth.probe.torch_timer.TorchTimer", SlowTimer)
    target, constants = tmp_path / "m.json", tmp_path / "cal.json"
    code, _, err = run(["--measure", "-o", str(target), "--calibration", str(constants)], capsys)
    assert code == 0
    nvlinks = [link for link in load_topology(str(target)).links if link.kind == "nvlink"]
    assert {(link.GBps, link.alpha_us) for link in nvlinks} == {(10.0, 1.0)}
    assert json.loads(constants.read_text())["Simple"] == {"rate_GBps": 10.0}
    assert "timing gpu0 -> gpu1" in err
    assert "gpu0 -> gpu1: 10.0 GB/s, 1.00 us beside launch" in err
    assert "doubt: gpu1 -> gpu5: 10 GB/s measured where 40 are expected of this nvlink link (30 of 40 GB/s)" in err


def test_measure_with_one_gpu_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    whole = parse_recording(Path(MESH).read_text(encoding="utf-8"), MESH)
    one: dict[str, Any] = {"source": "nvml", "gpus": whole.gpus[:1], "pci": whole.pci, "cpus": whole.cpus}
    monkeypatch.setattr("synth.probe.read.read_machine", lambda: Recording(**one))
    monkeypatch.setattr("synth.probe.torch_timer.TorchTimer", SlowTimer)
    code, out, err = run(["--measure"], capsys)
    assert code == 0
    assert "gpu0: copies within it 10.0 GB/s" in err
    assert "one GPU: nothing between GPUs was measured" in err
    assert len(json.loads(out)["devices"]) == 3
