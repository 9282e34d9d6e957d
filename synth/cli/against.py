"""Baselines beside a file: which are asked for, and where one leaves nothing to gain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from synth.errors import UsageError
from synth.units import format_size

if TYPE_CHECKING:
    from synth.bounds import Bound
    from synth.cli.simulate_text import SizeRow

#: A speed-up below this is within what the simulator can tell.
WORTH = 1.05


def names_of(text: str | None) -> tuple[str, ...]:
    """The baselines of `ring,tree`, each once, in order; UsageError for one that does not exist."""
    from synth.baselines import BASELINES

    names = tuple(dict.fromkeys(part.strip() for part in text.split(","))) if text is not None else ()
    for name in names:
        if name not in BASELINES:
            raise UsageError(f"--against: {name!r}, expected names of {', '.join(BASELINES)}, joined by commas")
    return names


def remarks(rows: Sequence[SizeRow], bound: Bound | None) -> list[str]:
    """One sentence for each baseline that leaves nothing to gain at some sizes, with the reason where the bound has it."""
    told = []
    rows = [row for row in rows if row.time_us is not None]
    for name in rows[0].against if rows else ():
        idle = [row for row in rows if row.time_us is not None and row.against[name] < WORTH * row.time_us]
        if not idle:
            continue
        where = "any size" if len(idle) == len(rows) else _ranges(rows, idle)
        sentence = f"no gain over {name} is to be expected at {where}"
        last = idle[-1]
        if bound is not None and last is rows[-1]:
            share = bound.time_us(last.bytes) / last.against[name]
            sentence += f": at {format_size(last.bytes)} it reaches {share:.0%} of the bound"
        told.append(sentence)
    return told


def _ranges(rows: Sequence[SizeRow], idle: Sequence[SizeRow]) -> str:
    """`1KB to 64KB and 1GB`: runs of neighbouring sizes."""
    runs: list[list[SizeRow]] = []
    for row in rows:
        if row not in idle:
            runs.append([])
        elif runs and runs[-1]:
            runs[-1].append(row)
        else:
            runs.append([row])
    words = [
        format_size(run[0].bytes) + (f" to {format_size(run[-1].bytes)}" if len(run) > 1 else "") for run in runs if run
    ]
    return " and ".join(words)
