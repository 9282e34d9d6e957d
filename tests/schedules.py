"""Plain schedules for tests: shortest-path trees from every owner, reversed for reductions, timed by synth.timing."""

from __future__ import annotations

import random
from collections import deque

from synth.collective import CollectiveName
from synth.instance import Instance
from synth.ir import Message, Schedule, Transfer, predecessors
from synth.timing import retime


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


def random_schedule(instance: Instance, draw: random.Random, most_together: int = 1) -> Schedule:
    """Random trees in a random causal order; up to `most_together` chunks that are ready for one path travel together."""
    transfers = []
    collective = instance.collective
    for demand in instance.demands:
        if collective.combining:
            edges = _random_tree(instance.reversed(), demand.source, demand.dests, draw)
            transfers += [Transfer(demand.chunk, path, True) for path in edges]
        if not collective.combining or collective.name is CollectiveName.ALLREDUCE:
            edges = _random_tree(instance, demand.source, demand.dests, draw)
            transfers += [Transfer(demand.chunk, path) for path in edges]
    return retime(instance, _random_order(instance, transfers, draw, most_together))


def _random_tree(instance: Instance, source: int, dests: frozenset[int], draw: random.Random) -> list[int]:
    """Paths of a random tree from the source, cut to what leads to a destination."""
    parent: dict[int, int] = {}
    reached = {source}
    while not dests <= reached:
        leaving = [path for rank in sorted(reached) for path in instance.outgoing[rank] if path.dst not in reached]
        path = draw.choice(leaving)
        parent[path.dst] = path.index
        reached.add(path.dst)
    used = set()
    for dest in sorted(dests):
        while dest != source:
            used.add(parent[dest])
            dest = instance.paths[parent[dest]].src
    return sorted(used)


def _random_order(
    instance: Instance, transfers: list[Transfer], draw: random.Random, most_together: int
) -> list[Message]:
    before = predecessors(instance, transfers)
    waiting = sorted(transfers)
    done: set[Transfer] = set()
    messages = []
    while waiting:
        ready = [transfer for transfer in waiting if done.issuperset(before[transfer])]
        first = draw.choice(ready)
        alike = [t for t in ready if (t.path, t.reduce) == (first.path, first.reduce) and t != first]
        sent = [first, *alike[: draw.randint(0, most_together - 1)]]
        messages.append(Message(tuple(sorted(transfer.chunk for transfer in sent)), first.path, first.reduce))
        done.update(sent)
        waiting = [transfer for transfer in waiting if transfer not in done]
    return messages


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
