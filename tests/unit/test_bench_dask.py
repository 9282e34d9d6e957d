"""Two local Dask workers give the same records as one process."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from synth.bench.executors import dask_executor
from synth.bench.run import run_suite
from synth.bench.store import Store
from synth.errors import SynthError, UsageError
from synth.request import Progress
from tests.benches import HERE, in_process, run, suite

ROOT = Path(__file__).resolve().parent.parent.parent
_CLUSTER = """
import sys
from distributed import LocalCluster
if __name__ == "__main__":
    with LocalCluster(n_workers=int(sys.argv[1]), threads_per_worker=1, dashboard_address=None, host="127.0.0.1") as cluster:
        print(cluster.scheduler_address, flush=True)
        input()
"""


@contextmanager
def cluster(workers: int = 2) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process with a scheduler and processes of so many workers, and its address."""
    pipe = subprocess.PIPE
    script = [sys.executable, "-c", _CLUSTER, str(workers)]
    with subprocess.Popen(script, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address.startswith("tcp://")
        yield process, address
        process.communicate("\n", timeout=60)


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    """The address of a cluster of two worker processes, which end with the tests."""
    pytest.importorskip("distributed")
    with cluster() as (_, address):
        yield address


def test_two_workers_give_the_same_records_as_one_process(scheduler: str, tmp_path: Path) -> None:
    here = run(tmp_path / "here.sqlite")
    with Store(str(tmp_path / "there.sqlite"), write=True) as store:
        there = run_suite(suite(), store, HERE, lambda: dask_executor(scheduler))
        found, files = store.records(there), store.select("SELECT hash, xml FROM file ORDER BY hash")
        assert {cost.reference_s > 0 for cost in store.jobs(there).values()} == {True}
    with Store(str(tmp_path / "here.sqlite")) as store:
        assert found == store.records(here)
        assert files == store.select("SELECT hash, xml FROM file ORDER BY hash")


def test_the_same_synthesis_is_run_again_and_not_remembered(scheduler: str) -> None:
    with dask_executor(scheduler) as (executor, count):
        assert count() == 2
        futures = [executor.submit(_number) for _ in range(3)]
        assert len({future.result() for future in futures}) == 3


def _number() -> int:
    return time.perf_counter_ns()


def _missing() -> str:
    """As where a worker has no synth; here there is one."""
    if multiprocessing.parent_process() is None:
        return "here"
    raise ModuleNotFoundError("No module named 'synth'")


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (_number, "has other code or packages than this host: install the same synth on both"),
        (_missing, "cannot run synth: No module named 'synth'"),
    ],
)
def test_workers_with_other_code_are_refused(
    scheduler: str, monkeypatch: pytest.MonkeyPatch, asked: Callable[[], object], told: str
) -> None:
    monkeypatch.setattr("synth.bench.executors.code_here", asked)
    with pytest.raises(SynthError, match=f"--scheduler: {scheduler}: worker tcp://.* {told}"), dask_executor(scheduler):
        raise AssertionError("they would measure something else")


@pytest.mark.slow
def test_a_scheduler_that_goes_away_is_one_clear_line_and_the_run_is_taken_up(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    with Store(str(tmp_path / "h.sqlite"), write=True) as store:
        with cluster() as (process, address):

            def kill(progress: Progress) -> None:
                if "1 of 2" in progress.detail:
                    process.kill()

            with pytest.raises(SynthError, match="the same command takes the run up"):
                run_suite(suite(), store, HERE, lambda: dask_executor(address), tell=kill)
        begun = store.done(store.runs()[0])
        assert len(begun) == 1
        finished = run_suite(suite(), store, HERE, in_process)
        assert (finished.id, len(store.records(finished))) == (1, finished.cases)


def test_a_scheduler_without_workers_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr("synth.bench.executors._CONNECT_S", 1.0)
    with (
        cluster(workers=0) as (_, address),
        pytest.raises(SynthError, match=f"--scheduler: {address}: it has no workers"),
        dask_executor(address),
    ):
        raise AssertionError("there is nobody to run on")


def test_no_scheduler_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr("synth.bench.executors._CONNECT_S", 0.5)
    with (
        pytest.raises(SynthError, match=r"--scheduler: tcp://127\.0\.0\.1:9: no scheduler answers there"),
        dask_executor("tcp://127.0.0.1:9"),
    ):
        raise AssertionError("there is nothing to run on")


def test_without_the_package_the_command_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UsageError, match=r"pip install 'synth\[bench\]'"), dask_executor("tcp://127.0.0.1:9"):
        raise AssertionError("there is nothing to run on")
