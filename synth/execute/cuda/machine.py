"""What a run needs of the machine it runs on: memory at addresses, and launches. The host and CUDA each have one of these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from synth.execute.cuda.abi import DataType, ReduceOp


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch: which kernel, over how many threadblocks, of how many threads, with the parameters at which address."""

    protocol: str
    dtype: DataType
    op: ReduceOp
    params: int
    num_blocks: int
    threads: int
    ranks: range
    """The ranks whose threadblocks these are."""
    abort: int
    """Address of the word that ends the launch."""
    watched: tuple[tuple[int, int], ...]
    """(address, bytes) of the flags: as long as they change, the launch is getting on."""
    alone: bool = True
    """Whether no other process has a part in the algorithm."""
    graph: bool = False
    """Whether to launch through a graph, where the machine has them."""

    @property
    def shown(self) -> str:
        """What is launched, in words, for a machine that has no room for it."""
        blocks = f"{self.num_blocks} threadblocks"
        return blocks if self.alone else f"{blocks} of rank {self.ranks.start}"


Tick = Callable[[bytes, Callable[[], None]], None]
"""Looks on while a launch runs: is given all watched flags as they are, and what ends the launch and waits for its end.

It may raise; the launch is then ended before the error goes on.
"""


class Machine(Protocol):
    """Memory and launches. Addresses are integers; memory is 0 when allocated."""

    name: str
    multiprocessors: int
    """How many threadblocks run side by side without taking turns."""

    def allocate(self, size_bytes: int) -> int:
        """The address of new memory, on a boundary of 256 bytes. InputError where there is not so much."""

    def allocate_flag(self) -> int:
        """The address of one word that the host can write while a launch runs."""

    def release(self, address: int) -> None:
        """Give back what was allocated."""

    def fill(self, address: int, size_bytes: int, byte: int = 0) -> None:
        """Set every byte of a piece of memory."""

    def write(self, address: int, data: NDArray[Any]) -> None:
        """Put an array there."""

    def read(self, address: int, into: NDArray[Any]) -> None:
        """Fill an array from there."""

    def threads_for(self, launch: Launch) -> int:
        """Threads of a threadblock: `launch.threads`, or what suits the machine where that is 0.

        Raises InputError, with the counts, where not all threadblocks can run at a time.
        """

    def execute(self, launch: Launch, times: int, limit_s: float, tick: Tick | None = None) -> float | None:
        """Launch so many times; microseconds of one. None once nothing has moved for `limit_s`, or nothing can move any more.

        With a `tick` that is for it to judge: `limit_s` then counts for nothing.
        """

    def copy_us(self, size_bytes: int, times: int) -> float:
        """Microseconds that a copy of so many bytes from memory to memory takes."""


class SharingMachine(Machine, Protocol):
    """A machine whose memory other processes can open."""

    torch_device: str
    """Where torch's tensors lie that its launches can reach: cpu, cuda:0."""
    sharing: str
    """How its memory is shared, in words."""

    @property
    def place(self) -> str:
        """What tells it from the other processes' machines; "" where several processes may have the same."""

    def refusal(self, peer: str, protocol: str) -> str:
        """Why it cannot exchange data by `protocol` with the machine whose `place` is `peer`; "" where it can."""

    def share(self, size_bytes: int) -> int:
        """The address of new memory, all 0, that can be exported; `release` gives it back."""

    def export(self, address: int) -> bytes:
        """What another process needs to open memory that was shared here."""

    def open(self, exported: bytes) -> int:
        """The address here of memory that another process exported. OSError or CudaError where that cannot be."""

    def leave(self, address: int) -> None:
        """Let go of memory that was opened."""
