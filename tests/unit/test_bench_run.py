"""A suite from beginning to end: records of real syntheses, taken up after a kill, with nothing lost or doubled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from synth.bench.between import compare_runs
from synth.bench.compare import DETERMINISTIC
from synth.bench.executors import SerialExecutor, Slots, local_executor
from synth.bench.fingerprint import text_hash
from synth.bench.measure import measure
from synth.bench.memory import _STAGES
from synth.bench.run import run_suite
from synth.bench.store import Store
from synth.bench.values import Job, Outcome
from synth.errors import CheckError, NoAnswerError, SynthError
from synth.request import Progress
from synth.verify import VerifyError
from tests.benches import HERE, NEXT, TINY, in_process, run, suite

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="module")
def tiny() -> Outcome:
    """The allgather of the tiny suite, measured."""
    return measure(suite().jobs[0])


def test_a_synthesis_becomes_a_record_for_each_case(tiny: Outcome) -> None:
    assert [record.case for record in tiny.records] == ["ring4/allgather/1KB/auto/0", "ring4/allgather/4KB/auto/0"]
    for record in tiny.records:
        assert (record.status, record.machine, record.collective) == ("ok", "ring4", "allgather")
        assert record.time_us is not None
        assert record.schedule_us is not None
        assert record.bound_us is not None
        assert record.bound_us <= record.schedule_us < record.time_us
        assert record.efficiency == pytest.approx(record.bound_us / record.time_us)
        assert record.busbw_GBps(record.time_us) == pytest.approx(record.bytes / record.time_us / 1e3 * 0.75)
        assert record.channels is not None
        assert min(record.channels, record.threadblocks or 0, record.steps or 0) >= 1
        assert set(record.baselines_us) == {"ring"}


def test_files_go_by_the_hash_of_their_text_and_each_has_a_timeline(tiny: Outcome) -> None:
    assert {record.xml_hash for record in tiny.records} == set(tiny.files)
    assert all(text_hash(text) == digest for digest, text in tiny.files.items())
    assert [line.xml_hash for line in tiny.timelines] == list(tiny.files)
    line = tiny.timelines[0]
    assert line.bytes == 1024
    assert {rank for rank, _ in line.rows} == {0, 1, 2, 3}
    assert all(0 <= start <= end <= line.span_us for _, start, end, _ in line.bars)
    assert {kind for *_, kind in line.bars} >= {"send", "receive"}


def test_a_synthesis_says_what_its_stages_cost(tiny: Outcome) -> None:
    cost = tiny.cost
    assert {"topology", "routing", "ordering", "lowering", "simulation", "verify"} <= {
        stage.name for stage in cost.stages
    }
    assert cost.reference_s > 0
    assert sum(cost.stage_cpu_s().values()) == pytest.approx(cost.cpu_s)
    if Path("/proc/self/statm").exists():
        seen = [stage.peak_bytes for stage in cost.stages if stage.peak_bytes is not None]
        assert cost.peak_bytes is not None
        assert seen
        assert all(1 << 20 < peak <= cost.peak_bytes for peak in seen)


@pytest.mark.slow
def test_other_processes_measure_the_same(tiny: Outcome) -> None:
    with local_executor(2) as (executor, count):
        assert count() == 2
        again = executor.submit(measure, suite().jobs[0]).result()
    assert again.records == tiny.records
    assert again.files == tiny.files
    assert again.timelines == tiny.timelines


@pytest.mark.parametrize(
    ("error", "status", "problem"),
    [
        (VerifyError("gpu 0 ends without chunk 3"), "verify failed", "gpu 0 ends without chunk 3"),
        (CheckError("ordering", "a transfer twice"), "verify failed", "CheckError: ordering: a transfer twice"),
        (NoAnswerError("rank 3 is reached by nobody"), "no answer", "rank 3 is reached by nobody"),
        (ZeroDivisionError("division by zero"), "failed", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_failure_is_a_record_with_its_reason(
    error: Exception, status: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_request: object) -> None:
        raise error

    monkeypatch.setattr("synth.pipeline.synthesize", fail)
    found = measure(suite().jobs[0])
    assert [(item.status, item.problem, item.time_us) for item in found.records] == [(status, problem, None)] * 2
    assert found.files == {}


def test_a_file_that_reads_back_differently_is_verified_as_it_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    from msccl_xml.write import write_algo

    def spoiled(algo: Any) -> str:
        # The receivers of the first GPU put a chunk where another belongs.
        return write_algo(algo).replace('dstoff="1"', 'dstoff="0"')

    monkeypatch.setattr("synth.bench.measure.write_algo", spoiled)
    assert {item.status for item in measure(suite().jobs[0]).records} == {"verify failed"}


def test_two_runs_of_one_code_agree_in_every_deterministic_column(tmp_path: Path) -> None:
    path = tmp_path / "h.sqlite"
    first, second = run(path), run(path)
    assert second.id == first.id + 1
    with Store(str(path)) as store:
        pairs = zip(store.records(first).values(), store.records(second).values(), strict=True)
        for before, after in pairs:
            assert {name: getattr(before, name) for name in DETERMINISTIC} == {
                name: getattr(after, name) for name in DETERMINISTIC
            }
        compared = compare_runs(store, first, second)
        assert compared.compared == 4
        assert [change.line for change in compared.regressions] == []


class Stopping(SerialExecutor):
    """Goes away with the process, as it were, after so many calls."""

    def __init__(self, calls: int) -> None:
        self.calls = calls

    def submit(self, function: Callable[..., Any], /, *args: Any, **named: Any) -> Any:
        if self.calls == 0:
            raise KeyboardInterrupt
        self.calls -= 1
        return super().submit(function, *args, **named)


def test_a_run_that_was_ended_is_taken_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "h.sqlite")

    @contextmanager
    def stopping() -> Iterator[Slots]:
        yield Slots(Stopping(1), lambda: 1)

    with Store(path, write=True) as store:
        with pytest.raises(KeyboardInterrupt):
            run_suite(suite(), store, HERE, stopping)
        told: list[Progress] = []
        done: list[Job] = []
        monkeypatch.setattr("synth.bench.run.measure", lambda job: (done.append(job), measure(job))[1])
        before = store.done(store.runs()[0])
        finished = run_suite(suite(), store, HERE, in_process, tell=told.append)
        assert finished.id == 1
        assert [job.key for job in done] == [job.key for job in suite().jobs if job.key not in before]
        assert len(store.records(finished)) == finished.cases == 4
        assert f"taken up: {len(before)} of 2 syntheses are there" in told[0].detail


def test_of_a_run_that_is_taken_up_the_break_counts_too(tmp_path: Path) -> None:
    """What the report says is how long it was from the run's beginning to its end."""
    with Store(str(tmp_path / "h.sqlite"), write=True) as store:
        store.begin_run(suite(), HERE, datetime.now(UTC) - timedelta(hours=1))
        finished = run_suite(suite(), store, HERE, in_process)
        assert finished.id == 1
        assert finished.seconds is not None
        assert finished.seconds >= 3600


