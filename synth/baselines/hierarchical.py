"""Hierarchical: within the node, across nodes along rails, within the node.

The k-th GPUs of all nodes are a rail. A share goes from its owner along its rail to every node, and from there to the GPUs of
the node; backwards, contributions are summed within each node on the owner's rail, and then along the rail. allreduce is both, hence
the three parts. alltoall moves data for rail k to GPU k of the own node, one message for all nodes, and then along
the rail (NCCL calls the first hop PXN).
"""

from __future__ import annotations

from synth.baselines.all_pairs import broadcast_form
from synth.baselines.machine import Machine, equal_nodes
from synth.baselines.plan import Edge, Problem, Tree
from synth.collective import CollectiveName

COLLECTIVES = frozenset(
    {
        CollectiveName.ALLREDUCE,
        CollectiveName.ALLGATHER,
        CollectiveName.REDUCE_SCATTER,
        CollectiveName.ALLTOALL,
    }
)


def counts(machine: Machine, name: CollectiveName) -> tuple[int, ...]:
    """One chunk for every share; of allreduce one a rank."""
    return (machine.num_ranks,) if name is CollectiveName.ALLREDUCE else (1,)


def plan(problem: Problem) -> list[Tree]:
    """Trees along rails and within nodes. Raises NoAnswerError for one node, or nodes of different sizes."""
    nodes = equal_nodes(problem.machine, "hierarchical")
    seat = {rank: (node, place) for node, ranks in enumerate(nodes) for place, rank in enumerate(ranks)}
    if problem.collective.name is CollectiveName.ALLTOALL:
        return _alltoall(problem, nodes, seat)
    return [Tree(share, owner, _spread(nodes, *seat[owner])) for owner, share in problem.shares()]


def _spread(nodes: tuple[tuple[int, ...], ...], node: int, place: int) -> tuple[Edge, ...]:
    """Along the rail, node by node, and within each node as soon as the share is there, GPU by GPU."""
    width = len(nodes[0])
    owner = nodes[node][place]
    edges = []
    for turn in range(len(nodes)):
        ranks = nodes[(node + turn) % len(nodes)]
        edges.append(Edge(turn * width, owner, ranks[place]))
        edges += [Edge(turn * width + far, ranks[place], ranks[(place + far) % width]) for far in range(1, width)]
    return tuple(edges)


def _alltoall(problem: Problem, nodes: tuple[tuple[int, ...], ...], seat: dict[int, tuple[int, int]]) -> list[Tree]:
    width = len(nodes[0])
    trees = []
    for chunk in range(problem.collective.num_chunk_ids):
        source, dests = broadcast_form(problem, chunk)
        for dest in dests:
            (from_node, from_place), (to_node, to_place) = seat[source], seat[dest]
            there = nodes[from_node][to_place]
            first = Edge((to_place - from_place) % width, source, there)
            second = Edge(width + (to_node - from_node) % len(nodes), there, dest)
            trees.append(Tree((chunk,), source, (first, second)))
    return trees
