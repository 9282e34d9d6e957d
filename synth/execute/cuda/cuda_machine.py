"""A GPU as a machine: threadblocks are CTAs of one cooperative launch, so that all of them run at a time or none does."""

from __future__ import annotations

import ctypes
import time
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synth.errors import InputError
from synth.execute.cuda.abi import DataType, ReduceOp
from synth.execute.cuda.driver import CudaError, called, load_driver
from synth.execute.cuda.kernel import compile_kernel
from synth.execute.cuda.machine import Launch, Tick

#: Threads of a CTA to choose from, the most first: the kernel is compiled for no more than 512.
_THREADS = (512, 256, 128, 64)
#: Launches that are queued before the host looks whether they get on: a full queue would block it.
_BATCH = 256
#: How often the host looks whether a launch is through, and whether anything moves at all. At first it does nothing else.
_POLL_S, _LOOK_S, _SPIN_S = 0.0005, 0.5, 0.002
#: How long an aborted kernel may take to end.
_GRACE_S = 30.0
#: Bytes of what the driver tells other processes about a piece of memory (CU_IPC_HANDLE_SIZE).
_HANDLE_BYTES = 64
#: Room for a place on the PCI bus, "0000:1b:00.0" and the byte that ends it, with a longer domain.
_BUS_ID_BYTES = 32
#: What is exported shares its page of 2 MiB with nothing else: the whole page becomes visible (CUDA's manual on cudaIpc).
_PAGE_BYTES = 2 << 20
#: CTAs of the kernel that divides for the average, for each rank.
_DIVIDERS = 64


