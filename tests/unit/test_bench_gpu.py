"""Files on GPUs, with programs that pretend to be nccl-tests: commands, environments, results, skips and failures."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from msccl_xml.write import write_algo
from synth.bench.fingerprint import text_hash
from synth.bench.gpu.drive import Target, count_gpus, measure_targets
from synth.bench.gpu.launch import Launch, with_file, without_file
from synth.bench.gpu.measurement import Measurement, keep, newest
from synth.bench.gpu.targets import targets_of_files, targets_of_run
from synth.bench.store import Store
from synth.collective import CollectiveName
from synth.errors import InputError, NoAnswerError, SynthError
from synth.inputs.load import load_topology
from synth.request import Progress
from tests.algos import ring_allreduce
from tests.benches import HERE, outcome, record, suite

DATA = Path(__file__).resolve().parent.parent / "data" / "nccl-tests"
LAUNCH = Launch("none", "msccl", 0)


@pytest.fixture
def target() -> Target:
    """A ring allreduce of four ranks at two sizes."""
    algo = replace(ring_allreduce(4), min_bytes=1024, max_bytes=4097)
    text = write_algo(algo)
    return Target("ring4", CollectiveName.ALLREDUCE, algo, text, text_hash(text), {1024: 7.0, 2048: 8.0})


@pytest.fixture
def binaries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs, the only one that is searched besides the system's."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def measured(target: Target, **changes: object) -> list[Measurement]:
    return measure_targets([target], replace(LAUNCH, **changes), gpus=4)  # type: ignore[arg-type]


def test_measured_stands_beside_simulated_with_and_without_the_file(target: Target, binaries: Path) -> None:
    # With the file, the program is the newer one, which is quicker.
    told = f'if [ -n "$MSCCL_XML_FILES" ]; then cat {DATA}/new.txt; else cat {DATA}/old.txt; fi'
    program(binaries, "all_reduce_perf", told)
    found = measured(target)
    assert [(item.bytes, item.status, item.wrong) for item in found] == [(1024, "ok", 0), (2048, "ok", 0)]
    # The ring is for calls in place.
    assert [(item.with_us, item.without_us, item.simulated_us) for item in found] == [
        (10.5, 13.5, 7.0),
        (11.2, 14.2, 8.0),
    ]
    assert "MSCCL_XML_FILES=" in found[0].command
    assert "NCCL_ALGO=MSCCL,RING,TREE" in found[0].command
    assert "-b 1024 -e 2048 -f 2 -g 4 -d float -c 1" in found[0].command
    assert found[0].line == (
        "ring4/allreduce/1KB, nccl-tests: ok, 10.5 us, simulated 7.0 us (1.50 times that), without the file 13.5 us"
    )


def test_the_program_gets_the_file_and_nothing_that_was_set_before(
    target: Target, binaries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MSCCL_XML_FILES", "/somewhere/else.xml")
    monkeypatch.setenv("NCCL_PROTO", "Simple")
    log = binaries / "log"
    told = f'echo "$MSCCL_XML_FILES|$NCCL_ALGO|$NCCL_PROTO" >> {log}; [ -z "$MSCCL_XML_FILES" ] || cp $MSCCL_XML_FILES {log}.xml'
    program(binaries, "all_reduce_perf", f"{told}; cat {DATA}/new.txt")
    measured(target)
    with_it, without = log.read_text(encoding="utf-8").splitlines()
    assert with_it.endswith("allreduce.xml|MSCCL,RING,TREE|")
    assert without == "|RING,TREE|"
    assert Path(f"{log}.xml").read_text(encoding="utf-8") == target.text


@pytest.mark.parametrize(
    ("runtime", "with_it", "without"),
    [
        ("msccl", {"MSCCL_XML_FILES": "/f/a.xml", "NCCL_ALGO": "MSCCL,RING,TREE"}, {"NCCL_ALGO": "RING,TREE"}),
        ("executor", {"MSCCL_ALGO_DIR": "/f", "NCCL_MSCCL_ENABLE": "1"}, {"NCCL_MSCCL_ENABLE": "0"}),
        (
            "rccl",
            {"MSCCL_ALGO_DIR": "/f", "RCCL_MSCCL_ENABLE": "1", "RCCL_MSCCL_FORCE_ENABLE": "1"},
            {"RCCL_MSCCL_ENABLE": "0"},
        ),
    ],
)
def test_every_runtime_has_its_variables(
    target: Target, runtime: str, with_it: dict[str, str], without: dict[str, str]
) -> None:
    assert with_file(target.algo, runtime, "/f/a.xml") == with_it
    assert without_file(runtime) == without


def test_ll128_has_to_be_named(target: Target) -> None:
    algo = replace(target.algo, proto="LL128")
    assert with_file(algo, "msccl", "/f/a.xml")["NCCL_PROTO"] == "LL,LL128,Simple"


def test_mpirun_starts_a_process_for_each_rank_and_passes_the_variables_on(target: Target, binaries: Path) -> None:
    for name in ("mpirun", "all_reduce_perf"):
        program(binaries, name, "true")
    launch = Launch("auto", "executor", 4, str(binaries), ("--hostfile", "hosts"))
    words = launch.command(CollectiveName.ALLREDUCE, [1024, 4096], {"MSCCL_ALGO_DIR": "/f"})
    assert words[:3] == [str(binaries / "mpirun"), "-np", "4"]
    assert words[words.index("-x") : words.index("-x") + 2] == ["-x", "MSCCL_ALGO_DIR"]
    assert words[words.index("--hostfile") :][:3] == ["--hostfile", "hosts", str(binaries / "all_reduce_perf")]
    assert words[words.index("-g") + 1] == "1"


def test_torchrun_starts_one_process_with_all_gpus(binaries: Path) -> None:
    for name in ("torchrun", "alltoall_perf"):
        program(binaries, name, "true")
    words = Launch("torchrun", "msccl", 8).command(CollectiveName.ALLTOALL, [1024], {})
    assert words[:6] == [
        str(binaries / "torchrun"),
        "--standalone",
        "--nproc-per-node",
        "1",
        "--no-python",
        str(binaries / "alltoall_perf"),
    ]
    assert words[words.index("-g") + 1] == "8"
    with pytest.raises(NoAnswerError, match="one process for each GPU only: mpirun is needed"):
        Launch("torchrun", "executor", 8).command(CollectiveName.ALLTOALL, [1024], {})


@pytest.mark.parametrize(
    ("gpus", "launcher", "problem"),
    [
        (0, "none", "0 GPUs here, 4 needed"),
        (3, "none", "3 GPUs here, 4 needed"),
        (4, "none", "nccl-tests: all_reduce_perf is not there"),
        (4, "mpirun", "nccl-tests: all_reduce_perf is not there"),
    ],
)
def test_what_is_missing_is_a_skip_with_its_reason(
    target: Target, binaries: Path, gpus: int, launcher: str, problem: str
) -> None:
    (found,) = measure_targets([target], replace(LAUNCH, launcher=launcher), gpus=gpus)
    assert (found.status, found.problem, found.is_skipped, found.is_wrong) == ("skipped", problem, True, False)


def test_a_launcher_that_is_missing_is_a_skip(target: Target, binaries: Path) -> None:
    program(binaries, "all_reduce_perf", "true")
    (found,) = measured(target, launcher="torchrun")
    assert found.problem == "the launcher: torchrun is not there"


def test_wrong_elements_are_wrong_even_where_the_program_ends_badly(target: Target, binaries: Path) -> None:
    program(binaries, "all_reduce_perf", f"cat {DATA}/wrong.txt; exit 1")
    first, second = measured(target)
    assert (first.status, first.wrong, first.problem, first.is_wrong) == ("wrong", 12, "12 elements are wrong", True)
    assert (second.status, second.wrong) == ("ok", 0)


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("echo nothing of note; echo a cuda error >&2; exit 3", "all_reduce_perf: exit code 3: a cuda error"),
        ("echo hello", "all_reduce_perf: 'hello', expected the table of an nccl-tests program, with its header"),
    ],
)
def test_a_program_that_fails_is_a_failure_with_its_last_line(
    target: Target, binaries: Path, script: str, problem: str
) -> None:
    program(binaries, "all_reduce_perf", script)
    (found,) = measured(target)
    assert (found.status, found.is_wrong) == ("failed", True)
    assert found.problem.endswith(problem)


def test_a_program_that_hangs_is_ended_with_its_processes(
    target: Target, binaries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("synth.bench.gpu.drive.TIMEOUT_S", 0.5)
    program(binaries, "all_reduce_perf", f"sleep 1000 & echo $! > {binaries}/pid; wait")
    (found,) = measured(target)
    assert "no end after 0.5 s" in found.problem
    child = Path(f"/proc/{(binaries / 'pid').read_text().strip()}/stat")
    assert not child.exists() or child.read_text().split()[2] == "Z"


def test_a_size_that_the_program_does_not_print_is_a_skip(target: Target, binaries: Path) -> None:
    program(binaries, "all_reduce_perf", f"cat {DATA}/old.txt")
    wider = replace(target, simulated_us={**target.simulated_us, 1 << 20: 9.0})
    assert [item.status for item in measured(wider)] == ["ok", "ok", "skipped"]


def test_files_are_measured_at_the_sizes_that_they_are_for(target: Target, tmp_path: Path) -> None:
    path = tmp_path / "ring.xml"
    path.write_text(target.text, encoding="ascii")
    topology = load_topology("ring4")
    (found,) = targets_of_files([str(path)], topology, (512, 1 << 20))
    assert found.sizes == [1024, 2048, 4096]
    assert (found.collective, found.machine) == (CollectiveName.ALLREDUCE, "ring4")
    with pytest.raises(InputError, match="a file for some size of --sizes"):
        targets_of_files([str(path)], topology, (8192, 1 << 20))
    with pytest.raises(SynthError, match="nosuch.xml: cannot be read"):
        targets_of_files(["nosuch.xml"], topology, (512, 1024))
    with pytest.raises(InputError, match="ngpus"):
        targets_of_files([str(path)], load_topology("ring8"), (1024, 1024))


def test_the_files_of_a_run_are_measured_at_the_sizes_of_its_cases(target: Target, tmp_path: Path) -> None:
    cases = [
        record(case, xml_hash=target.xml_hash, collective="allreduce")
        for case in ("ring4/allreduce/1KB/auto/0", "ring4/allreduce/4KB/auto/0")
    ]
    with Store(str(tmp_path / "h.sqlite"), write=True) as store:
        run = store.begin_run(suite(), HERE)
        store.add(run, replace(outcome(*cases), files={target.xml_hash: target.text}))
        (found,) = targets_of_run(store, run, "ring4")
        assert (found.sizes, found.algo, found.simulated_us[1024]) == ([1024, 4096], target.algo, 5.0)
        with pytest.raises(InputError, match="--machine: 'dgx1'"):
            targets_of_run(store, run, "dgx1")


def test_the_newest_measurement_of_each_case_is_shown_for_the_files_of_a_run(tmp_path: Path) -> None:
    old = Measurement("2026-01-01", "c", "ring4", "allreduce", 1024, "h", "nccl-tests", "ok", with_us=2.0)
    new = replace(old, at="2026-01-02", with_us=1.5)
    elsewhere, other_file = replace(old, machine="dgx1"), replace(old, xml_hash="g")
    with Store(str(tmp_path / "h.sqlite"), write=True) as store:
        keep(store, [old, elsewhere, other_file])
        keep(store, [new])
        assert newest(store, {("ring4", "h")}) == [new]
        assert newest(store, {("ring4", "h"), ("dgx1", "h")}) == [elsewhere, new]
        assert newest(store, {("ring4", "g")}) == [other_file]
        assert newest(store, set()) == []


def test_a_file_that_failed_once_and_is_well_again_is_no_failure_any_more(tmp_path: Path) -> None:
    good = Measurement("2026-01-02", "c", "ring4", "allreduce", 1024, "h", "nccl-tests", "ok", with_us=2.0)
    failed = replace(good, at="2026-01-01", bytes=0, status="failed", problem="exit code 3", with_us=None)
    with Store(str(tmp_path / "h.sqlite"), write=True) as store:
        keep(store, [failed])
        assert newest(store, {("ring4", "h")}) == [failed]
        keep(store, [good])
        assert newest(store, {("ring4", "h")}) == [good]
        keep(store, [failed])
        assert newest(store, {("ring4", "h")}) == [failed, good]


def test_files_that_are_skipped_for_one_reason_are_told_once(tmp_path: Path) -> None:
    skipped = Measurement("2026-01-01", "c", "ring4", "allreduce", 0, "h", "nccl-tests", "skipped", "0 GPUs here")
    failed = replace(skipped, status="failed", problem="exit code 3")
    with Store(str(tmp_path / "h.sqlite"), write=True) as store:
        keep(store, [skipped, replace(skipped, xml_hash="g")])
        assert len(newest(store, {("ring4", "h"), ("ring4", "g")})) == 1
        keep(store, [failed, replace(failed, xml_hash="g")])
        assert len(newest(store, {("ring4", "h"), ("ring4", "g")})) == 2


def test_what_was_measured_is_kept_where_a_later_file_is_interrupted(target: Target, binaries: Path) -> None:
    program(binaries, "all_reduce_perf", f"cat {DATA}/new.txt")
    kept: list[Measurement] = []

    def interrupt(progress: Progress) -> None:
        if progress.fraction:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure_targets([target, target], LAUNCH, gpus=4, tell=interrupt, keep=kept.extend)
    assert [item.bytes for item in kept] == [1024, 2048]


def test_gpus_are_counted_as_the_drivers_list_them(tmp_path: Path) -> None:
    devices, nodes = tmp_path / "dev", tmp_path / "nodes"
    devices.mkdir()
    assert count_gpus(str(devices), str(nodes)) == 0
    for name, number in (("0", "0"), ("1", "41234"), ("2", "51234")):
        (nodes / name).mkdir(parents=True)
        (nodes / name / "gpu_id").write_text(f"{number}\n")
    assert count_gpus(str(devices), str(nodes)) == 2
    for name in ("nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm"):
        (devices / name).touch()
    assert count_gpus(str(devices), str(nodes)) == 3
    assert count_gpus(str(tmp_path / "nosuch"), os.devnull) == 0
