"""`synth probe` on the GPUs of this machine; skipped, saying why, where there are none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from synth.inputs.topology_json import parse_topology
from synth.probe.build import build_topology
from synth.probe.codec import parse_recording, to_json
from synth.probe.errors import ProbeError
from synth.probe.measure import measure
from synth.probe.measured import with_measured
from synth.probe.read import read_machine
from synth.probe.recording import Recording
from synth.probe.torch_timer import TorchTimer

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def recording() -> Recording:
    found = read_machine()
    if not found.gpus:
        pytest.skip(found.problem)
    # Where the environment asks for it, what was read is kept, to be looked at or to become a recording of the tests.
    if folder := os.environ.get("SYNTH_KEEP_RECORDING"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / "recording.json").write_text(to_json(found), encoding="utf-8")
    return found


def test_every_gpu_is_told_whole(recording: Recording) -> None:
    for gpu in recording.gpus:
        assert gpu.name
        assert gpu.arch.startswith(("sm_", "gfx"))
        assert not gpu.busid.startswith("unknown")
    assert parse_recording(to_json(recording), "here") == recording


def test_the_recording_names_nobody(recording: Recording) -> None:
    import pynvml

    pynvml.nvmlInit()
    text = to_json(recording)
    secrets = [os.uname().nodename]
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        secrets.append(pynvml.nvmlDeviceGetUUID(handle))
        try:
            secrets.append(pynvml.nvmlDeviceGetSerial(handle))
        except pynvml.NVMLError:
            continue
    assert [secret for secret in secrets if len(secret) > 3 and secret in text] == []


def test_a_topology_or_the_reason(recording: Recording) -> None:
    try:
        topology = build_topology(recording).topology
    except ProbeError as error:
        pytest.skip(str(error))
    assert topology.num_ranks == len(recording.gpus)


def test_the_command_line(tmp_path: Path, recording: Recording) -> None:
    target = tmp_path / "here.json"
    command = [sys.executable, "-m", "synth", "probe", "-o", str(target), "--record", str(tmp_path / "seen")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    assert "Traceback" not in done.stderr
    if done.returncode == 0:
        assert parse_topology(target.read_text(encoding="utf-8"), "here").num_ranks == len(recording.gpus)
    assert json.loads((tmp_path / "seen/recording.json").read_text(encoding="utf-8"))["format"] == 1


def test_measured_copies_make_sense(recording: Recording) -> None:
    pytest.importorskip("torch")
    try:
        topology = build_topology(recording).topology
    except ProbeError as error:
        pytest.skip(str(error))
    measurement = measure(TorchTimer(topology.num_ranks), topology, lambda _what: None)
    # Any GPU copies within itself at more than 50 GB/s and less than its memory could, and between GPUs no faster than that.
    for local in measurement.local:
        assert 50 < local.GBps < 10_000
    for (src, _dst), alone in measurement.alone.items():
        assert 0.1 < alone.GBps <= 1.1 * measurement.local[src].GBps
    assert with_measured(topology, measurement).topology.num_ranks == topology.num_ranks
