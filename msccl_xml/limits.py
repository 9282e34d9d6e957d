"""What each runtime takes: figures of its parser and interpreter, and the spellings it reads.

Sources: microsoft/msccl b23e9cd5 (src/graph/xml.cc, topo.cc; src/include/msccl.h), Azure/msccl-executor-nccl c6f6b36d
and ROCm/rccl 0cbce2a7 (src/misc/msccl/msccl_parser.cc); the table is section 8 of the format notes (docs/xml.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from msccl_xml.check import fused_runs
from msccl_xml.errors import format_place
from msccl_xml.model import Algo, Gpu, StepType, Threadblock

_COMMON_COLLS = frozenset({"allreduce", "allgather", "reduce", "broadcast", "alltoall"})
_EXECUTOR_COLLS = _COMMON_COLLS | {"reducescatter", "gather", "scatter", "send", "recv", "alltoallv"}
_BASIC_TYPES = frozenset({StepType.SEND, StepType.RECV, StepType.COPY, StepType.REDUCE, StepType.NOP})


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one runtime; each number is the largest that works."""

    runtime: str
    steps: int
    """of a threadblock, nops included"""
    threadblocks: int
    """of a gpu"""
    depid: int
    """id of a threadblock that can be waited for: stored as int8"""
    channels: int
    colls: frozenset[str]
    """values of `coll`"""
    required: tuple[str, ...]
    """attributes of <algo> that may be absent elsewhere"""
    fused: int | None
    """`re` steps fused into one instruction: 16 sources fit, the destination is one of them (None: no limit)"""
    chunk_consistency: bool = False
    """whether i_chunks and o_chunks are compared with nchunksperloop"""
    peers_per_channel: int = 31
    """threadblocks with a send (or a recv) peer on one channel: with 32 the summary code indexes past its array"""
    count: int = 71
    offset: int = 32767
    """int16 in the structs"""
    nodes: int = 4095
    """elements of the file as one rank sees it: algo, all gpus, its own threadblocks and steps"""
    files: int = 1024
    """that are kept (MSCCL_MAX_NUM_ALGOS; elsewhere handles), in the order in which they are named; those that cannot be read are
    passed over"""
    basic_types: frozenset[StepType] = frozenset(StepType)
    """step types that a build without fused operations runs"""


LIMITS: dict[str, Limits] = {
    "msccl": Limits(
        "msccl",
        256,
        216,
        127,
        32,
        _COMMON_COLLS | {"reduce_scatter", "custom"},
        (),
        fused=15,
        chunk_consistency=True,
        files=4,
    ),
    "executor": Limits(
        "executor", 64, 1024, 127, 32, _EXECUTOR_COLLS, ("outofplace", "minBytes", "maxBytes"), fused=15
    ),
    "rccl": Limits(
        "rccl",
        64,
        64,
        63,
        128,
        _EXECUTOR_COLLS,
        ("outofplace", "minBytes", "maxBytes"),
        fused=None,
        basic_types=_BASIC_TYPES,
    ),
}
RUNTIMES = tuple(LIMITS)
#: Files of one answer unless asked otherwise: what every runtime keeps.
MAX_FILES = min(limits.files for limits in LIMITS.values())

_SPELLINGS = {
    "msccl": {"reduce-scatter": "reduce_scatter", "gather": "custom", "scatter": "custom"},
    "executor": {"reduce-scatter": "reducescatter"},
    "rccl": {"reduce-scatter": "reducescatter"},
}


def coll_spelling(collective: str, runtime: str) -> str:
    """How `runtime` spells what synth calls `collective`: "reduce-scatter" is "reduce_scatter" for msccl."""
    return _SPELLINGS[runtime].get(collective, collective)


def check_limits(algo: Algo, runtime: str, *, full_ops: bool = True) -> list[str]:
    """Every reason why `runtime` would not load or run `algo`, with its gpu, threadblock and step; empty if none.

    `full_ops=False` asks about a build that lacks the fused operations: RCCL 0cbce2a7 refuses rcs, rrs, rrc and rrcs
    when the kernel is set up; later builds of RCCL can be had with them, which is why this is not asked by default.
    """
    limits = LIMITS[runtime]
    problems = list(_header_problems(algo, limits))
    for gpu in algo.gpus:
        problems += _gpu_problems(algo, gpu, limits)
        for tb in gpu.threadblocks:
            problems += _tb_problems(gpu, tb, limits)
            problems += _step_problems(gpu, tb, limits, full_ops)
    return problems


