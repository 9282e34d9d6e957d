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
    parts = _Parts(instances, collective.per_rank, scratch)
    blocks = _threadblocks(program, waits, width, options, parts)
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
class _Parts:
    """Where several instances have their parts of every chunk; `scratch`: the scratch slots of an instance, numbered."""

    instances: int
    per_rank: int
    scratch: dict[int, int]

    def offset(self, slot: Slot | None) -> int:
        """Where the document has the slot of the first instance."""
        if slot is None:
            return -1
        if slot.buffer is Buffer.SCRATCH:
            return self.scratch[slot.offset]
        if self.instances == 1:
            return slot.offset
        share, chunk = divmod(slot.offset, self.per_rank)
        return share * self.instances * self.per_rank + chunk

    def further(self, instance: int) -> dict[Buffer, int]:
        """By buffer how much further on another instance has its part."""
        shares = instance * self.per_rank
        return {Buffer.INPUT: shares, Buffer.OUTPUT: shares, Buffer.SCRATCH: instance * len(self.scratch)}


class _Waiting(NamedTuple):
    """A step of the first instance, and the lane that it waits for, if any, in place of a threadblock."""

    step: Step
    lane: Lane | None


def _threadblocks(
    program: Program, waits: Waits, width: int, options: LoweringOptions, parts: _Parts
) -> tuple[Threadblock, ...]:
    """Those of all instances, by channel and peers; where there are more than a dependence can name, the awaited ones first."""
    awaited = {position for some in waits.values() for position in some}
    owned = [_Owned(instance, lane) for instance in range(parts.instances) for lane in sorted(program)]
    if len(owned) > options.limits.depid + 1:
        idle = {lane: all(op.position not in awaited for op in program[lane]) for lane in program}
        owned.sort(key=lambda each: (idle[each.lane], each))
    ids: list[dict[Lane, int]] = [{} for _ in range(parts.instances)]
    for tb, (instance, lane) in enumerate(owned):
        ids[instance][lane] = tb
    first = _first_instance(program, waits, awaited, parts)
    blocks = []
    for tb, (instance, lane) in enumerate(owned):
        steps = _steps_of_instance(first[lane], ids[instance], parts.further(instance))
        channel = lane.channel + instance * width
        blocks.append(Threadblock(id=tb, send=lane.send, recv=lane.recv, channel=channel, steps=steps))
    return tuple(blocks)


def _first_instance(
    program: Program, waits: Waits, awaited: set[tuple[int, int]], parts: _Parts
) -> dict[Lane, list[_Waiting]]:
    """Its steps, by lane."""
    steps_of = _number_steps(program, waits)
    result: dict[Lane, list[_Waiting]] = {}
    for lane, operations in program.items():
        steps = result[lane] = []
        for operation in operations:
            causes = [steps_of[position] for position in waits.get(operation.position, ())]
            steps += [_Waiting(Step(StepType.NOP, count=0, deps=step), there) for there, step in causes[:-1]]
            cause, deps = causes[-1] if causes else (None, -1)
            steps.append(_Waiting(_step(operation, parts, deps, operation.position in awaited), cause))
    return result


def _steps_of_instance(first: list[_Waiting], ids: dict[Lane, int], further: dict[Buffer, int]) -> tuple[Step, ...]:
    """The steps with the threadblocks of an instance, `ids` by lane, and its part of chunks."""
    steps = []
    for (kind, src, here, dst, there, count, _, deps, hasdep), lane in first:
        source = here + further[src] if here >= 0 else -1
        target = there + further[dst] if there >= 0 else -1
        steps.append(Step(kind, src, source, dst, target, count, -1 if lane is None else ids[lane], deps, hasdep))
    return tuple(steps)


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


def _step(operation: Operation, parts: _Parts, deps: int, awaited: bool) -> Step:
    src, dst = operation.ends
    return Step(
        operation.type,
        src.buffer if src else Buffer.INPUT,
        parts.offset(src),
        dst.buffer if dst else Buffer.OUTPUT,
        parts.offset(dst),
        operation.count,
        -1,
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
