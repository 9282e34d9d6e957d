"""This computer as a machine: threadblocks are threads. It is slow, and shows whether the protocol is right."""

from __future__ import annotations

import ctypes
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synth.errors import InputError
from synth.execute.cuda.build import build_host
from synth.execute.cuda.machine import Launch

_BOUNDARY = 256
_HUNG, _NO_THREADS = 1, 2


class HostMachine:
    """Memory of this process, and the library of the host build (compiled now if it never was). BuildError without a compiler."""

    name = "host"

    def __init__(self, library: Path | None = None) -> None:
        self._run = ctypes.CDLL(str(library or build_host())).synth_run
        self._run.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_double, ctypes.c_int]
        self._run.restype = ctypes.c_int
        self._held: dict[int, NDArray[np.uint8]] = {}

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

    def execute(self, launch: Launch, times: int, limit_s: float) -> float | None:
        start = time.perf_counter()
        for _ in range(times):
            status = self._run(launch.params, launch.threads, limit_s, int(launch.alone))
            if status == _NO_THREADS:
                threads = launch.num_blocks * launch.threads
                raise InputError("--backend", "host", f"{threads} threads", "fewer: the system has no more")
            if status == _HUNG:
                return None
        return (time.perf_counter() - start) * 1e6 / times

    def copy_us(self, size_bytes: int, times: int) -> float:
        source, target = np.ones(size_bytes, np.uint8), np.empty(size_bytes, np.uint8)
        np.copyto(target, source)
        start = time.perf_counter()
        for _ in range(times):
            np.copyto(target, source)
        return (time.perf_counter() - start) * 1e6 / times
