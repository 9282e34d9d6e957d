"""One instance of a program, before it is written out: steps with numbers, waits by lane, scratch without gaps.

All instances do the same with other parts of every chunk, so one draft serves all programs of a schedule that differ in their
instances alone (emit.py writes them), and those for other protocols and sizes where these make no difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from msccl_xml.limits import Limits, too_many_elements
from msccl_xml.model import Buffer, Step, StepType
from synth.lowering.buffers import Slot
from synth.lowering.deadlock import Waits
from synth.lowering.operations import Lane, Operation
from synth.lowering.threadblocks import Program
from synth.lowering.turns import Turns


@dataclass(frozen=True, slots=True)
class DraftedGpu:
    """What a rank does: lanes of threadblocks, ascending, and the steps of each, which wait for others (`depid`) by the place of
    their lane; memory is named as a single instance has it, with so many slots of scratch.
    """

    lanes: tuple[Lane, ...]
    steps: tuple[tuple[Step, ...], ...]
    scratch: int

    @property
    def elements(self) -> int:
        """Elements of the document: threadblocks and steps."""
        return len(self.lanes) + sum(map(len, self.steps))


@dataclass(frozen=True, slots=True)
class Draft:
    """The ranks of the first box, on `width` channels. One with more threadblocks than are allowed, or more steps than are read,
    which nobody takes, has no waits.
    """

    turns: Turns
    gpus: tuple[DraftedGpu, ...]
    width: int
    parallel: Mapping[int, int] = field(default_factory=dict)
    """channels of every path, as it was asked for"""
    packed: bool = False
    """whether receives and sends share threadblocks wherever they can"""

    @property
    def threadblocks(self) -> int:
        """Of the busiest rank."""
        return max(len(gpu.lanes) for gpu in self.gpus)

    @property
    def steps(self) -> int:
        """Of the longest threadblock."""
        return max((len(steps) for gpu in self.gpus for steps in gpu.steps), default=1)

    @property
    def slots(self) -> int:
        """Steps that there would be if all threadblocks had as many as the longest."""
        return self.threadblocks * self.steps

    def unreadable(self, limits: Limits, instances: int) -> str | None:
        """What is wrong with the first rank that reads more elements of the file than the runtime does, if there is one."""
        for rank, gpu in enumerate(self.gpus):
            problem = too_many_elements(limits, rank, self.turns.ranks, instances * gpu.elements)
            if problem is not None:
                return problem
        return None


class Key(NamedTuple):
    """What a draft of one schedule is made from: those with the same key are the same, unless threadblocks have to part."""

    parallel: tuple[tuple[int, int], ...] | None
    """channels of every path; None where streams have them"""
    channels: tuple[tuple[int, tuple[int, ...]], ...]
    """their numbers, by path, or by stream"""
    packed: bool
    capacity: int
    """transfers that a connection holds"""
    shares_apart: bool
    """whether a message has chunks of several shares, which lie apart where there are several instances"""
    options: tuple[object, ...]
    """what else was asked for"""


class Made(NamedTuple):
    """A draft for connections whose transfers hold so many `chunks`; `calm`: or more of them, since nothing had to part."""

    key: Key
    draft: Draft
    chunks: int
    calm: bool


@dataclass(frozen=True, slots=True)
class Drafts:
    """Drafts of one schedule, the first made first: to be looked up, and added to."""

    made: list[Made] = field(default_factory=list)

    def find(self, key: Key, chunks: int) -> Draft | None:
        """One for connections whose transfers hold so many chunks."""
        for made in self.made:
            if (made.chunks == chunks or (made.calm and made.chunks < chunks)) and made.key == key:
                return made.draft
        return None

    def add(self, made: Iterable[Made]) -> None:
        """Keep more, as far as they are new."""
        for each in made:
            if self.find(each.key, each.chunks) is None:
                self.made.append(each)


def draft_gpu(program: Program, waits: Waits) -> DraftedGpu:
    """What a rank does, of a program whose lanes are in order."""
    scratch = _number_scratch(program)
    awaited = {position for some in waits.values() for position in some}
    place_of = _number_steps(program, waits)
    drafted = []
    for operations in program.values():
        steps: list[Step] = []
        for operation in operations:
            causes = [place_of[position] for position in waits.get(operation.position, ())]
            steps += [Step(StepType.NOP, count=0, depid=lane, deps=step) for lane, step in causes[:-1]]
            steps.append(_step(operation, scratch, causes[-1] if causes else (-1, -1), operation.position in awaited))
        drafted.append(tuple(steps))
    return DraftedGpu(tuple(program), tuple(drafted), len(scratch))


def _number_scratch(program: Program) -> dict[int, int]:
    """New offsets of the scratch slots that are used: in the same order without gaps, so runs of slots stay runs."""
    used: set[int] = set()
    for operations in program.values():
        for operation in operations:
            for slot in operation.ends:
                if slot is not None and slot.buffer is Buffer.SCRATCH:
                    used.update(range(slot.offset, slot.offset + operation.count))
    return {offset: number for number, offset in enumerate(sorted(used))}


def _number_steps(program: Program, waits: Waits) -> dict[tuple[int, int], tuple[int, int]]:
    """By position the place of an operation's lane and its step there, behind nops for all its waits but one: a step waits for one
    other.
    """
    places = {}
    for lane, operations in enumerate(program.values()):
        step = -1
        for operation in operations:
            step += max(1, len(waits.get(operation.position, ())))
            places[operation.position] = (lane, step)
    return places


def _step(operation: Operation, scratch: Mapping[int, int], cause: tuple[int, int], awaited: bool) -> Step:
    src, dst = operation.ends
    return Step(
        operation.type,
        src.buffer if src else Buffer.INPUT,
        _offset(src, scratch),
        dst.buffer if dst else Buffer.OUTPUT,
        _offset(dst, scratch),
        operation.count,
        *cause,
        awaited,
    )


def _offset(slot: Slot | None, scratch: Mapping[int, int]) -> int:
    """Where a single instance has the slot."""
    if slot is None:
        return -1
    return scratch[slot.offset] if slot.buffer is Buffer.SCRATCH else slot.offset
