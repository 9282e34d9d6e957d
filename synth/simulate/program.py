"""An `Algo` as the interpreter runs it at one size: threadblocks of operations, connections, flags.

The parser's work is done here: nops become waits of the next real step, runs of `re` into one place become one operation, counts are
split by the allowed maximum, and a wait for a step is one for the first flag published at or after it (msccl-xml notes, sections
4.2 and 5).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from msccl_xml.model import Algo, Gpu, Step, StepType, Threadblock
from synth.errors import InputError

#: Largest count of a step, and of one transfer (MSCCL_MAX_COUNT - 1): no runtime loads more.
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
    """One transfer's worth of a step: `chunks` chunks of the present tile; waits are looked at before it starts.

    `sources` is how many chunks are read and added for each one written: above 1 for a fused run of `re`.
    """

    type: StepType
    chunks: int
    waits: tuple[Wait, ...]
    step: int
    sources: int = 1

    def waiting(self, waits: tuple[Wait, ...]) -> Operation:
        """The operation with these waits instead of its own."""
        return Operation(self.type, self.chunks, waits, self.step, self.sources)


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


class Code(NamedTuple):
    """The threadblocks of a program and their connections, the same for all sizes that allow as many chunks a transfer."""

    blocks: tuple[Block, ...]
    connections: tuple[Connection, ...]


class Compiler:
    """An algorithm under a protocol whose transfers hold up to `tile_bytes`: the program at any size.

    Raises InputError for what no run can carry out: a wait that no flag ever ends, a step whose threadblock lacks the connection,
    two threadblocks on one end of a connection, a count above 71, no chunks, a gpu twice or beyond the ranks.
    """

    def __init__(self, algo: Algo, tile_bytes: int) -> None:
        if algo.nchunksperloop < 1:
            raise InputError(algo.name or "algo", "nchunksperloop", algo.nchunksperloop, "1 or more")
        _check_gpus(algo)
        self._most_chunks = 1
        for gpu, tb, number, step in algo.steps():
            if not 0 <= step.count <= _MAX_COUNT:
                where = f"gpu {gpu.id} tb {tb.id} step {number}: cnt"
                raise InputError(algo.name or "algo", where, step.count, f"0 to {_MAX_COUNT}")
            self._most_chunks = max(self._most_chunks, step.count)
        self._algo = algo
        self._tile_bytes = tile_bytes
        self._codes: dict[int, Code] = {}

    def program(self, buffer_bytes: int) -> Program:
        """The program for a buffer of `buffer_bytes` as nccl-tests counts it."""
        chunks, tile_bytes = self._algo.nchunksperloop, self._tile_bytes
        whole_bytes = max(1, -(-buffer_bytes // chunks))
        tiles = -(-whole_bytes // tile_bytes)
        most = max(1, min(self._most_chunks, tile_bytes // whole_bytes))
        if most not in self._codes:
            self._codes[most] = _code(self._algo, most)
        last = buffer_bytes / chunks - (tiles - 1) * tile_bytes
        return Program(*self._codes[most], tiles, float(tile_bytes), last)


def compile_algo(algo: Algo, buffer_bytes: int, protocol_tile_bytes: int) -> Program:
    """`Compiler` for one size."""
    return Compiler(algo, protocol_tile_bytes).program(buffer_bytes)


def _code(algo: Algo, most: int) -> Code:
    """The threadblocks where a transfer holds at most `most` chunks."""
    drafts = [_draft(gpu, tb, most) for gpu in algo.gpus for tb in gpu.threadblocks]
    place = {(draft.gpu.id, draft.tb.id): position for position, draft in enumerate(drafts)}
    connections: dict[Connection, int] = {}
    ends: set[tuple[int, bool]] = set()
    blocks = []
    for draft in drafts:
        operations = tuple(
            operation.waiting(tuple([_wait(algo, draft, drafts, place, dep) for dep in deps])) if deps else operation
            for operation, deps in zip(draft.operations, draft.deps, strict=True)
        )
        send, recv = _connect(algo, draft, connections, ends)
        blocks.append(Block(draft.gpu.id, draft.tb.id, send, recv, operations))
    return Code(tuple(blocks), tuple(connections))


def _check_gpus(algo: Algo) -> None:
    seen: set[int] = set()
    for gpu in algo.gpus:
        if not 0 <= gpu.id < algo.ngpus or gpu.id in seen:
            raise InputError(algo.name or "algo", "gpu", gpu.id, f"ids from 0 to {algo.ngpus - 1}, each once")
        seen.add(gpu.id)


@dataclass
class _Draft:
    """A threadblock's operations, the (tb, step) pairs that each waits for, and how many are done after each step."""

    gpu: Gpu
    tb: Threadblock
    operations: list[Operation] = field(default_factory=list)
    deps: list[list[tuple[int, int]]] = field(default_factory=list)
    done: list[int] = field(default_factory=list)


