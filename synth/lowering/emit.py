"""Programs as an MSCCL XML document: instances, scratch offsets, threadblock ids, step numbers, nops.

Instance j of N moves part j of every chunk, on channels of its own. Parts are laid out by instance inside a rank's share: chunk k
of a share of c chunks is part j c + k of c N, so chunks that lie together in the schedule lie together in every instance.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import NamedTuple

from msccl_xml.limits import coll_spelling
from msccl_xml.model import Algo, Buffer, Gpu, Step, StepType, Threadblock
from msccl_xml.write import MAX_NAME, safe_name
from synth.collective import Collective
from synth.group import group_attribute
from synth.lowering.buffers import Layout, Slot
from synth.lowering.deadlock import Waits
from synth.lowering.operations import Lane, Operation
from synth.lowering.options import LoweringOptions
from synth.lowering.threadblocks import Program
from synth.lowering.turns import Turns


@dataclass(frozen=True, slots=True)
class Target:
    """What the document is for: one instance's collective, its name and spelling, and how it may be called."""

    collective: Collective
    name: str
    coll: str
    inplace: bool
    outofplace: bool


class _Owned(NamedTuple):
    """A threadblock of the document: the lane that it runs for an instance."""

    instance: int
    lane: Lane


def make_target(collective: Collective, topology_name: str, options: LoweringOptions) -> Target:
    """The document's head; the name is safe in a file name and as short as microsoft/msccl keeps it."""
    both = options.both_layouts and options.runtime != "msccl" and collective.in_place_shift(0) is not None
    tail = f"-{options.protocol}-{collective.chunks * options.instances}"
    machine = re.sub(r"[^A-Za-z0-9._\[\],-]+", "-", topology_name)
    head = f"synth-{collective.name}-{machine}"[: MAX_NAME - len(tail)]
    return Target(
        collective=collective,
        name=safe_name(options.name or head + tail),
        coll=coll_spelling(collective.name.value, options.runtime),
        inplace=options.inplace or both,
        outofplace=both or not options.inplace,
    )


def emit(
    target: Target, programs: list[Program], waits: list[Waits], width: int, options: LoweringOptions, turns: Turns
) -> Algo:
    """The document; `programs` and `waits` of one instance by rank of the first box, on `width` channels. Every rank gets a
    threadblock, if only a harmless one.
    """
    first = [_gpu(target, rank, programs[rank], waits[rank], width, options) for rank in range(turns.size)]
    gpus = [
        gpu for box in range(turns.boxes) for gpu in _turned(first, target.collective, options.instances, turns, box)
    ]
    channels = [tb.channel for gpu in gpus for tb in gpu.threadblocks]
    return Algo(
        name=target.name,
        coll=target.coll,
        proto=options.protocol,
        ngpus=target.collective.num_ranks,
        nchannels=1 + max(channels),
        nchunksperloop=target.collective.chunks * options.instances,
        gpus=tuple(gpus),
        inplace=target.inplace,
        outofplace=target.outofplace,
        min_bytes=options.min_bytes,
        max_bytes=options.max_bytes,
        extra=group_attribute(target.collective.group),
    )


def _turned(first: list[Gpu], collective: Collective, instances: int, turns: Turns, box: int) -> list[Gpu]:
    """What the first box's GPUs do, done by another `box`: with its own peers, and its own part of buffers that hold the vector."""
    if box == 0:
        return first
    # Shares of ranks hold the parts of all instances; where ranks have no shares, each instance's part is a vector of its own.
    whole = collective.chunks * instances
    vector = whole if collective.per_rank < collective.chunks else collective.chunks
    shift = box * turns.shift(vector)
    moved = [start + (place + shift) % vector for start in range(0, whole, vector) for place in range(vector)]
    moved.append(-1)  # at the end, for steps that have no memory there: their offset is -1
    gpus = []
    for gpu in first:
        lengths = ((Buffer.INPUT, gpu.input_chunks), (Buffer.OUTPUT, gpu.output_chunks))
        moving = {buffer: moved for buffer, length in lengths if length == whole}
        blocks = tuple(_turned_threadblock(tb, moving, box * turns.size, turns.ranks) for tb in gpu.threadblocks)
        gpus.append(replace(gpu, id=gpu.id + box * turns.size, threadblocks=blocks))
    return gpus


def _turned_threadblock(tb: Threadblock, moving: dict[Buffer, list[int]], by: int, ranks: int) -> Threadblock:
    """With peers so many ranks on; `moving`: where offsets of these buffers go."""
    steps = []
    for kind, src, src_offset, dst, dst_offset, count, depid, deps, hasdep in tb.steps:
        here = moving[src][src_offset] if src in moving else src_offset
        there = moving[dst][dst_offset] if dst in moving else dst_offset
        steps.append(Step(kind, src, here, dst, there, count, depid, deps, hasdep))
    send, recv = ((peer + by) % ranks if peer >= 0 else peer for peer in (tb.send, tb.recv))
    return replace(tb, send=send, recv=recv, steps=tuple(steps))


