"""Rings: every share travels around one, as in NCCL's ring algorithm; the vector is dealt evenly to all rings of the machine.

NCCL: src/collectives/device/{all_reduce,all_gather,reduce_scatter,broadcast,reduce}.h, runRing. On n ranks and rings of B GB/s in
all, reduce-scatter and allgather of a vector of S bytes take (n - 1)/n S/B and n - 1 latencies each.

NCCL cuts a vector wherever it likes. An MSCCL file with six rings has a multiple of six chunks, which a runtime passes
over for most buffers: the default is for comparison, and `--chunks` deals any number to the rings as evenly as it goes,
with what is left of one share to other rings than of the share before it.
"""

from __future__ import annotations

from synth.baselines.machine import Machine
from synth.baselines.plan import Edge, Problem, Tree, deal, piece_counts
from synth.baselines.ring_search import Ring
from synth.collective import SHARED, CollectiveName
from synth.errors import NoAnswerError

COLLECTIVES = frozenset(
    {
        CollectiveName.ALLREDUCE,
        CollectiveName.ALLGATHER,
        CollectiveName.REDUCE_SCATTER,
        CollectiveName.BROADCAST,
        CollectiveName.REDUCE,
    }
)


def counts(machine: Machine, name: CollectiveName) -> tuple[int, ...]:
    """The chunk counts worth trying: one chunk a ring and share, or several where a ring is a pipeline from or to the root."""
    rings = len(rings_of(machine))
    if name in SHARED:
        return (rings,)
    if name is CollectiveName.ALLREDUCE:
        return (rings * machine.num_ranks,)
    return piece_counts(machine, rings)


def plan(problem: Problem) -> list[Tree]:
    """Chunk by chunk once around its ring from its owner. Raises NoAnswerError where the machine has no ring."""
    rings = rings_of(problem.machine)
    rooted = problem.collective.root is not None
    trees = []
    for turn, (owner, share) in enumerate(problem.shares()):
        for lane, (ring, chunks) in enumerate(zip(rings, deal(share, len(rings), turn), strict=True)):
            parts = [(chunk,) for chunk in chunks] if rooted else [chunks] * bool(chunks)
            trees += [Tree(part, owner, _around(ring, owner, start), lane) for start, part in enumerate(parts)]
    return trees


def rings_of(machine: Machine) -> tuple[Ring, ...]:
    """The machine's rings; NoAnswerError where there is none."""
    if not machine.rings:
        raise NoAnswerError(
            f"ring: no ring visits every GPU of {machine.topology.name} once over direct connections, node by node"
        )
    return machine.rings


def _around(ring: Ring, owner: int, start: int) -> tuple[Edge, ...]:
    hops = ring.hops(owner, len(ring.ranks) - 1)
    return tuple(Edge(start + step, src, dst, path) for step, (src, dst, path) in enumerate(hops))
