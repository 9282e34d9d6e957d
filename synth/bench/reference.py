"""A reference workload: a fixed amount of work of the kind that syntheses do, with nothing of synth in it.

Seconds differ between machines, and on one machine with what else runs there. A synthesis' CPU seconds divided by the reference's,
both taken in the same process minutes apart at most, differ far less: that ratio is what runs are compared by.
"""

from __future__ import annotations

import heapq
import statistics
import time

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

#: Side of the grid whose shortest paths and maximum flow are found, and how often: some 30 ms each.
_SIDE = 60
_REPEATS = 5


def reference_s() -> float:
    """CPU seconds of the workload: the median of a few repeats."""
    return statistics.median(_once() for _ in range(_REPEATS))


def _once() -> float:
    begun = time.process_time()
    for source in range(4):
        _shortest_paths(source)
    _flow()
    return max(time.process_time() - begun, 1e-6)


def _shortest_paths(source: int) -> int:
    """Dijkstra on a grid with uneven weights: heaps, dictionaries and tuples, as in the list schedulers."""
    distance = {source: 0}
    heap = [(0, source)]
    while heap:
        far, vertex = heapq.heappop(heap)
        if far > distance[vertex]:
            continue
        row, column = divmod(vertex, _SIDE)
        for next_row, next_column in ((row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)):
            if 0 <= next_row < _SIDE and 0 <= next_column < _SIDE:
                neighbour = next_row * _SIDE + next_column
                near = far + 1 + (vertex * 7 + neighbour * 13) % 11
                if near < distance.get(neighbour, 1 << 60):
                    distance[neighbour] = near
                    heapq.heappush(heap, (near, neighbour))
    return max(distance.values())


def _flow() -> int:
    """A maximum flow across the same grid: compiled code and memory traffic, as in the bounds."""
    vertices = np.arange(_SIDE * _SIDE).reshape(_SIDE, _SIDE)
    ends = [(vertices[:, :-1], vertices[:, 1:]), (vertices[:-1], vertices[1:])]
    src = np.concatenate([first.ravel() for first, _ in ends])
    dst = np.concatenate([second.ravel() for _, second in ends])
    capacity = (1 + (src * 7 + dst * 13) % 11).astype(np.int32)
    graph = csr_array((capacity, (src, dst)), shape=(vertices.size, vertices.size))
    return int(maximum_flow(graph, 0, vertices.size - 1).flow_value)
