"""Plain schedules for tests: shortest-path trees from every owner, reversed for reductions, timed by synth.timing."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from synth.collective import CollectiveName
from synth.instance import Instance
from synth.ir import Schedule
from synth.timing import Message, retime


def tree_schedule(instance: Instance, *, together: bool = False) -> Schedule:
    """A feasible schedule of any collective: breadth-first trees, chunk after chunk by depth.

    `together`: chunks that need the same path at the same depth of the same owner's tree travel as one message.
    """
    combining = instance.collective.combining
    down = [] if combining and instance.collective.name is not CollectiveName.ALLREDUCE else _levels(instance, together)
    up: list[Message] = []
    if combining:
        mirrored = _levels(instance.reversed(), together)
        up = [message._replace(reduce=True) for message in reversed(mirrored)]
    return retime(instance, up + down)


def direct_schedule(instance: Instance) -> Schedule:
    """Every demand straight over one path (the machine has one between any two ranks), one chunk a message."""
    over = {(path.src, path.dst): path.index for path in reversed(instance.paths)}
    messages = []
    for demand in instance.demands:
        for dest in sorted(demand.dests, key=lambda dest: (dest - demand.source) % instance.num_ranks):
            messages.append(Message((demand.chunk,), over[demand.source, dest]))
    return retime(instance, messages)


def shrink(instance: Instance, chunk_bytes: float) -> Instance:
    """The same problem with other chunks."""
    return replace(instance, chunk_bytes=chunk_bytes)


def _levels(instance: Instance, together: bool) -> list[Message]:
    grouped: dict[tuple[int, int, int, int], list[int]] = {}
    for demand in instance.demands:
        for depth, path in _tree(instance, demand.source, demand.dests):
            grouped.setdefault((depth, demand.source, path, 0 if together else demand.chunk), []).append(demand.chunk)
    return [Message(tuple(chunks), path) for (_, _, path, _), chunks in sorted(grouped.items())]


def _tree(instance: Instance, source: int, dests: frozenset[int]) -> list[tuple[int, int]]:
    """(depth, path) of the edges of a breadth-first tree, cut to what leads to a destination."""
    parent: dict[int, tuple[int, int]] = {}
    depth = {source: 0}
    queue = deque([source])
    while queue:
        rank = queue.popleft()
        for path in instance.outgoing[rank]:
            if path.dst not in depth:
                depth[path.dst] = depth[rank] + 1
                parent[path.dst] = (rank, path.index)
                queue.append(path.dst)
    edges = set()
    for dest in dests:
        rank = dest
        while rank != source:
            edges.add((depth[rank] - 1, parent[rank][1]))
            rank = parent[rank][0]
    return sorted(edges)