def test_a_run_of_other_code_or_another_suite_is_not_taken_up(tmp_path: Path) -> None:
    path = str(tmp_path / "h.sqlite")
    with Store(path, write=True) as store:
        store.begin_run(suite(), HERE)
        assert store.unfinished(suite(), HERE) is not None
        assert store.unfinished(suite(), NEXT) is None
        assert store.unfinished(suite(TINY.replace("4KB", "8KB")), HERE) is None


class Fragile(SerialExecutor):
    """A pool whose worker is killed by some syntheses, and whatever else is under way is lost with it."""

    def __init__(self, deadly: str) -> None:
        self.deadly, self.broken = deadly, False

    def submit(self, function: Callable[..., Any], /, *args: Any, **named: Any) -> Any:
        if self.broken:
            raise BrokenProcessPool("a process ended abruptly")
        if args[0].key == self.deadly:
            self.broken = True
            return super().submit(self._die)
        return super().submit(function, *args, **named)

    def _die(self) -> None:
        raise BrokenProcessPool("a process ended abruptly")


def test_a_synthesis_that_kills_its_process_is_one_record_and_the_others_go_on(tmp_path: Path) -> None:
    deadly = suite().jobs[0].key

    @contextmanager
    def fragile() -> Iterator[Slots]:
        yield Slots(Fragile(deadly), lambda: 2)

    with Store(str(tmp_path / "h.sqlite"), write=True) as store:
        records = store.records(run_suite(suite(), store, HERE, fragile))
        statuses = {record.case: record.status for record in records.values()}
    assert sorted(statuses.values()) == ["crashed", "crashed", "ok", "ok"]
    assert all((status == "crashed") == ("allgather" in case) for case, status in statuses.items())


