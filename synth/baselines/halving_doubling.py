"""Recursive halving and doubling: in step k every rank exchanges with the one whose number differs in bit k.

R. Thakur, R. Rabenseifner and W. Gropp, Optimization of collective communication operations in MPICH (IJHPCA 19, 2005): allgather
by doubling the distance, reduce-scatter by halving it, allreduce by the second and then the first. Where the ranks are no
power of two, allreduce folds those beyond the largest one onto partners, who take part for them; the others have no such form.
"""

from __future__ import annotations

from synth.baselines.machine import Machine
from synth.baselines.plan import Edge, Problem, Tree
from synth.collective import CollectiveName
from synth.errors import NoAnswerError

COLLECTIVES = frozenset({CollectiveName.ALLREDUCE, CollectiveName.ALLGATHER, CollectiveName.REDUCE_SCATTER})


def counts(machine: Machine, name: CollectiveName) -> tuple[int, ...]:
    """One chunk for every share."""
    return (_core(machine.num_ranks),) if name is CollectiveName.ALLREDUCE else (1,)


def plan(problem: Problem) -> list[Tree]:
    """Every share along its binomial tree. Raises NoAnswerError for shares of a number of ranks that is no power of two."""
    count = problem.num_ranks
    core = _core(count)
    if core < count and problem.collective.name is not CollectiveName.ALLREDUCE:
        raise NoAnswerError(
            f"halving-doubling: {problem.machine.topology.name} has {count} ranks, "
            f"expected a power of two for {problem.collective.name}"
        )
    return [Tree(share, owner, _edges(owner, core, count)) for owner, share in problem.shares(core)]


def _core(count: int) -> int:
    """The largest power of two that is not above `count`."""
    return 1 << (count.bit_length() - 1)


def _edges(owner: int, core: int, count: int) -> tuple[Edge, ...]:
    holders = [owner]
    edges = []
    steps = core.bit_length() - 1
    for step in range(steps):
        partners = [holder ^ (1 << step) for holder in holders]
        edges += [Edge(step, holder, partner) for holder, partner in zip(holders, partners, strict=True)]
        holders += partners
    edges += [Edge(steps, rank - core, rank) for rank in range(core, count)]
    return tuple(edges)
