"""The parent's side: worker processes, one for each rank, that are started once and given jobs until they are closed.

Workers are forks of a server process that has torch loaded already, so that eight of them start as fast as one. Nothing is
shared but pipes: there is no shared memory to leave behind.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any

from synth.errors import CheckError, SynthError
from synth.execute.errors import HangError, LostError
from synth.execute.session import FAULT
from synth.execute.watch import PATIENCE_S
from synth.execute.worker import HOST, Seat, serve

#: Seconds that workers have to end by themselves: those that have nothing to do end at once, others are not waited for.
_LEAVE_S = 0.5
#: Seconds until the exit code of a process is known whose pipe is closed.
_GRACE_S = 3.0
#: Seconds that workers have to stop and answer once one of them has told what is wrong.
_TELL_S = 2.0


class Pool:
    """`world` processes on this machine with a process group of `backend` among them. A context manager: leaving it ends them.

    Raises SynthError where they do not come up.
    """

    def __init__(self, world: int, backend: str = "gloo", patience_s: float = PATIENCE_S) -> None:
        self.world, self.backend, self.patience_s = world, backend, patience_s
        self.broken = False
        self._processes: list[BaseProcess] = []
        self._jobs: list[Connection] = []
        self._life: list[Connection] = []
        try:
            self._start()
            self.pids: list[int] = self._gather()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        context = _context()
        import torch.distributed as dist

        self._store = dist.TCPStore(HOST, 0, None, True, wait_for_workers=False)
        for rank in range(self.world):
            seat = Seat(rank, self.world, self._store.port, self.backend, self.patience_s)
            ours, theirs = context.Pipe()
            held, watched = context.Pipe()
            process = context.Process(
                target=serve, args=(seat, theirs, watched), name=f"synth rank {rank}", daemon=True
            )
            self._jobs.append(ours)
            self._life.append(held)
            process.start()
            self._processes.append(process)
            theirs.close()
            watched.close()

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """`function(session, *arguments)` on every rank; the values by rank. Functions and values have to be picklable.

        Raises what the ranks raised: a HangError first, then the first rank's. LostError where one died. After an error that
        not all ranks have answered with alike, the pool is `broken` and closed.
        """
        if self.broken:
            raise LostError("these workers have ended: start new ones")
        try:
            for jobs in self._jobs:
                with contextlib.suppress(OSError):  # it died: told below
                    jobs.send((function, arguments))
            return self._gather()
        except BaseException as error:
            if isinstance(error, _AlikeError):
                raise error.told from None
            self.close()
            raise

    def close(self) -> None:
        """End all workers, and wait until they have ended."""
        self.broken = True
        for jobs in self._jobs:
            with contextlib.suppress(OSError):
                jobs.send(None)
        until = time.monotonic() + _LEAVE_S
        for process in self._processes:
            process.join(max(0.0, until - time.monotonic()))
        for process in self._processes:
            if process.is_alive():
                process.kill()
            process.join()
            process.close()
        for connection in (*self._jobs, *self._life):
            connection.close()
        self._processes, self._jobs, self._life = [], [], []

    def _gather(self) -> list[Any]:
        """Everybody's answer; what went wrong is raised."""
        answers: dict[int, tuple[str, Any]] = {}
        timeout_s: float | None = None
        while len(answers) < self.world:
            waiting = {self._jobs[rank]: rank for rank in range(self.world) if rank not in answers}
            ready = wait(list(waiting), timeout_s)
            if not ready:
                break
            for connection in ready:
                rank = waiting[connection]  # type: ignore[index]
                answers[rank] = self._answer(rank)
                if answers[rank][0] == "died":
                    self._store.set(f"session/{FAULT}", f"{rank} died")
                if answers[rank][0] != "done":
                    timeout_s = _TELL_S
        if len(answers) == self.world and all(kind == "done" for kind, _ in answers.values()):
            return [answers[rank][1] for rank in range(self.world)]
        raise self._error(answers)

    def _answer(self, rank: int) -> tuple[str, Any]:
        try:
            answer: tuple[str, Any] = self._jobs[rank].recv()
        except (EOFError, OSError):
            self._processes[rank].join(_GRACE_S)
            return "died", _how(self._processes[rank].exitcode)
        return answer

    def _error(self, answers: dict[int, tuple[str, Any]]) -> BaseException:
        died = [f"rank {rank} died: {how}" for rank, (kind, how) in sorted(answers.items()) if kind == "died"]
        if died:
            return LostError("; ".join(died))
        bugs = [text for _, (kind, text) in sorted(answers.items()) if kind == "bug"]
        if bugs:
            return CheckError("execute", bugs[0].partition("\n")[0], tuple(bugs[0].split("\n")[1:]))
        failed = [_rebuilt(*told) for _, (kind, told) in sorted(answers.items()) if kind == "failed"]
        if not failed:
            return LostError("a rank no longer answers")
        first: SynthError = next((error for error in failed if isinstance(error, HangError)), failed[0])
        alike = len(failed) == self.world and len({str(error) for error in failed}) == 1
        if alike and not isinstance(first, HangError | LostError):
            self._store.delete_key(f"session/{FAULT}")
            return _AlikeError(first)
        return first


class _AlikeError(Exception):
    """All ranks refused the job for the same reason, before any of them began: they can go on with the next."""

    def __init__(self, told: SynthError) -> None:
        self.told = told


def _rebuilt(kind: str, message: str, waits: tuple[str, ...]) -> SynthError:
    """The error that a worker sent."""
    if kind == HangError.__name__:
        return HangError.told(message, waits)
    return LostError(message) if kind == LostError.__name__ else SynthError(message)


def _context() -> Any:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["synth.execute.preload"])
    return context


def _how(code: int | None) -> str:
    if code is None or code >= 0:
        return f"it ended with exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
