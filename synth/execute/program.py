"""An `Algo` as its ranks run it: threadblocks of operations, with the flags they wait for and the connections they use.

The parser's work is done here, independently of verify and simulate: nops hand their dependences to the next real step, runs of `re`
into one place become one operation, and counts are split by what one transfer may hold (docs/xml.md, sections 4 and 5).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from msccl_xml.check import check_structure, fused_runs
from msccl_xml.errors import AlgoError
from msccl_xml.model import Algo, Buffer, Gpu, Step, StepType, Threadblock
from synth.constants import IN_FLIGHT
from synth.errors import InputError, SynthError

#: Most chunks of a step, and of one transfer: MSCCL_MAX_COUNT - 1.
MAX_COUNT = 71
#: From so many fused `re` on, the interpreters' Simple loses one of the sources (section 5.3).
_TOO_MANY_FUSED = 16


class Connection(NamedTuple):
    """One direction between two ranks on one channel: a FIFO."""

    src: int
    dst: int
    channel: int


class Place(NamedTuple):
    """A chunk of one of a rank's buffers."""

    buffer: Buffer
    offset: int


class Part(NamedTuple):
    """What is moved at once: `chunks` chunks from the `first` of the step."""

    first: int
    chunks: int


class Wait(NamedTuple):
    """Go on once the flag of threadblock `block` (a position in the rank's list) has reached `step` in this tile."""

    block: int
    step: int


@dataclass(frozen=True, slots=True)
class Operation:
    """A step, or a fused run of `re`: `sources` are then all that are added up. Flags are looked at before its first part."""

    type: StepType
    step: int
    sources: tuple[Place, ...]
    target: Place
    parts: tuple[Part, ...]
    waits: tuple[Wait, ...]
    publishes: bool


@dataclass(frozen=True, slots=True)
class Block:
    """A threadblock; `send` and `recv` are numbers of connections, -1 for none. A flag counts `stride` for each tile."""

    tb: int
    send: int
    recv: int
    operations: tuple[Operation, ...]
    stride: int


@dataclass(frozen=True, slots=True)
class Program:
    """All ranks' threadblocks, where a transfer holds up to `most` chunks and a connection up to `slots` transfers."""

    ranks: tuple[tuple[Block, ...], ...]
    connections: tuple[Connection, ...]
    slots: int
    most: int


def check_algo(algo: Algo, source: str | None = None) -> None:
    """Raise SynthError where the file is no algorithm that an interpreter would carry out as written.

    `source` is what the message calls the file: the algorithm's own name where None.
    """
    source = source or algo.name or "algo"
    try:
        check_structure(algo)
    except AlgoError as error:
        raise SynthError(f"{source}: {str(error).partition(chr(10))[0]}") from None
    for gpu, tb, number, step in algo.steps():
        if step.count > MAX_COUNT:
            where = f"gpu {gpu.id} tb {tb.id} step {number}: cnt"
            raise InputError(source, where, step.count, f"0 to {MAX_COUNT}")
    if algo.proto == "Simple":
        for gpu in algo.gpus:
            for tb in gpu.threadblocks:
                for run in fused_runs(tb):
                    if len(run) >= _TOO_MANY_FUSED:
                        where = f"gpu {gpu.id} tb {tb.id} step {run[0]}: re in a row"
                        raise InputError(source, where, len(run), f"at most {_TOO_MANY_FUSED - 1}")


def compile_program(algo: Algo, most: int) -> Program:
    """The program of an algorithm that `check_algo` lets pass, where a transfer holds at most `most` chunks."""
    ends = sorted(
        {Connection(gpu.id, tb.send, tb.channel) for gpu in algo.gpus for tb in gpu.threadblocks if tb.send >= 0}
    )
    number = {connection: position for position, connection in enumerate(ends)}
    gpus = sorted(algo.gpus, key=lambda gpu: gpu.id)
    return Program(tuple(_rank(gpu, number, most) for gpu in gpus), tuple(ends), IN_FLIGHT[algo.proto], most)


def _rank(gpu: Gpu, number: dict[Connection, int], most: int) -> tuple[Block, ...]:
    place = {tb.id: position for position, tb in enumerate(gpu.threadblocks)}
    return tuple(
        Block(
            tb.id,
            number.get(Connection(gpu.id, tb.send, tb.channel), -1),
            number.get(Connection(tb.recv, gpu.id, tb.channel), -1),
            _operations(tb, place, most),
            len(tb.steps) + 1,
        )
        for tb in gpu.threadblocks
    )


def _operations(tb: Threadblock, place: dict[int, int], most: int) -> tuple[Operation, ...]:
    last = {number: run[-1] for run in fused_runs(tb) for number in run}
    done: list[Operation] = []
    waits: list[Wait] = []
    sources: list[Place] = []
    for number, step in enumerate(tb.steps):
        if step.depid >= 0:
            waits.append(Wait(place[step.depid], step.deps))
        if step.type is StepType.NOP:
            continue
        sources.append(Place(step.src_buffer, step.src_offset))
        if last.get(number, number) != number:
            continue
        done.append(
            Operation(
                type=step.type,
                step=number,
                sources=tuple(sources),
                target=Place(step.dst_buffer, step.dst_offset),
                parts=_parts(step, most),
                waits=tuple(waits),
                publishes=step.hasdep,
            )
        )
        waits, sources = [], []
    return tuple(done)


def _parts(step: Step, most: int) -> tuple[Part, ...]:
    return tuple(Part(first, min(most, step.count - first)) for first in range(0, step.count, most))
