"""The report as Markdown: short enough for a comment or a message."""

from __future__ import annotations

from collections.abc import Sequence

from synth.bench.report.data import ReportData
from synth.bench.values import OK, Record
from synth.units import format_size

#: Changes that are listed; a message with more is not read.
_MOST = 30


def markdown_text(data: ReportData) -> str:
    """Verdict, changes, a table of efficiency by machine and size, and what it took."""
    parts = [f"## {data.verdict}", "", _about(data), ""]
    changes = [] if data.comparison is None else list(data.comparison.changes)
    if data.wrong or changes:
        parts += ["| | what | where | before | now |", "|---|---|---|---|---|"]
        told = [*data.wrong, *changes]
        for change in told[:_MOST]:
            parts.append(_row(change.kind, change.what, f"`{change.subject}`", change.before, change.after))
        if len(told) > _MOST:
            parts += ["", f"and {len(told) - _MOST} more in the HTML report"]
        parts.append("")
    for line in data.remarks:
        parts += [f"- {_cell(line)}"]
    parts += [""] if data.remarks else []
    parts += [*_efficiencies(list(data.records.values())), "", *_measured(data)]
    return "\n".join(parts).rstrip() + "\n"


def _about(data: ReportData) -> str:
    seconds = sum(job.cpu_s for job in data.jobs.values())
    done = sum(record.status == OK for record in data.records.values())
    before = f", compared with {data.before.title}" if data.before is not None else ""
    cases = f"{done} of {len(data.records)} cases verified, {len(data.jobs)} syntheses in {seconds:.0f} s of CPU time"
    return f"{_cell(data.run.title)}{_cell(before)}: {cases}."


def _efficiencies(records: Sequence[Record]) -> list[str]:
    """Share of the bound: a row for each machine and collective, a column for each size."""
    sizes = sorted({record.bytes for record in records})
    rows: dict[tuple[str, str], dict[int, str]] = {}
    for record in records:
        told = record.status if record.efficiency is None else f"{record.efficiency:.0%}"
        rows.setdefault((record.machine, record.collective), {}).setdefault(record.bytes, told)
    lines = [_row("machine", "collective", *(format_size(size) for size in sizes))]
    lines.append("|" + "---|" * (2 + len(sizes)))
    lines += [_row(*name, *(cells.get(size, "") for size in sizes)) for name, cells in rows.items()]
    return ["Simulated time as a share of the bound:", "", *lines]


def _measured(data: ReportData) -> list[str]:
    if not data.measurements:
        return []
    return ["On GPUs:", "", *(f"- {_cell(item.line)}" for item in data.measurements)]


def _row(*cells: str) -> str:
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def _cell(text: str) -> str:
    """Text that ends no cell and no line, and is no HTML."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
