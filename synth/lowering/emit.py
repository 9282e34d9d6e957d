"""Programs as an MSCCL XML document: scratch offsets, threadblock ids, step numbers, nops."""

from __future__ import annotations

import re
from dataclasses import dataclass

from msccl_xml.limits import coll_spelling
from msccl_xml.model import Algo, Buffer, Gpu, Step, StepType, Threadblock
from msccl_xml.write import MAX_NAME, safe_name
from synth.collective import Collective
from synth.lowering.buffers import Layout, Slot
from synth.lowering.deadlock import Waits
from synth.lowering.operations import Lane, Operation
from synth.lowering.options import LoweringOptions
from synth.lowering.threadblocks import Program


@dataclass(frozen=True, slots=True)
class Target:
    """What the document is for: the multiplied collective, its name and spelling, and how it may be called."""

    collective: Collective
    name: str
    coll: str
    inplace: bool
    outofplace: bool


def make_target(collective: Collective, topology_name: str, options: LoweringOptions) -> Target:
    """The document's head; the name is safe in a file name and as short as microsoft/msccl keeps it."""
    both = options.both_layouts and options.runtime != "msccl" and collective.in_place_shift(0) is not None
    tail = f"-{options.protocol}-{collective.chunks}"
    machine = re.sub(r"[^A-Za-z0-9._\[\],-]+", "-", topology_name)
    head = f"synth-{collective.name}-{machine}"[: MAX_NAME - len(tail)]
    return Target(
        collective=collective,
        name=safe_name(options.name or head + tail),
        coll=coll_spelling(collective.name.value, options.runtime),
        inplace=options.inplace or both,
        outofplace=both or not options.inplace,
    )


def emit(target: Target, programs: list[Program], waits: list[Waits], options: LoweringOptions) -> Algo:
    """The document; `programs` and `waits` by rank. Every rank gets a threadblock, if only a harmless one."""
    gpus = tuple(_gpu(target, rank, programs[rank], waits[rank], options) for rank in range(len(programs)))
    channels = [tb.channel for gpu in gpus for tb in gpu.threadblocks]
    return Algo(
        name=target.name,
        coll=target.coll,
        proto=options.protocol,
        ngpus=target.collective.num_ranks,
        nchannels=1 + max(channels),
        nchunksperloop=target.collective.chunks,
        gpus=gpus,
        inplace=target.inplace,
        outofplace=target.outofplace,
        min_bytes=options.min_bytes,
        max_bytes=options.max_bytes,
    )


def _gpu(target: Target, rank: int, program: Program, waits: Waits, options: LoweringOptions) -> Gpu:
    scratch = _number_scratch(program)
    lanes = _order_lanes(program, waits, options.limits.depid)
    blocks = _threadblocks(program, waits, lanes, scratch)
    if not blocks:
        blocks = (_idle_threadblock(target, rank),)
    collective = target.collective
    whole = target.coll == "custom"  # microsoft/msccl wants all chunks of both buffers declared, whoever uses them
    return Gpu(
        id=rank,
        input_chunks=collective.chunks if whole else collective.input_chunks(rank),
        output_chunks=collective.chunks if whole else collective.output_chunks(rank),
        scratch_chunks=len(scratch),
        threadblocks=blocks,
    )


def _number_scratch(program: Program) -> dict[int, int]:
    """New offsets of the scratch slots that are used: in the same order without gaps, so runs of slots stay runs."""
    used = {
        slot.offset
        for operations in program.values()
        for operation in operations
        for slot in (*operation.read(), *operation.written())
        if slot.buffer is Buffer.SCRATCH
    }
    return {offset: number for number, offset in enumerate(sorted(used))}


def _order_lanes(program: Program, waits: Waits, max_depid: int) -> list[Lane]:
    """Threadblocks by channel and peers; where there are more than a dependence can name, the awaited ones first."""
    lanes = sorted(program)
    if len(lanes) <= max_depid + 1:
        return lanes
    awaited = {position for some in waits.values() for position in some}
    return sorted(lanes, key=lambda lane: (all(op.position not in awaited for op in program[lane]), lane))


def _threadblocks(
    program: Program, waits: Waits, lanes: list[Lane], scratch: dict[int, int]
) -> tuple[Threadblock, ...]:
    numbers: dict[tuple[int, int], tuple[int, int]] = {}
    for tb, lane in enumerate(lanes):
        step = -1
        for operation in program[lane]:
            step += max(1, len(waits.get(operation.position, ())))
            numbers[operation.position] = (tb, step)
    awaited = {position for some in waits.values() for position in some}
    blocks = []
    for tb, lane in enumerate(lanes):
        steps: list[Step] = []
        for operation in program[lane]:
            needs = [numbers[position] for position in waits.get(operation.position, ())]
            steps += [Step(StepType.NOP, count=0, depid=depid, deps=deps) for depid, deps in needs[:-1]]
            steps.append(_step(operation, scratch, needs[-1:], operation.position in awaited))
        blocks.append(Threadblock(id=tb, send=lane.send, recv=lane.recv, channel=lane.channel, steps=tuple(steps)))
    return tuple(blocks)


def _step(operation: Operation, scratch: dict[int, int], needs: list[tuple[int, int]], awaited: bool) -> Step:
    src = operation.src if operation.type.reads_src else None
    dst = operation.dst if operation.type.writes_dst else None
    depid, deps = needs[0] if needs else (-1, -1)
    return Step(
        type=operation.type,
        src_buffer=src.buffer if src else Buffer.INPUT,
        src_offset=_offset(src, scratch),
        dst_buffer=dst.buffer if dst else Buffer.OUTPUT,
        dst_offset=_offset(dst, scratch),
        count=operation.count,
        depid=depid,
        deps=deps,
        hasdep=awaited,
    )


def _offset(slot: Slot | None, scratch: dict[int, int]) -> int:
    if slot is None:
        return -1
    return scratch[slot.offset] if slot.buffer is Buffer.SCRATCH else slot.offset


def _idle_threadblock(target: Target, rank: int) -> Threadblock:
    """For a rank that has nothing to do, as no kernel is launched without a threadblock: it copies a chunk onto itself.

    Only in-place programs have such ranks, so the chunk is the rank's own result.
    """
    layout = Layout(target.collective, True, target.coll == "custom")
    empty = target.collective.output_chunks(rank) == 0
    slot = layout.canonical(rank, Slot(Buffer.INPUT if empty else Buffer.OUTPUT, 0))
    step = Step(StepType.COPY, slot.buffer, slot.offset, slot.buffer, slot.offset)
    return Threadblock(id=0, send=-1, recv=-1, channel=0, steps=(step,))
