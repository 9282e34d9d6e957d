"""Two local Dask workers give the same records as one process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from synth.bench.executors import dask_executor
from synth.bench.run import run_suite
from synth.bench.store import Store
from synth.errors import SynthError, UsageError
from tests.benches import HERE, run, suite

ROOT = Path(__file__).resolve().parent.parent.parent
_CLUSTER = """
from distributed import LocalCluster
if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, host="127.0.0.1") as cluster:
        print(cluster.scheduler_address, flush=True)
        input()
"""


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    """The address of a cluster of two worker processes, which end with the tests."""
    pytest.importorskip("distributed")
    pipe = subprocess.PIPE
    script = [sys.executable, "-c", _CLUSTER]
    with subprocess.Popen(script, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as cluster:
        assert cluster.stdout is not None
        address = cluster.stdout.readline().strip()
        assert address.startswith("tcp://")
        yield address
        cluster.communicate("\n", timeout=60)


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
        assert count == 2
        futures = [executor.submit(_number) for _ in range(3)]
        assert len({future.result() for future in futures}) == 3


def _number() -> int:
    import time

    return time.perf_counter_ns()


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
