"""One-shot allreduce: every rank gets every vector and adds them up itself, in rank order, so that all get the same bits.

This is no set of reduction trees: a chunk is summed at every rank. So it does not come from a schedule by lowering but is
written down here: per peer a threadblock that sends the vector and receives the peer's into scratch, chunk after chunk, and one
threadblock that adds. It moves n - 1 vectors into every rank, and takes one latency: for small buffers only.
"""

from __future__ import annotations

from collections.abc import Iterator

from msccl_xml.limits import LIMITS, check_limits
from msccl_xml.model import Algo, Buffer, Gpu, Step, StepType, Threadblock
from msccl_xml.write import MAX_NAME, safe_name
from synth.baselines.all_pairs import plan
from synth.baselines.machine import Machine
from synth.baselines.options import BaselineOptions, Built
from synth.baselines.plan import Problem, instance_of, plan_schedule
from synth.collective import Collective, CollectiveName
from synth.errors import NoAnswerError
from synth.lowering import Runtime, lowered_collective

COLLECTIVES = frozenset({CollectiveName.ALLREDUCE})


def build(machine: Machine, collective: Collective, buffer_bytes: float, options: BaselineOptions) -> Built:
    """The program, and as its schedule that of the allgather of all vectors (sums are free at cost level 2).

    Raises NoAnswerError where two ranks are not joined directly, or the limits are too tight.
    """
    ranks = machine.num_ranks
    missing = [
        (src, dst) for src in range(ranks) for dst in range(ranks) if src != dst and (src, dst) not in machine.direct
    ]
    if missing:
        raise NoAnswerError(
            f"one-shot: ranks {missing[0][0]} and {missing[0][1]} of {machine.topology.name} are not joined directly"
        )
    needed = ranks * options.instances
    if needed > options.max_threadblocks:
        raise NoAnswerError(
            f"one-shot: --max-threadblocks: {needed} are needed on a gpu, {options.max_threadblocks} are allowed"
        )
    whole = Collective(CollectiveName.ALLGATHER, ranks, collective.chunks * ranks)
    instance = instance_of(machine, whole, buffer_bytes * ranks)
    schedule = plan_schedule(Problem(machine, whole), plan, instance)
    done = lowered_collective(collective, options.lowering("one-shot", machine.topology.name))
    return Built(_algo(machine, done, options), instance, schedule, done)


def _algo(machine: Machine, collective: Collective, options: BaselineOptions) -> Algo:
    """`options.instances` copies of the program, copy j on channels of its own and on every such part of the chunks."""
    ranks = machine.num_ranks
    groups = _group(0, ranks // 2, ranks, options.runtime) + 1
    gpus = tuple(_gpu(rank, collective, options) for rank in range(ranks))
    name = f"baseline-one-shot-{machine.topology.name}-{options.protocol}-{collective.chunks}"
    algo = Algo(
        name=safe_name(name[:MAX_NAME]),
        coll=collective.name.value,
        proto=options.protocol,
        ngpus=ranks,
        nchannels=options.instances * groups,
        nchunksperloop=collective.chunks,
        gpus=gpus,
        inplace=options.inplace,
        outofplace=not options.inplace,
        min_bytes=0,
        max_bytes=options.max_bytes,
    )
    problems = check_limits(algo, options.runtime, full_ops=False)
    if problems:
        raise NoAnswerError(f"one-shot: the program is beyond what {options.runtime} takes: {problems[0]}")
    return algo


def _group(rank: int, peer: int, ranks: int, runtime: Runtime) -> int:
    """Which group of channels two ranks use, the same for both: so many distances around the circle of ranks to a group that no
    rank has too many peers on one channel.
    """
    distance = min((peer - rank) % ranks, (rank - peer) % ranks)
    return (distance - 1) // (LIMITS[runtime].peers_per_channel // 2)


def _gpu(rank: int, collective: Collective, options: BaselineOptions) -> Gpu:
    chunks, ranks, instances = collective.chunks, collective.num_ranks, options.instances
    blocks: list[Threadblock] = []
    for channel in range(instances):
        mine = list(range(channel, chunks, instances))
        first = len(blocks)
        for peer in (other for other in range(ranks) if other != rank):
            place = channel + instances * _group(rank, peer, ranks, options.runtime)
            blocks.append(Threadblock(len(blocks), peer, peer, place, tuple(_exchange(peer, chunks, mine))))
        adding = tuple(_adding(rank, collective, mine, first))
        blocks.append(Threadblock(len(blocks), -1, -1, channel, adding))
    return Gpu(rank, chunks, chunks, chunks * ranks, tuple(blocks))


def _exchange(peer: int, chunks: int, mine: list[int]) -> Iterator[Step]:
    """Chunk after chunk: send it, then receive the peer's. Both ends never have more than one unread message under way."""
    for chunk in mine:
        yield Step(StepType.SEND, Buffer.INPUT, chunk, Buffer.OUTPUT, chunk)
        yield Step(StepType.RECV, Buffer.INPUT, chunk, Buffer.SCRATCH, peer * chunks + chunk, hasdep=True)


def _adding(rank: int, collective: Collective, mine: list[int], first: int) -> Iterator[Step]:
    """Sum chunk after chunk in scratch, in rank order, and copy the sum out.

    A peer's receive comes after the send of the same chunk to it, so once all have been waited for the chunk may be overwritten.
    The runtimes fuse `re` steps in a row that wait for nothing, and add in another order then. The only one that waits for
    nothing is that of the rank's own chunk, and its copy stands before it.
    """
    chunks, ranks = collective.chunks, collective.num_ranks
    for turn, chunk in enumerate(mine):
        slots = [peer * chunks + chunk for peer in range(ranks)]
        waits = {peer: (first + peer - (peer > rank), 2 * turn + 1) for peer in range(ranks) if peer != rank}
        own = Step(StepType.COPY, Buffer.INPUT, chunk, Buffer.SCRATCH, slots[rank])
        if rank == 0:
            yield own
        for peer in range(1, ranks):
            if peer == rank:
                yield own
            needed = [waits[other] for other in ((0, 1) if peer == 1 else (peer,)) if other != rank]
            for depid, deps in needed[:-1]:
                yield Step(StepType.NOP, count=0, depid=depid, deps=deps)
            depid, deps = needed[-1] if needed else (-1, -1)
            yield Step(StepType.REDUCE, Buffer.SCRATCH, slots[peer], Buffer.SCRATCH, slots[0], 1, depid, deps)
        yield Step(StepType.COPY, Buffer.SCRATCH, slots[0], Buffer.OUTPUT, chunk)
