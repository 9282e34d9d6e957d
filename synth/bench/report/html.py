"""The report as one HTML page that needs nothing else: style, script and data are in it, and nothing is fetched.

What changed is written here, so that it is there without a script; charts and filters are drawn by page.js from the data.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Collection, Mapping
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any

from synth.bench.compare import BETTER, WORSE, Change
from synth.bench.gpu.measurement import Measurement
from synth.bench.report.data import ReportData
from synth.bench.values import OK, JobRecord, Record, Timeline
from synth.units import format_size

_HERE = Path(__file__).resolve().parent
#: Changes that are listed before the rest is folded away: of what is worse or wrong, and of the rest.
_SHOWN, _SHOWN_OF_OTHERS = 12, 4


def html_text(data: ReportData) -> str:
    """The page. The same data give the same bytes."""
    page = (_HERE / "page.html").read_text(encoding="utf-8")
    parts = {
        "STYLE": (_HERE / "page.css").read_text(encoding="utf-8"),
        "TITLE": escape(f"synth bench: {data.verdict}"),
        "HEAD": _head(data),
        "CHANGES": _changes(data),
        "DATA": _script_json(_document(data)),
        "SCRIPT": (_HERE / "page.js").read_text(encoding="utf-8"),
    }
    for name, text in parts.items():
        before, mark, after = page.partition("{{" + name + "}}")
        if not mark:
            raise ValueError(f"page.html has no place for {name}")
        page = before + text + after
    return page


def _head(data: ReportData) -> str:
    """The verdict, and what was run when on what."""
    run = data.run
    kind = "bad" if data.exit_code else "good"
    cpu_s = sum(job.cpu_s for job in data.jobs.values())
    done = sum(record.status == OK for record in data.records.values())
    told = [
        run.title,
        f"compared with {data.before.title}" if data.before is not None else "",
        f"{done} of {len(data.records)} cases verified",
        f"{len(data.jobs)} syntheses, {cpu_s:.0f} s of CPU time"
        + (f", {run.seconds:.0f} s from start to end" if run.seconds else ""),
        run.origin.platform,
        ", ".join(f"{name} {version}" for name, version in run.origin.versions.items() if version),
    ]
    facts = "".join(f"<li>{escape(fact)}</li>" for fact in told if fact)
    return f'<h1 class="{kind}">{escape(data.verdict)}</h1><ul class="facts">{facts}</ul>'


def _changes(data: ReportData) -> str:
    """What is wrong or worse, then what is better or different."""
    parts = []
    names = {*data.records, *data.jobs}
    if data.wrong:
        parts.append(_table("Wrong", [_change_row(change, names) for change in data.wrong]))
    changes = () if data.comparison is None else data.comparison.changes
    for title, wanted in (("Worse", {WORSE}), ("Better", {BETTER}), ("Changed", {"changed"})):
        rows = [_change_row(change, names) for change in changes if change.kind in wanted]
        if rows:
            parts.append(_table(title, rows))
    if data.comparison is None:
        told = "There is no earlier run of this suite in the history."
    else:
        told = f"{data.comparison.compared} cases compared"
        told += "." if parts or not data.comparison.compared else "; every deterministic column is as it was."
    return "".join(parts) + "".join(f"<p>{escape(line)}</p>" for line in (*data.remarks, told))


def _table(title: str, rows: list[str]) -> str:
    most = _SHOWN if title in ("Wrong", "Worse") else _SHOWN_OF_OTHERS
    head = "<tr><th>what</th><th>where</th><th>before</th><th>now</th></tr>"
    shown = f'<div class="scroll"><table class="changes">{head}{"".join(rows[:most])}</table></div>'
    if len(rows) > most:
        rest = f'<div class="scroll"><table class="changes">{head}{"".join(rows[most:])}</table></div>'
        shown += f"<details><summary>{len(rows) - most} more</summary>{rest}</details>"
    return f'<h3 class="{title.lower()}">{title} ({len(rows)})</h3>{shown}'


def _change_row(change: Change, names: Collection[str]) -> str:
    """A row; its subject opens a case where it is one of `names`, the cases and syntheses of the run."""
    subject = escape(change.subject)
    opens = f' data-case="{subject}"' if change.subject in names else ""
    cells = (f"<td>{escape(change.what)}</td>", f"<td{opens}>{subject}</td>")
    figures = (f"<td>{escape(figure)}</td>" for figure in (change.before, change.after))
    return f'<tr class="{escape(change.kind)}">{"".join((*cells, *figures))}</tr>'


def _document(data: ReportData) -> dict[str, Any]:
    """What the script draws from."""
    changes = () if data.comparison is None else data.comparison.changes
    # The worst of what is told of a case comes last here, and stays.
    worse = {change.subject: change.kind for change in (*reversed(changes), *data.wrong)}
    return {
        "cases": [_case(record, data, worse) for record in data.records.values()],
        "jobs": {key: _job(job) for key, job in data.jobs.items()},
        "files": {digest: _base64(packed) for digest, packed in data.files.items()},
        "timelines": {digest: _base64(_packed(item)) for digest, item in data.timelines.items()},
        "measurements": [_measurement(item, data.records) for item in data.measurements],
    }


def _case(record: Record, data: ReportData, worse: Mapping[str, str]) -> dict[str, Any]:
    fields = asdict(record)
    fields.pop("baselines_us")
    fields |= {
        "size": format_size(record.bytes),
        "change": worse.get(record.case) or worse.get(record.job, ""),
        "busbw": record.busbw_GBps(record.time_us),
        "bound_busbw": record.busbw_GBps(record.bound_us),
        "baselines": {name: record.busbw_GBps(taken) for name, taken in record.baselines_us.items()},
        "baselines_us": record.baselines_us,
        "history": [[past.run, past.time_us, past.efficiency] for past in data.history.get(record.case, [])],
    }
    return fields


def _job(job: JobRecord) -> dict[str, Any]:
    return {
        "seconds": job.seconds,
        "cpu_s": job.cpu_s,
        "reference_s": job.reference_s,
        "peak_bytes": job.peak_bytes,
        "stages": [asdict(stage) for stage in job.stages],
        "stage_cpu_s": job.stage_cpu_s(),
        "command": job.command,
        "notes": list(job.notes),
    }


def _measurement(item: Measurement, records: Mapping[str, Record]) -> dict[str, Any]:
    """A measurement with its bandwidths, by the factor of the records of its collective."""
    same = [
        record for record in records.values() if (record.machine, record.collective) == (item.machine, item.collective)
    ]
    like = next((record for record in same if record.busbw_factor is not None), None)
    factor = None if like is None else like.busbw_factor
    fields = asdict(item) | {"line": item.line, "size": format_size(item.bytes) if item.bytes else "all"}
    for name in ("with", "without", "simulated"):
        taken = fields[f"{name}_us"]
        fields[f"{name}_busbw"] = item.bytes / taken / 1e3 * factor if taken and factor else None
    return fields


def _packed(timeline: Timeline) -> bytes:
    """As a browser unpacks it (DecompressionStream, "deflate"), which is how the store has its files."""
    return zlib.compress(json.dumps(asdict(timeline)).encode(), 9)


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _script_json(document: object) -> str:
    """JSON that may stand in a script element: no tag can end it early."""
    return json.dumps(_finite(document), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _finite(value: Any) -> Any:
    """Numbers that JSON has no word for become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
