"""What a caller may ask of lowering, and the figures of the runtimes that shape its answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from msccl_xml.limits import LIMITS, Limits
from msccl_xml.model import StepType
from synth.constants import IN_FLIGHT
from synth.errors import InputError

Runtime = Literal["msccl", "executor", "rccl"]
Protocol = Literal["Simple", "LL", "LL128"]

#: Steps of a threadblock, nops included, that all three runtimes load; kept to where threadblocks allow it.
PORTABLE_STEPS = 64
#: Channels that every runtime connects (MAXCHANNELS of microsoft/msccl and msccl-executor-nccl).
MAX_CHANNELS = 32


@dataclass(frozen=True, slots=True)
class LoweringOptions:
    """How a schedule becomes a program. Raises InputError for a value that no program can have."""

    runtime: Runtime = "msccl"
    protocol: Protocol = "Simple"
    inplace: bool = False
    both_layouts: bool = False
    """One file for in-place and out-of-place calls: executor and rccl only, where the collective has the former."""
    instances: int = 1
    """Parallel copies on channels of their own, each moving that part of every chunk."""
    max_threadblocks: int = 64
    """Threadblocks of one gpu; all have to run at the same time, so the gpu's multiprocessors bound it."""
    channels: int | None = None
    """Parallel channels of every path; None: as many as its share of bandwidth needs."""
    min_bytes: int = 0
    max_bytes: int = 1 << 30
    """The largest buffer that the program is for: the longer its chunks are, the fewer of them are in flight at a time, and the more
    threadblocks may have to part for nobody to wait for ever."""
    name: str = ""
    few_steps: bool = True
    """Whether threadblocks have no more steps than all runtimes load, as far as there are threadblocks for that; else no more than
    this one does: the fewer share a link, the sooner each of their messages is there."""
    reuses_scratch: bool = True
    """Whether a slot of scratch is given to another chunk once nobody needs it any more, for which the other may have to wait."""

    def __post_init__(self) -> None:
        if self.runtime not in LIMITS:
            raise InputError("--runtime", "", self.runtime, "msccl, executor or rccl")
        if self.protocol not in IN_FLIGHT:
            raise InputError("--protocol", "", self.protocol, "Simple, LL or LL128")
        if not 1 <= self.instances <= MAX_CHANNELS:
            raise InputError("--instances", "", self.instances, f"1 to {MAX_CHANNELS}")
        if self.max_threadblocks < 1:
            raise InputError("--max-threadblocks", "", self.max_threadblocks, "1 or more")
        if self.channels is not None and not 1 <= self.channels <= MAX_CHANNELS:
            raise InputError("--channels", "", self.channels, f"1 to {MAX_CHANNELS}")

    @property
    def limits(self) -> Limits:
        """What the runtime loads."""
        return LIMITS[self.runtime]

    @property
    def steps(self) -> int:
        """Steps that a threadblock is kept to where there are threadblocks for that."""
        return PORTABLE_STEPS if self.few_steps else self.limits.steps

    @property
    def fuses(self) -> bool:
        """Whether every build of the runtime runs steps that receive and do something else as well (rcs, rrc, ...)."""
        return self.limits.basic_types == frozenset(StepType)

    @property
    def threadblocks(self) -> int:
        """Threadblocks that a gpu may have: asked for and loadable."""
        return min(self.max_threadblocks, self.limits.threadblocks)

    @property
    def capacity(self) -> int:
        """Transfers that a connection holds."""
        return IN_FLIGHT[self.protocol]
