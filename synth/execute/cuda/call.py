"""One call of a collective: how many elements of which type, how combined, in place or not; and where each buffer begins.

A share is what one rank contributes or gets where ranks have shares, and the vector otherwise. A share need not be a multiple of its
chunks: chunks are then rounded up, and the last ones are short or empty.
"""

from __future__ import annotations

from dataclasses import dataclass

from msccl_xml.model import Algo, Buffer
from synth.collective import SHARED, Collective
from synth.errors import InputError
from synth.execute.cuda.abi import DataType, ReduceOp


@dataclass(frozen=True, slots=True)
class Call:
    """`share` elements of `dtype` in each share. `op` counts for combining collectives alone. InputError for an empty share, and in
    place where the collective has no such call."""

    collective: Collective
    share: int
    dtype: DataType = DataType.FLOAT32
    op: ReduceOp = ReduceOp.SUM
    in_place: bool = False
    one_pointer: bool = False
    """In place, both buffers begin at the same address whatever the collective (`coll="custom"`)."""

    def __post_init__(self) -> None:
        if self.share < 1:
            raise InputError("--size", "", self.share, "at least one element for every rank")
        if self.in_place and self.collective.in_place_shift(0) is None:
            raise InputError("--in-place", "", "yes", f"no: {self.collective.name} has no in-place call")

    @property
    def chunk(self) -> int:
        """Elements of a chunk, the last of a share left out."""
        return -(-self.share // self.collective.per_rank)

    @property
    def buffer_bytes(self) -> int:
        """The size of the call as nccl-tests counts it."""
        shares = self.collective.num_ranks if self.collective.name in SHARED else 1
        return shares * self.share * self.dtype.item_bytes

    def input_elements(self, rank: int) -> int:
        """Elements of the rank's input buffer; 0 where it has none."""
        return self.collective.input_chunks(rank) // self.collective.per_rank * self.share

    def output_elements(self, rank: int) -> int:
        """Elements of the rank's output buffer; 0 where it has none."""
        return self.collective.output_chunks(rank) // self.collective.per_rank * self.share

    def offsets(self, rank: int) -> tuple[int, int, int]:
        """Where the input and the output begin in the caller's memory, in elements, and how many elements it has altogether.

        Out of place the two are apart, each at 0 of its own memory, and the third figure means nothing: it is 0.
        """
        if not self.in_place:
            return 0, 0, 0
        shift = 0 if self.one_pointer else self.collective.in_place_shift(rank) or 0
        shift = shift // self.collective.per_rank * self.share
        first_in, first_out = max(0, -shift), max(0, shift)
        return (
            first_in,
            first_out,
            max(first_in + self.input_elements(rank), first_out + self.output_elements(rank)),
        )


def elements_of(collective: Collective, buffer_bytes: int, dtype: DataType) -> int:
    """Elements of a share for a buffer of `buffer_bytes` as nccl-tests counts it, rounded down; at least 1."""
    shares = collective.num_ranks if collective.name in SHARED else 1
    return max(1, buffer_bytes // (shares * dtype.item_bytes))


def check_places(algo: Algo, call: Call) -> None:
    """Raise InputError for a step that reaches beyond the buffers that the call really has."""
    reach = {gpu.id: _reach(algo, call, gpu.id, gpu.scratch_chunks) for gpu in algo.gpus}
    for gpu, tb, number, step in algo.steps():
        used = []
        if step.type.writes_dst:
            used.append(("dst", step.dst_buffer, step.dst_offset))
        if step.type.reads_src:
            used.append(("src", step.src_buffer, step.src_offset))
        for side, buffer, offset in used:
            parts = reach[gpu.id][buffer]
            if step.count and not any(offset in part and offset + step.count - 1 in part for part in parts):
                where = f"gpu {gpu.id} tb {tb.id} step {number}: {side}off"
                held = " or ".join(f"{part.start} to {part.stop - 1}" for part in parts if part) or "no chunk at all"
                raise InputError(algo.name or "algo", where, f"{buffer}[{offset}] and {step.count} chunks", held)


def _reach(algo: Algo, call: Call, rank: int, scratch: int) -> dict[Buffer, list[range]]:
    """The chunks that a name reaches: in place, either name reaches both of the caller's buffers. None lies below 0."""
    collective = call.collective
    inputs, outputs = range(collective.input_chunks(rank)), range(collective.output_chunks(rank))
    reach = {Buffer.INPUT: [inputs], Buffer.OUTPUT: [outputs], Buffer.SCRATCH: [range(scratch)]}
    if call.in_place:
        shift = 0 if call.one_pointer else collective.in_place_shift(rank) or 0
        reach[Buffer.INPUT].append(_from_zero(outputs, shift))
        reach[Buffer.OUTPUT].append(_from_zero(inputs, -shift))
    return reach


def _from_zero(chunks: range, shift: int) -> range:
    return range(max(0, chunks.start + shift), max(0, chunks.stop + shift))