class Deserted(SerialExecutor):
    """A cluster whose workers are gone until somebody is told so."""

    def __init__(self) -> None:
        self.back = threading.Event()

    def submit(self, function: Callable[..., Any], /, *args: Any, **named: Any) -> Any:
        future: Future[Any] = Future()

        def work() -> None:
            self.back.wait(60)
            future.set_result(function(*args, **named))

        threading.Thread(target=work).start()
        return future


def test_that_there_are_no_workers_is_told_and_the_run_waits_for_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("synth.bench.run._LOOK_S", 0.02)
    deserted, told = Deserted(), []

    @contextmanager
    def cluster() -> Iterator[Slots]:
        yield Slots(deserted, lambda: 1 if deserted.back.is_set() else 0)

    def tell(progress: Progress) -> None:
        told.append(progress.detail)
        deserted.back.set()

    with Store(str(tmp_path / "h.sqlite"), write=True) as store:
        finished = run_suite(suite(), store, HERE, cluster, tell=tell)
        assert {record.status for record in store.records(finished).values()} == {"ok"}
    assert told[0] == "there are no workers: waiting for one"
    assert len([line for line in told if " of 2: " in line]) == 2


def test_calls_that_an_executor_gives_up_end_the_run_which_is_taken_up(tmp_path: Path) -> None:
    class Gone(SerialExecutor):
        def submit(self, function: Callable[..., Any], /, *args: Any, **named: Any) -> Any:
            future: Future[Any] = Future()
            future.cancel()
            future.set_running_or_notify_cancel()
            return future

    @contextmanager
    def gone() -> Iterator[Slots]:
        yield Slots(Gone(), lambda: 1)

    with Store(str(tmp_path / "h.sqlite"), write=True) as store:
        with pytest.raises(SynthError, match="the scheduler that had it is gone; the same command takes the run up"):
            run_suite(suite(), store, HERE, gone)
        assert run_suite(suite(), store, HERE, in_process).id == 1


def _exit(_job: object) -> None:
    os._exit(9)


def test_a_real_worker_that_dies_breaks_the_pool(tmp_path: Path) -> None:
    with local_executor(1) as (executor, _), pytest.raises(BrokenExecutor):
        executor.submit(_exit, None).result()


def test_no_synthesis_is_begun_when_the_time_is_up(tmp_path: Path) -> None:
    hurried = replace(suite(), total_s=1e-9)
    with Store(str(tmp_path / "h.sqlite"), write=True) as store:
        finished = run_suite(hurried, store, HERE, in_process)
        records = store.records(finished)
        assert {record.status for record in records.values()} == {"left out"}
        assert len(records) == finished.cases


@pytest.mark.slow
def test_a_second_job_on_the_same_suite_waits_for_the_first(tmp_path: Path) -> None:
    """Both finish with all records, each its own run; the second says that it waits."""
    path = str(tmp_path / "h.sqlite")
    told: list[str] = []
    begun, may_go = threading.Event(), threading.Event()

    def hold(_progress: Progress) -> None:
        begun.set()
        may_go.wait(60)

    def second() -> None:
        begun.wait(60)
        with Store(path, write=True) as store:
            run_suite(
                suite(), store, HERE, in_process, tell=lambda progress: (told.append(progress.detail), may_go.set())
            )

    thread = threading.Thread(target=second)
    thread.start()
    with Store(path, write=True) as store:
        run_suite(suite(), store, HERE, in_process, tell=hold)
    thread.join()
    assert "another job works on suite tiny" in told[0]
    with Store(path) as store:
        assert [(found.id, found.finished is not None, len(store.records(found))) for found in store.runs()] == [
            (1, True, 4),
            (2, True, 4),
        ]


