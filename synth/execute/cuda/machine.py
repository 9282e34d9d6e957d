"""What a run needs of the machine it runs on: memory at addresses, and launches. The host and CUDA each have one of these."""

from __future__ import annotations

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


class Machine(Protocol):
    """Memory and launches. Addresses are integers; memory is 0 when allocated."""

    name: str

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

    def execute(self, launch: Launch, times: int, limit_s: float) -> float | None:
        """Launch so many times; microseconds of one. None once nothing has moved for `limit_s`, or nothing can move any more."""

    def copy_us(self, size_bytes: int, times: int) -> float:
        """Microseconds that a copy of so many bytes from memory to memory takes."""
