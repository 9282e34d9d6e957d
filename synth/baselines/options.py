"""What a caller may ask of a baseline, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass

from msccl_xml.limits import LIMITS
from msccl_xml.model import Algo
from msccl_xml.write import MAX_NAME
from synth.collective import Collective
from synth.errors import InputError
from synth.instance import Instance
from synth.ir import Schedule
from synth.lowering import LoweringOptions, Protocol, Runtime


@dataclass(frozen=True, slots=True)
class BaselineOptions:
    """How a baseline is built; the names and their meaning are the command line's.

    `chunks`: what the vector is cut into, or each rank's share where ranks have shares; None: what suits the algorithm and,
    where pieces follow each other in a pipeline, the size. Raises InputError for a value that no program can have.
    """

    chunks: int | None = None
    protocol: Protocol = "Simple"
    runtime: Runtime = "msccl"
    inplace: bool = False
    instances: int = 1
    max_threadblocks: int = 64
    root: int = 0
    """of collectives that have one; others do not look at it"""
    max_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        if self.chunks is not None and self.chunks < 1:
            raise InputError("--chunks", "", self.chunks, "1 or more")
        self.lowering("", "")

    def lowering(self, baseline: str, machine: str) -> LoweringOptions:
        """The options of lowering for a baseline on a machine, which name the file."""
        return LoweringOptions(
            runtime=self.runtime,
            protocol=self.protocol,
            inplace=self.inplace,
            instances=self.instances,
            max_threadblocks=min(self.max_threadblocks, LIMITS[self.runtime].threadblocks)
            if self.runtime in LIMITS
            else self.max_threadblocks,
            max_bytes=self.max_bytes,
            name=f"baseline-{baseline}-{machine}"[:MAX_NAME],
        )


@dataclass(frozen=True, slots=True)
class Built:
    """A baseline as a program, the schedule (cost level 2) on the instance that it came from, and what the program computes.

    `collective` has the chunks of all instances: it is what the judge is given.
    """

    algo: Algo
    instance: Instance
    schedule: Schedule
    collective: Collective
