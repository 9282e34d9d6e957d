"""Rows of the history's tables as values, and values as rows."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass, fields
from typing import Any

from synth.bench.fingerprint import Origin
from synth.bench.values import JobRecord, Record, Stage, Timeline, Tolerances

RECORD_FIELDS = tuple(field.name for field in fields(Record))


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a suite as the store has it; `finished` is None while it is under way, or was ended."""

    id: int
    started: str
    suite: str
    digest: str
    cases: int
    origin: Origin
    code: str
    tolerances: Tolerances
    finished: str | None
    seconds: float | None

    @property
    def title(self) -> str:
        """`run 12 (nightly, 3f2a1b0c+, 2026-11-01 02:00)`; the plus stands for changes that are in no commit."""
        return f"run {self.id} ({self.suite}, {self.origin.short}, {self.started[:16].replace('T', ' ')})"


def row_of(run: Run, record: Record) -> tuple[object, ...]:
    """A record of a run, as the table `record` has it."""
    values = [getattr(record, name) for name in RECORD_FIELDS[:-1]]
    return (run.id, *values, json.dumps(record.baselines_us, sort_keys=True))


def record_of(row: sqlite3.Row) -> Record:
    """A record, of a row of `record`."""
    values = {name: row[name] for name in RECORD_FIELDS}
    values["cut"] = bool(values["cut"])
    values["baselines_us"] = json.loads(values["baselines_us"])
    return Record(**values)


def job_of(row: sqlite3.Row) -> JobRecord:
    """What a synthesis cost, of a row of `job`."""
    return JobRecord(
        job=row["job"],
        seconds=row["seconds"],
        cpu_s=row["cpu_s"],
        reference_s=row["reference_s"],
        peak_bytes=row["peak_bytes"],
        stages=tuple(Stage(**stage) for stage in json.loads(row["stages"])),
        command=row["command"],
        notes=tuple(json.loads(row["notes"])),
    )


def run_of(row: sqlite3.Row) -> Run:
    """A run, of a row of `run` with the columns of `finish`, null where there is none."""
    return Run(
        id=row["id"],
        started=row["started"],
        suite=row["suite"],
        digest=row["digest"],
        cases=row["cases"],
        origin=Origin(row["commit_id"], row["dirty"], json.loads(row["versions"]), row["platform"]),
        code=row["code"],
        tolerances=Tolerances(**json.loads(row["tolerances"])),
        finished=row["at"],
        seconds=row["seconds"],
    )


def timeline_of_json(told: dict[str, Any]) -> Timeline:
    """A timeline, of the fields that were written for it."""
    rows = tuple((rank, tb) for rank, tb in told.pop("rows"))
    bars = tuple((row, start, end, kind) for row, start, end, kind in told.pop("bars"))
    return Timeline(**told, rows=rows, bars=bars)
