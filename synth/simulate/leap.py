"""Putting a run later: every threadblock some tiles on, everything under way some time on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from synth.simulate.moves import MOVING

if TYPE_CHECKING:
    from synth.simulate.engine import Engine


def leap(engine: Engine, tiles: Sequence[int], time_us: float) -> None:
    """Advance threadblock b by `tiles[b]` tiles, which must leave it in a full one, and the clock by `time_us`."""
    for block, operations in enumerate(engine.length):
        engine.tile[block] += tiles[block]
        engine.done[block] += tiles[block] * operations
        engine.began[block] += time_us
        engine.wake_us[block] += time_us
        engine.due_us[block] += time_us
        if engine.phase[block] == MOVING:
            engine.fluid.since[block] += time_us
    for queue in (*engine.arrivals, *engine.credits):
        for position in range(len(queue)):
            queue[position] += time_us
    engine.events[:] = [(time + time_us, number, block) for time, number, block in engine.events]
    engine.now += time_us
    engine.horizon += time_us
