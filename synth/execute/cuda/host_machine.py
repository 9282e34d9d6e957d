"""This computer as a machine: threadblocks are threads. It is slow, and shows whether the protocol is right."""

from __future__ import annotations

import ctypes
import mmap
import os
import pickle
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synth.errors import InputError
from synth.execute.cuda.build import build_host
from synth.execute.cuda.machine import Launch, Tick
from synth.execute.watch import TICK_S

_BOUNDARY = 256
_HUNG, _NO_THREADS = 1, 2
#: For a run that somebody else watches over.
_FOR_EVER_S = 1e9


class HostMachine:
    """Memory of this process, and the library of the host build (compiled now if it never was). BuildError without a compiler."""

    name = "host"
    torch_device = "cpu"
    sharing = "shared memory"
    place = ""

    def __init__(self, library: Path | None = None) -> None:
        self._run = ctypes.CDLL(str(library or build_host())).synth_run
        self._run.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_double, ctypes.c_int]
        self._run.restype = ctypes.c_int
        self.multiprocessors = os.cpu_count() or 1
        self._held: dict[int, NDArray[np.uint8]] = {}
        self._files: dict[int, int] = {}

    def allocate(self, size_bytes: int) -> int:
        try:
            memory = np.zeros(size_bytes + _BOUNDARY, dtype=np.uint8)
        except MemoryError:
            raise InputError("--size", "", size_bytes, "buffers that fit this computer's memory") from None
        start = int(memory.ctypes.data)
        address = start + -start % _BOUNDARY
        self._held[address] = memory
        return address

    def allocate_flag(self) -> int:
        return self.allocate(8)

    def release(self, address: int) -> None:
        del self._held[address]
        if address in self._files:
            os.close(self._files.pop(address))

    def refusal(self, peer: str, protocol: str) -> str:
        return ""

    def share(self, size_bytes: int) -> int:
        """A file without a name: nothing is left of it once the processes that have it are gone, however they went."""
        if not hasattr(os, "memfd_create"):
            raise InputError("--placement", "", "processes", "virtual: this system has no memory that processes share")
        file = os.memfd_create("synth")
        os.ftruncate(file, size_bytes)
        address = self._map(file, size_bytes)
        self._files[address] = file
        return address

    def export(self, address: int) -> bytes:
        return pickle.dumps((os.getpid(), self._files[address], self._held[address].nbytes))

    def open(self, exported: bytes) -> int:
        process, number, size_bytes = pickle.loads(exported)
        file = os.open(f"/proc/{process}/fd/{number}", os.O_RDWR)
        try:
            return self._map(file, size_bytes)
        finally:
            os.close(file)

    def leave(self, address: int) -> None:
        self.release(address)

    def fill(self, address: int, size_bytes: int, byte: int = 0) -> None:
        ctypes.memset(address, byte, size_bytes)

    def write(self, address: int, data: NDArray[Any]) -> None:
        whole = np.ascontiguousarray(data)
        ctypes.memmove(address, whole.ctypes.data, whole.nbytes)

    def read(self, address: int, into: NDArray[Any]) -> None:
        ctypes.memmove(into.ctypes.data, address, into.nbytes)

    def threads_for(self, launch: Launch) -> int:
        """One: a second lane of a threadblock is for tests of the barriers."""
        return launch.threads or 1

    def execute(self, launch: Launch, times: int, limit_s: float, tick: Tick | None = None) -> float | None:
        start = time.perf_counter()
        status = self._launch(launch, times, limit_s) if tick is None else self._looked_after(launch, times, tick)
        if status == _NO_THREADS:
            threads = launch.num_blocks * launch.threads
            raise InputError("--backend", "host", f"{threads} threads", "fewer: the system has no more")
        return None if status == _HUNG else (time.perf_counter() - start) * 1e6 / times

    def copy_us(self, size_bytes: int, times: int) -> float:
        source, target = np.ones(size_bytes, np.uint8), np.empty(size_bytes, np.uint8)
        np.copyto(target, source)
        start = time.perf_counter()
        for _ in range(times):
            np.copyto(target, source)
        return (time.perf_counter() - start) * 1e6 / times

    def _launch(self, launch: Launch, times: int, limit_s: float) -> int:
        """One launch after the other, until one does not end well: how the last one ended."""
        for _ in range(times):
            if status := int(self._run(launch.params, launch.threads, limit_s, int(launch.alone))):
                return status
        return 0

    def _looked_after(self, launch: Launch, times: int, tick: Tick) -> int:
        ended: list[int] = []
        thread = threading.Thread(target=lambda: ended.append(self._launch(launch, times, _FOR_EVER_S)), daemon=True)
        stop = partial(self._stop, launch, thread)
        thread.start()
        try:
            thread.join(TICK_S)
            while thread.is_alive():
                tick(b"".join(ctypes.string_at(*region) for region in launch.watched), stop)
                thread.join(TICK_S)
        except BaseException:
            stop()
            raise
        return ended[0]

    def _stop(self, launch: Launch, thread: threading.Thread) -> None:
        self.write(launch.abort, np.ones(1, dtype=np.int64))
        thread.join()

    def _map(self, file: int, size_bytes: int) -> int:
        """The array holds the mapping, which ends with it."""
        memory = np.frombuffer(mmap.mmap(file, size_bytes), dtype=np.uint8)
        address = int(memory.ctypes.data)
        self._held[address] = memory
        return address