class CudaMachine:
    """GPU number `device` of this process.

    Raises InputError where the bindings, the driver or the GPU are missing. `driver` takes the place of NVIDIA's, for tests.
    """

    name = "cuda"
    sharing = "CUDA IPC"

    def __init__(self, device: int = 0, driver: Any = None) -> None:
        self._driver = driver or load_driver()
        count = self._call("cuDeviceGetCount")
        if not 0 <= device < count:
            raise InputError("--device", "", device, f"a GPU from 0 to {count - 1}")
        self.torch_device = f"cuda:{device}"
        self._device = self._call("cuDeviceGet", device)
        self._context = self._call("cuDevicePrimaryCtxRetain", self._device)
        self._call("cuCtxSetCurrent", self._context)
        self._stream = self._call("cuStreamCreate", 1)  # 1: not ordered with the default stream
        self._side = self._call("cuStreamCreate", 1)
        major, minor = self._attribute("COMPUTE_CAPABILITY_MAJOR"), self._attribute("COMPUTE_CAPABILITY_MINOR")
        self.architecture = 10 * major + minor
        self.multiprocessors = self._attribute("MULTIPROCESSOR_COUNT")
        self._pinned: dict[int, int] = {}
        self._kernels: dict[tuple[str, DataType, ReduceOp], tuple[Any, Any]] = {}

    def allocate(self, size_bytes: int) -> int:
        try:
            address = int(self._call("cuMemAlloc", size_bytes))
        except CudaError:
            free, total = self._call("cuMemGetInfo")
            raise InputError(
                "--size", "", f"{size_bytes} bytes", f"less: {free} of the GPU's {total} are free"
            ) from None
        self.fill(address, size_bytes)
        return address

    def allocate_flag(self) -> int:
        host = self._call("cuMemHostAlloc", 8, 2)  # 2: visible to the GPU
        address = int(self._call("cuMemHostGetDevicePointer", host, 0))
        self._pinned[address] = int(host)
        ctypes.memset(int(host), 0, 8)
        return address

    def release(self, address: int) -> None:
        host = self._pinned.pop(address, None)
        if host is None:
            self._call("cuMemFree", address)
        else:
            self._call("cuMemFreeHost", host)

    def fill(self, address: int, size_bytes: int, byte: int = 0) -> None:
        self._call("cuMemsetD8Async", address, byte, size_bytes, self._stream)
        self._call("cuStreamSynchronize", self._stream)

    def write(self, address: int, data: NDArray[Any]) -> None:
        whole = np.ascontiguousarray(data)
        if address in self._pinned:
            ctypes.memmove(self._pinned[address], whole.ctypes.data, whole.nbytes)
            return
        self._call("cuMemcpyHtoDAsync", address, int(whole.ctypes.data), whole.nbytes, self._stream)
        self._call("cuStreamSynchronize", self._stream)

    def read(self, address: int, into: NDArray[Any]) -> None:
        self._call("cuMemcpyDtoHAsync", int(into.ctypes.data), address, into.nbytes, self._stream)
        self._call("cuStreamSynchronize", self._stream)

    def threads_for(self, launch: Launch) -> int:
        """The most threads with which all CTAs are resident; `launch.threads` where that is given."""
        function, _ = self._kernel(launch)
        fits = 0
        for threads in (launch.threads,) if launch.threads else _THREADS:
            each = self._call("cuOccupancyMaxActiveBlocksPerMultiprocessor", function, threads, 0)
            fits = each * self.multiprocessors
            if fits >= launch.num_blocks:
                return threads
        expected = f"at most {fits}: all have to run at a time on {self.multiprocessors} multiprocessors"
        raise InputError("--backend", "cuda", launch.shown, expected)

    def execute(self, launch: Launch, times: int, limit_s: float, tick: Tick | None = None) -> float | None:
        graph = self._capture(launch) if launch.graph else None
        start, end = (self._call("cuEventCreate", 0) for _ in range(2))
        total_ms = 0.0
        try:
            for first in range(0, times, _BATCH):
                self._call("cuEventRecord", start, self._stream)
                for _ in range(min(_BATCH, times - first)):
                    if graph is None:
                        self._start(launch)
                    else:
                        self._call("cuGraphLaunch", graph[1], self._stream)
                self._call("cuEventRecord", end, self._stream)
                if not self._ends(end, launch, limit_s, tick):
                    return None
                total_ms += self._call("cuEventElapsedTime", start, end)
        finally:
            for event in (start, end):
                self._call("cuEventDestroy", event)
            if graph is not None:
                self._call("cuGraphExecDestroy", graph[1])
                self._call("cuGraphDestroy", graph[0])
        return total_ms * 1e3 / times

    @property
    def place(self) -> str:
        """The GPU's place on the PCI bus: what every process calls it, whatever it numbers GPUs by."""
        name: bytes = self._call("cuDeviceGetPCIBusId", _BUS_ID_BYTES, self._device)
        return name.split(b"\0")[0].decode()

    def refusal(self, peer: str, protocol: str) -> str:
        try:
            other = self._call("cuDeviceGetByPCIBusId", peer.encode())
        except CudaError:
            return f"{peer} is hidden from {self.place}: let every process see all GPUs (CUDA_VISIBLE_DEVICES)"
        if not self._call("cuDeviceCanAccessPeer", self._device, other):
            return f"{self.place} cannot reach the memory of {peer}"
        atomics = self._driver.CUdevice_P2PAttribute.CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED
        if protocol == "LL128" and not self._call("cuDeviceGetP2PAttribute", atomics, self._device, other):
            return f"LL128 needs NVLink from {self.place} to {peer}: elsewhere lines of 128 bytes may arrive in parts"
        return ""

    def share(self, size_bytes: int) -> int:
        return self.allocate(-(-size_bytes // _PAGE_BYTES) * _PAGE_BYTES)

    def export(self, address: int) -> bytes:
        handle = self._call("cuIpcGetMemHandle", address)  # what getPtr points to lives as long as the handle
        return ctypes.string_at(handle.getPtr(), _HANDLE_BYTES)

    def open(self, exported: bytes) -> int:
        """Peer access between the two GPUs is switched on."""
        handle = self._driver.CUipcMemHandle()
        ctypes.memmove(handle.getPtr(), exported, _HANDLE_BYTES)
        return int(self._call("cuIpcOpenMemHandle", handle, 1))  # 1: with peer access

    def leave(self, address: int) -> None:
        self._call("cuIpcCloseMemHandle", address)

    def copy_us(self, size_bytes: int, times: int) -> float:
        source, target = self.allocate(size_bytes), self.allocate(size_bytes)
        start, end = (self._call("cuEventCreate", 0) for _ in range(2))
        for number in range(-2, times):
            if number == 0:
                self._call("cuEventRecord", start, self._stream)
            self._call("cuMemcpyDtoDAsync", target, source, size_bytes, self._stream)
        self._call("cuEventRecord", end, self._stream)
        self._call("cuEventSynchronize", end)
        passed_ms: float = self._call("cuEventElapsedTime", start, end)
        for event in (start, end):
            self._call("cuEventDestroy", event)
        for address in (source, target):
            self.release(address)
        return passed_ms * 1e3 / times

    def _start(self, launch: Launch) -> None:
        function, divide = self._kernel(launch)
        params = ((launch.params,), (ctypes.c_void_p,))
        grid = (launch.num_blocks, 1, 1)
        self._call("cuLaunchCooperativeKernel", function, *grid, launch.threads, 1, 1, 0, self._stream, params)
        if launch.op is ReduceOp.AVG:
            ranks = launch.ranks
            both = ((launch.params, ranks.start), (ctypes.c_void_p, ctypes.c_int))
            self._call("cuLaunchKernel", divide, _DIVIDERS, len(ranks), 1, 256, 1, 1, 0, self._stream, both, 0)

    def _capture(self, launch: Launch) -> tuple[Any, Any]:
        """A graph of one launch, and what can be launched of it."""
        self._kernel(launch)  # loading a module may not be captured
        mode = self._driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        self._call("cuStreamBeginCapture", self._stream, mode)
        self._start(launch)
        graph = self._call("cuStreamEndCapture", self._stream)
        return graph, self._call("cuGraphInstantiate", graph, 0)

    def _ends(self, event: Any, launch: Launch, limit_s: float, tick: Tick | None) -> bool:
        """Wait for an event, as long as something moves. False where nothing did and the launch had to be ended."""
        began = time.monotonic()
        moved, seen, look = began, b"", began + _LOOK_S
        stop = partial(self._abort, event, launch)
        try:
            while not self._is_over(event):
                now = time.monotonic()
                if now - began > _SPIN_S:
                    time.sleep(_POLL_S)
                if now < look:
                    continue
                state, look = self._look(launch), now + _LOOK_S
                if tick is not None:
                    tick(state, stop)
                elif state != seen:
                    moved, seen = now, state
                elif now - moved > limit_s:
                    stop()
                    return False
        except CudaError:
            raise
        except BaseException:
            stop()
            raise
        return True

    def _abort(self, event: Any, launch: Launch) -> None:
        self.write(launch.abort, np.ones(1, dtype=np.int64))
        deadline = time.monotonic() + _GRACE_S
        while not self._is_over(event):
            if time.monotonic() > deadline:
                raise CudaError("the kernel hangs and does not end when told to: this process has to be ended")
            time.sleep(_POLL_S)

    def _is_over(self, event: Any) -> bool:
        code = self._driver.cuEventQuery(event)[0]
        if code == self._driver.CUresult.CUDA_ERROR_NOT_READY:
            return False
        called("cuEventQuery", (code,))
        return True

    def _look(self, launch: Launch) -> bytes:
        """All flags as they are now, read beside the running kernel."""
        parts = []
        for address, size_bytes in launch.watched:
            part = np.empty(size_bytes, dtype=np.uint8)
            self._call("cuMemcpyDtoHAsync", int(part.ctypes.data), address, size_bytes, self._side)
            parts.append(part)
        self._call("cuStreamSynchronize", self._side)
        return b"".join(part.tobytes() for part in parts)

    def _kernel(self, launch: Launch) -> tuple[Any, Any]:
        """The two functions of the module that a launch needs, loaded once."""
        wanted = (launch.protocol, launch.dtype, launch.op)
        if wanted not in self._kernels:
            module = self._call("cuModuleLoadData", compile_kernel(self.architecture, *wanted))
            names = (b"synth_run", b"synth_divide")
            self._kernels[wanted] = tuple(self._call("cuModuleGetFunction", module, name) for name in names)
        return self._kernels[wanted]

    def _attribute(self, name: str) -> int:
        attribute = getattr(self._driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(self._call("cuDeviceGetAttribute", attribute, self._device))

    def _call(self, name: str, *arguments: Any) -> Any:
        return called(name, getattr(self._driver, name)(*arguments))
