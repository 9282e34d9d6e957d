"""Leaping over tiles by average paces, for runs whose state never comes back.

Threadblocks that share a connection stay within its room of each other: they are a group with one pace. A group that only
others wait for goes ahead of them, at a pace of its own, until it is through; the state of the whole then never repeats, though each group does
the same over and over. Paces are measured over some tiles, and all groups are put on by the same time, each by its pace times that
time, in whole tiles: each may be wrong by half a tile. So this is done only where there are very many tiles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from synth.simulate.leap import leap

if TYPE_CHECKING:
    from synth.simulate.engine import Engine
    from synth.simulate.program import Program

#: With fewer tiles half a tile is too much: every tile is run.
FEWEST_TILES = 256
#: A leap of fewer tiles than this of the quickest group is not worth its error.
_SHORTEST = 16


class Drift(NamedTuple):
    """How far all threadblocks were when the measuring began."""

    begun_us: float
    done: tuple[int, ...]

    @classmethod
    def begin(cls, engine: Engine) -> Drift:
        """Measure from here."""
        return cls(engine.now, tuple(engine.done))

    def leap(self, engine: Engine) -> bool:
        """Put the run as much later as leaves the first group to end some tiles to run; False where that is too little."""
        last = engine.program.tiles - 1
        paces: list[tuple[list[int], float]] = []
        time_us = float("inf")
        for group in _groups(engine.program):
            operations = sum(len(engine.moves[block]) for block in group)
            done = sum(engine.done[block] - self.done[block] for block in group)
            if any(engine.tile[block] >= last for block in group) or not done:
                continue
            pace = done / operations / (engine.now - self.begun_us)
            paces.append((group, pace))
            time_us = min(time_us, (last - 1 - max(engine.tile[block] for block in group)) / pace)
        if not paces or time_us * max(pace for _, pace in paces) < _SHORTEST:
            return False
        leaps = [0] * len(engine.tile)
        for group, pace in paces:
            ahead = max(engine.tile[block] for block in group)
            for block in group:
                leaps[block] = min(round(pace * time_us), last - 1 - ahead)
        leap(engine, leaps, time_us)
        return True


def _groups(program: Program) -> list[list[int]]:
    """The threadblocks joined by connections, directly or through others; groups by first threadblock."""
    group = list(range(len(program.blocks)))

    def root(block: int) -> int:
        while group[block] != block:
            group[block] = group[group[block]]
            block = group[block]
        return block

    users: dict[int, int] = {}
    for number, block in enumerate(program.blocks):
        for connection in (block.send, block.recv):
            if connection >= 0:
                one, other = root(users.setdefault(connection, number)), root(number)
                group[max(one, other)] = min(one, other)
    joined: dict[int, list[int]] = {}
    for number, block in enumerate(program.blocks):
        if block.operations:
            joined.setdefault(root(number), []).append(number)
    return list(joined.values())
