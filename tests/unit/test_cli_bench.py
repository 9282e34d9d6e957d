"""`synth bench`: what it prints and writes, its exit codes, and its errors."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as Tree

import pytest

from synth.bench.store import Store
from synth.cli.main import main
from tests.benches import HERE, NEXT, TINY, outcome, record, suite


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with tiny.toml, as working directory; syntheses run in this process."""
    from tests.benches import in_process

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("synth.bench.executors.local_executor", lambda _jobs: in_process())
    (tmp_path / "tiny.toml").write_text(TINY, encoding="utf-8")
    return tmp_path


def bench(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = main(["bench", *args])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def filled(second: str = "ok", path: str = "h.sqlite") -> None:
    """A store with two runs, the second of other code and with a worse schedule where `second` says so."""
    with Store(path, write=True) as store:
        for origin, schedule_us in ((HERE, 2.0), (NEXT, 3.0 if second == "worse" else 2.0)):
            run = store.begin_run(suite(), origin)
            store.add(run, outcome(record(schedule_us=schedule_us), record("ring4/allgather/4KB/auto/0")))
            store.finish(run, 1.0)


def test_a_suite_is_run_twice_with_no_change(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ("run", "--suite", "tiny.toml", "--store", "h.sqlite")
    code, out, err = bench(capsys, *args)
    assert (code, out.splitlines()) == (
        0,
        ["First run of this suite: nothing to compare with", "4 of 4 cases have a verified answer"],
    )
    assert "bench: 2 of 2: ring4/" in err
    forms = ("--report", "r.html", "--markdown", "r.md", "--junit", "r.xml", "--quiet")
    code, out, err = bench(capsys, *args, *forms)
    assert (code, err) == (0, "")
    assert out.startswith("No change since run 1 (tiny, ")
    assert (folder / "r.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert (folder / "r.md").read_text(encoding="utf-8").startswith("## No change")
    assert Tree.parse(folder / "r.xml").getroot()[0].get("failures") == "0"


def test_a_suite_may_be_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = {"sizes": ["1KB"], "collectives": ["allgather"], "topologies": ["ring4"], "baselines": []}
    (folder / "s.json").write_text(json.dumps(document), encoding="utf-8")
    code, out, _ = bench(capsys, "run", "--suite", "s.json", "--store", "h.sqlite")
    assert (code, out.splitlines()[1]) == (0, "1 of 1 cases have a verified answer")


def test_a_failed_verification_ends_in_1_even_in_a_first_run(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from synth.verify import VerifyError

    def refuse(*_args: object, **_named: object) -> None:
        raise VerifyError("gpu 0 ends without chunk 3")

    monkeypatch.setattr("synth.pipeline.verify_algo", refuse)
    code, out, _ = bench(capsys, "run", "--suite", "tiny.toml", "--store", "h.sqlite", "-q")
    assert code == 1
    assert "wrong: ring4/allgather/1KB/auto/0: verify failed: gpu 0 ends without chunk 3" in out


def test_compare_tells_what_is_worse_and_ends_in_1(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    filled("worse")
    code, out, err = bench(capsys, "compare", "--store", "h.sqlite")
    assert (code, err) == (1, "")
    verdict, _, worse = out.splitlines()
    assert verdict.startswith("1 thing is worse or wrong since run 1")
    assert worse == "worse: schedule: ring4/allgather/1KB/auto/0: 2 us -> 3 us (+50.00%)"
    code, out, _ = bench(capsys, "compare", "2", "c0ffee", "--store", "h.sqlite")
    assert (code, out.splitlines()[2]) == (0, "better: schedule: ring4/allgather/1KB/auto/0: 3 us -> 2 us (-33.33%)")


def test_compare_takes_the_run_before_of_the_same_suite(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run of another suite in between is none to compare with; where it is named, that is said."""
    filled("worse")
    with Store("h.sqlite", write=True) as store:
        store.finish(store.begin_run(replace(suite(), name="other"), HERE), 1.0)
        run = store.begin_run(suite(), HERE)
        store.add(run, outcome(record(schedule_us=2.0)))
        store.finish(run, 1.0)
    code, out, _ = bench(capsys, "compare", "--store", "h.sqlite")
    assert (code, out.splitlines()) == (
        0,
        [
            f"Nothing got worse since {Store('h.sqlite').runs()[1].title}",
            "1 of 1 cases have a verified answer",
            "1 case is gone: ring4/allgather/4KB/auto/0",
            "better: schedule: ring4/allgather/1KB/auto/0: 3 us -> 2 us (-33.33%)",
        ],
    )
    code, out, _ = bench(capsys, "compare", "3", "--store", "h.sqlite")
    assert (code, out.partition(" since")[0]) == (0, "Nothing to compare: no case in common")


def test_a_run_that_is_not_finished_is_told_as_such(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    filled()
    with Store("h.sqlite", write=True) as store:
        store.add(store.begin_run(suite(), NEXT), outcome(record()))
    code, out, _ = bench(capsys, "report", "--run", "3", "--store", "h.sqlite", "--report", "r.html")
    assert (code, out.partition(" since")[0]) == (0, "Not finished: 1 of 4 cases are there")
    assert "Not finished" in (folder / "r.html").read_text(encoding="utf-8")


def test_history_goes_through_all_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    filled("worse")
    code, out, err = bench(capsys, "history", "ring4/allgather/1KB", "--store", "h.sqlite")
    assert (code, err) == (0, "")
    case, head, first, second = out.splitlines()
    assert case == "ring4/allgather/1KB/auto/0"
    assert head.split()[:4] == ["run", "started", "commit", "status"]
    assert (first.split()[3], second.split()[3]) == ("c0ffee00", "deadbeef")
    assert ("2.000" in first, "3.000" in second) == (True, True)


def test_a_report_is_written_from_the_history(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    filled()
    code, out, _ = bench(capsys, "report", "--run", "1", "--report", "r.html", "--store", "h.sqlite")
    assert (code, out.startswith("First run")) == (0, True)
    assert "c0ffee00" in (folder / "r.html").read_text(encoding="utf-8")


def test_on_a_machine_without_gpus_measuring_is_a_skip_that_the_report_shows(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("synth.bench.gpu.drive.count_gpus", lambda: 0)
    bench(capsys, "run", "--suite", "tiny.toml", "--store", "h.sqlite", "-q")
    code, out, _ = bench(capsys, "gpu", "--store", "h.sqlite", "--machine", "ring4", "--report", "r.html", "-q")
    assert code == 0
    assert "ring4/alltoall/all sizes, nccl-tests: skipped: 0 GPUs here, 4 needed" in out.splitlines()
    assert "0 GPUs here, 4 needed" in (folder / "r.html").read_text(encoding="utf-8")


def test_named_files_are_measured_too(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("synth.bench.gpu.drive.count_gpus", lambda: 0)
    main(["allgather", "--topo", "ring4", "--size", "4KB", "-o", "a.xml", "-q", "--no-cache"])
    capsys.readouterr()
    code, out, _ = bench(capsys, "gpu", "a.xml", "--topo", "ring4", "--sizes", "4KB:4KB", "--store", "h.sqlite", "-q")
    assert (code, out) == (0, "ring4/allgather/all sizes, nccl-tests: skipped: 0 GPUs here, 4 needed\n")


@pytest.mark.parametrize(
    ("args", "code", "told"),
    [
        (("run", "--suite", "nosuch"), 1, "synth: --suite: 'nosuch', expected a TOML or JSON file"),
        (("run", "--jobs", "0"), 2, "'0', expected a whole number from 1"),
        (("run", "--jobs", "2", "--scheduler", "tcp://x:1"), 2, "--jobs and --scheduler exclude each other"),
        (("run", "--report", "a", "--junit", "a"), 2, "have to name different files"),
        (("run", "--report", "nosuch/r.html"), 1, "nosuch/r.html: cannot be written: No such file or directory"),
        (("run", "--suite", "tiny.toml", "--store", "nosuch/h"), 1, "nosuch/h: cannot be opened: no such folder"),
        (("compare", "--store", "nosuch"), 1, "--store: 'nosuch', expected a history"),
        (("compare", "7", "8", "--store", "h.sqlite"), 1, "run: '7', expected a run's number"),
        (("compare", "latest~1", "--store", "other.sqlite"), 1, "run: 'latest~1', expected one of the 1 finished runs"),
        (("compare", "--store", "other.sqlite"), 1, "expected a run that another of the same suite went before"),
        (("compare", "--store", "tiny.toml"), 1, "tiny.toml: is no history of `synth bench`, nor any SQLite database"),
        (("report", "--run", "9", "--store", "h.sqlite"), 1, "run: '9', expected a run's number"),
        (("report", "--report", "nosuch/r", "--store", "h.sqlite"), 1, "nosuch/r: cannot be written: No such file"),
        (("history", "ring4/allgather", "--store", "h.sqlite"), 1, "(close to it: ring4/allgather/1KB/auto/0, ring4"),
        (("history", "dgx1/allgather/1KB", "--store", "h.sqlite"), 1, "expected one case of h.sqlite"),
        (("gpu", "a.xml", "--store", "h.sqlite"), 2, "FILEs need --topo"),
        (("gpu", "--topo", "ring4", "--store", "h.sqlite"), 2, "--topo says which machine FILEs are for"),
        (("gpu", "a.xml", "--topo", "ring4", "--junit", "x", "--store", "h.sqlite"), 2, "a report is of a run"),
        (("gpu", "--machine", "dgx1", "--store", "h.sqlite"), 1, "--machine: 'dgx1', expected a machine that run 2"),
        (("gpu", "--launcher-args", "'", "--store", "h.sqlite"), 2, "expected words as a shell takes them"),
    ],
)
def test_what_is_wrong_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], args: tuple[str, ...], code: int, told: str
) -> None:
    filled()
    with Store("other.sqlite", write=True) as store:
        store.finish(store.begin_run(suite(), HERE), 1.0)
    found, out, err = bench(capsys, *args)
    assert (found, out) == (code, "")
    assert told in err
    assert len(err.splitlines()) == 1


def test_nothing_is_run_where_the_report_could_not_be_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench(capsys, "run", "--suite", "tiny.toml", "--store", "h.sqlite", "--report", "nosuch/r.html")
    assert not (folder / "h.sqlite").exists()
