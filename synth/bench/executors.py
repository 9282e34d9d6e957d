"""Where syntheses run: in this process, on processes of this host, or on a Dask cluster. All are `concurrent.futures` executors."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import Any, NamedTuple

from synth.errors import SynthError, UsageError

#: Seconds that a scheduler is given to answer at all.
_CONNECT_S = 30


class Slots(NamedTuple):
    """An executor, and how many calls it works on at a time."""

    executor: Executor
    at_once: int


class SerialExecutor(Executor):
    """Runs each call at once, in this process: for tests, and for a look with a debugger."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        """A future that is done. An interrupt of the user is raised, not kept."""
        future: Future[Any] = Future()
        try:
            future.set_result(function(*args, **named))
        except Exception as error:
            future.set_exception(error)
        return future


@contextmanager
def local_executor(jobs: int) -> Iterator[Slots]:
    """Processes of this host, a fresh one for each call: memory and times of one synthesis owe nothing to the one before."""
    context = multiprocessing.get_context("spawn")
    executor = ProcessPoolExecutor(jobs, mp_context=context, initializer=_end_with_parent, max_tasks_per_child=1)
    try:
        yield Slots(executor, jobs)
    except BaseException:
        _end(executor)
        raise
    executor.shutdown()


def _end_with_parent() -> None:
    """In a worker: a thread that ends it when the process that started it is gone, killed for instance."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_outlive_nobody, args=(parent.sentinel,), name="parent", daemon=True).start()


def _outlive_nobody(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)


def _end(executor: ProcessPoolExecutor) -> None:
    """Give up what is waiting and end what runs: nobody wants it any more."""
    processes = list((getattr(executor, "_processes", None) or {}).values())
    executor.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        process.terminate()


@contextmanager
def dask_executor(address: str) -> Iterator[Slots]:
    """The workers of a Dask cluster, which have to have synth installed.

    Raises UsageError without `distributed`, SynthError where no scheduler answers.
    """
    try:
        from distributed import Client
    except ImportError as error:
        raise UsageError("--scheduler needs the package distributed: pip install 'synth[bench]'") from error
    try:
        client = Client(address, timeout=_CONNECT_S, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        told = str(error).partition("\n")[0] or type(error).__name__
        raise SynthError(f"--scheduler: {address}: no scheduler answers there: {told}") from error
    with client:
        if not client.scheduler_info()["workers"]:
            raise SynthError(f"--scheduler: {address}: it has no workers")
        # Every call counts as another one: a synthesis that was run before is run again, that is what is measured.
        with client.get_executor(pure=False) as executor:
            yield Slots(executor, sum(client.nthreads().values()))