def _gpu(target: Target, rank: int, program: Program, waits: Waits, width: int, options: LoweringOptions) -> Gpu:
    collective, instances = target.collective, options.instances
    scratch = _number_scratch(program)
    blocks = _threadblocks(
        program,
        waits,
        width,
        options,
        [_Part(instance, instances, collective.per_rank, scratch) for instance in range(instances)],
    )
    if not blocks:
        blocks = (_idle_threadblock(target, rank),)
    whole = target.coll == "custom"  # microsoft/msccl wants all chunks of both buffers declared, whoever uses them
    return Gpu(
        id=rank,
        input_chunks=instances * (collective.chunks if whole else collective.input_chunks(rank)),
        output_chunks=instances * (collective.chunks if whole else collective.output_chunks(rank)),
        scratch_chunks=instances * len(scratch) or int(rank not in collective.members),
        threadblocks=blocks,
    )


def _number_scratch(program: Program) -> dict[int, int]:
    """New offsets of the scratch slots that are used: in the same order without gaps, so runs of slots stay runs."""
    used: set[int] = set()
    for operations in program.values():
        for operation in operations:
            for slot in operation.ends:
                if slot is not None and slot.buffer is Buffer.SCRATCH:
                    used.update(range(slot.offset, slot.offset + operation.count))
    return {offset: number for number, offset in enumerate(sorted(used))}


@dataclass(frozen=True, slots=True)
class _Part:
    """What one of several instances moves of every chunk; `scratch`: the scratch slots of an instance, numbered."""

    instance: int
    instances: int
    per_rank: int
    scratch: dict[int, int]

    def offset(self, slot: Slot | None) -> int:
        """Where the document has the slot."""
        if slot is None:
            return -1
        if slot.buffer is Buffer.SCRATCH:
            return self.instance * len(self.scratch) + self.scratch[slot.offset]
        if self.instances == 1:
            return slot.offset
        share, chunk = divmod(slot.offset, self.per_rank)
        return (share * self.instances + self.instance) * self.per_rank + chunk


def _threadblocks(
    program: Program, waits: Waits, width: int, options: LoweringOptions, parts: list[_Part]
) -> tuple[Threadblock, ...]:
    """Those of all instances, by channel and peers; where there are more than a dependence can name, the awaited ones first."""
    awaited = {position for some in waits.values() for position in some}
    owned = [_Owned(instance, lane) for instance in range(len(parts)) for lane in sorted(program)]
    if len(owned) > options.limits.depid + 1:
        idle = {lane: all(op.position not in awaited for op in program[lane]) for lane in program}
        owned.sort(key=lambda each: (idle[each.lane], each))
    number = {each: tb for tb, each in enumerate(owned)}
    steps_of = _number_steps(program, waits)
    blocks = []
    for tb, (instance, lane) in enumerate(owned):
        steps: list[Step] = []
        for operation in program[lane]:
            causes = [steps_of[position] for position in waits.get(operation.position, ())]
            needs = [(number[_Owned(instance, there)], step) for there, step in causes]
            steps += [Step(StepType.NOP, count=0, depid=depid, deps=deps) for depid, deps in needs[:-1]]
            steps.append(_step(operation, parts[instance], needs[-1:], operation.position in awaited))
        channel = lane.channel + instance * width
        blocks.append(Threadblock(id=tb, send=lane.send, recv=lane.recv, channel=channel, steps=tuple(steps)))
    return tuple(blocks)


def steps_of(operation: Operation, waits: Waits) -> int:
    """Steps that an operation is written as: a step waits for one other, and a nop before it for each further one."""
    return max(1, len(waits.get(operation.position, ())))


def _number_steps(program: Program, waits: Waits) -> dict[tuple[int, int], tuple[Lane, int]]:
    """By position the lane of an operation and its step there, behind nops for all its waits but one."""
    steps = {}
    for lane, operations in program.items():
        step = -1
        for operation in operations:
            step += steps_of(operation, waits)
            steps[operation.position] = (lane, step)
    return steps


def _step(operation: Operation, part: _Part, needs: list[tuple[int, int]], awaited: bool) -> Step:
    src, dst = operation.ends
    depid, deps = needs[0] if needs else (-1, -1)
    return Step(
        operation.type,
        src.buffer if src else Buffer.INPUT,
        part.offset(src),
        dst.buffer if dst else Buffer.OUTPUT,
        part.offset(dst),
        operation.count,
        depid,
        deps,
        awaited,
    )


def _idle_threadblock(target: Target, rank: int) -> Threadblock:
    """For a rank that has nothing to do, as no kernel is launched without a threadblock: it copies a chunk onto itself.

    Of ranks that take part only those of in-place programs are such, so the chunk is the rank's own result; else it is scratch.
    """
    if rank not in target.collective.members:
        step = Step(StepType.COPY, Buffer.SCRATCH, 0, Buffer.SCRATCH, 0)
        return Threadblock(id=0, send=-1, recv=-1, channel=0, steps=(step,))
    layout = Layout(target.collective, True, target.coll == "custom")
    empty = target.collective.output_chunks(rank) == 0
    slot = layout.canonical(rank, Slot(Buffer.INPUT if empty else Buffer.OUTPUT, 0))
    step = Step(StepType.COPY, slot.buffer, slot.offset, slot.buffer, slot.offset)
    return Threadblock(id=0, send=-1, recv=-1, channel=0, steps=(step,))
