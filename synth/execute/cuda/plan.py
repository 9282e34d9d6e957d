"""An `Algo` as flat tables of integers that a threadblock on a GPU walks through: the same for every size and type.

The work of a runtime's parser is done here: nops become waits of the next real step, and runs of `re` into one place become one step
with several sources. Counts and tiles are left to the interpreter (source/interpreter.h), which knows the size.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from msccl_xml.model import Algo, Gpu, Step, StepType, Threadblock
from synth.collective import Collective
from synth.errors import InputError
from synth.execute.cuda.abi import BLOCK_COLUMNS, BUFFERS, PROTOCOLS, STEP_COLUMNS, STEP_TYPES, WAIT_COLUMNS, table

#: Largest count of a step, and most chunks of one transfer (MSCCL_MAX_COUNT - 1): no runtime loads more.
MAX_COUNT = 71


class Connection(NamedTuple):
    """One direction between two ranks on one channel: a queue of slots in the memory of rank `dst`."""

    src: int
    dst: int
    channel: int


@dataclass(frozen=True, eq=False)
class Plan:
    """The tables of an algorithm (columns in abi.py), and what memory it needs besides the caller's buffers."""

    name: str
    protocol: str
    num_ranks: int
    threads: int | None
    """Threads of a threadblock, where the file asks for a number."""
    scratch_chunks: tuple[int, ...]
    """Of every rank."""
    connections: tuple[Connection, ...]
    blocks: NDArray[np.int32]
    steps: NDArray[np.int32]
    waits: NDArray[np.int32]
    sources: NDArray[np.int32]
    """Source offsets of the steps that add several sources to one place."""

    def blocks_of(self, rank: int) -> range:
        """The rows of a rank's threadblocks, which stand together."""
        rows = np.flatnonzero(self.blocks[:, BLOCK_COLUMNS.index("rank")] == rank)
        return range(int(rows[0]), int(rows[-1]) + 1) if len(rows) else range(0)

    @property
    def types(self) -> frozenset[StepType]:
        """The types of step that occur."""
        return frozenset(STEP_TYPES[kind] for kind in self.steps[:, 0])


def compile_plan(algo: Algo, collective: Collective) -> Plan:
    """The plan of `algo`, which is to carry out `collective`.

    Raises InputError for what no run could carry out: a wait that no flag ends, a step whose threadblock lacks the connection, two
    threadblocks on one end of a connection, a rank without program or twice, a count above 71, other ranks or chunks than the
    collective's. What may be run and hangs is left for the run to tell.
    """
    _check_header(algo, collective)
    drafts = [_draft(gpu, tb) for gpu in sorted(algo.gpus, key=lambda gpu: gpu.id) for tb in gpu.threadblocks]
    place = {(draft.gpu.id, draft.tb.id): position for position, draft in enumerate(drafts)}
    if len(place) < len(drafts):
        raise InputError(algo.name, "tb", "two of one id", "ids that differ within a gpu")
    tables = _Tables(algo)
    for draft in drafts:
        tables.add(draft, drafts, place)
    return Plan(
        name=algo.name,
        protocol=algo.proto,
        num_ranks=algo.ngpus,
        threads=algo.nthreads or None,
        scratch_chunks=tuple(gpu.scratch_chunks for gpu in sorted(algo.gpus, key=lambda gpu: gpu.id)),
        connections=tuple(tables.connections),
        blocks=table(tables.blocks, len(BLOCK_COLUMNS)),
        steps=table(tables.steps, len(STEP_COLUMNS)),
        waits=table(tables.waits, len(WAIT_COLUMNS)),
        sources=table([(offset,) for offset in tables.sources], 1).reshape(-1),
    )


def _check_header(algo: Algo, collective: Collective) -> None:
    name = algo.name or "algo"
    if algo.proto not in PROTOCOLS:
        raise InputError(name, "proto", algo.proto, " or ".join(PROTOCOLS))
    if algo.ngpus != collective.num_ranks:
        raise InputError(name, "ngpus", algo.ngpus, f"{collective.num_ranks}, the collective's ranks")
    if algo.nchunksperloop != collective.chunks:
        raise InputError(name, "nchunksperloop", algo.nchunksperloop, f"{collective.chunks}, the collective's chunks")
    ids = [gpu.id for gpu in algo.gpus]
    if sorted(ids) != list(range(algo.ngpus)):
        raise InputError(name, "gpu", ids, f"ids from 0 to {algo.ngpus - 1}, each once")
    if not any(gpu.threadblocks for gpu in algo.gpus):
        raise InputError(name, "tb", "none", "at least one threadblock")
    for gpu, tb, number, step in algo.steps():
        if not 0 <= step.count <= MAX_COUNT:
            raise InputError(name, f"{_where(gpu, tb)} step {number}: cnt", step.count, f"0 to {MAX_COUNT}")


@dataclass
class _Real:
    """A step that runs: the file's, its sources (above one for a fused run) and the (tb, step) pairs that it waits for."""

    step: Step
    number: int
    sources: list[int]
    deps: list[tuple[int, int]]
    publishes: bool


