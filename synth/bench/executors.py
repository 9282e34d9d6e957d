"""Where syntheses run: in this process, on processes of this host, or on a Dask cluster. All are `concurrent.futures` executors."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from typing import Any, NamedTuple

from synth.bench.fingerprint import code_here
from synth.errors import SynthError, UsageError

#: Seconds that a scheduler is given to answer at all.
_CONNECT_S = 30


class Slots(NamedTuple):
    """An executor, and how many calls it works on at a time: as many as `at_once` says when it is asked."""

    executor: Executor
    at_once: Callable[[], int]


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
    resource_tracker.ensure_running()  # its start would let Ctrl-C through again
    executor = _Pool(jobs, mp_context=context, initializer=_end_with_parent, max_tasks_per_child=1)
    try:
        yield Slots(executor, lambda: jobs)
    except BaseException:
        _end(executor)
        raise
    executor.shutdown()


class _Pool(ProcessPoolExecutor):
    """Processes without Ctrl-C, which reaches all that belong to a terminal: the one that started them is to end them."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        """As in any pool. What is started here, the thread that starts further processes too, has Ctrl-C blocked as it is here."""
        with _without_interrupts():
            return super().submit(function, *args, **named)


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Ctrl-C and a request to end wait until the block is left, and what is started in it has Ctrl-C blocked, where the system can
    do that.
    """
    with _deferred(signal.SIGINT, signal.SIGTERM):
        if not hasattr(signal, "pthread_sigmask"):
            yield
            return
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _deferred(*numbers: signal.Signals) -> Iterator[None]:
    """What comes of these signals in the block comes after it. To block them in this thread is not enough: the system gives them to
    another one, a library's own, and Python then runs the handler here, between the start of a process and what it is told.
    """
    came: list[int] = []
    here = numbers if threading.current_thread() is threading.main_thread() else ()
    handlers = {number: handler for number in here if callable(handler := signal.getsignal(number))}
    for number in handlers:
        signal.signal(number, lambda number, _: came.append(number))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


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
    """The workers of a Dask cluster, which have to have the same synth installed.

    Raises UsageError without `distributed`; SynthError where no scheduler answers, no worker comes, or one has other code.
    """
    try:
        from distributed import Client
    except ImportError as error:
        raise UsageError("--scheduler needs the package distributed: pip install 'synth[bench]'") from error
    _silence("distributed", "tornado")
    try:
        client = Client(address, timeout=_CONNECT_S, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        told = str(error).partition("\n")[0] or type(error).__name__
        raise SynthError(f"--scheduler: {address}: no scheduler answers there: {told}") from error
    with client:
        try:
            client.wait_for_workers(1, timeout=_CONNECT_S)
        except TimeoutError as error:
            raise SynthError(f"--scheduler: {address}: it has no workers") from error
        _check_code(client, address)
        # Every call counts as another one: a synthesis that was run before is run again, that is what is measured.
        with client.get_executor(pure=False) as executor:
            yield Slots(executor, partial(_threads, client, address))


def _silence(*packages: str) -> None:
    """No log of these packages: what becomes of a connection is told by errors of ours, the log has tracebacks."""
    for name in (*packages, *logging.root.manager.loggerDict):
        if name.partition(".")[0] in packages:
            logging.getLogger(name).setLevel(logging.CRITICAL)


def _check_code(client: Any, address: str) -> None:
    """Raise where a worker would measure something else than what is here, under the commit that is here."""
    here = code_here()
    for worker, there in sorted(client.run(code_here, on_error="return").items()):
        if isinstance(there, BaseException):
            raise SynthError(f"--scheduler: {address}: worker {worker} cannot run synth: {there}") from there
        if there != here:
            told = "has other code or packages than this host: install the same synth on both"
            raise SynthError(f"--scheduler: {address}: worker {worker} {told}")


def _threads(client: Any, address: str) -> int:
    """Calls that the cluster works on at a time, now: workers may come and go."""
    try:
        return sum(client.nthreads().values())
    except (OSError, RuntimeError, TimeoutError) as error:
        raise SynthError(f"--scheduler: {address}: it is gone; the same command takes the run up") from error
