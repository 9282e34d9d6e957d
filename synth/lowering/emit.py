"""Drafts as an MSCCL XML document: instances, their channels and memory, threadblock ids.

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
from synth.lowering.draft import Draft, DraftedGpu
from synth.lowering.options import LoweringOptions
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
    """A threadblock of the document: the place of the lane that it runs for an instance."""

    instance: int
    lane: int


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


def emit(target: Target, draft: Draft, options: LoweringOptions) -> Algo:
    """The document. Every rank gets a threadblock, if only a harmless one."""
    turns, parts = draft.turns, _Parts.of(target.collective, options, draft.width)
    first = [_gpu(target, rank, gpu, parts) for rank, gpu in enumerate(draft.gpus)]
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


@dataclass(frozen=True, slots=True)
class _Parts:
    """What several instances have for themselves: their part of every chunk, channels, and threadblocks, of which a dependence can
    name the first `nameable`.
    """

    shares: tuple[tuple[int, ...], ...]
    """by instance and offset in the input or output of a single instance, where its part is"""
    width: int
    nameable: int

    @classmethod
    def of(cls, collective: Collective, options: LoweringOptions, width: int) -> _Parts:
        instances, own = options.instances, collective.per_rank
        places = [divmod(offset, own) for offset in range(collective.chunks)]
        shares = [
            tuple([(share * instances + instance) * own + chunk for share, chunk in places])
            for instance in range(instances)
        ]
        return cls(tuple(shares), width, options.limits.depid + 1)

    def moved(self, instance: int, scratch: int) -> dict[Buffer, tuple[int, ...]]:
        """By buffer and offset of a single instance, which has so many slots of scratch, where another has its part. At the end
        stands what steps have that use no memory there: their offset is -1.
        """
        shares = (*self.shares[instance], -1)
        own = range(instance * scratch, (instance + 1) * scratch)
        return {Buffer.INPUT: shares, Buffer.OUTPUT: shares, Buffer.SCRATCH: (*own, -1)}


def _gpu(target: Target, rank: int, drafted: DraftedGpu, parts: _Parts) -> Gpu:
    collective, instances = target.collective, len(parts.shares)
    blocks = _threadblocks(drafted, parts)
    if not blocks:
        blocks = (_idle_threadblock(target, rank),)
    whole = target.coll == "custom"  # microsoft/msccl wants all chunks of both buffers declared, whoever uses them
    return Gpu(
        id=rank,
        input_chunks=instances * (collective.chunks if whole else collective.input_chunks(rank)),
        output_chunks=instances * (collective.chunks if whole else collective.output_chunks(rank)),
        scratch_chunks=instances * drafted.scratch or int(rank not in collective.members),
        threadblocks=blocks,
    )


def _threadblocks(drafted: DraftedGpu, parts: _Parts) -> tuple[Threadblock, ...]:
    """Those of all instances, by channel and peers; where there are more than a dependence can name, the awaited ones first."""
    instances, lanes = range(len(parts.shares)), range(len(drafted.lanes))
    owned = [_Owned(instance, lane) for instance in instances for lane in lanes]
    if len(owned) > parts.nameable:
        idle = [not any(step.hasdep for step in steps) for steps in drafted.steps]
        owned.sort(key=lambda each: (idle[each.lane], each))
    ids = [[-1] * len(lanes) for _ in instances]
    for tb, (instance, lane) in enumerate(owned):
        ids[instance][lane] = tb
    moved = [parts.moved(instance, drafted.scratch) for instance in instances]
    blocks = []
    for tb, (instance, lane) in enumerate(owned):
        steps = drafted.steps[lane]
        if len(instances) > 1 or ids[0] != list(lanes):
            steps = _steps_of_instance(steps, [*ids[instance], -1], moved[instance])
        channel, recv, send = drafted.lanes[lane]
        channel += instance * parts.width
        blocks.append(Threadblock(id=tb, send=send, recv=recv, channel=channel, steps=steps))
    return tuple(blocks)


def _steps_of_instance(
    first: tuple[Step, ...], ids: list[int], moved: dict[Buffer, tuple[int, ...]]
) -> tuple[Step, ...]:
    """The steps with an instance's threadblocks, `ids` by place of the lane, and its part of chunks."""
    return tuple(
        [
            Step(kind, src, moved[src][here], dst, moved[dst][there], count, ids[depid], deps, hasdep)
            for kind, src, here, dst, there, count, depid, deps, hasdep in first
        ]
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