@dataclass
class _Draft:
    """A threadblock's real steps, and how many of them are done once each step of the file is."""

    gpu: Gpu
    tb: Threadblock
    steps: list[_Real] = field(default_factory=list)
    done: list[int] = field(default_factory=list)


def _draft(gpu: Gpu, tb: Threadblock) -> _Draft:
    draft = _Draft(gpu, tb)
    pending: list[tuple[int, int]] = []
    for number, step in enumerate(tb.steps):
        if step.depid >= 0:
            pending.append((step.depid, step.deps))
        if step.type is not StepType.NOP:
            if not pending and draft.steps and _fuses(draft.steps[-1], step):
                draft.steps[-1].sources.append(step.src_offset)
                draft.steps[-1].publishes = step.hasdep
            else:
                draft.steps.append(_Real(step, number, [step.src_offset], pending, step.hasdep))
                pending = []
        draft.done.append(len(draft.steps))
    return draft


def _fuses(before: _Real, step: Step) -> bool:
    """Whether `step` only adds one more source to what `before` adds up."""
    one = before.step
    if one.type is not StepType.REDUCE or step.type is not StepType.REDUCE or before.publishes:
        return False
    return (one.dst_buffer, one.dst_offset, one.src_buffer, one.count) == (
        step.dst_buffer,
        step.dst_offset,
        step.src_buffer,
        step.count,
    )


class _Tables:
    """The rows so far."""

    def __init__(self, algo: Algo) -> None:
        self.name = algo.name or "algo"
        self.num_ranks = algo.ngpus
        self.blocks: list[tuple[int, ...]] = []
        self.steps: list[tuple[int, ...]] = []
        self.waits: list[tuple[int, ...]] = []
        self.sources: list[int] = []
        self.connections: dict[Connection, int] = {}
        self._ends: set[tuple[int, bool]] = set()

    def add(self, draft: _Draft, drafts: list[_Draft], place: dict[tuple[int, int], int]) -> None:
        """The rows of one threadblock."""
        send, recv = self._connection(draft, sends=True), self._connection(draft, sends=False)
        self.blocks.append((draft.gpu.id, draft.tb.id, send, recv, len(self.steps), len(draft.steps)))
        for real in draft.steps:
            first = len(self.waits)
            for dep in real.deps:
                self.waits.append(self._wait(draft, real.number, dep, drafts, place))
            self._add_step(real, first)

    def _add_step(self, real: _Real, first_wait: int) -> None:
        step, fused = real.step, len(real.sources) > 1
        self.steps.append(
            (
                STEP_TYPES.index(step.type),
                BUFFERS.index(step.src_buffer),
                step.src_offset,
                BUFFERS.index(step.dst_buffer),
                step.dst_offset,
                step.count,
                first_wait,
                len(real.deps),
                int(real.publishes),
                real.number,
                len(self.sources) if fused else 0,
                len(real.sources) if fused else 1,
            )
        )
        if fused:
            self.sources += real.sources

    def _connection(self, draft: _Draft, *, sends: bool) -> int:
        """The connection that a threadblock needs on one side, numbered as they are met; -1 where it needs none."""
        types = [real.step.type for real in draft.steps if real.step.count]
        if not any(kind.sends if sends else kind.receives for kind in types):
            return -1
        rank, tb = draft.gpu.id, draft.tb
        peer, side = (tb.send, "send") if sends else (tb.recv, "recv")
        where = _where(draft.gpu, tb)
        if not 0 <= peer < self.num_ranks or peer == rank:
            raise InputError(self.name, f"{where}: {side}", peer, "another gpu of the file")
        key = Connection(rank, peer, tb.channel) if sends else Connection(peer, rank, tb.channel)
        number = self.connections.setdefault(key, len(self.connections))
        if (number, sends) in self._ends:
            toward = f"{'sends to' if sends else 'receives from'} gpu {peer}"
            raise InputError(self.name, f"{where}: chan", tb.channel, f"one threadblock only that {toward} on it")
        self._ends.add((number, sends))
        return number

    def _wait(
        self,
        waiter: _Draft,
        number: int,
        dep: tuple[int, int],
        drafts: list[_Draft],
        place: dict[tuple[int, int], int],
    ) -> tuple[int, int]:
        """The wait for `dep` = (tb, step): for the first step at or after it that publishes its progress."""
        position = place.get((waiter.gpu.id, dep[0]))
        if position is not None:
            awaited = drafts[position]
            for later in range(max(dep[1], 0), len(awaited.tb.steps)):
                step = awaited.tb.steps[later]
                if step.hasdep and step.type is not StepType.NOP:
                    return position, awaited.done[later]
        where = f"{_where(waiter.gpu, waiter.tb)} step {number}: depid {dep[0]}, deps {dep[1]}"
        raise InputError(self.name, where, "no flag", "a step with hasdep=1 at or after the one waited for")


def _where(gpu: Gpu, tb: Threadblock) -> str:
    return f"gpu {gpu.id} tb {tb.id}"
