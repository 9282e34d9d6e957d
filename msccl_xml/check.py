"""Is the document an algorithm that the interpreters would execute as written? (What the parsers do not ask.)

What the algorithm computes is not judged here (synth/verify does), nor what one runtime in particular takes
(limits.py). Section numbers are those of the format notes (docs/xml.md).
"""

from __future__ import annotations

from collections.abc import Iterator

from msccl_xml.errors import AlgoError, step_error
from msccl_xml.model import Algo, Buffer, Gpu, Step, StepType, Threadblock

PROTOCOLS = ("Simple", "LL", "LL128")

#: (sender, receiver, channel): what the runtimes key a connection by; threadblock ids need not match.
Connection = tuple[int, int, int]


def check_structure(algo: Algo) -> None:
    """Raise AlgoError at the first thing that makes `algo` ill-formed on every runtime."""
    _check_header(algo)
    for gpu in algo.gpus:
        _check_threadblocks(algo, gpu)
        published = {tb.id: _last_published(tb) for tb in gpu.threadblocks}
        by_id = {tb.id: tb for tb in gpu.threadblocks}
        for tb in gpu.threadblocks:
            _check_nops(gpu.id, tb)
            _check_fusion(gpu.id, tb)
            for number, step in enumerate(tb.steps):
                _check_step(gpu, tb, number, step)
                _check_dependence(gpu.id, tb, number, by_id, published)
    _check_connections(algo)


def fused_runs(tb: Threadblock) -> Iterator[range]:
    """The runs of two or more `re` steps that the parsers fuse into one instruction (section 5.3)."""
    start = 0
    for number in range(1, len(tb.steps) + 1):
        if number < len(tb.steps) and _fuses(tb.steps[number - 1], tb.steps[number]):
            continue
        if number - start > 1:
            yield range(start, number)
        start = number


def _fuses(previous: Step, step: Step) -> bool:
    """The parsers' own test; it does not compare `cnt`."""
    return (
        previous.type is step.type is StepType.REDUCE
        and (previous.dst_buffer, previous.dst_offset, previous.src_buffer)
        == (step.dst_buffer, step.dst_offset, step.src_buffer)
        and step.depid < 0
        and not previous.hasdep
    )


def buffer_chunks(gpu: Gpu, buffer: Buffer) -> int:
    """How many chunks of `buffer` the gpu declares."""
    match buffer:
        case Buffer.INPUT:
            return gpu.input_chunks
        case Buffer.OUTPUT:
            return gpu.output_chunks
        case Buffer.SCRATCH:
            return gpu.scratch_chunks


def _check_header(algo: Algo) -> None:
    if algo.proto not in PROTOCOLS:
        raise AlgoError(f"proto is {algo.proto!r}, expected one of {' '.join(PROTOCOLS)}")
    for key, value in (("ngpus", algo.ngpus), ("nchannels", algo.nchannels), ("nchunksperloop", algo.nchunksperloop)):
        if value < 1:
            raise AlgoError(f"{key} is {value}, expected at least 1")
    if algo.min_bytes is not None and algo.min_bytes < 0:
        raise AlgoError(f"minBytes is {algo.min_bytes}, expected at least 0")
    ids = [gpu.id for gpu in algo.gpus]
    if sorted(ids) != list(range(algo.ngpus)):
        wrong = sorted(
            {k for k in ids if not 0 <= k < algo.ngpus or ids.count(k) > 1} | (set(range(algo.ngpus)) - set(ids))
        )
        raise AlgoError(f"gpu ids must be 0..{algo.ngpus - 1}, each once; missing, repeated or beyond: {wrong[:10]}")


def _check_threadblocks(algo: Algo, gpu: Gpu) -> None:
    if min(gpu.input_chunks, gpu.output_chunks, gpu.scratch_chunks) < 0:
        raise AlgoError("a buffer has a negative number of chunks", gpu.id)
    if not gpu.threadblocks:
        raise AlgoError("no threadblock: the runtimes would launch an empty grid", gpu.id)
    if sorted(tb.id for tb in gpu.threadblocks) != list(range(len(gpu.threadblocks))):
        raise AlgoError(f"threadblock ids must be 0..{len(gpu.threadblocks) - 1}, each once", gpu.id)
    taken: dict[tuple[str, int, int], int] = {}
    for tb in gpu.threadblocks:
        if not 0 <= tb.channel < algo.nchannels:
            raise AlgoError(f"chan is {tb.channel}, expected 0..{algo.nchannels - 1}", gpu.id, tb.id)
        for direction, peer in (("send", tb.send), ("recv", tb.recv)):
            if peer == -1:
                continue
            if peer == gpu.id or not 0 <= peer < algo.ngpus:
                raise AlgoError(f"{direction} is {peer}, expected -1 or another gpu's id", gpu.id, tb.id)
            other = taken.setdefault((direction, peer, tb.channel), tb.id)
            if other != tb.id:
                problem = f"{direction} peer {peer} on channel {tb.channel} belongs to threadblock {other} already"
                raise AlgoError(problem, gpu.id, tb.id)