@pytest.mark.slow
def test_killed_at_any_moment_and_started_again(tmp_path: Path) -> None:
    """SIGKILL after each finished synthesis in turn; the last start finishes, and every record is there once."""
    file = tmp_path / "s.toml"
    file.write_text(TINY.replace('"alltoall"', '"alltoall", "reduce-scatter", "allreduce"'), encoding="utf-8")
    path = str(tmp_path / "h.sqlite")
    command = [sys.executable, "-m", "synth", "bench", "run", "--suite", str(file), "--store", path, "--jobs", "1"]
    for turn in range(3):
        process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True)
        assert process.stderr is not None
        for line in process.stderr:
            if " of 4: " in line:
                break
        time.sleep(0.2 * turn)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stderr.close()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with Store(path) as store:
        (only,) = store.runs()
        assert only.finished is not None
        assert len(store.records(only)) == only.cases == 8
        assert len(store.jobs(only)) == 4
        assert [row["integrity_check"] for row in store.select("PRAGMA integrity_check")] == ["ok"]


def test_ctrl_c_that_another_thread_gets_waits_until_a_process_is_told_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Threads of libraries do not block it, and Python runs the handler in the main thread wherever that is."""
    done = threading.Event()

    def started(*_: object) -> Future[None]:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)  # Python gets to look at signals
        done.set()
        return Future()

    monkeypatch.setattr("concurrent.futures.ProcessPoolExecutor.submit", started)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    other = threading.Thread(target=done.wait)
    other.start()
    try:
        with pytest.raises(KeyboardInterrupt), local_executor(1) as slots:
            slots.executor.submit(print)
        assert done.is_set()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        done.set()
        other.join()
        signal.signal(signal.SIGINT, before)


@pytest.mark.slow
def test_ctrl_c_ends_all_processes_at_once_and_the_run_is_taken_up(tmp_path: Path) -> None:
    """A terminal sends it to every process. Nothing but one line is said, and what was done is kept."""
    (tmp_path / "s.toml").write_text(TINY.replace('"alltoall"', '"alltoall", "reduce-scatter"'), encoding="utf-8")
    path = str(tmp_path / "h.sqlite")
    options = ["--suite", str(tmp_path / "s.toml"), "--store", path, "--jobs", "2"]
    # A shell may have started the tests with Ctrl-C ignored, which processes inherit.
    script = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); import synth.__main__ as m; m.run()"
    command = [sys.executable, "-c", script, "bench", "run", *options]
    for begun in (0, 1):
        process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True)
        assert process.stderr is not None
        told: list[str] = []
        while begun and " of 3: " not in "".join(told):
            told.append(process.stderr.readline())
        time.sleep(0.0 if begun else 1.5)
        os.killpg(process.pid, signal.SIGINT)
        told += process.stderr.read().splitlines()
        assert process.wait() == 130
        process.stderr.close()
        assert told[-1] == "synth: interrupted"
        assert "Traceback" not in "".join(told)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with Store(path) as store:
        (only,) = store.runs()
        assert len(store.records(only)) == only.cases == 6


def test_the_command_of_a_record_makes_its_file_again(
    tiny: Outcome, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from synth.cli.main import main

    program, *words = tiny.cost.command.split()
    assert program == "synth"
    assert main([*words, "-q", "-o", f"{tmp_path}/out/"]) == 0
    made = [path.read_text(encoding="utf-8") for path in (tmp_path / "out").iterdir() if path.suffix == ".xml"]
    assert {text_hash(text) for text in made} == set(tiny.files)


def test_a_search_that_a_clock_ended_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    from synth import pipeline

    synthesize = pipeline.synthesize
    monkeypatch.setattr(
        "synth.pipeline.synthesize", lambda request: replace(synthesize(request), cut_short=True, notes=("a note",))
    )
    assert {item.cut for item in measure(suite().jobs[0]).records} == {True}


def test_every_stage_that_is_told_can_be_seen_at_work(tiny: Outcome) -> None:
    """The names that the pipeline gives its stages are those that memory and CPU time are noted by."""
    assert {stage.name for stage in tiny.cost.stages} <= set(_STAGES.values())


def test_records_hold_nothing_that_differs_between_machines(tiny: Outcome) -> None:
    told = str([asdict(record) for record in tiny.records]) + "".join(tiny.files.values())
    assert str(ROOT) not in told
    assert str(Path.home()) not in told
