"""The tables of a history, and the steps that bring an older one up to date. Every table only grows: triggers see to it.

`user_version` of the file is how many of the steps it has had. A change of the tables is a new step at the end; steps that were
released are never edited.
"""

from __future__ import annotations

_TABLES = """
CREATE TABLE run (
    id INTEGER PRIMARY KEY AUTOINCREMENT, started TEXT NOT NULL, suite TEXT NOT NULL, digest TEXT NOT NULL,
    cases INTEGER NOT NULL, commit_id TEXT NOT NULL, dirty TEXT NOT NULL, versions TEXT NOT NULL, code TEXT NOT NULL,
    platform TEXT NOT NULL, tolerances TEXT NOT NULL
);
CREATE TABLE finish (
    run INTEGER PRIMARY KEY REFERENCES run (id), at TEXT NOT NULL, seconds REAL NOT NULL
);
CREATE TABLE job (
    run INTEGER NOT NULL REFERENCES run (id), job TEXT NOT NULL, seconds REAL NOT NULL, cpu_s REAL NOT NULL,
    reference_s REAL NOT NULL, peak_bytes INTEGER, stages TEXT NOT NULL, command TEXT NOT NULL, notes TEXT NOT NULL,
    PRIMARY KEY (run, job)
);
CREATE TABLE record (
    run INTEGER NOT NULL REFERENCES run (id), "case" TEXT NOT NULL, job TEXT NOT NULL, machine TEXT NOT NULL,
    collective TEXT NOT NULL, bytes INTEGER NOT NULL, strategy TEXT NOT NULL, seed INTEGER NOT NULL,
    instance_hash TEXT NOT NULL, status TEXT NOT NULL, problem TEXT NOT NULL, cut INTEGER NOT NULL, proof TEXT NOT NULL,
    schedule_us REAL, time_us REAL, bound_us REAL, efficiency REAL, gap REAL, busbw_factor REAL, protocol TEXT,
    chunks INTEGER, instances INTEGER, steps INTEGER, threadblocks INTEGER, channels INTEGER, xml_hash TEXT,
    baselines_us TEXT NOT NULL,
    PRIMARY KEY (run, "case")
);
CREATE INDEX record_by_case ON record ("case", run);
CREATE TABLE file (hash TEXT PRIMARY KEY, xml BLOB NOT NULL);
"""

_TIMELINES = """
CREATE TABLE timeline (xml_hash TEXT NOT NULL, bytes INTEGER NOT NULL, drawing BLOB NOT NULL, PRIMARY KEY (xml_hash, bytes));
"""

_MEASUREMENTS = """
CREATE TABLE measurement (
    id INTEGER PRIMARY KEY AUTOINCREMENT, at TEXT NOT NULL, commit_id TEXT NOT NULL, machine TEXT NOT NULL,
    collective TEXT NOT NULL, bytes INTEGER NOT NULL, xml_hash TEXT NOT NULL, way TEXT NOT NULL, status TEXT NOT NULL,
    problem TEXT NOT NULL, with_us REAL, without_us REAL, wrong INTEGER, simulated_us REAL, command TEXT NOT NULL
);
"""

#: No table changed: stages of a synthesis have their CPU time since then, which versions before cannot read.
_STAGE_TIMES = ""


def _append_only(*tables: str) -> str:
    """Triggers that refuse a change of what is there."""
    return "".join(
        f"CREATE TRIGGER {table}_no_{verb} BEFORE {verb} ON {table} "
        f"BEGIN SELECT RAISE(ABORT, 'a history only grows: {verb} on {table}'); END;\n"
        for table in tables
        for verb in ("update", "delete")
    )


#: What each version adds to the one before.
STEPS: tuple[str, ...] = (
    _TABLES + _append_only("run", "finish", "job", "record", "file"),
    _TIMELINES + _append_only("timeline"),
    _MEASUREMENTS + _append_only("measurement"),
    _STAGE_TIMES,
)
VERSION = len(STEPS)
#: Tells our files from other SQLite databases (`PRAGMA application_id`): "synb".
APPLICATION_ID = int.from_bytes(b"synb")
