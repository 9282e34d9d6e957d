"""All-pairs: every rank sends to every other what that one needs, in one step; allreduce in two (two-shot).

As the MSCCL and SCCL collections call it: allgather and alltoall directly, reduce-scatter directly with the owner summing, and
allreduce as one after the other. In turn k every rank sends to the k-th after it, so that no two send to one at the same time.
"""

from __future__ import annotations

from synth.baselines.machine import Machine
from synth.baselines.plan import Edge, Problem, Tree
from synth.collective import CollectiveName

COLLECTIVES = frozenset(CollectiveName)


def counts(machine: Machine, name: CollectiveName) -> tuple[int, ...]:
    """One chunk for every share; of allreduce one a rank."""
    return (machine.num_ranks,) if name is CollectiveName.ALLREDUCE else (1,)


def plan(problem: Problem) -> list[Tree]:
    """Every chunk straight to its destinations; where no path leads there, over other GPUs."""
    ranks = problem.num_ranks
    trees = []
    for chunk in range(problem.collective.num_chunk_ids):
        owner, dests = broadcast_form(problem, chunk)
        turns = sorted((dest - owner) % ranks for dest in dests)
        edges = tuple(Edge(turn, owner, (owner + turn) % ranks) for turn in turns)
        trees.append(Tree((chunk,), owner, edges))
    return trees


def broadcast_form(problem: Problem, chunk: int) -> tuple[int, frozenset[int]]:
    """(owner, destinations) of a chunk as if it were broadcast (docs/formulation.md, section 2)."""
    collective = problem.collective
    if collective.name is CollectiveName.ALLREDUCE:
        owner = chunk * collective.num_ranks // collective.chunks
        return owner, collective.all_ranks - {owner}
    sources, dests = collective.sources(chunk), collective.destinations(chunk)
    if collective.combining:
        sources, dests = dests, sources
    return min(sources), dests - sources
