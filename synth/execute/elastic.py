"""One rank among processes that somebody else has started (torchrun, also across hosts)."""

from __future__ import annotations

import atexit
import os
import pickle
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType

from synth.errors import InputError, SynthError
from synth.execute.communicator import JOINED_BY, ON_GPU, distributed, gpus_seen
from synth.execute.errors import FollowError, HangError, LostError
from synth.execute.measure import Job, Measured, measure
from synth.execute.session import Session, as_synth_error

#: Seconds that all ranks have to come.
_COME_UP_S = 300.0
#: Seconds that ranks have to say that they are still there, once one of them has lost another.
_ROLL_CALL_S = 2.0
#: Seconds that the rank which tells has until it has heard everybody, and then until it has printed.
_TELLING_S, _PRINTING_S = 10.0, 0.5


class Elastic:
    """This process's place in a run of several: made from the environment that torchrun sets. A context manager.

    After a failure the threads of a broken run may wait for ever: the process then ends without waiting for them.
    """

    def __init__(self, patience_s: float) -> None:
        distributed()
        from torch.distributed.rendezvous import rendezvous

        # The launcher ends all ranks as soon as one has failed: that needs no words of theirs, and no Python that runs.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        interrupt = signal.signal(signal.SIGINT, signal.SIG_DFL)
        self._store, self.rank, self.world = next(iter(rendezvous("env://", timeout=timedelta(seconds=_COME_UP_S))))
        if self.rank == 0:
            signal.signal(signal.SIGINT, interrupt)
        import torch.distributed as dist

        self.session = Session(dist.PrefixStore("session", self._store), self.rank, self.world, patience_s)
        self._failed = False

    def __enter__(self) -> Elastic:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        dist = distributed()
        if dist.is_initialized() and not self._failed:
            for communicator in self.session.kept.values():
                communicator.close()
            dist.destroy_process_group()

    def run(self, prepare: Callable[[int], Job], backend: str) -> tuple[Job | None, list[Measured] | None]:
        """The job that `prepare` makes on every rank, measured; (None, None) where another rank tells what went wrong.

        Raises SynthError on the one rank that is to tell it.
        """
        job = self._agree(prepare, backend)
        if job is None:
            return None, None
        try:
            self._join(backend)
            return job, measure(self.session, job)
        except FollowError:
            self._leave_at_once()
            self._answer()
            self._wait_until_told()
            return None, None
        except (SynthError, RuntimeError, MemoryError) as error:
            self._leave_at_once()
            told = as_synth_error(error, self.rank)
            first = self.session.fail(str(told))
            self._answer()
            if not first and not isinstance(told, HangError):
                self._wait_until_told()
                return None, None
            told = self._who_is_gone(told) if isinstance(told, LostError) else told
            self.session.store.set("told", b"")
            raise told from None

    def _agree(self, prepare: Callable[[int], Job], backend: str) -> Job | None:
        """Everybody's preparation, compared before any message is sent; the lowest rank that has something to tell does."""
        job: Job | None = None
        problem: SynthError | None = None
        try:
            job = prepare(self.world)
            if backend in ON_GPU:
                self._take_gpu(backend)
        except SynthError as error:
            problem = error
        found: list[tuple[str | None, bytes]] = self.session.exchange((problem and str(problem), pickle.dumps(job)))
        told = [text for text, _ in found]
        if any(told):
            if self.rank != next(rank for rank, text in enumerate(told) if text):
                return None
            assert problem is not None
            raise (
                problem if all(text == told[self.rank] for text in told) else SynthError(f"rank {self.rank}: {problem}")
            )
        if any(other != found[0][1] for _, other in found):
            if self.rank:
                return None
            raise SynthError("the ranks were started with different files or options")
        return job

    def _take_gpu(self, backend: str) -> None:
        import torch

        local, seen = int(os.environ.get("LOCAL_RANK", "0")), gpus_seen()
        if seen <= local:
            raise InputError("--backend", backend, f"{seen} GPUs", f"one for local rank {local} (gloo needs none)")
        torch.cuda.set_device(local)

    def _join(self, backend: str) -> None:
        import torch.distributed as dist

        store = dist.PrefixStore("group", self._store)
        dist.init_process_group(JOINED_BY[backend], store=store, rank=self.rank, world_size=self.world)

    def _leave_at_once(self) -> None:
        self._failed = True
        atexit.register(os._exit, SynthError.exit_code)

    def _wait_until_told(self) -> None:
        """The launcher ends all ranks as soon as one ends: not before the one that tells what went wrong has told it."""
        until = time.monotonic() + _TELLING_S
        while not self.session.store.check(["told"]) and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(_PRINTING_S)

    def _answer(self) -> None:
        self.session.store.set(f"here/{self.rank}", b"")

    def _who_is_gone(self, told: SynthError) -> SynthError:
        """Of a lost connection both ends hear: whoever does not answer is the one that is gone."""
        missing, until = list(range(self.world)), time.monotonic() + _ROLL_CALL_S
        while missing and time.monotonic() < until:
            missing = [rank for rank in missing if not self.session.store.check([f"here/{rank}"])]
            time.sleep(0.02)
        if not missing:
            return told
        ranks = ", ".join(map(str, missing))
        return LostError(f"rank{'s' * (len(missing) > 1)} {ranks} died: {told}")
