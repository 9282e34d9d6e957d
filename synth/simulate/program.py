"""An `Algo` as the interpreter runs it at one size: threadblocks of operations, connections, flags.

The parser's work is done here: nops become waits of the next real step, counts are split by the allowed maximum, and a wait for
a step is one for the first flag published at or after it (msccl-xml notes, sections 4.2 and 5).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from msccl_xml.model import Algo, Gpu, StepType, Threadblock
from synth.errors import InputError

#: Largest count of one transfer (MSCCL_MAX_COUNT - 1).
_MAX_COUNT = 71


class Connection(NamedTuple):
    """One direction between two ranks on one channel."""

    src: int
    dst: int
    channel: int


class Wait(NamedTuple):
    """Go on once threadblock `tb` (a position) has done `operations` of its operations in this tile."""

    tb: int
    operations: int


class Operation(NamedTuple):
    """One transfer's worth of a step: `chunks` chunks of the present tile; waits are looked at before it starts."""

    type: StepType
    chunks: int
    waits: tuple[Wait, ...]
    step: int


@dataclass(frozen=True, slots=True)
class Block:
    """A threadblock of some rank; connections are positions in `Program.connections`, -1 for none."""

    rank: int
    tb: int
    send: int
    recv: int
    operations: tuple[Operation, ...]


@dataclass(frozen=True)
class Program:
    """All threadblocks of all ranks, and how a chunk is cut into tiles: `tiles` of `tile_bytes`, the last of `last_bytes`."""

    blocks: tuple[Block, ...]
    connections: tuple[Connection, ...]
    tiles: int
    tile_bytes: float
    last_bytes: float

    def bytes_of(self, tile: int) -> float:
        """Bytes of one chunk that are moved in a tile."""
        return self.last_bytes if tile == self.tiles - 1 else self.tile_bytes

    def shortened(self, tiles: int) -> Program:
        """The program with fewer full tiles; the last stays the last."""
        return Program(self.blocks, self.connections, tiles, self.tile_bytes, self.last_bytes)


def compile_algo(algo: Algo, buffer_bytes: int, protocol_tile_bytes: int) -> Program:
    """The program for a buffer of `buffer_bytes` as nccl-tests counts it; one transfer holds at most a protocol's tile.

    Raises InputError for a wait that no flag ever ends.
    """
    chunk_bytes = buffer_bytes / algo.nchunksperloop
    tiles = max(1, -int(-chunk_bytes // protocol_tile_bytes))
    most = max(1, min(_MAX_COUNT, int(protocol_tile_bytes // max(1.0, chunk_bytes))))
    connections: dict[Connection, int] = {}
    place = {(gpu.id, tb.id): position for position, (gpu, tb) in enumerate(_blocks(algo))}
    ends: dict[tuple[int, int], list[int]] = {}
    drafts = []
    for gpu, tb in _blocks(algo):
        operations, done = _operations(tb, most)
        ends[gpu.id, tb.id] = done
        drafts.append((gpu, tb, operations))
    blocks = []
    for gpu, tb, operations in drafts:
        resolved = tuple(
            Operation(kind, chunks, tuple(_wait(algo, gpu, dep, place, ends) for dep in deps), step)
            for kind, chunks, deps, step in operations
        )
        sends = any(operation.type.sends for operation in resolved)
        receives = any(operation.type.receives for operation in resolved)
        send = connections.setdefault(Connection(gpu.id, tb.send, tb.channel), len(connections)) if sends else -1
        recv = connections.setdefault(Connection(tb.recv, gpu.id, tb.channel), len(connections)) if receives else -1
        blocks.append(Block(gpu.id, tb.id, send, recv, resolved))
    last = chunk_bytes - (tiles - 1) * protocol_tile_bytes
    return Program(tuple(blocks), tuple(connections), tiles, float(protocol_tile_bytes), last)


def _blocks(algo: Algo) -> list[tuple[Gpu, Threadblock]]:
    return [(gpu, tb) for gpu in algo.gpus for tb in gpu.threadblocks]


_Draft = tuple[StepType, int, list[tuple[int, int]], int]


def _operations(tb: Threadblock, most: int) -> tuple[list[_Draft], list[int]]:
    """The threadblock's transfers with the (tb, step) pairs each waits for, and how many are done after each step."""
    operations: list[_Draft] = []
    done: list[int] = []
    pending: list[tuple[int, int]] = []
    for number, step in enumerate(tb.steps):
        if step.depid >= 0:
            pending.append((step.depid, step.deps))
        if step.type is not StepType.NOP:
            left = step.count
            while left > 0:
                chunks = min(left, most)
                operations.append((step.type, chunks, pending, number))
                pending = []
                left -= chunks
            pending = []
        done.append(len(operations))
    return operations, done


def _wait(
    algo: Algo,
    gpu: Gpu,
    dep: tuple[int, int],
    place: dict[tuple[int, int], int],
    ends: dict[tuple[int, int], list[int]],
) -> Wait:
    """The wait for `dep` = (tb, step): for the first step at or after it that publishes its progress."""
    awaited = {tb.id: tb for tb in gpu.threadblocks}.get(dep[0])
    steps = awaited.steps if awaited is not None else ()
    for number in range(max(dep[1], 0), len(steps)):
        if steps[number].hasdep:
            return Wait(place[gpu.id, dep[0]], ends[gpu.id, dep[0]][number])
    field = f"gpu {gpu.id}, depid {dep[0]}, deps {dep[1]}"
    raise InputError(algo.name, field, "no flag", "a step with hasdep=1 at or after the one waited for")
