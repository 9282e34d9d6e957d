"""Plans: an algorithm as trees in broadcast form, and how trees become messages in a causal order.

Every baseline but the one-shot allreduce says, for every chunk, along which tree it would be broadcast from its owner. Reductions
are the same trees on the reversed machine, run backwards, and allreduce is both in a row (docs/formulation.md, section 8).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from synth.baselines.machine import Machine
from synth.chunks import MAX_CHUNKS
from synth.collective import Collective, CollectiveName
from synth.instance import Instance
from synth.ir import Message, Schedule, Transfer
from synth.list_scheduler import Work, list_schedule
from synth.timing import check_schedule, retime


class Edge(NamedTuple):
    """In step `step`, `src` hands what it has to `dst`: over `path`, or (None) over the shortest way."""

    step: int
    src: int
    dst: int
    path: int | None = None


class Tree(NamedTuple):
    """`chunks` go together from `owner` along `edges`, in order of step.

    What two trees of one lane send over one path in one step is one message. Ranks that have the chunks already are passed over.
    """

    chunks: tuple[int, ...]
    owner: int
    edges: tuple[Edge, ...]
    lane: int = 0


@dataclass(frozen=True)
class Problem:
    """What a baseline may know: the machine, or its reversal where chunks are to be reduced, and the collective."""

    machine: Machine
    collective: Collective

    @property
    def num_ranks(self) -> int:
        return self.collective.num_ranks

    def shares(self, owners: int | None = None) -> list[tuple[int, tuple[int, ...]]]:
        """(owner, its chunks): the source's or destination's share; of allreduce, an even cut among the first `owners`
        ranks (default all); everything at the root where there is one. Not for alltoall.
        """
        collective = self.collective
        if collective.root is not None:
            return [(collective.root, tuple(range(collective.chunks)))]
        count = owners or collective.num_ranks
        cuts = [collective.chunks * rank // count for rank in range(count + 1)]
        return [
            (rank, tuple(range(cuts[rank], cuts[rank + 1]))) for rank in range(count) if cuts[rank] < cuts[rank + 1]
        ]


#: Pieces of a pipeline that are tried, and transfers (a chunk to a rank) beyond which a program grows without saving time.
_PIECES = (1, 2, 4, 8, 16, 32)
_MOST_TRANSFERS = 8192

Planner = Callable[[Problem], Sequence[Tree]]


def deal(chunks: Sequence[int], count: int, turn: int = 0) -> list[tuple[int, ...]]:
    """The chunks cut into `count` runs of equal length, as far as that goes; some may be empty. Over as many turns in a row every
    run is as long as any other.
    """
    cuts = [(len(chunks) * part + turn % count) // count for part in range(count + 1)]
    return [tuple(chunks[first:last]) for first, last in itertools.pairwise(cuts)]


def instance_of(machine: Machine, collective: Collective, buffer_bytes: float) -> Instance:
    """The collective on all paths of the machine, for a buffer of `buffer_bytes` as nccl-tests counts it."""
    return Instance(machine.topology, collective, machine.paths, collective.chunk_bytes(buffer_bytes))


def piece_counts(machine: Machine, parts: int) -> tuple[int, ...]:
    """Chunk counts worth trying for an algorithm that sends the parts of a vector through as many pipelines, some pieces each.

    Over a chain of h hops, p pieces take (1 + (h - 1) / p) of the time of one hop, and p - 1 more latencies.
    """
    most = min(MAX_CHUNKS, _MOST_TRANSFERS // machine.num_ranks)
    return tuple(parts * pieces for pieces in _PIECES if pieces == 1 or parts * pieces <= most)


def plan_transfers(problem: Problem, planner: Planner) -> tuple[Transfer, ...]:
    """Which chunk goes over which path, in broadcast form."""
    messages = _messages(problem, planner(problem))
    return tuple(sorted(Transfer(chunk, each.path, False) for each in messages for chunk in each.chunks))


def plan_schedule(problem: Problem, planner: Planner, instance: Instance) -> Schedule:
    """The collective's messages with exact times (cost level 2) on `instance`, which is the problem's; checked.

    On every link they go in the order of the plan's steps or, where that is shorter, as soon as the link is free.
    """
    collective = problem.collective
    messages: list[Message] = []
    if collective.combining:
        mirrored = Problem(problem.machine.reversed(), collective)
        down = _timed(instance.reversed(), _messages(mirrored, planner(mirrored)))
        backwards = sorted(down.sends, key=lambda send: (-send.arrive_us, -send.start_us, send.path, send.chunks))
        messages += [Message(send.chunks, send.path, True) for send in backwards]
    if not collective.combining or collective.name is CollectiveName.ALLREDUCE:
        messages += _messages(problem, planner(problem))
    schedule = _timed(instance, messages)
    check_schedule(instance, schedule)
    return schedule


def _timed(instance: Instance, messages: Sequence[Message]) -> Schedule:
    listed = retime(instance, messages)
    work = Work.of(instance, messages)
    eager = list_schedule(instance, work, range(len(messages)), cutoff_us=listed.makespan_us)
    return eager if eager is not None and eager.makespan_us < listed.makespan_us else listed


class _When(NamedTuple):
    step: int
    relay: int


class _Key(NamedTuple):
    when: _When
    lane: int
    path: int


def _messages(problem: Problem, trees: Iterable[Tree]) -> list[Message]:
    together: dict[_Key, list[int]] = {}
    for tree in trees:
        for when, path in _hops(problem.machine, tree):
            together.setdefault(_Key(when, tree.lane, path), []).extend(tree.chunks)
    ordered = sorted(together.items(), key=lambda item: item[0].when)
    return [Message(tuple(sorted(chunks)), key.path) for key, chunks in ordered]


def _hops(machine: Machine, tree: Tree) -> list[tuple[_When, int]]:
    """The transfers of a tree, each with its turn. An edge between ranks that are not joined goes over others, which have the
    chunks from then on.
    """
    arrived = {tree.owner: _When(-1, 0)}
    hops = []
    for edge in tree.edges:
        way = (edge.path,) if edge.path is not None else machine.route(edge.src, edge.dst)
        for path in map(machine.paths.__getitem__, way if edge.dst not in arrived else ()):
            if path.dst not in arrived:
                came = arrived[path.src]
                when = _When(edge.step, came.relay + 1 if came.step == edge.step else 0)
                arrived[path.dst] = when
                hops.append((when, path.index))
    return hops
