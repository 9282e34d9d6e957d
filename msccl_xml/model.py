"""The MSCCL XML document as values: an `Algo` of gpus, threadblocks and steps.

The document is what the three interpreters execute (microsoft/msccl, Azure/msccl-executor-nccl, ROCm/rccl). A step's
number is its position in its threadblock, nops included: that is the number `deps` counts, and the one the runtimes use as
long as every nop carries a dependence.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class StepType(StrEnum):
    """What a step does; `src` of a reducing receive is local to the rank that executes it."""

    SEND = "s"
    RECV = "r"
    RECV_COPY_SEND = "rcs"
    RECV_REDUCE_SEND = "rrs"
    RECV_REDUCE_COPY = "rrc"
    RECV_REDUCE_COPY_SEND = "rrcs"
    COPY = "cpy"
    REDUCE = "re"
    NOP = "nop"

    # What a step does is asked for each of a hundred thousand steps several times: known from the start, and not looked up.
    sends: bool
    """Whether the step pushes a message on its threadblock's send connection."""
    receives: bool
    """Whether the step pops a message from its threadblock's receive connection."""
    reads_src: bool
    """Whether the step reads its local source chunks."""
    writes_dst: bool
    """Whether the step writes its local destination chunks."""


for _type in StepType:
    _type.sends = _type in ("s", "rcs", "rrs", "rrcs")
    _type.receives = _type in ("r", "rcs", "rrs", "rrc", "rrcs")
    _type.reads_src = _type in ("s", "rrs", "rrc", "rrcs", "cpy", "re")
    _type.writes_dst = _type in ("r", "rcs", "rrc", "rrcs", "cpy", "re")


class Buffer(StrEnum):
    """The three address spaces of a rank: its send buffer, its receive buffer, its scratch."""

    INPUT = "i"
    OUTPUT = "o"
    SCRATCH = "s"


class Step(NamedTuple):
    """One step of a threadblock; offsets and `count` are in chunks; `depid`/`deps` are -1 without a dependence.

    A tuple, since programs have a hundred thousand, which are made, compared and handed from process to process.
    """

    type: StepType
    src_buffer: Buffer = Buffer.INPUT
    src_offset: int = -1
    dst_buffer: Buffer = Buffer.OUTPUT
    dst_offset: int = -1
    count: int = 1  # type: ignore[assignment]  # the format's word; a step is never asked how often it holds a value
    depid: int = -1
    deps: int = -1
    hasdep: bool = False


@dataclass(frozen=True, slots=True)
class Threadblock:
    """A threadblock: one send peer and one receive peer at most (-1: none), on one channel, for its whole life."""

    id: int
    send: int
    recv: int
    channel: int
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Gpu:
    """One rank's program; the chunk counts bound the offsets of its steps and size its scratch."""

    id: int
    input_chunks: int
    output_chunks: int
    scratch_chunks: int
    threadblocks: tuple[Threadblock, ...]


@dataclass(frozen=True, slots=True)
class Algo:
    """A whole algorithm: what one MSCCL XML file holds.

    `coll` is kept as the file spells it (two runtimes and microsoft/msccl spell reduce-scatter differently). `min_bytes` and
    `max_bytes` are None where the file has no such attribute. `extra` keeps attributes of `<algo>` that no runtime reads.
    """

    name: str
    coll: str
    proto: str
    ngpus: int
    nchannels: int
    nchunksperloop: int
    gpus: tuple[Gpu, ...]
    inplace: bool
    outofplace: bool | None = None
    min_bytes: int | None = None
    max_bytes: int | None = None
    nthreads: int | None = None
    extra: tuple[tuple[str, str], ...] = ()

    @property
    def threadblocks(self) -> int:
        """Threadblocks of the gpu that has the most."""
        return max((len(gpu.threadblocks) for gpu in self.gpus), default=0)

    def steps(self) -> Iterator[tuple[Gpu, Threadblock, int, Step]]:
        """Every step with its gpu, threadblock and number, in file order."""
        for gpu in self.gpus:
            for tb in gpu.threadblocks:
                for number, step in enumerate(tb.steps):
                    yield gpu, tb, number, step
