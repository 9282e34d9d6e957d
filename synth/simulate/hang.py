"""Who waits for what where a run stops before its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from synth.errors import NoAnswerError
from synth.simulate.moves import DATA, IDLE

if TYPE_CHECKING:
    from synth.simulate.engine import Engine

#: Waits named in the message; a hang of a whole machine is told by a few.
_SHOWN = 4


def explain_hang(engine: Engine) -> None:
    """Raise NoAnswerError where a threadblock is not through, or where something that was sent is received by nobody."""
    stuck = [
        block for block, length in enumerate(engine.length) if length and engine.tile[block] < engine.program.tiles
    ]
    if stuck:
        more = f"; and {len(stuck) - _SHOWN} more" if len(stuck) > _SHOWN else ""
        shown = "; ".join(_wait(engine, block) for block in stuck[:_SHOWN])
        raise NoAnswerError(f"the algorithm hangs after {engine.now:.1f} us: {shown}{more}")
    for number, queue in enumerate(engine.arrivals):
        if queue:
            one = engine.program.connections[number]
            where = f"gpu {one.src} to gpu {one.dst} on channel {one.channel}"
            raise NoAnswerError(f"the algorithm sends from {where} what is never received")


def _wait(engine: Engine, block: int) -> str:
    where = engine.program.blocks[block]
    operation = where.operations[engine.index[block]]
    tile = f" tile {engine.tile[block]}" if engine.program.tiles > 1 else ""
    who = f"gpu {where.rank} tb {where.tb} step {operation.step} ({operation.type}){tile}"
    if engine.phase[block] == IDLE:
        for tb, operations in operation.waits:
            if engine.done[tb] < engine.tile[block] * engine.length[tb] + operations:
                return f"{who} waits for a flag of tb {engine.program.blocks[tb].tb}"
    if engine.lacks[block] == DATA:
        return f"{who} waits for data of gpu {engine.program.connections[where.recv].src}"
    return f"{who} waits for room towards gpu {engine.program.connections[where.send].dst}"
