"""Joining a receive with the send that forwards it: rcs, rrs and rrcs steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from msccl_xml.model import StepType
from synth.lowering.buffers import Layout
from synth.lowering.operations import Operation

Position = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Forwards:
    """Which pop each push can be joined with, on one rank."""

    source: dict[Position, Operation]
    """by position of the push: the one pop that brought, or completed, exactly the chunks that it sends"""
    passing: frozenset[Position]
    """positions of pops whose chunks nothing but their one push needs"""


def find_forwards(layout: Layout, operations: list[Operation]) -> Forwards:
    """What can be joined with what among one rank's operations, which are in order of position."""
    writer: dict[int, Operation] = {}
    readers: dict[Position, list[Operation]] = {}
    overwritten: set[tuple[Position, int]] = set()
    source: dict[Position, Operation] = {}
    for operation in operations:
        brought = {writer[chunk].position for chunk in operation.chunks if chunk in writer}
        if operation.pushes is not None or operation.type is StepType.RECV_REDUCE_COPY:
            for position in brought:
                readers.setdefault(position, []).append(operation)
        if operation.pushes is not None and len(brought) == 1 and operation.chunks[0] in writer:
            pop = writer[operation.chunks[0]]
            if pop.chunks == operation.chunks:
                source[operation.position] = pop
        if operation.pops is not None:
            overwritten.update((writer[chunk].position, chunk) for chunk in operation.chunks if chunk in writer)
            writer.update(dict.fromkeys(operation.chunks, operation))
    passing = set()
    for operation in operations:
        read = readers.get(operation.position, [])
        alone = len(read) == 1 and read[0].position in source
        if operation.pops is not None and alone and not _stays(layout, operation, overwritten):
            passing.add(operation.position)
    return Forwards(source, frozenset(passing))


def _stays(layout: Layout, pop: Operation, overwritten: set[tuple[Position, int]]) -> bool:
    """Whether what the pop stores is part of the rank's result."""
    ends = layout.destinations(pop.rank)
    return any(chunk in ends and (pop.position, chunk) not in overwritten for chunk in pop.chunks)


def fuse(program: Iterable[Operation], forwards: Forwards, capacity: int) -> list[Operation]:
    """The threadblock's operations with every push joined to its pop where that moves the push over pops only.

    What the push jumps over waits in its FIFO meanwhile, so it may jump as many messages as fit there besides its own.
    """
    result: list[Operation] = []
    for operation in program:
        pop = forwards.source.get(operation.position) if operation.pushes is not None else None
        place = _joinable(result, pop, capacity) if pop is not None else None
        if pop is None or place is None:
            result.append(operation)
            continue
        result[place] = pop._replace(
            type=_fused_type(pop, forwards),
            lane=pop.lane._replace(send=operation.lane.send),
            pushes=operation.pushes,
        )
    return result


def _joinable(result: list[Operation], pop: Operation, capacity: int) -> int | None:
    """Where the pop stands, if no push and fewer than `capacity` other messages stand after it."""
    jumped = set()
    for place in range(len(result) - 1, -1, -1):
        operation = result[place]
        if operation.pushes is not None:
            return None
        if operation.position == pop.position:
            return place
        if operation.pops is not None and pop.pops is not None and operation.pops[0] != pop.pops[0]:
            jumped.add(operation.pops[0])
        if len(jumped) >= capacity:
            return None
    return None


def _fused_type(pop: Operation, forwards: Forwards) -> StepType:
    if pop.type is StepType.RECV:
        return StepType.RECV_COPY_SEND
    return StepType.RECV_REDUCE_SEND if pop.position in forwards.passing else StepType.RECV_REDUCE_COPY_SEND
