"""The double binary tree: two trees that share the vector, in which almost every inner rank of one is a leaf of the other.

P. Sanders, J. Speck and J. L. Träff, Two-tree algorithms for full bandwidth broadcast, reduction and scan (Parallel
Computing 35, 2009); the shape is that of NCCL's ncclGetBtree and ncclGetDtree (src/graph/trees.cc). As there, the trees join
nodes, and the GPUs of a node hang in a chain on the one that faces the network. There is a pair of trees for every ring of the
machine, whose order gives the chains. The differences: within one node NCCL uses chains alone. Here the trees join
its ranks where every two of them are joined directly, and chains are taken where not. And NCCL broadcasts and reduces over rings
only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from synth.baselines.machine import Machine
from synth.baselines.plan import Edge, Problem, Tree, deal, piece_counts
from synth.collective import CollectiveName

COLLECTIVES = frozenset({CollectiveName.ALLREDUCE, CollectiveName.BROADCAST, CollectiveName.REDUCE})
Pairs = list[tuple[int, int]]


def counts(machine: Machine, name: CollectiveName) -> tuple[int, ...]:
    """The chunk counts worth trying: some pieces for every tree."""
    del name
    return piece_counts(machine, len(_shapes(machine)))


def plan(problem: Problem) -> list[Tree]:
    """The chunks dealt to the trees, piece after piece down each; from the root of the collective, if it has one."""
    shapes = _shapes(problem.machine)
    trees = []
    for lane, (pairs, chunks) in enumerate(
        zip(shapes, deal(range(problem.collective.chunks), len(shapes)), strict=True)
    ):
        root = problem.collective.root if problem.collective.root is not None else pairs[0][0]
        edges = _downwards(pairs, root)
        for start, chunk in enumerate(chunks):
            shifted = tuple(edge._replace(step=edge.step + start) for edge in edges)
            trees.append(Tree((chunk,), root, shifted, lane))
    return trees


def btree_parent(rank: int, count: int) -> int | None:
    """The parent in NCCL's binary tree of `count` ranks (ncclGetBtree): 0 is the root and the leaves are the odd ranks."""
    if rank == 0:
        return None
    bit = rank & -rank
    parent = (rank ^ bit) | (bit << 1)
    return parent if parent < count else rank ^ bit


def double_tree(count: int) -> tuple[list[int | None], list[int | None]]:
    """The parents of all ranks in the two trees: the second is the first mirrored, or shifted by one for odd counts."""
    first = [btree_parent(rank, count) for rank in range(count)]
    moved = [(rank + 1) % count if count % 2 else count - 1 - rank for rank in range(count)]
    second: list[int | None] = [None] * count
    for rank, parent in enumerate(first):
        second[moved[rank]] = None if parent is None else moved[parent]
    return first, second


def _shapes(machine: Machine) -> list[Pairs]:
    """Every tree as (parent, child) pairs of ranks, the root's first."""
    if len(machine.nodes) == 1:
        return _within_one_node(machine)
    shapes = []
    for order in _orders(machine):
        chains = [[rank for rank in order if rank in node] for node in map(frozenset, machine.nodes)]
        inside = [pair for chain in chains for pair in pairwise(chain)]
        heads = [chain[0] for chain in chains]
        shapes += [_among(heads, parents) + inside for parents in double_tree(len(heads))]
    return shapes


def _within_one_node(machine: Machine) -> list[Pairs]:
    ranks = range(machine.num_ranks)
    if len(machine.direct) == machine.num_ranks * (machine.num_ranks - 1):
        return [_among(ranks, parents) for parents in double_tree(machine.num_ranks)]
    return [list(pairwise(order)) for order in _orders(machine)]


def _orders(machine: Machine) -> list[tuple[int, ...]]:
    """The ranks in the order of every ring, from where it enters a node, or in rank order where the machine has no ring.

    A reversed machine takes the orders of the machine itself: what goes down a tree has to have come up to the same root.
    """
    rings = (machine.mirrors or machine).rings
    return [_from_entry(machine, ring.ranks) for ring in rings] or [tuple(range(machine.num_ranks))]


def _from_entry(machine: Machine, ranks: tuple[int, ...]) -> tuple[int, ...]:
    node = machine.topology.node_of
    entry = next((place for place in range(len(ranks)) if node(ranks[place - 1]) != node(ranks[place])), 0)
    return ranks[entry:] + ranks[:entry]


def _among(members: Sequence[int], parents: Sequence[int | None]) -> Pairs:
    """A tree of positions as pairs of members, those with the root first."""
    pairs = [(members[parent], members[child]) for child, parent in enumerate(parents) if parent is not None]
    root = members[parents.index(None)]
    return sorted(pairs, key=lambda pair: pair[0] != root)


def _downwards(pairs: Pairs, root: int) -> list[Edge]:
    """The tree's edges away from `root`, breadth first."""
    beside: dict[int, list[int]] = defaultdict(list)
    for one, other in pairs:
        beside[one].append(other)
        beside[other].append(one)
    depth = {root: 0}
    edges = []
    for rank in (queue := [root]):
        for other in beside[rank]:
            if other not in depth:
                depth[other] = depth[rank] + 1
                edges.append(Edge(depth[rank], rank, other))
                queue.append(other)
    return edges
