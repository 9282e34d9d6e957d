"""Leaping over tiles by average paces, for runs whose state never comes back.

Threadblocks that share a connection stay within its room of each other, and those that wait for each other's flags cannot part
either: they are a group with one pace. A group that only others wait for goes ahead of them, at a pace of its own, until it is
through; the state of the whole then never repeats, though each group does the same over and over. Paces are measured over some
tiles, and all groups are put on by the same time, each by its pace times that time, in whole tiles: each may be wrong by half.
So this is done only where there are very many tiles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from synth.simulate.leap import leap

if TYPE_CHECKING:
    from synth.simulate.engine import Engine
    from synth.simulate.program import Program

#: With fewer tiles half a tile is too much: every tile is run.
FEWEST_TILES = 256
#: A leap of fewer tiles than this of the quickest group is not worth its error.
_SHORTEST = 16
#: Longest cycle of a group that is looked for, in tiles, and the share of a time within which two are equal.
_LONGEST_CYCLE, _EQUAL = 12, 1e-9


class Drift:
    """Measures the pace of every group, from when it is made. `ended` tells it of tiles, `leap` uses it."""

    def __init__(self, engine: Engine) -> None:
        self.groups = _groups(engine.program)
        #: When the first threadblock of each group ended each of its tiles.
        self.ends: dict[int, list[float]] = {group[0]: [] for group in self.groups}

    def ended(self, block: int, now_us: float) -> None:
        """Threadblock `block` has ended a tile."""
        if block in self.ends:
            self.ends[block].append(now_us)

    def leap(self, engine: Engine) -> None:
        """Put the run as much later as leaves the first group to end some tiles to run; not at all where that is too little."""
        last = engine.program.tiles - 1
        paces: list[tuple[list[int], float]] = []
        time_us = float("inf")
        for group in self.groups:
            ahead = max(engine.tile[block] for block in group)
            pace = _tiles_per_us(self.ends[group[0]])
            if pace is None or min(engine.tile[block] for block in group) > last:
                continue
            paces.append((group, pace))
            time_us = min(time_us, (last - 1 - ahead) / pace)
        if not paces or time_us * max(pace for _, pace in paces) < _SHORTEST:
            return
        leaps = [0] * len(engine.tile)
        for group, pace in paces:
            ahead = max(engine.tile[block] for block in group)
            for block in group:
                leaps[block] = min(round(pace * time_us), last - 1 - ahead)
        leap(engine, leaps, time_us)
        engine.ask_again()


def _tiles_per_us(ends: list[float]) -> float | None:
    """The pace of a group that ended tiles at these times: of its cycle where it has one, else the average; None if unknown."""
    if len(ends) < 2:
        return None
    slack = _EQUAL * ends[-1]
    for cycle in range(1, min(_LONGEST_CYCLE, len(ends) // 3) + 1):
        spans = [late - early for early, late in zip(ends, ends[cycle:], strict=False)]
        if max(spans) - min(spans) <= slack:
            return cycle / spans[-1]
    return (len(ends) - 1) / (ends[-1] - ends[0])


def _groups(program: Program) -> list[list[int]]:
    """The threadblocks that hold each other up, by connections or by flags; groups by first threadblock.

    Both ends of a connection do, and all those that wait for each other's flags in a circle: the strong components of who holds up
    whom. Who only waits for a flag never holds up the one that sets it.
    """
    holds = []
    users: dict[int, int] = {}
    for number, block in enumerate(program.blocks):
        for connection in (block.send, block.recv):
            if connection >= 0:
                other = users.setdefault(connection, number)
                holds += [(number, other), (other, number)]
        holds += [(wait.tb, number) for operation in block.operations for wait in operation.waits]
    size = len(program.blocks)
    ends = np.array(holds, dtype=np.int64).reshape(-1, 2)
    graph = coo_array((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(size, size))
    _, component = connected_components(graph, directed=True, connection="strong")
    joined: dict[int, list[int]] = {}
    for number, block in enumerate(program.blocks):
        if block.operations:
            joined.setdefault(int(component[number]), []).append(number)
    return list(joined.values())
