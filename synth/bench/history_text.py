"""A case over all runs, as a table of text."""

from __future__ import annotations

import difflib

from synth.bench.rows import Run
from synth.bench.store import Store
from synth.bench.values import Record
from synth.errors import InputError

_HEADS = ("run", "started", "commit", "status", "time us", "schedule us", "efficiency", "gap", "proof", "xml")


def history_text(store: Store, case: str) -> str:
    """One line for each run that has the case, the oldest first. Raises InputError where none has."""
    name = find_case(store, case)
    rows = [_HEADS, *(_row(run, record) for run, record in store.history(name))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([name, *lines])


def find_case(store: Store, case: str) -> str:
    """The full name of a case; strategy and seed may be left out where they are told by the rest."""
    names = store.cases()
    if case in names:
        return case
    begun = [name for name in names if name.startswith(f"{case}/")]
    if len(begun) == 1:
        return begun[0]
    close = begun or difflib.get_close_matches(case, names, n=3, cutoff=0.4)
    offered = f" (close to it: {', '.join(close[:5])})" if close else ""
    raise InputError("CASE", "", case, f"one case of {store.path}{offered}")


def _row(run: Run, record: Record) -> tuple[str, ...]:
    figures = [record.time_us, record.schedule_us]
    return (
        *(str(run.id), run.started[:16].replace("T", " "), run.origin.short, record.status),
        *("-" if figure is None else f"{figure:.3f}" for figure in figures),
        *("-" if share is None else f"{share:.2%}" for share in (record.efficiency, record.gap)),
        *(record.proof or "-", record.xml_hash or "-"),
    )
