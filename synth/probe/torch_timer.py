"""Timing copies between GPUs with torch and CUDA events (or HIP's, under ROCm)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from statistics import median
from typing import Any

from synth.errors import SynthError
from synth.probe.measure import Pair

_ROUNDS = 5
#: Copies of one round, by the bytes that they move together: enough that the events' own resolution does not count.
_ROUND_BYTES = 256 << 20
_FEWEST, _MOST = 4, 50
#: Cycles that a GPU waits before a round, so that all copies are queued before the first begins (a few milliseconds).
_WAIT_CYCLES = 8_000_000


class TorchTimer:
    """A `Timer` on this machine's GPUs, in the order of their PCI addresses, which is NVML's.

    Raises SynthError where torch is missing, sees no GPU, or sees another number of GPUs than `ranks`.
    """

    def __init__(self, ranks: int) -> None:
        # CUDA numbers the fastest GPU first unless told otherwise, before its first call.
        os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        try:
            import torch
        except ImportError:
            raise SynthError(
                "--measure: torch is not installed: pip install 'synth[run]', or probe without it"
            ) from None
        if not torch.cuda.is_available():
            raise SynthError("--measure: torch sees no GPU: its build and the driver may not fit, or no GPU is free")
        count = torch.cuda.device_count()
        if count != ranks:
            raise SynthError(
                f"--measure: torch sees {count} GPUs and the probe {ranks}: unset CUDA_VISIBLE_DEVICES (and the like)"
            )
        self._torch = torch

    def copy_us(self, pairs: Sequence[Pair], size_bytes: int) -> tuple[float, ...]:
        """As `Timer.copy_us`; raises SynthError where the GPUs have no room for the buffers or refuse the copy."""
        try:
            copies = [_Copy(self._torch, pair, size_bytes) for pair in pairs]
            repeats = min(_MOST, max(_FEWEST, _ROUND_BYTES // size_bytes))
            rounds = [self._round(copies, repeats) for _ in range(1 + _ROUNDS)][1:]
        except RuntimeError as error:  # torch's out of memory and CUDA errors are RuntimeErrors
            told = str(error).partition("\n")[0]
            raise SynthError(f"--measure: copying {size_bytes} bytes between {list(pairs)}: {told}") from error
        return tuple(median(times) for times in zip(*rounds, strict=True))

    def _round(self, copies: Sequence[_Copy], repeats: int) -> list[float]:
        for copy in copies:
            copy.hold()
        for copy in copies:
            copy.queue(repeats)
        return [copy.finish() / repeats for copy in copies]


class _Copy:
    """Repeated copies of one buffer over streams of their own, at both ends: torch makes either wait for the other."""

    def __init__(self, torch: Any, pair: Pair, size_bytes: int) -> None:
        self.torch = torch
        src, dst = (torch.device("cuda", rank) for rank in pair)
        self.source = torch.zeros(size_bytes, dtype=torch.uint8, device=src)
        self.target = torch.empty(size_bytes, dtype=torch.uint8, device=dst)
        self.streams = [torch.cuda.Stream(device) for device in dict.fromkeys((dst, src))]
        with torch.cuda.device(src):
            self.start, self.end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize(src)
        torch.cuda.synchronize(dst)

    def hold(self) -> None:
        """Keep the source's stream busy for a moment."""
        with self.torch.cuda.stream(self.streams[-1]):
            self.torch.cuda._sleep(_WAIT_CYCLES)

    def queue(self, repeats: int) -> None:
        """Queue the copies between the two events."""
        with self.torch.cuda.stream(self.streams[0]), self.torch.cuda.stream(self.streams[-1]):
            self.start.record(self.streams[-1])
            for _ in range(repeats):
                self.target.copy_(self.source, non_blocking=True)
            self.end.record(self.streams[-1])

    def finish(self) -> float:
        """Wait for the copies; the us that all of them took."""
        self.end.synchronize()
        return float(self.start.elapsed_time(self.end)) * 1e3