def _check_step(gpu: Gpu, tb: Threadblock, number: int, step: Step) -> None:
    if step.type is StepType.NOP:
        return
    if step.count < 1:
        raise step_error(f"cnt is {step.count}, expected at least 1", gpu.id, tb, number)
    if step.type.sends and tb.send < 0:
        raise step_error(f"{step.type} in a threadblock that has no send peer", gpu.id, tb, number)
    if step.type.receives and tb.recv < 0:
        raise step_error(f"{step.type} in a threadblock that has no recv peer", gpu.id, tb, number)
    used = []
    if step.type.reads_src:
        used.append((step.src_buffer, step.src_offset))
    if step.type.writes_dst:
        used.append((step.dst_buffer, step.dst_offset))
    for buffer, offset in used:
        chunks = buffer_chunks(gpu, buffer)
        if offset < 0 or offset + step.count > chunks:
            problem = f"{buffer}[{offset}..{offset + step.count - 1}] is outside buffer {buffer} of {chunks} chunks"
            raise step_error(problem, gpu.id, tb, number)
    if len(used) == 2 and step.src_buffer is step.dst_buffer and _overlap(step.src_offset, step.dst_offset, step.count):
        raise step_error("source and destination overlap", gpu.id, tb, number)


def _overlap(first: int, second: int, count: int) -> bool:
    """Whether two ranges of `count` chunks overlap without being the same (the same is fine: element by element)."""
    return 0 < abs(first - second) < count


def _check_nops(gpu: int, tb: Threadblock) -> None:
    """A nop's dependence moves to the next real step, which needs one too; a nop without one shifts all numbers."""
    for number, step in enumerate(tb.steps):
        if step.type is not StepType.NOP:
            continue
        if step.depid < 0:
            raise step_error(
                "a nop without dependence is dropped and shifts the numbers of later steps", gpu, tb, number
            )
        if number + 1 == len(tb.steps):
            raise step_error("a nop at the end is dropped with its dependence", gpu, tb, number)
        if tb.steps[number + 1].depid < 0:
            raise step_error("a step after a nop must itself have a dependence", gpu, tb, number + 1)


def _check_fusion(gpu: int, tb: Threadblock) -> None:
    """The traps of fused reductions that hold everywhere; how long a run may be is a limit (limits.py)."""
    for run in fused_runs(tb):
        first = tb.steps[run[0]]
        for number in run:
            step = tb.steps[number]
            if step.count != first.count:
                problem = f"re is fused with step {run[0]} of cnt {first.count}: one cnt would be used for all"
                raise step_error(problem, gpu, tb, number)
            if step.src_buffer is step.dst_buffer and abs(step.src_offset - step.dst_offset) < step.count:
                raise step_error("re in a fused run reads what the run itself writes", gpu, tb, number)


def _last_published(tb: Threadblock) -> int:
    """Number of the last step that publishes its progress (-1: none); hasdep on a nop is lost."""
    numbers = (k for k, step in enumerate(tb.steps) if step.hasdep and step.type is not StepType.NOP)
    return max(numbers, default=-1)


def _check_dependence(
    gpu: int, tb: Threadblock, number: int, by_id: dict[int, Threadblock], published: dict[int, int]
) -> None:
    step = tb.steps[number]
    if step.depid < 0:
        return
    if step.depid not in by_id or not 0 <= step.deps < len(by_id[step.depid].steps):
        raise step_error(f"waits for {step.depid}:{step.deps}, which does not exist", gpu, tb, number)
    if published[step.depid] < step.deps:
        problem = f"waits for {step.depid}:{step.deps}, but neither that step nor a later one has hasdep"
        raise step_error(problem, gpu, tb, number)


def _check_connections(algo: Algo) -> None:
    pushes: dict[Connection, tuple[int, Threadblock]] = {}
    pops: dict[Connection, tuple[int, Threadblock]] = {}
    for gpu in algo.gpus:
        for tb in gpu.threadblocks:
            if tb.send >= 0:
                pushes[gpu.id, tb.send, tb.channel] = (gpu.id, tb)
            if tb.recv >= 0:
                pops[tb.recv, gpu.id, tb.channel] = (gpu.id, tb)
    for key in sorted(pushes.keys() | pops.keys()):
        _check_connection(key, pushes.get(key), pops.get(key))


def _check_connection(
    key: Connection, sender: tuple[int, Threadblock] | None, receiver: tuple[int, Threadblock] | None
) -> None:
    """The transfers carry no tags and no sizes: both sides must count the same, position by position."""
    sends, recvs, channel = key
    if sender is None or receiver is None:
        there = sender or receiver
        if there is None:
            raise AlgoError(f"no connection {sends} -> {recvs} on channel {channel}")
        lacking = f"gpu {recvs} has no threadblock with recv" if receiver is None else f"gpu {sends} has none with send"
        raise AlgoError(f"no counterpart: {lacking}={there[0]} on channel {channel}", there[0], there[1].id)
    pushed = [k for k, step in enumerate(sender[1].steps) if step.type.sends]
    popped = [k for k, step in enumerate(receiver[1].steps) if step.type.receives]
    for push, pop in zip(pushed, popped, strict=False):
        counts = sender[1].steps[push].count, receiver[1].steps[pop].count
        if counts[0] != counts[1]:
            problem = (
                f"receives {counts[1]} chunks where gpu {sends} sends {counts[0]} (its step {sender[1].id}:{push})"
            )
            raise step_error(problem, recvs, receiver[1], pop)
    problem = (
        f"gpu {sends} sends {len(pushed)} times to gpu {recvs} on channel {channel}, which receives {len(popped)} times"
    )
    if len(pushed) > len(popped):
        raise step_error(problem, sends, sender[1], pushed[len(popped)])
    if len(popped) > len(pushed):
        raise step_error(problem, recvs, receiver[1], popped[len(pushed)])
