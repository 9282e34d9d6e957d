"""Does the way of a chunk order two events? A chunk that a gpu sends, and that comes back to it summed up, comes back after
it was sent.

Events that move the same data, over messages and memory, make a *flow*. Within a flow, an event happens after another if a
message or the flags of one gpu say so, or a chain of both. What is found so is right; what is not found may still be
ordered by other flows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from synth.verify.clocks import Bools, Clocks, Ints, gpus_of_blocks
from synth.verify.graph import Graph

#: Of the events of one flow on one gpu, how many of those just before are asked whether they are ordered with it.
_LOOK_BACK = 24
#: Bits that the events of one flow may keep together (32 MB): larger flows are left to full clocks.
_MOST_BITS = 1 << 28


def ordered_by_flow(
    graph: Graph, order: Sequence[int], home: Clocks, uses: tuple[Ints, Ints], before: Ints, after: Ints
) -> Bools:
    """For each pair of events: whether the flow that both are of orders them.

    `uses` are pairs (event, address), one for every chunk that an event reads or writes; `home` are the clocks of the gpus.
    """
    result = np.zeros(len(before), dtype=np.bool_)
    if not len(before):
        return result
    flow = _flows(graph, *uses)
    asked: dict[int, list[int]] = defaultdict(list)
    for question in np.flatnonzero(flow[before] == flow[after]).tolist():
        asked[int(flow[before[question]])].append(question)
    place = np.empty(len(graph), dtype=np.int64)
    place[np.asarray(order, dtype=np.int64)] = np.arange(len(graph))
    members = np.flatnonzero(np.isin(flow, np.array(list(asked), dtype=np.int64)))
    members = members[np.lexsort((place[members], flow[members]))]
    earlier = _earlier_at_home(graph, home, members, flow)
    for events in np.split(members, np.flatnonzero(np.diff(flow[members])) + 1):
        questions = asked[int(flow[events[0]])]
        if len(events) * len(questions) <= _MOST_BITS:
            _follow(graph, events.tolist(), earlier, questions, (before, after), result)
    return result


def _flows(graph: Graph, event: Ints, address: Ints) -> Ints:
    """By event the number of its flow: events joined by memory and by messages."""
    pops = np.fromiter(graph.message.keys(), dtype=np.int64, count=len(graph.message))
    pushes = np.fromiter(graph.message.values(), dtype=np.int64, count=len(graph.message))
    rows = np.concatenate([event, pops])
    columns = np.concatenate([address + len(graph), pushes])
    size = int(columns.max(initial=0)) + 1 + len(graph)
    joined = csr_array((np.ones(len(rows), dtype=np.int8), (rows, columns)), shape=(size, size))
    labels: Ints = connected_components(joined, directed=False)[1][: len(graph)].astype(np.int64)
    return labels


def _earlier_at_home(graph: Graph, home: Clocks, members: Ints, flow: Ints) -> dict[int, list[int]]:
    """For each event, of the events of its flow on its gpu that come just before it, those that its flags order before it."""
    block = np.asarray(graph.block, dtype=np.int64)
    gpu = np.asarray(gpus_of_blocks(graph), dtype=np.int64)[block[members]]
    together = np.lexsort((np.arange(len(members)), gpu, flow[members]))
    row, same = members[together], np.stack([flow[members], gpu])[:, together]
    earlier: dict[int, list[int]] = defaultdict(list)
    for back in range(1, min(_LOOK_BACK, len(row) - 1) + 1):
        near = np.flatnonzero((same[:, back:] == same[:, :-back]).all(axis=0))
        if not len(near):
            break
        first, then = row[near], row[near + back]
        ordered = home.ordered(first, then) | (block[first] == block[then])
        for one, other in zip(first[ordered].tolist(), then[ordered].tolist(), strict=True):
            earlier[other].append(one)
    return earlier


def _follow(
    graph: Graph,
    events: list[int],
    earlier: dict[int, list[int]],
    questions: list[int],
    pairs: tuple[Ints, Ints],
    result: npt.NDArray[np.bool_],
) -> None:
    """Walk one flow in order, keeping for each event as bits which of the asked events happened before it."""
    before, after = (ends[questions].tolist() for ends in pairs)
    bit = {event: 1 << number for number, event in enumerate(dict.fromkeys(before))}
    known: dict[int, int] = {}
    for event in events:
        bits = bit.get(event, 0)
        for other in (*graph.waits.get(event, ()), *earlier.get(event, ())):
            bits |= known.get(other, 0)
        known[event] = bits
    for question, one, other in zip(questions, before, after, strict=True):
        result[question] = bool(known[other] & bit[one])
