"""A worker process: one rank that does what its parent sends, until the parent is gone or says that it is enough."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from synth.errors import SynthError
from synth.execute.errors import FollowError, HangError
from synth.execute.session import Session, as_synth_error

HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Seat:
    """Where a worker sits: its rank of so many, the port of the store, the backend, and the patience for hangs."""

    rank: int
    world: int
    port: int
    backend: str
    patience_s: float


#: What a worker is asked to do: a function of the session, with arguments that can be pickled.
Job = tuple[Callable[..., Any], tuple[Any, ...]]


def serve(seat: Seat, jobs: Connection, life: Connection) -> None:
    """The life of a worker. `life` carries nothing: it closes when the parent is gone, and then so is the worker.

    Answers are ("done", value), ("failed", (kind of error, message, who waits for what)), ("follows", whom) or ("bug", text).
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends the workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_die_with, args=(life,), daemon=True).start()
    try:
        session = _join(seat)
    except Exception as error:
        jobs.send(_failure(as_synth_error(error, seat.rank)))
        os._exit(1)
    jobs.send(("done", os.getpid()))
    while True:
        try:
            job: Job | None = jobs.recv()
        except (EOFError, OSError):
            os._exit(1)
        if job is None:
            # Threads that wait in a broken connection would keep an orderly exit from ending.
            os._exit(0)
        jobs.send(_answer(session, *job))


def _answer(session: Session, function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[str, Any]:
    try:
        return "done", function(session, *arguments)
    except FollowError as error:
        return "follows", str(error)
    except (SynthError, RuntimeError, MemoryError) as error:  # torch raises RuntimeErrors
        told = as_synth_error(error, session.rank)
        session.fail(str(told))
        return _failure(told)
    except Exception as error:
        import traceback

        session.fail("bug")
        return "bug", f"rank {session.rank}: {type(error).__name__}: {error}\n{traceback.format_exc()}"


def _failure(error: SynthError) -> tuple[str, tuple[str, str, tuple[str, ...]]]:
    """An error in a form that can be sent, whatever its class needs to be made."""
    waits = error.waits if isinstance(error, HangError) else ()
    return "failed", (type(error).__name__, str(error), waits)


def _join(seat: Seat) -> Session:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    if "lo" in [name for _, name in socket.if_nameindex()]:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = dist.TCPStore(HOST, seat.port, None, False)
    if seat.backend == "nccl":
        torch.cuda.set_device(seat.rank)
    dist.init_process_group(seat.backend, store=dist.PrefixStore("group", store), rank=seat.rank, world_size=seat.world)
    return Session(dist.PrefixStore("session", store), seat.rank, seat.world, seat.patience_s)


def _die_with(life: Connection) -> None:
    with contextlib.suppress(EOFError, OSError):
        life.recv()
    os._exit(1)
