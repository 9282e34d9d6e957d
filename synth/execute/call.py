"""What all engines are asked to run: one rank's part of a program on tensors."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from synth.errors import SynthError
from synth.execute.layout import Cut, Regions
from synth.execute.program import Block, Part, Place, Program

if TYPE_CHECKING:
    import torch

    from synth.execute.watch import Watch


@dataclass(frozen=True)
class Call:
    """One rank's part of one collective call: the program, how chunks are cut, where its memory lies, and the reduction.

    `memories` are flat, contiguous tensors of one type by the names of `regions`. `target_first` is the order of fused sums.
    `unit` is the elements of a share (the vector where there are none), as many as the chunks divide unless the engine takes any.
    """

    program: Program
    rank: int
    cut: Cut
    regions: Regions
    memories: Mapping[str, torch.Tensor]
    op: str
    target_first: bool
    unit: int

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """The rank's threadblocks."""
        return self.program.ranks[self.rank]

    @cached_property
    def like(self) -> torch.Tensor:
        """A tensor of the call's type and device."""
        return next(iter(self.memories.values()))

    def view(self, place: Place, part: Part, tile: int) -> torch.Tensor:
        """The elements of a part in a tile. Several chunks are moved at once only where a chunk is one tile."""
        region = self.regions[place.buffer]
        chunk = place.offset + region.shift + part.first
        first, size = self.cut.span(tile)
        start = chunk * self.cut.chunk + first
        return self.memories[region.name][start : start + (size if part.chunks == 1 else part.chunks * self.cut.chunk)]

    def elements(self, part: Part, tile: int) -> int:
        """How many elements a part moves in a tile."""
        return self.cut.span(tile)[1] if part.chunks == 1 else part.chunks * self.cut.chunk


class Engine(Protocol):
    """Something that runs calls, one after the other, on the ranks of one process group."""

    @property
    def most_tiles(self) -> int | None:
        """Into how many tiles a chunk is cut at most; None without limit."""

    @property
    def own(self) -> bool:
        """Whether it is synth's own interpreter: takes units that the chunks do not divide, divides averages, and times itself."""

    @property
    def remark(self) -> str:
        """What has to be said with its figures; "" for nothing."""

    def run(self, call: Call, watch: Watch) -> None:
        """Run this rank's part; returns when it is done. After any error the engine is of no more use."""

    def repeat(self, call: Call, watch: Watch, times: int) -> float:
        """Run it so many times as fast as can be: microseconds of one, by the engine's own clock."""

    def close(self) -> None:
        """Let go of threads and buffers."""


class TorchEngine(ABC):
    """What engines that move tensors by torch's messages have in common."""

    own = False
    remark = ""

    @abstractmethod
    def run(self, call: Call, watch: Watch) -> None:
        """As `Engine.run`."""

    def repeat(self, call: Call, watch: Watch, times: int) -> float:
        """One call after the other, to the end of the last one."""
        started = time.perf_counter()
        for _ in range(times):
            self.run(call, watch)
        if call.like.is_cuda:
            import torch

            torch.cuda.synchronize()
        return (time.perf_counter() - started) * 1e6 / times


class BrokenError(SynthError):
    """An engine that failed before was used again."""
