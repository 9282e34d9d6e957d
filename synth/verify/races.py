"""Data races: two accesses of one chunk of one rank, one of them a write, that nothing puts in order.

The accesses of each address are sorted by a topological order. It is enough to ask whether the last write before each
access, and the next write after each read, are ordered with it: the others follow, since the relation is transitive.
Each question that the cheap answers of clocks.py and flows.py leave open is answered by a vector clock that has one entry for
every threadblock asked about, and changes only at events that wait for another threadblock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from msccl_xml.model import StepType
from synth.verify.clocks import Clocks, clocks_at_home
from synth.verify.errors import VerifyError
from synth.verify.flows import ordered_by_flow
from synth.verify.graph import Graph, StepRef
from synth.verify.layout import Layout

_Ints = npt.NDArray[np.int64]

CLOCK_ENTRIES = 1 << 26
"""Entries of the clocks held at a time (256 MB); threadblocks are asked about in batches that fit."""


@dataclass(frozen=True, slots=True)
class _Accesses:
    """All accesses, one row each, sorted by address and then by topological order."""

    address: _Ints
    event: _Ints
    writes: npt.NDArray[np.bool_]


def check_races(graph: Graph, order: Sequence[int], layout: Layout) -> None:
    """Raise VerifyError with both accesses of a race, if there is one; `order` is a topological order of `graph`."""
    accesses = _list_accesses(graph, order, layout)
    block = np.asarray(graph.block, dtype=np.int64)
    before, after, address = _questions(accesses, block)
    home = clocks_at_home(graph, order)
    left = np.flatnonzero(~home.ordered(before, after))
    uses = accesses.event, accesses.address
    left = left[~ordered_by_flow(graph, order, home, uses, before[left], after[left])]
    before, after, address = before[left], after[left], address[left]
    asked = np.unique(block[before])
    rows = max(1, len(graph.waits))
    for start in range(0, len(asked), max(1, CLOCK_ENTRIES // rows)):
        columns = asked[start : start + max(1, CLOCK_ENTRIES // rows)]
        column = np.full(len(graph.start), -1, dtype=np.int64)
        column[columns] = np.arange(len(columns))
        ordered = Clocks(graph, order, graph.waits, column).ordered(before, after)
        wrong = np.flatnonzero(~ordered)
        if len(wrong):
            first = wrong[0]
            raise _race(graph, layout, int(before[first]), int(after[first]), int(address[first]))


def _list_accesses(graph: Graph, order: Sequence[int], layout: Layout) -> _Accesses:
    bases = np.concatenate([[0], np.cumsum([memory.size for memory in layout.ranks])])
    sources, targets = _step_addresses(graph, layout, bases)
    first, count = np.asarray(graph.first, dtype=np.int64), np.asarray(graph.count, dtype=np.int64)
    events = np.arange(len(graph), dtype=np.int64)
    parts = []
    for starts, writes in ((sources, False), (targets, True)):
        used = events[starts >= 0]
        repeated = np.repeat(used, count[used])
        within = np.arange(len(repeated), dtype=np.int64) - np.repeat(np.cumsum(count[used]) - count[used], count[used])
        parts.append((starts[repeated] + first[repeated] + within, repeated, np.full(len(repeated), writes)))
    address, event, writes_all = (np.concatenate(column) for column in zip(*parts, strict=True))
    rank_in_order = np.empty(len(graph), dtype=np.int64)
    rank_in_order[np.asarray(order, dtype=np.int64)] = events
    sort = np.lexsort((writes_all, rank_in_order[event], address))
    return _Accesses(address[sort], event[sort], writes_all[sort])


def _step_addresses(graph: Graph, layout: Layout, bases: _Ints) -> tuple[_Ints, _Ints]:
    """For every event the address of its step's first source and destination chunk; -1 where it has none."""
    known: dict[int, tuple[int, int]] = {}
    pairs = np.empty((len(graph), 2), dtype=np.int64)
    for event, ref in enumerate(graph.refs):
        pair = known.get(id(ref))
        if pair is None:
            pair = known[id(ref)] = _addresses(ref, layout, int(bases[ref.gpu]))
        pairs[event] = pair
    return pairs[:, 0], pairs[:, 1]


def _addresses(ref: StepRef, layout: Layout, base: int) -> tuple[int, int]:
    step, memory = ref.step, layout.ranks[ref.gpu]
    source = base + memory.address(step.src_buffer, step.src_offset) if step.type.reads_src else -1
    target = base + memory.address(step.dst_buffer, step.dst_offset) if step.type.writes_dst else -1
    if step.type is StepType.COPY and source == target:
        # In place, `cpy i -> o` of a rank's own share stores what is there: nobody sees it, unless another write comes
        # between its load and its store. So it conflicts as a read does.
        return source, -1
    return source, target


def _questions(accesses: _Accesses, block: _Ints) -> tuple[_Ints, _Ints, _Ints]:
    """Pairs of events (before, after) that must be ordered, with the address that both access."""
    rows = np.arange(len(accesses.event), dtype=np.int64)
    begins = np.concatenate([[True], accesses.address[1:] != accesses.address[:-1]]) if len(rows) else np.zeros(0, bool)
    group = np.maximum.accumulate(np.where(begins, rows, 0)) if len(rows) else rows
    previous = np.full(len(rows), -1, dtype=np.int64)
    if len(rows):
        previous[1:] = np.maximum.accumulate(np.where(accesses.writes, rows, -1))[:-1]
    following = np.full(len(rows) + 1, len(rows), dtype=np.int64)
    following[:-1] = np.minimum.accumulate(np.where(accesses.writes, rows, len(rows))[::-1])[::-1]
    has_previous = previous >= group
    reads = np.flatnonzero(~accesses.writes)
    next_write = following[reads]
    inside = next_write < len(rows)
    inside[inside] = accesses.address[next_write[inside]] == accesses.address[reads[inside]]
    before = np.concatenate([previous[has_previous], reads[inside]])
    after = np.concatenate([rows[has_previous], next_write[inside]])
    events = accesses.event[before], accesses.event[after]
    across = block[events[0]] != block[events[1]]
    return events[0][across], events[1][across], accesses.address[before][across]


def _race(graph: Graph, layout: Layout, before: int, after: int, address: int) -> VerifyError:
    ref = graph.refs[before]
    local = address - sum(memory.size for memory in layout.ranks[: ref.gpu])
    problem = f"data race when called {layout}: nothing orders these accesses of {layout.ranks[ref.gpu].name(local)}"
    return VerifyError(f"{problem} on gpu {ref.gpu}", (f"  {ref}", f"  {graph.refs[after]}"))
