"""How a call's tensors are cut: chunks, tiles, the memory of a rank in place and out of place, and padding.

Chunk k of buffer B begins at base(B) + k chunks; a tile is what one transfer moves of a chunk (docs/xml.md, sections 3 and 4).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from msccl_xml.model import Algo, Buffer
from synth.collective import SHARED, Collective, CollectiveName
from synth.errors import InputError
from synth.execute.program import MAX_COUNT, Place, Program


@dataclass(frozen=True, slots=True)
class Cut:
    """A chunk of `chunk` elements in `tiles` tiles of `tile` elements, the last one shorter; a transfer holds `most` chunks."""

    chunk: int
    tile: int
    tiles: int
    most: int

    def span(self, tile: int) -> tuple[int, int]:
        """First element of a tile within its chunk, and how many there are."""
        first = tile * self.tile
        return first, min(self.tile, self.chunk - first)


def cut_chunk(chunk_elements: int, element_bytes: int, tile_bytes: int, most_tiles: int | None = None) -> Cut:
    """The cut of a chunk of one element or more where a transfer holds at most `tile_bytes` bytes.

    Tiles are larger where there would be more than `most_tiles` of them.

    `most` is the runtimes' maxAllowedCount: above 1 only where whole chunks fit into a tile.
    """
    tile = max(1, tile_bytes // element_bytes)
    if most_tiles is not None:
        tile = max(tile, -(-chunk_elements // most_tiles))
    most = max(1, min(MAX_COUNT, tile_bytes // (chunk_elements * element_bytes)))
    return Cut(chunk_elements, tile, -(-chunk_elements // tile), most)


class Shape(NamedTuple):
    """How many units (a rank's share, or the whole vector where there are no shares) a rank gives and gets."""

    inputs: int
    outputs: int


def shape_of(collective: Collective, rank: int) -> Shape:
    """The units of a rank's two buffers: (1, R) for allgather, (R, 1) for reduce-scatter, (1, 1) for allreduce."""
    unit = collective.per_rank
    return Shape(collective.input_chunks(rank) // unit, collective.output_chunks(rank) // unit)


def due_units(collective: Collective, rank: int) -> tuple[int, ...]:
    """The units of a rank's output that the collective fills: all, or those of the group that takes part."""
    outputs = range(shape_of(collective, rank).outputs)
    if collective.group is None:
        return tuple(outputs)
    if rank not in collective.members:
        return ()
    return collective.group if len(outputs) > 1 else tuple(outputs)


def has_in_place(collective: Collective) -> bool:
    """Whether an in-place call of the collective exists at all."""
    return collective.name is not CollectiveName.ALLTOALL


def layouts_of(algo: Algo, collective: Collective) -> tuple[bool, ...]:
    """The layouts that the file claims to be right for, False for out of place: `inplace` and `outofplace` as runtimes read them."""
    apart = (False,) if algo.outofplace or not algo.inplace else ()
    shared = (True,) if algo.inplace and has_in_place(collective) else ()
    return apart + shared


def padded_unit(collective: Collective, unit: int) -> int:
    """Elements of a unit that the chunk count divides: `unit` where it divides it already, the next multiple where not."""
    pieces = collective.per_rank
    return -(-unit // pieces) * pieces


class Region(NamedTuple):
    """Where a buffer lies: chunk k is chunk k + `shift` of the memory `name`, which has `chunks` chunks."""

    name: str
    shift: int
    chunks: int


Regions = Mapping[Buffer, Region]

INPUT, OUTPUT, SHARED_MEMORY, SCRATCH = "input", "output", "shared", "scratch"


def regions_of(algo: Algo, collective: Collective, rank: int, *, in_place: bool) -> Regions:
    """Where a rank's three buffers lie. In place, `i` and `o` are one memory: the larger of the two."""
    inputs, outputs = collective.input_chunks(rank), collective.output_chunks(rank)
    scratch = Region(SCRATCH, 0, next(gpu.scratch_chunks for gpu in algo.gpus if gpu.id == rank))
    if not in_place:
        return {
            Buffer.INPUT: Region(INPUT, 0, inputs),
            Buffer.OUTPUT: Region(OUTPUT, 0, outputs),
            Buffer.SCRATCH: scratch,
        }
    first_input, first_output = _starts(collective, rank)
    whole = max(inputs, outputs)
    return {
        Buffer.INPUT: Region(SHARED_MEMORY, first_input, whole),
        Buffer.OUTPUT: Region(SHARED_MEMORY, first_output, whole),
        Buffer.SCRATCH: scratch,
    }


def _starts(collective: Collective, rank: int) -> tuple[int, int]:
    """Where `i`0 and `o`0 lie in the shared memory, in chunks: NCCL's own in-place layouts.

    A rank that only gives its share to a gather holds nothing else: the rest of `o` lies outside, before and behind it.
    """
    shift = collective.in_place_shift(rank)
    if shift is None:
        raise InputError("in place", "", collective.name.value, "a collective that has an in-place call")
    if shift < 0 and collective.output_chunks(rank) == 0:
        return 0, shift
    if shift > 0 and collective.input_chunks(rank) == 0:
        return -shift, 0
    return max(0, -shift), max(0, shift)


def check_bounds(program: Program, rank: int, regions: Regions, source: str) -> None:
    """Raise InputError where a step of the rank reaches beyond the buffers that the call really has."""
    for block in program.ranks[rank]:
        for operation in block.operations:
            count = sum(part.chunks for part in operation.parts)
            places: list[Place] = []
            if operation.type.reads_src:
                places += operation.sources
            if operation.type.writes_dst:
                places.append(operation.target)
            for place in places:
                region = regions[place.buffer]
                first = place.offset + region.shift
                if first < 0 or first + count > region.chunks:
                    where = f"gpu {rank} tb {block.tb} step {operation.step}"
                    reach = f"{place.buffer}[{place.offset}..{place.offset + count - 1}]"
                    raise InputError(source, where, reach, f"chunks within the {region.name} of the call")


def shares(collective: Collective) -> int:
    """Units of the whole vector: the ranks where ranks have shares, 1 elsewhere."""
    return collective.num_ranks if collective.name in SHARED else 1
