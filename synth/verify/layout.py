"""Where the buffers of a rank lie in its memory: apart out of place, aliased in place."""

from __future__ import annotations

from dataclasses import dataclass

from msccl_xml.model import Algo, Buffer
from synth.collective import Collective
from synth.verify.errors import VerifyError
from synth.verify.extent import MAX_CHUNKS
from synth.verify.graph import Program, StepRef


@dataclass(frozen=True, slots=True)
class RankMemory:
    """One rank's chunks as addresses: the caller's buffers, apart or shared, then scratch."""

    bases: dict[Buffer, int]
    """the address of chunk 0 of i, o and s"""
    inputs: range
    """the addresses that the caller's send buffer really has"""
    outputs: range
    """and the receive buffer"""
    scratch: range
    shared: bool
    """whether either name reaches both of the caller's buffers"""

    @property
    def size(self) -> int:
        return self.scratch.stop

    def address(self, buffer: Buffer, offset: int) -> int:
        """The address of a chunk, whether or not it exists."""
        return self.bases[buffer] + offset

    def holds(self, buffer: Buffer, offset: int, count: int) -> bool:
        """Whether every one of `count` chunks from `offset` exists."""
        first = self.address(buffer, offset)
        last = first + count - 1
        if buffer is Buffer.SCRATCH:
            return first in self.scratch and last in self.scratch
        in_input = first in self.inputs and last in self.inputs
        if buffer is Buffer.INPUT and not self.shared:
            return in_input
        return (self.shared and in_input) or (first in self.outputs and last in self.outputs)

    def name(self, address: int) -> str:
        """How a file would call the chunk at an address, both names where it has two."""
        names = []
        for buffer, part in zip(Buffer, (self.inputs, self.outputs, self.scratch), strict=True):
            if address in part:
                names.append(f"{buffer}[{address - self.bases[buffer]}]")
        return "=".join(names)


@dataclass(frozen=True, slots=True)
class Layout:
    """How an algorithm is called: in place or out of place, with every rank's memory."""

    in_place: bool
    ranks: tuple[RankMemory, ...]

    def __str__(self) -> str:
        return "in place" if self.in_place else "out of place"


def layouts_of(algo: Algo, collective: Collective) -> list[Layout]:
    """The layouts that `algo` claims to be right for.

    `inplace` claims in-place calls. `outofplace` claims the others; where it is absent or neither is set, a file that
    is not for in-place calls is for out-of-place ones (microsoft/msccl reads `inplace` alone, and so).
    """
    layouts = []
    if algo.outofplace or not algo.inplace:
        layouts.append(Layout(False, tuple(_apart(algo, collective, rank) for rank in range(algo.ngpus))))
    if algo.inplace:
        layouts.append(Layout(True, tuple(_shared(algo, collective, rank) for rank in range(algo.ngpus))))
    return layouts


def _apart(algo: Algo, collective: Collective, rank: int) -> RankMemory:
    inputs, outputs = collective.input_chunks(rank), collective.output_chunks(rank)
    return RankMemory(
        bases={Buffer.INPUT: 0, Buffer.OUTPUT: inputs, Buffer.SCRATCH: inputs + outputs},
        inputs=range(inputs),
        outputs=range(inputs, inputs + outputs),
        scratch=_scratch(algo, rank, inputs + outputs),
        shared=False,
    )


def _shared(algo: Algo, collective: Collective, rank: int) -> RankMemory:
    # ncclCustomCollective knows no shares: in place means one pointer, whatever the file computes.
    shift = 0 if algo.coll == "custom" else collective.in_place_shift(rank)
    if shift is None:
        raise VerifyError(f"inplace=1, but {collective.name} has no in-place call")
    input_base, output_base = max(0, -shift), max(0, shift)
    inputs = range(input_base, input_base + collective.input_chunks(rank))
    outputs = range(output_base, output_base + collective.output_chunks(rank))
    end = max(inputs.stop, outputs.stop)
    return RankMemory(
        bases={Buffer.INPUT: input_base, Buffer.OUTPUT: output_base, Buffer.SCRATCH: end},
        inputs=inputs,
        outputs=outputs,
        scratch=_scratch(algo, rank, end),
        shared=True,
    )


def _scratch(algo: Algo, rank: int, start: int) -> range:
    chunks = next(gpu.scratch_chunks for gpu in algo.gpus if gpu.id == rank)
    return range(start, start + min(chunks, MAX_CHUNKS))


def check_bounds(program: Program, layout: Layout, members: frozenset[int], *, const_input: bool) -> None:
    """Every step stays within the buffers that the call really has, and writes only those of `members`, the ranks that take part;
    `const_input`: and leaves the send buffer alone.

    The parsers compare offsets with the chunk counts of the file only, and NCCL's send buffer is const.
    """
    for ref in (ref for steps in program for ref in steps):
        step, memory = ref.step, layout.ranks[ref.gpu]
        if step.type.writes_dst:
            if step.dst_buffer is not Buffer.SCRATCH and ref.gpu not in members:
                raise VerifyError(f"writes a buffer of gpu {ref.gpu}, which takes no part", (f"  {ref}",))
            if const_input and step.dst_buffer is Buffer.INPUT and not layout.in_place:
                raise VerifyError("writes the send buffer of an out-of-place call", (f"  {ref}",))
            _check_range(ref, memory, layout, step.dst_buffer, step.dst_offset)
        if step.type.reads_src:
            _check_range(ref, memory, layout, step.src_buffer, step.src_offset)
        if step.type.reads_src and step.type.writes_dst:
            apart = abs(
                memory.address(step.src_buffer, step.src_offset) - memory.address(step.dst_buffer, step.dst_offset)
            )
            if 0 < apart < step.count:
                raise VerifyError(f"source and destination overlap in memory when called {layout}", (f"  {ref}",))


def _check_range(ref: StepRef, memory: RankMemory, layout: Layout, buffer: Buffer, offset: int) -> None:
    if not memory.holds(buffer, offset, ref.step.count):
        problem = f"{buffer}[{offset}..{offset + ref.step.count - 1}] does not exist when called {layout}"
        raise VerifyError(problem, (f"  {ref}",))
