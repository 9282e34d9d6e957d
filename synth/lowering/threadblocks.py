"""Which threadblock owns which connection, and each threadblock's program.

Every connection has a threadblock at either end. One that receives and one that sends on the same channel become one
where the second forwards what the first receives: then a step does both. Which receive joins which send is a matching
of greatest weight, a pair's weight being the chunks that one step would both receive and send.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import min_weight_full_bipartite_matching

from synth.lowering.fusion import Forwards, fuse
from synth.lowering.operations import Lane, Operation

Program = dict[Lane, list[Operation]]


class Owner(NamedTuple):
    """A threadblock of a rank."""

    rank: int
    lane: Lane


@dataclass(frozen=True, slots=True)
class Pairing:
    """How a rank's receiving and sending lanes are joined."""

    forwards: Forwards
    capacity: int
    """transfers that a connection holds"""
    ranks: int
    """of the whole machine"""
    pack: bool = False
    """whether lanes that forward nothing are joined too, to save threadblocks"""
    apart: frozenset[Owner] = frozenset()
    """threadblocks that must not be formed"""


def build_programs(operations: list[Operation], pairing: Pairing) -> Program:
    """The operations of a rank, in order of position, dealt to threadblocks; receives join the sends that forward."""
    single: dict[Lane, list[Operation]] = defaultdict(list)
    for operation in operations:
        single[operation.lane].append(operation)
    joined = _join_lanes(single, pairing)
    program: dict[Lane, list[Operation]] = defaultdict(list)
    for operation in operations:
        program[joined[operation.lane]].append(operation)
    return {lane: fuse(program[lane], pairing.forwards, pairing.capacity) for lane in sorted(program)}


def _join_lanes(single: Program, pairing: Pairing) -> dict[Lane, Lane]:
    """For every one-way lane, the threadblock that it becomes part of.

    With `pack`, where most pairs are as good as others, peers are counted from the rank on: ranks that do the same pair alike.
    """
    joined = {lane: lane for lane in single}
    rank = next((operations[0].rank for operations in single.values()), 0)
    first = rank if pairing.pack else 0
    for channel in sorted({lane.channel for lane in single}):
        lanes = [lane for lane in single if lane.channel == channel]
        recvs = sorted(filter(_receives, lanes), key=lambda lane: (lane.recv - first) % pairing.ranks)
        sends = sorted(filter(_sends, lanes), key=lambda lane: (lane.send - first) % pairing.ranks)
        for recv, send in _match(single, recvs, sends, pairing):
            pair = recv._replace(send=send.send)
            if Owner(rank, pair) not in pairing.apart:
                joined[recv] = joined[send] = pair
    return joined


def _receives(lane: Lane) -> bool:
    return lane.recv >= 0


def _sends(lane: Lane) -> bool:
    return lane.send >= 0


def _match(single: Program, recvs: list[Lane], sends: list[Lane], pairing: Pairing) -> list[tuple[Lane, Lane]]:
    """Pairs (recv, send) of greatest total weight; with `pack` as many pairs as there can be."""
    if not recvs or not sends:
        return []
    table = np.array([[_weight(single[recv], single[send], pairing) for send in sends] for recv in recvs])
    cost = table.max() + 1 - table  # least cost is greatest weight; no entry is 0, which a sparse matrix would drop
    rows, columns = min_weight_full_bipartite_matching(csr_array(cost))
    pairs = zip(rows.tolist(), columns.tolist(), strict=True)
    return [(recvs[row], sends[column]) for row, column in pairs if pairing.pack or table[row, column] > 0]


def _weight(received: list[Operation], sent: list[Operation], pairing: Pairing) -> int:
    """Chunks that one step would both receive and send; 0 where a common threadblock would hold somebody up.

    It holds nobody up where it first sends what is its own, then passes on what comes, and at the end receives what goes no
    further. In any other order a receive waits behind a send that waits for something else, and so does whoever sends to it.
    """
    source = pairing.forwards.source
    here = {operation.position for operation in received}
    brought_by = [source[op.position].position if op.position in source else None for op in sent]
    passed_on = here.intersection(brought_by)
    last_on = max(passed_on, default=None)
    # Most pairs forward nothing, or send something else after the first receive, or keep something before the last that goes on.
    if (
        last_on is None
        or any(op.position > received[0].position and by not in here for op, by in zip(sent, brought_by, strict=True))
        or any(op.position < last_on and op.position not in passed_on for op in received)
    ):
        return 0
    together = fuse(sorted([*received, *sent], key=lambda op: op.position), pairing.forwards, pairing.capacity)
    first = next(place for place, operation in enumerate(together) if operation.pops is not None)
    last = max(place for place, operation in enumerate(together) if operation.pushes is not None)
    between = together[first : last + 1]
    if any(operation.pops is None or operation.pushes is None for operation in between):
        return 0
    return sum(operation.count for operation in between)
