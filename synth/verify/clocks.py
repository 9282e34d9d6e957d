"""Vector clocks over events: what happens before what (Fidge 1988, Mattern 1989), and cheap answers that are right for most
questions.

A clock over all threadblocks of a large cluster is too much to keep for every event. Most questions are about two events of
one gpu that the flags of that gpu order: clocks over its own threadblocks tell. Most others are about a chunk whose way
leads out of a gpu and back: `ordered_by_flow` follows the chunk. What neither shows may still be so, and full clocks decide.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from synth.verify.graph import Graph

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class Clocks:
    """For every event, the last event of some threadblocks that happens before it, as far as `waits` say.

    `column[b]` is where that of threadblock b is kept, -1 for nowhere. Threadblocks that share one must never be waited for from one
    place.
    """

    def __init__(self, graph: Graph, order: Sequence[int], waits: Mapping[int, list[int]], column: Ints) -> None:
        self._block = np.asarray(graph.block, dtype=np.int64)
        self._column = column
        self._waits = waits
        # A row for each event that waits; the events after it in its threadblock share it.
        waiting = sorted(waits)
        index = np.zeros(len(graph), dtype=np.int64)
        index[waiting] = 1
        last = np.cumsum(index) - 1
        start = np.asarray(graph.start, dtype=np.int64)[self._block]
        preceding = np.concatenate([[0], np.cumsum(index)])[start]
        self._row = np.where(last >= preceding, last, -1)
        self._rows = np.full((len(waiting), int(column.max(initial=-1)) + 1), -1, dtype=np.int32)
        self._fill(graph, order)

    def _fill(self, graph: Graph, order: Sequence[int]) -> None:
        rows, row_of = self._rows, self._row.tolist()
        column, start = self._column.tolist(), graph.start
        for event in order:
            waits = self._waits.get(event)
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

    def ordered(self, before: Ints, after: Ints) -> Bools:
        """Whether each `before` happens before its `after`; True where the threadblock of `before` is no column."""
        column, row = self._column[self._block[before]], self._row[after]
        result = column < 0
        known = ~result & (row >= 0)
        result[known] = self._rows[row[known], column[known]] >= before[known]
        return result


def clocks_at_home(graph: Graph, order: Sequence[int]) -> Clocks:
    """For pairs of events of one gpu: whether its own flags order them."""
    gpu = gpus_of_blocks(graph)
    column = np.zeros(len(graph.start), dtype=np.int64)
    seen: Counter[int] = Counter()
    for number, here in enumerate(gpu):
        column[number] = seen[here]
        seen[here] += 1
    block = graph.block
    flags = {
        event: at_home
        for event, waits in graph.waits.items()
        if (at_home := [other for other in waits if gpu[block[other]] == gpu[block[event]]])
    }
    return Clocks(graph, order, flags, column)


def gpus_of_blocks(graph: Graph) -> list[int]:
    """By threadblock its gpu; -1 for one without events, and for the end of the list."""
    ends = (*graph.start[1:], len(graph))
    return [graph.refs[first].gpu if first < end else -1 for first, end in zip(graph.start, ends, strict=True)]
