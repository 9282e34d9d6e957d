"""A driver without a GPU: the calls that a CUDA machine makes, on this computer's memory, with the host build as the kernel.

A launch runs in a thread, so that the host can look on and end it, and nobody but the abort flag ends a hang. Memory in whole pages
is a file without a name, which other processes can open.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from synth.execute.cuda import HostMachine

_NOT_READY = 600
_INVALID = 101
_FOR_EVER_S = 600.0
_PAGE_BYTES = 2 << 20
_BUS = b"0000:%02x:00.0"


class _Handle:
    """What the driver tells another process about memory."""

    def __init__(self, told: bytes = b"") -> None:
        self.bytes = ctypes.create_string_buffer(told, 64)

    def getPtr(self) -> int:
        return ctypes.addressof(self.bytes)


class FakeDriver:
    """GPUs of `multiprocessors`, each with room for so many threads. `calls` counts what was called.

    Ordinals `hidden` are not this process's to see, pairs `apart` cannot reach each other, and `nvlink` joins all pairs or none.
    """

    CUresult = SimpleNamespace(CUDA_ERROR_NOT_READY=_NOT_READY)
    CUdevice_attribute = SimpleNamespace(
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR="major",
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR="minor",
        CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT="multiprocessors",
    )
    CUdevice_P2PAttribute = SimpleNamespace(CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED="atomics")
    CUipcMemHandle = _Handle
    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL=1)

    def __init__(
        self,
        library: Path,
        *,
        multiprocessors: int = 16,
        threads: int = 512,
        gpus: int = 1,
        hidden: tuple[int, ...] = (),
        apart: tuple[tuple[int, int], ...] = (),
        nvlink: bool = True,
    ) -> None:
        self.host = HostMachine(library)
        self.gpus, self.hidden, self.apart, self.nvlink = gpus, hidden, apart, nvlink
        self.attributes = {"major": 9, "minor": 0, "multiprocessors": multiprocessors}
        self.threads = threads
        self.calls: dict[str, int] = {}
        self._launches: list[int] | None = None
        self._running: list[threading.Thread] = []
        self._numbers = itertools.count(1)

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("cu"):
            calls = object.__getattribute__(self, "calls")
            calls[name] = calls.get(name, 0) + 1
        return object.__getattribute__(self, name)

    def cuDeviceGetCount(self) -> tuple[int, int]:
        return 0, self.gpus

    def cuDeviceGetPCIBusId(self, length: int, device: int) -> tuple[int, bytes]:
        return 0, (_BUS % device).ljust(length, b"\0")

    def cuDeviceGetByPCIBusId(self, name: bytes) -> tuple[int, int]:
        (found,) = (device for device in range(self.gpus) if name == _BUS % device)
        return (_INVALID, 0) if found in self.hidden else (0, found)

    def cuDeviceCanAccessPeer(self, device: int, peer: int) -> tuple[int, int]:
        return 0, int((device, peer) not in self.apart)

    def cuDeviceGetP2PAttribute(self, attribute: str, device: int, peer: int) -> tuple[int, int]:
        assert attribute == "atomics"
        assert device != peer
        return 0, int(self.nvlink)

    def cuIpcGetMemHandle(self, address: int) -> tuple[int, _Handle]:
        return 0, _Handle(self.host.export(address))

    def cuIpcOpenMemHandle(self, handle: _Handle, flags: int) -> tuple[int, int]:
        assert flags == 1, "with peer access"
        return 0, self.host.open(handle.bytes.raw)

    def cuIpcCloseMemHandle(self, address: int) -> tuple[int]:
        self.host.leave(address)
        return (0,)

    def cuDeviceGet(self, ordinal: int) -> tuple[int, int]:
        return 0, ordinal

    def cuDevicePrimaryCtxRetain(self, device: int) -> tuple[int, str]:
        return 0, "context"

    def cuCtxSetCurrent(self, context: str) -> tuple[int]:
        return (0,)

    def cuStreamCreate(self, flags: int) -> tuple[int, str]:
        return 0, "stream"

    def cuStreamSynchronize(self, stream: str) -> tuple[int]:
        return (0,)

    def cuDeviceGetAttribute(self, attribute: str, device: int) -> tuple[int, int]:
        return 0, self.attributes[attribute]

    def cuMemAlloc(self, size: int) -> tuple[int, int]:
        if size > 1 << 30:
            return 2, 0
        return 0, self.host.allocate(size) if size % _PAGE_BYTES else self.host.share(size)

    def cuMemGetInfo(self) -> tuple[int, int, int]:
        return 0, 1 << 30, 1 << 31

    def cuMemFree(self, address: int) -> tuple[int]:
        self.host.release(address)
        return (0,)

    def cuMemHostAlloc(self, size: int, flags: int) -> tuple[int, int]:
        return 0, self.host.allocate(size)

    def cuMemHostGetDevicePointer(self, host: int, flags: int) -> tuple[int, int]:
        return 0, host

    cuMemFreeHost = cuMemFree

    def cuMemsetD8Async(self, address: int, byte: int, size: int, stream: str) -> tuple[int]:
        ctypes.memset(address, byte, size)
        return (0,)

    def cuMemcpyHtoDAsync(self, to: int, source: int, size: int, stream: str) -> tuple[int]:
        ctypes.memmove(to, source, size)
        return (0,)

    cuMemcpyDtoHAsync = cuMemcpyDtoDAsync = cuMemcpyHtoDAsync

    def cuModuleLoadData(self, image: bytes) -> tuple[int, str]:
        return 0, "module"

    def cuModuleGetFunction(self, module: str, name: bytes) -> tuple[int, str]:
        return 0, name.decode()

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(self, function: str, threads: int, shared: int) -> tuple[int, int]:
        return 0, self.threads // threads

    def cuLaunchCooperativeKernel(self, function: str, *rest: Any) -> tuple[int]:
        blocks, threads, ((params,), kinds) = rest[0], rest[3], rest[-1]
        assert function == "synth_run"
        assert kinds == (ctypes.c_void_p,)
        assert blocks * threads <= self.attributes["multiprocessors"] * self.threads, "not all resident"
        self._start(params)
        return (0,)

    def cuLaunchKernel(self, function: str, *rest: Any) -> tuple[int]:
        assert function == "synth_divide"  # which the host build does at the end of its run
        return (0,)

    def cuStreamBeginCapture(self, stream: str, mode: int) -> tuple[int]:
        self._launches = []
        return (0,)

    def cuStreamEndCapture(self, stream: str) -> tuple[int, list[int]]:
        captured, self._launches = self._launches or [], None
        return 0, captured

    def cuGraphInstantiate(self, graph: list[int], flags: int) -> tuple[int, list[int]]:
        return 0, graph

    def cuGraphLaunch(self, graph: list[int], stream: str) -> tuple[int]:
        for params in graph:
            self._start(params)
        return (0,)

    def cuGraphDestroy(self, graph: list[int]) -> tuple[int]:
        return (0,)

    cuGraphExecDestroy = cuGraphDestroy

    def cuEventCreate(self, flags: int) -> tuple[int, int]:
        return 0, next(self._numbers)

    def cuEventRecord(self, event: int, stream: str) -> tuple[int]:
        return (0,)

    cuEventSynchronize = cuEventDestroy = lambda self, event: (0,)

    def cuEventQuery(self, event: int) -> tuple[int]:
        return (_NOT_READY if any(thread.is_alive() for thread in self._running) else 0,)

    def cuEventElapsedTime(self, start: int, end: int) -> tuple[int, float]:
        return 0, 1.0

    def _start(self, params: int) -> None:
        """One after the other, as on a stream."""
        if self._launches is not None:
            self._launches.append(params)
            return
        before = self._running[-1:]

        def work() -> None:
            for thread in before:
                thread.join()
            self.host._run(params, 1, _FOR_EVER_S, 0)

        self._running.append(threading.Thread(target=work))
        self._running[-1].start()