def _header_problems(algo: Algo, limits: Limits) -> Iterator[str]:
    if algo.coll not in limits.colls:
        yield f"coll is {algo.coll!r}, {limits.runtime} reads {' '.join(sorted(limits.colls))}"
    present = {"outofplace": algo.outofplace, "minBytes": algo.min_bytes, "maxBytes": algo.max_bytes}
    for key in limits.required:
        if present[key] is None:
            yield f"{key} is missing, {limits.runtime} requires it"
    if algo.nchannels > limits.channels:
        yield f"nchannels is {algo.nchannels}, {limits.runtime} has {limits.channels}"
    if limits.runtime == "msccl":
        yield from _msccl_header_problems(algo)


def too_many_elements(limits: Limits, gpu: int, gpus: int, own: int) -> str | None:
    """What is wrong if one of so many gpus has `own` threadblocks and steps: it reads more elements of the file than the runtime."""
    nodes = 1 + gpus + own
    if nodes <= limits.nodes:
        return None
    return f"{format_place(gpu)}: {nodes} elements as this rank reads the file, {limits.runtime} reads {limits.nodes}"


def _msccl_header_problems(algo: Algo) -> Iterator[str]:
    low, high = algo.min_bytes or 0, algo.max_bytes
    if high is not None and low > high:
        yield f"minBytes {low} is above maxBytes {high}"
    if algo.nthreads is not None and algo.nthreads % 32:
        yield f"nthreads is {algo.nthreads}, msccl takes multiples of 32"
    if algo.coll == "alltoall" and algo.name == "2D":
        yield "an alltoall named 2D is an algorithm built into msccl"


def _gpu_problems(algo: Algo, gpu: Gpu, limits: Limits) -> Iterator[str]:
    where = format_place(gpu.id)
    if len(gpu.threadblocks) > limits.threadblocks:
        yield f"{where}: {len(gpu.threadblocks)} threadblocks, {limits.runtime} takes {limits.threadblocks}"
    steps = sum(len(tb.steps) for tb in gpu.threadblocks)
    if unreadable := too_many_elements(limits, gpu.id, len(algo.gpus), len(gpu.threadblocks) + steps):
        yield unreadable
    sends = Counter(tb.channel for tb in gpu.threadblocks if tb.send >= 0)
    recvs = Counter(tb.channel for tb in gpu.threadblocks if tb.recv >= 0)
    for word, counts in (("send", sends), ("recv", recvs)):
        for channel, count in sorted(counts.items()):
            if count > limits.peers_per_channel:
                yield f"{where}: {count} {word} threadblocks on channel {channel}, {limits.peers_per_channel} work"
    if limits.chunk_consistency:
        yield from _chunk_problems(algo, gpu)


def _chunk_problems(algo: Algo, gpu: Gpu) -> Iterator[str]:
    """microsoft/msccl compares both counts with nchunksperloop; 0 stands for a buffer that is not used."""
    shares = {"i_chunks": algo.coll == "allgather", "o_chunks": algo.coll == "reduce_scatter"}
    for key, chunks in (("i_chunks", gpu.input_chunks), ("o_chunks", gpu.output_chunks)):
        ranks = algo.ngpus if shares[key] else 1
        if chunks > 0 and chunks * ranks != algo.nchunksperloop:
            expected = f"{algo.nchunksperloop / ranks:g}"
            yield f"{format_place(gpu.id)}: {key} is {chunks}, msccl expects {expected} for {algo.coll} (or 0)"


def _tb_problems(gpu: Gpu, tb: Threadblock, limits: Limits) -> Iterator[str]:
    where = format_place(gpu.id, tb.id)
    if len(tb.steps) > limits.steps:
        yield f"{where}: {len(tb.steps)} steps, {limits.runtime} takes {limits.steps}"
    if tb.channel >= limits.channels:
        yield f"{where}: chan is {tb.channel}, {limits.runtime} has {limits.channels}"
    for run in fused_runs(tb) if limits.fused is not None else ():
        if limits.fused is not None and len(run) > limits.fused:
            where = format_place(gpu.id, tb.id, run[0])
            yield f"{where}: {len(run)} re steps are fused into one, {limits.runtime} adds {limits.fused} rightly"


def _step_problems(gpu: Gpu, tb: Threadblock, limits: Limits, full_ops: bool) -> Iterator[str]:
    for number, step in enumerate(tb.steps):
        if step.depid > limits.depid:
            where = format_place(gpu.id, tb.id, number)
            yield f"{where}: waits for threadblock {step.depid}, {limits.runtime} can wait for 0..{limits.depid}"
        if step.count > limits.count:
            yield f"{format_place(gpu.id, tb.id, number)}: cnt is {step.count}, {limits.runtime} takes {limits.count}"
        if max(step.src_offset, step.dst_offset) > limits.offset:
            yield f"{format_place(gpu.id, tb.id, number)}: an offset is above {limits.offset}"
        if not full_ops and step.type not in limits.basic_types:
            yield f"{format_place(gpu.id, tb.id, number)}: {step.type} needs a {limits.runtime} with fused operations"
