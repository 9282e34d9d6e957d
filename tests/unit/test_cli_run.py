"""`synth run`: the table, the JSON, torchrun, and what is said where something is wrong."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from msccl_xml.write import write_algo
from synth.cli.main import main
from synth.errors import SynthError
from synth.execute.cuda.build import find_host_compiler
from synth.units import bandwidth_GBps
from tests.algos import alltoall, exchange_allgather, relay_broadcast, ring_allreduce, with_step

HOST = ("--backend", "host", "--placement", "processes")
needs_host = pytest.mark.skipif(find_host_compiler() is None, reason="no C++ compiler for the host build")
ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with files of several kinds, as working directory."""
    monkeypatch.chdir(tmp_path)
    algos = {
        "ring.xml": ring_allreduce(2),
        "alltoall.xml": alltoall(2),
        "relay.xml": relay_broadcast(),
        "hang.xml": exchange_allgather("Simple", 3),
        "wrong.xml": with_step(ring_allreduce(2), 0, 0, 2, dst_offset=1),
        "custom.xml": replace(ring_allreduce(2), coll="custom", name="mine"),
    }
    for name, algo in algos.items():
        (tmp_path / name).write_text(write_algo(algo))
    return tmp_path


def run(capfd: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = main(["run", *args])
    captured = capfd.readouterr()
    return code, captured.out, captured.err


def test_the_table_has_both_halves_of_nccl_tests(files: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capfd, "ring.xml", "--sizes", "1KB:2KB", "--iters", "2", "--warmup", "1", "--compare")
    assert (code, err) == (0, "")
    _, head, units, *rows, wrong, mean = out.splitlines()
    half = ["time", "algbw", "busbw", "#wrong"]
    assert head.split() == ["#", "size", "count", "type", "redop", *half, *half, "torch", "torch"]
    assert len(units.split()) == 1 + 2 + 6 + 2
    assert [row.split()[:4] for row in rows] == [["1024", "256", "float", "sum"], ["2048", "512", "float", "sum"]]
    for row in rows:
        fields = row.split()
        assert len(fields) == 4 + 8 + 2
        assert (fields[7], fields[11]) == ("0", "0")
    assert wrong == "# Wrong values: 0 OK"
    assert mean.startswith("# Avg bus bandwidth: ")


def test_json_has_what_the_table_has(files: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(
        capfd, "alltoall.xml", "--size", "1000", "--iters", "1", "--warmup", "0", "--dtype", "int8", "--json"
    )
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert [document[key] for key in ("file", "backend", "collective", "ranks", "type", "redop", "root")] == [
        "alltoall.xml",
        "gloo",
        "alltoall",
        2,
        "int8",
        "none",
        None,
    ]
    [row] = document["sizes"]
    assert (row["bytes"], row["count"], row["padded"], row["differing"]) == (1000, 496, 0, False)
    assert row["in_place"] is None
    assert row["torch"] is None
    half = row["out_of_place"]
    assert half["wrong"] == 0
    assert half["algbw_GBps"] == pytest.approx(bandwidth_GBps(1000, half["time_us"]))
    assert half["busbw_GBps"] == pytest.approx(half["algbw_GBps"] / 2)


def test_padding_is_said(files: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capfd, "ring.xml", "--size", "1004", "--iters", "1", "--warmup", "0")
    assert code == 0
    assert "# 1004: padded by 1 elements: 2 chunks do not divide 251; the runtimes would leave the file out" in out


def test_wrong_elements_are_counted_and_end_in_1(files: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Rank 0 stores the half that it receives over the other one: out of place, each of its halves is wrong, in both data sets."""
    code, out, _ = run(capfd, "wrong.xml", "--no-verify", "--size", "4000", "--iters", "1", "--warmup", "0", "--json")
    [row] = json.loads(out)["sizes"]
    assert code == 1
    assert row["out_of_place"]["wrong"] > 1900
    assert row["in_place"]["wrong"] > 0


def test_what_verify_refuses_is_not_run(files: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capfd, "wrong.xml")
    assert (code, out) == (1, "")
    assert err.startswith("synth: wrong.xml: synth verify refuses it: ")
    assert len(err.splitlines()) == 1


def test_a_hang_tells_who_waits_for_what(files: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capfd, "hang.xml", "--no-verify", "--patience", "1", "--size", "24KB", "--tile", "1KB")
    assert (code, out) == (1, "")
    assert err.splitlines()[:2] == [
        "  gpu 0 tb 0 step 3 (s) tile 0 waits for room towards gpu 1",
        "  gpu 1 tb 0 step 3 (s) tile 0 waits for room towards gpu 0",
    ]
    assert err.splitlines()[2].startswith("synth: the algorithm hangs: nothing has moved for 1 s: gpu 0 tb 0 step 3")
    assert len(err.splitlines()) == 3


@pytest.mark.parametrize(
    ("args", "code", "told"),
    [
        (("none.xml",), 1, "none.xml: cannot be read: No such file or directory"),
        (("ring.xml", "--size", "3"), 1, "--size: 3, expected at least 4 bytes: an element for each rank"),
        (("alltoall.xml", "--size", "31"), 1, "--size: 31, expected at least 32 bytes: an element for each rank"),
        (("ring.xml", "--dtype", "complex"), 1, "--dtype: 'complex', expected one of int8 "),
        (("ring.xml", "--size", "1KB", "--sizes", "1KB:2KB"), 2, "--size and --sizes exclude each other"),
        (("alltoall.xml", "--op", "max"), 2, "--op: alltoall combines nothing"),
        (("ring.xml", "--collective", "allreduce", "--root", "0"), 2, "--root: allreduce has no root"),
        (("custom.xml",), 1, "expected a collective: "),
        (("relay.xml", "--root", "2"), 1, "relay.xml: synth verify refuses it: "),
        (("ring.xml", "--backend", "nccl"), 1, "--backend: nccl: '0 GPUs', expected 2, one for each rank"),
        (("ring.xml", "--iters", "0"), 2, "'0', expected a whole number from 1"),
        (
            ("ring.xml", "--backend", "cuda", "--placement", "processes"),
            1,
            "'0 GPUs', expected 2, one for each rank (--pl",
        ),
        (("ring.xml", "--placement", "virtual"), 2, "--placement: virtual ranks are those of --backend cuda and host"),
        (
            ("ring.xml", "--backend", "host", "--shake", "1"),
            2,
            "--shake: only the threadblocks of --backend gloo dawdle",
        ),
        (
            ("ring.xml", "--calibrate", "out"),
            2,
            "--calibrate: it measures the virtual ranks of --backend cuda and host",
        ),
        (("ring.xml", "--backend", "host", "--calibrate", "no/out"), 1, "no/out/calibration.json: cannot be written"),
    ],
)
def test_what_is_off_is_told_in_one_line(
    files: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    args: tuple[str, ...],
    code: int,
    told: str,
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    found, out, err = run(capfd, *args)
    assert (found, out) == (code, "")
    assert told in err
    assert len(err.splitlines()) == 1


def test_without_torch_it_says_how_to_get_it(
    files: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    code, _, err = run(capfd, "ring.xml")
    assert code == 1
    assert "pip install .[run]" in err


def test_everything_else_works_without_torch(files: Path) -> None:
    """No command but run loads torch, and run does not either until it has something to run."""
    code = "import sys\nfrom synth.cli.main import main\nmain(sys.argv[1:])\nsys.exit('torch' in sys.modules)"
    for args in (["run", "--help"], ["verify", "ring.xml"], ["run", "ring.xml", "--size", "3"]):
        done = subprocess.run([sys.executable, "-c", code, *args], cwd=files, env=_environment(), capture_output=True)
        assert done.returncode == 0, done.stderr


@needs_host
def test_a_process_for_each_rank_of_the_interpreter(files: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capfd, "ring.xml", *HOST, "--sizes", "1KB:2KB", "--iters", "2", "--warmup", "1", "--compare")
    assert (code, err) == (0, "")
    _, head, _, *rows, sharing, wrong, _ = out.splitlines()
    half = ["time", "algbw", "busbw", "#wrong"]
    assert head.split() == ["#", "size", "count", "type", "redop", *half, *half, "torch", "torch"]
    for row in rows:
        fields = row.split()
        assert len(fields) == 4 + 8 + 2
        assert (fields[7], fields[11]) == ("0", "0")
    assert sharing == "# 1024: a process for each rank; they reach each other through shared memory"
    assert wrong == "# Wrong values: 0 OK"


@needs_host
@pytest.mark.parametrize("placement", ["virtual", "processes"])
def test_a_hang_of_the_interpreter_tells_who_waits_for_what(
    files: Path, capfd: pytest.CaptureFixture[str], placement: str
) -> None:
    options = ("--backend", "host", "--placement", placement, "--no-verify", "--patience", "1", "--tile", "1KB")
    code, out, err = run(capfd, "hang.xml", *options, "--size", "24KB")
    assert (code, out) == (1, "")
    assert err.splitlines()[:2] == [
        "  gpu 0 tb 0 step 3 (s) waits for room towards gpu 1 on channel 0",
        "  gpu 1 tb 0 step 3 (s) waits for room towards gpu 0 on channel 0",
    ]
    assert err.splitlines()[2].startswith("synth: the algorithm hangs: ")
    assert len(err.splitlines()) == 3


@needs_host
def test_virtual_ranks_unless_there_are_gpus_for_all(
    files: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an option the number of GPUs decides for cuda; host is virtual unless it is asked for processes."""
    code, out, _ = run(capfd, "ring.xml", "--backend", "host", "--size", "1KB", "--iters", "1", "--json")
    assert (code, json.loads(out)["placement"]) == (0, "virtual")
    started: list[tuple[int, str]] = []

    def pool(world: int, backend: str, _patience_s: float) -> None:
        started.append((world, backend))
        raise SynthError("no further")

    monkeypatch.setattr("synth.execute.Pool", pool)
    for gpus in (0, 1, 2, 8):
        monkeypatch.setattr("torch.cuda.device_count", lambda gpus=gpus: gpus)
        code, _, err = run(capfd, "ring.xml", "--backend", "cuda", "--size", "1KB")
        assert (code, "no further" in err) == (1, gpus >= 2)
    assert started == [(2, "nccl")] * 2


@needs_host
@pytest.mark.slow
def test_calibrate_writes_what_simulate_takes(files: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """And what the remarks expect is what it says."""
    code, out, err = run(
        capfd, "ring.xml", "--backend", "host", "--size", "4KB", "--iters", "1", "--calibrate", "cal", "--json"
    )
    assert (code, err) == (0, "")
    assert sorted(path.name for path in (files / "cal").iterdir()) == [
        "calibration.json",
        "figures.json",
        "virtual.json",
    ]
    assert sorted(json.loads((files / "cal" / "figures.json").read_text())) == ["LL", "LL128", "Simple"]
    (remark,) = json.loads(out)["sizes"][0]["remarks"]
    machine = ["--topo", "cal/virtual.json", "--calibration", "cal/calibration.json"]
    assert main(["simulate", "ring.xml", *machine, "--size", "4KB", "--json"]) == 0
    simulated_us = json.loads(capfd.readouterr().out)["sizes"][0]["time_us"]
    assert remark.startswith(f"the simulator expects {simulated_us:.4g} us, ")


@needs_host
@pytest.mark.slow
def test_under_torchrun_each_process_is_a_rank_of_the_interpreter(files: Path) -> None:
    done = _torchrun(2, "ring.xml", "--backend", "host", "--size", "1KB", "--iters", "1", "--warmup", "0", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["backend"], document["placement"]) == ("host", "processes")
    [row] = document["sizes"]
    assert (row["out_of_place"]["wrong"], row["in_place"]["wrong"]) == (0, 0)


@pytest.mark.slow
def test_under_torchrun_rank_0_prints(files: Path) -> None:
    done = _torchrun(2, "ring.xml", "--size", "1KB", "--iters", "1", "--warmup", "0", "--json")
    assert done.returncode == 0, done.stderr
    [row] = json.loads(done.stdout)["sizes"]
    assert (row["out_of_place"]["wrong"], row["in_place"]["wrong"]) == (0, 0)


@pytest.mark.slow
def test_under_torchrun_a_wrong_number_of_processes_is_told_once(files: Path) -> None:
    done = _torchrun(3, "ring.xml", "--size", "1KB")
    assert done.returncode != 0
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if line.startswith("synth: ")]
    assert lines == ["synth: ring.xml: ngpus: 2, expected 3, the number of processes"]


@pytest.mark.slow
def test_under_torchrun_a_hang_is_told_once(files: Path) -> None:
    done = _torchrun(2, "hang.xml", "--no-verify", "--patience", "1", "--size", "24KB", "--tile", "1KB")
    assert done.returncode != 0
    assert len(re.findall(r"^synth: the algorithm hangs", done.stderr, re.MULTILINE)) == 1
    assert "  gpu 1 tb 0 step 3 (s) tile 0 waits for room towards gpu 0\n" in done.stderr


@pytest.mark.parametrize("backend", [(), pytest.param(HOST, marks=needs_host)], ids=["gloo", "host"])
def test_ctrl_c_ends_all_processes(files: Path, backend: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "synth", "run", "ring.xml", *backend, "--size", "64KB", "--iters", "1000000"]
    process = subprocess.Popen(
        command,
        env=_environment(),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # The background job of a shell ignores Ctrl-C, and what it starts inherits that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        while len(_group(process.pid)) < 5:  # itself, two servers of multiprocessing's, two ranks
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 130
        assert err == "synth: interrupted\n"
        for _ in range(200):
            if not _group(process.pid):
                return
            time.sleep(0.05)
        pytest.fail(f"left behind: {_group(process.pid)}")
    finally:
        for left in _group(process.pid):
            os.kill(left, signal.SIGKILL)


def _group(session: int) -> list[int]:
    """Processes of a session, but for those that have ended and wait to be read by init."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def _torchrun(processes: int, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    return subprocess.run([*command, "-m", "synth", "run", *args], env=_environment(), capture_output=True, text=True)


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}
