"""Who waited for what when a run was ended."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from synth.errors import SynthError
from synth.execute.cuda.abi import BLOCK_COLUMNS, STEP_COLUMNS, STEP_TYPES, STUCK_COLUMNS, WaitKind
from synth.execute.cuda.plan import Plan
from synth.execute.errors import HangError

#: Waits named in the message; a hang of a whole machine is told by a few.
_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Stuck:
    """A threadblock that waited: at which step (the file's number) of which tile, and for what, in words."""

    rank: int
    tb: int
    step: int
    type: str
    tile: int
    waits_for: str

    def __str__(self) -> str:
        tile = f" tile {self.tile}" if self.tile else ""
        return f"gpu {self.rank} tb {self.tb} step {self.step} ({self.type}){tile} waits for {self.waits_for}"


class HungError(HangError):
    """A run that could not end; `stuck` holds every threadblock that waited, in the order of the plan.

    `found` says what was wrong where nobody waits: something was sent and never received.
    """

    def __init__(self, stuck: tuple[Stuck, ...], found: str = "") -> None:
        self.stuck = stuck
        self.waits = tuple(map(str, stuck))
        more = f"; and {len(stuck) - _SHOWN} more" if len(stuck) > _SHOWN else ""
        shown = "; ".join(self.waits[:_SHOWN]) + more
        SynthError.__init__(
            self, f"the algorithm hangs: {found or shown or 'nothing has moved, and no threadblock waits'}"
        )


def read_stuck(plan: Plan, records: NDArray[np.int64]) -> tuple[Stuck, ...]:
    """The records of all threadblocks, as the interpreter left them, in words."""
    stuck = []
    for block, record in enumerate(records.reshape(-1, len(STUCK_COLUMNS))):
        told = dict(zip(STUCK_COLUMNS, map(int, record), strict=True))
        if told["kind"] == WaitKind.NOTHING:
            continue
        row = dict(zip(BLOCK_COLUMNS, map(int, plan.blocks[block]), strict=True))
        waits_for = _words(plan, WaitKind(told["kind"]), told["index"])
        kind = _type_of(plan, row, told["step"])
        stuck.append(Stuck(row["rank"], row["tb"], told["step"], kind, told["tile"], waits_for))
    return tuple(stuck)


def _type_of(plan: Plan, block: dict[str, int], number: int) -> str:
    steps = plan.steps[block["first_step"] : block["first_step"] + block["num_steps"]]
    row = next(row for row in steps if row[STEP_COLUMNS.index("number")] == number)
    return STEP_TYPES[int(row[0])].value


def _words(plan: Plan, kind: WaitKind, index: int) -> str:
    if kind is WaitKind.FLAG:
        return f"a flag of tb {int(plan.blocks[index][BLOCK_COLUMNS.index('tb')])}"
    connection = plan.connections[index]
    if kind is WaitKind.ROOM:
        return f"room towards gpu {connection.dst} on channel {connection.channel}"
    return f"data of gpu {connection.src} on channel {connection.channel}"
