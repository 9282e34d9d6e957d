"""Data races: two accesses of one chunk of one rank, one of them a write, that nothing puts in order.

The accesses of each address are sorted by a topological order. It is enough to ask whether the last write before each
access, and the next write after each read, are ordered with it: the others follow, since the relation is transitive.
Each question is answered by a vector clock that has one entry for every threadblock asked about, and changes only at
events that wait for another threadblock (Fidge 1988, Mattern 1989).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from msccl_xml.model import StepType
from synth.verify.errors import VerifyError
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
    before, after, address = _questions(accesses, np.asarray(graph.block, dtype=np.int64))
    asked = np.unique(np.asarray(graph.block, dtype=np.int64)[before]) if len(before) else np.zeros(0, dtype=np.int64)
    rows = max(1, len(graph.waits))
    for start in range(0, len(asked), max(1, CLOCK_ENTRIES // rows)):
        columns = asked[start : start + max(1, CLOCK_ENTRIES // rows)]
        ordered = _Clocks(graph, order, columns).ordered(before, after)
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


class _Clocks:
    """For every event, the last event of some threadblocks (the columns) that happens before it."""

    def __init__(self, graph: Graph, order: Sequence[int], columns: _Ints) -> None:
        self._block = np.asarray(graph.block, dtype=np.int64)
        self._column = np.full(len(graph.start), -1, dtype=np.int64)
        self._column[columns] = np.arange(len(columns))
        # A row for each event that waits; the events after it in its threadblock share it.
        waiting = sorted(graph.waits)
        index = np.zeros(len(graph), dtype=np.int64)
        index[waiting] = 1
        last = np.cumsum(index) - 1
        start = np.asarray(graph.start, dtype=np.int64)[self._block]
        preceding = np.concatenate([[0], np.cumsum(index)])[start]
        self._row = np.where(last >= preceding, last, -1)
        self._rows = np.full((len(waiting), len(columns)), -1, dtype=np.int32)
        self._fill(graph, order)

    def _fill(self, graph: Graph, order: Sequence[int]) -> None:
        rows, row_of = self._rows, self._row.tolist()
        column, start = self._column.tolist(), graph.start
        for event in order:
            waits = graph.waits.get(event)
            if waits is None:
                continue
            row = rows[row_of[event]]
            if event > start[graph.block[event]] and row_of[event - 1] >= 0:
                row[:] = rows[row_of[event - 1]]
            for before in waits:
                if row_of[before] >= 0:
                    np.maximum(row, rows[row_of[before]], out=row)
                own = column[graph.block[before]]
                if own >= 0 and row[own] < before:
                    row[own] = before

    def ordered(self, before: _Ints, after: _Ints) -> npt.NDArray[np.bool_]:
        """Whether each `before` happens before its `after`; True where the threadblock of `before` is no column."""
        column, row = self._column[self._block[before]], self._row[after]
        result = column < 0
        known = ~result & (row >= 0)
        result[known] = self._rows[row[known], column[known]] >= before[known]
        return result


def _race(graph: Graph, layout: Layout, before: int, after: int, address: int) -> VerifyError:
    ref = graph.refs[before]
    local = address - sum(memory.size for memory in layout.ranks[: ref.gpu])
    problem = f"data race when called {layout}: nothing orders these accesses of {layout.ranks[ref.gpu].name(local)}"
    return VerifyError(f"{problem} on gpu {ref.gpu}", (f"  {ref}", f"  {graph.refs[after]}"))