def _draft(gpu: Gpu, tb: Threadblock, most: int) -> _Draft:
    draft = _Draft(gpu, tb)
    pending: list[tuple[int, int]] = []
    before: Step | None = None
    for number, step in enumerate(tb.steps):
        if step.depid >= 0:
            pending.append((step.depid, step.deps))
        if step.type is not StepType.NOP:
            if before is not None and not pending and _fuses(before, step):
                last = draft.operations.pop()
                draft.operations.append(last._replace(chunks=step.count, sources=last.sources + 1))
            else:
                for chunks in _groups(step, most) if step.count > most else (step.count,):
                    draft.operations.append(Operation(step.type, chunks, (), number))
                    draft.deps.append(pending)
                    pending = []
            before = step
        draft.done.append(len(draft.operations))
    return draft


def _fuses(before: Step, step: Step) -> bool:
    """Whether the parser makes one instruction of two `re`s in a row (msccl-xml notes, section 5.3)."""
    if step.type is not StepType.REDUCE or before.type is not StepType.REDUCE or before.hasdep:
        return False
    places = [(each.dst_buffer, each.dst_offset, each.src_buffer) for each in (before, step)]
    return places[0] == places[1]


def _groups(step: Step, most: int) -> Iterator[int]:
    """The chunks of each transfer of a step. Local steps have no transfers; one of no chunks still waits and publishes."""
    if not (step.type.sends or step.type.receives) or step.count == 0:
        yield step.count
        return
    for first in range(0, step.count, most):
        yield min(most, step.count - first)


def _connect(
    algo: Algo, draft: _Draft, connections: dict[Connection, int], ends: set[tuple[int, bool]]
) -> tuple[int, int]:
    """The threadblock's send and receive connection, numbered as they are met; -1 where it needs none."""
    rank, tb = draft.gpu.id, draft.tb
    found = []
    for needed, peer, sends in (
        (any(operation.type.sends and operation.chunks for operation in draft.operations), tb.send, True),
        (any(operation.type.receives and operation.chunks for operation in draft.operations), tb.recv, False),
    ):
        if not needed:
            found.append(-1)
            continue
        where = f"gpu {rank} tb {tb.id}"
        if not 0 <= peer < algo.ngpus or peer == rank:
            raise InputError(
                algo.name or "algo", f"{where}: {'send' if sends else 'recv'}", peer, "another gpu of the file"
            )
        key = Connection(rank, peer, tb.channel) if sends else Connection(peer, rank, tb.channel)
        number = connections.setdefault(key, len(connections))
        if (number, sends) in ends:
            expected = f"one threadblock only that {'sends to' if sends else 'receives from'} gpu {peer} on it"
            raise InputError(algo.name or "algo", f"{where}: chan", tb.channel, expected)
        ends.add((number, sends))
        found.append(number)
    return found[0], found[1]


def _wait(
    algo: Algo, waiter: _Draft, drafts: list[_Draft], place: dict[tuple[int, int], int], dep: tuple[int, int]
) -> Wait:
    """The wait for `dep` = (tb, step): for the first step at or after it that publishes its progress."""
    position = place.get((waiter.gpu.id, dep[0]))
    if position is not None:
        awaited = drafts[position]
        for number in range(max(dep[1], 0), len(awaited.tb.steps)):
            step = awaited.tb.steps[number]
            if step.hasdep and step.type is not StepType.NOP:
                return Wait(position, awaited.done[number])
    where = f"gpu {waiter.gpu.id} tb {waiter.tb.id}: depid {dep[0]}, deps {dep[1]}"
    raise InputError(algo.name or "algo", where, "no flag", "a step with hasdep=1 at or after the one waited for")
