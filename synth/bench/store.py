"""The history: an SQLite file that only grows. One transaction a synthesis, so that a kill loses nothing and doubles nothing.

Several processes may write to one store: each waits for the others. All errors are SynthError, with the path and the reason.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from synth.bench.fingerprint import Origin
from synth.bench.rows import RECORD_FIELDS, Run, job_of, record_of, row_of, run_of, timeline_of_json
from synth.bench.schema import APPLICATION_ID, STEPS, VERSION
from synth.bench.values import JobRecord, Outcome, Record, Suite, Timeline
from synth.errors import InputError, SynthError

#: Seconds that a writer waits for others; a transaction of ours takes milliseconds.
WAIT_S = 120.0


class Store:
    """A history in a file, opened for reading or for writing. Use it as a context manager."""

    def __init__(self, path: str, *, write: bool = False, wait_s: float = WAIT_S) -> None:
        """Open the store, and create or migrate it where `write`. Raises SynthError where that is not possible."""
        self.path = path
        if not write and not Path(path).is_file():
            raise InputError("--store", "", path, "a history that `synth bench run` has written")
        with self._told():
            # A store is opened by URI so that reading never creates one; isolation_level None: transactions are begun by hand.
            uri = f"{Path(path).absolute().as_uri()}?mode={'rwc' if write else 'ro'}"
            self._db = sqlite3.connect(uri, uri=True, timeout=wait_s, isolation_level=None, check_same_thread=False)
            try:
                self._open(write)
            except BaseException:
                self._db.close()
                raise

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_error: object) -> None:
        self._db.close()

    def begin_run(self, suite: Suite, origin: Origin, started: datetime | None = None) -> Run:
        """A new run of the suite. Its cases are those that it will have at its end."""
        at = _now(started)
        told = (
            *(at, suite.name, suite.digest, sum(len(job.sizes) for job in suite.jobs)),
            *(origin.commit, origin.dirty, json.dumps(origin.versions, sort_keys=True), origin.code, origin.platform),
            json.dumps(asdict(suite.tolerances), sort_keys=True),
        )
        names = "started, suite, digest, cases, commit_id, dirty, versions, code, platform, tolerances"
        with self._transaction():
            done = self._db.execute(f"INSERT INTO run ({names}) VALUES ({_marks(10)})", told)
            number = done.lastrowid
        return next(run for run in self.runs() if run.id == number)

    def add(self, run: Run, outcome: Outcome) -> None:
        """All that one synthesis left, or nothing of it."""
        cost = outcome.cost
        with self._transaction():
            self._db.execute(
                f"INSERT INTO job VALUES ({_marks(9)})",
                (
                    *(run.id, cost.job, cost.seconds, cost.cpu_s, cost.reference_s, cost.peak_bytes),
                    *(json.dumps([asdict(stage) for stage in cost.stages]), cost.command, json.dumps(cost.notes)),
                ),
            )
            for record in outcome.records:
                self._db.execute(f"INSERT INTO record VALUES ({_marks(1 + len(RECORD_FIELDS))})", row_of(run, record))
            for digest, text in outcome.files.items():
                self._db.execute("INSERT OR IGNORE INTO file VALUES (?, ?)", (digest, zlib.compress(text.encode(), 9)))
            for timeline in outcome.timelines:
                drawing = zlib.compress(json.dumps(asdict(timeline)).encode(), 9)
                told = (timeline.xml_hash, timeline.bytes, drawing)
                self._db.execute("INSERT OR IGNORE INTO timeline VALUES (?, ?, ?)", told)

    def finish(self, run: Run, seconds: float) -> None:
        """The run has all its records."""
        with self._transaction():
            self._db.execute("INSERT INTO finish VALUES (?, ?, ?)", (run.id, _now(None), seconds))

    def runs(self) -> list[Run]:
        """All runs, the oldest first."""
        query = (
            "SELECT run.*, finish.at, finish.seconds FROM run LEFT JOIN finish ON finish.run = run.id ORDER BY run.id"
        )
        return [run_of(row) for row in self._rows(query)]

    def unfinished(self, suite: Suite, origin: Origin) -> Run | None:
        """The newest run, where it is of the same suite and code, and was ended before it had all its records."""
        same = [run for run in self.runs() if run.digest == suite.digest]
        last = same[-1] if same else None
        return last if last is not None and last.finished is None and last.code == origin.code else None

    def done(self, run: Run) -> set[str]:
        """The syntheses of which the run has its records."""
        return {row["job"] for row in self._rows("SELECT job FROM job WHERE run = ?", run.id)}

    def jobs(self, run: Run) -> dict[str, JobRecord]:
        """The cost of every synthesis of a run, by its key."""
        rows = self._rows("SELECT * FROM job WHERE run = ? ORDER BY rowid", run.id)
        return {row["job"]: job_of(row) for row in rows}

    def records(self, run: Run) -> dict[str, Record]:
        """The records of a run, by case."""
        rows = self._rows("SELECT * FROM record WHERE run = ? ORDER BY rowid", run.id)
        return {row["case"]: record_of(row) for row in rows}

    def history(self, case: str) -> list[tuple[Run, Record]]:
        """A case in all runs that have it, the oldest first."""
        runs = {run.id: run for run in self.runs()}
        rows = self._rows('SELECT * FROM record WHERE "case" = ? ORDER BY run', case)
        return [(runs[row["run"]], record_of(row)) for row in rows]

    def cases(self) -> list[str]:
        """The cases of which there are records, sorted."""
        return [row["case"] for row in self._rows('SELECT DISTINCT "case" FROM record ORDER BY "case"')]

    def file(self, digest: str) -> str | None:
        """The text of a file, by its hash."""
        packed = self.packed_file(digest)
        return None if packed is None else zlib.decompress(packed).decode()

    def packed_file(self, digest: str) -> bytes | None:
        """The text of a file as it is stored, in zlib's format."""
        found = next(self._rows("SELECT xml FROM file WHERE hash = ?", digest), None)
        return None if found is None else bytes(found["xml"])

    def timelines(self, digest: str) -> list[Timeline]:
        """The timelines of a file, the smallest size first."""
        rows = self._rows("SELECT drawing FROM timeline WHERE xml_hash = ? ORDER BY bytes", digest)
        return [timeline_of_json(json.loads(zlib.decompress(row["drawing"]))) for row in rows]

    def insert(self, table: str, rows: Sequence[dict[str, object]]) -> None:
        """Rows of another table of ours, all or none."""
        with self._transaction():
            for row in rows:
                names = ", ".join(f'"{name}"' for name in row)
                self._db.execute(f"INSERT INTO {table} ({names}) VALUES ({_marks(len(row))})", tuple(row.values()))

    def select(self, query: str, *values: object) -> list[dict[str, Any]]:
        """The rows of a query as dictionaries."""
        return [dict(row) for row in self._rows(query, *values)]

    def _rows(self, query: str, *values: object) -> Iterator[sqlite3.Row]:
        with self._told():
            yield from self._db.execute(query, values).fetchall()

    def _open(self, write: bool) -> None:
        self._db.row_factory = sqlite3.Row
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        owner = self._db.execute("PRAGMA application_id").fetchone()[0]
        if owner != APPLICATION_ID and self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            raise InputError("--store", "", self.path, "a history of `synth bench`, not another database")
        if version > VERSION:
            raise InputError(self.path, "schema version", version, f"{VERSION} or less: a newer synth wrote it")
        if not write:
            if version < VERSION:
                raise InputError(
                    self.path, "schema version", version, f"{VERSION}: `synth bench run` brings it up to date"
                )
            return
        # Every commit is on the disk before the next synthesis begins.
        self._db.execute("PRAGMA synchronous = FULL")
        if version < VERSION:
            self._migrate()
        with self._transaction():
            # What cannot be written is told now, not when there is something to write.
            self._db.execute(f"PRAGMA user_version = {VERSION}")

    def _migrate(self) -> None:
        """The steps that the file has not had; another process may have made them while this one waited."""
        with self._transaction():
            version = self._db.execute("PRAGMA user_version").fetchone()[0]
            for step in STEPS[version:]:
                for statement in _statements(step):
                    self._db.execute(statement)
            self._db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            self._db.execute(f"PRAGMA user_version = {VERSION}")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All or nothing; other writers wait from the beginning, so that none fails at its end."""
        with self._told():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise SynthError(f"{self.path}: {_reason(error)}") from error


def _reason(error: sqlite3.Error) -> str:
    """What went wrong, for someone who does not know SQLite."""
    told = str(error)
    match getattr(error, "sqlite_errorname", "") or "":
        case name if name.startswith("SQLITE_FULL"):
            return "cannot be written: the disk is full; what was there is intact, make room and run again"
        case name if name.startswith("SQLITE_READONLY"):
            return "cannot be written: it is read-only (the file, its folder or the file system)"
        case name if name.startswith("SQLITE_IOERR"):
            # Whole disks have an error of their own; quotas and limits of a file's size end here.
            return f"cannot be read or written ({told}: the disk, or a quota on it); what was there is intact"
        case name if name.startswith("SQLITE_BUSY"):
            return "another process has been writing to it for too long; try again when that is done"
        case name if name.startswith("SQLITE_CANTOPEN"):
            return "cannot be opened: no such folder, or no permission"
        case name if name.startswith("SQLITE_NOTADB"):
            return "is no history of `synth bench`, nor any SQLite database"
        case name if name.startswith("SQLITE_CORRUPT"):
            return f"is damaged ({told}); restore it from a copy"
        case _:
            return f"cannot be used: {told}"


def _statements(script: str) -> Iterator[str]:
    """The statements of a script one by one: sqlite3's own executescript would end the transaction."""
    statement = ""
    for line in script.splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _marks(count: int) -> str:
    return ", ".join("?" * count)


def _now(moment: datetime | None) -> str:
    return (moment or datetime.now(UTC)).isoformat(timespec="seconds")
