"""What a report shows of a run: its records and costs, what changed since the run before, and how each case went over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from synth.bench.between import compare_runs, previous
from synth.bench.compare import Change, Comparison
from synth.bench.gpu.measurement import Measurement, newest
from synth.bench.rows import Run
from synth.bench.store import Store
from synth.bench.values import CRASHED, FAILED, LEFT_OUT, OK, VERIFY, JobRecord, Record, Timeline
from synth.collective import CollectiveName

#: Runs that a sparkline goes back to.
HISTORY = 30
#: Cases that a line names; of more it says how many.
_NAMED = 3
#: Statuses that are wrong by themselves, whatever was before.
WRONG = (VERIFY, FAILED, CRASHED)


@dataclass(frozen=True)
class Past:
    """A case in an earlier run."""

    run: int
    time_us: float | None
    efficiency: float | None


@dataclass(frozen=True)
class ReportData:
    """All that the forms of a report are made from. `before` and `comparison` are None for the first run of a suite;
    `files` are texts by hash, packed as the store has them."""

    run: Run
    before: Run | None
    comparison: Comparison | None
    records: Mapping[str, Record]
    jobs: Mapping[str, JobRecord]
    history: Mapping[str, Sequence[Past]]
    files: Mapping[str, bytes]
    timelines: Mapping[str, Timeline]
    measurements: Sequence[Measurement]

    @property
    def wrong(self) -> tuple[Change, ...]:
        """What is wrong by itself: cases that failed, and measurements."""
        cases = [
            Change("wrong", item.status, item.case, "", item.problem)
            for item in self.records.values()
            if item.status in WRONG
        ]
        measured = [
            Change("wrong", item.status, item.name, "", item.problem) for item in self.measurements if item.is_wrong
        ]
        return (*cases, *measured)

    @property
    def regressions(self) -> tuple[Change, ...]:
        """What is worse than before."""
        return () if self.comparison is None else self.comparison.regressions

    @property
    def exit_code(self) -> int:
        """1 where something got worse or is wrong, 0 otherwise."""
        return 1 if self.regressions or self.wrong else 0

    @property
    def verdict(self) -> str:
        """One sentence: what a person asks first."""
        count = len({change.subject for change in (*self.regressions, *self.wrong)})
        if count:
            return f"{count} {'thing is' if count == 1 else 'things are'} worse or wrong"
        if self.run.finished is None:
            return f"Not finished: {len(self.records)} of {self.run.cases} cases are there"
        if self.comparison is None:
            return "First run of this suite: nothing to compare with"
        if not self.comparison.compared:
            return "Nothing to compare: no case in common"
        if not self.comparison.changes:
            return "No change"
        return "Nothing got worse"

    @property
    def remarks(self) -> list[str]:
        """What was not compared or not run, a line each."""
        told = []
        if self.run.finished is None:
            told.append(f"not finished: {len(self.records)} of {self.run.cases} cases are there")
        left_out = [record for record in self.records.values() if record.status == LEFT_OUT]
        told += _named("left out", [record.case for record in left_out], left_out[0].problem if left_out else "")
        if self.comparison is not None:
            told += _named("new", self.comparison.new)
            told += _named("gone", self.comparison.gone)
            told += _named("not comparable", self.comparison.others, "their machine or request changed")
        return told

    def lines(self, most: int = 20) -> list[str]:
        """The few lines that a person needs: verdict, what is worse or wrong, what else changed."""
        done = sum(record.status == OK for record in self.records.values())
        since = f" since {self.before.title}" if self.before is not None else ""
        told = [f"{self.verdict}{since}", f"{done} of {len(self.records)} cases have a verified answer"]
        told += [f"wrong: {change.subject}: {change.what}: {change.after}" for change in self.wrong]
        told += self.remarks
        told += [] if self.comparison is None else [change.line for change in self.comparison.changes]
        return told if len(told) <= most else [*told[:most], f"and {len(told) - most} more lines in the report"]


def _named(what: str, cases: Sequence[str], why: str = "") -> list[str]:
    """`2 cases are gone: ring4/allgather/1KB/auto/0, ...` as a list of one line, or of none for no cases."""
    if not cases:
        return []
    names = ", ".join(cases[:_NAMED]) + (f", and {len(cases) - _NAMED} more" if len(cases) > _NAMED else "")
    count = "1 case is" if len(cases) == 1 else f"{len(cases)} cases are"
    return [f"{count} {what}{f' ({why})' if why else ''}: {names}"]


def gather(store: Store, run: Run, before: Run | None = None) -> ReportData:
    """The data of a run; compared with `before`, or with the run before it of a suite of the same name."""
    before = before or previous(store, run)
    records = dict(sorted(store.records(run).items(), key=lambda item: _place(item[1])))
    hashes = sorted({record.xml_hash for record in records.values() if record.xml_hash is not None})
    files = {digest: store.packed_file(digest) for digest in hashes}
    timelines = {digest: found[0] for digest in hashes if (found := store.timelines(digest))}
    return ReportData(
        run=run,
        before=before,
        comparison=None if before is None else compare_runs(store, before, run),
        records=records,
        jobs=store.jobs(run),
        history=_history(store, run),
        files={digest: packed for digest, packed in files.items() if packed is not None},
        timelines=timelines,
        measurements=newest(store, {(item.machine, item.xml_hash) for item in records.values() if item.xml_hash}),
    )


def _place(record: Record) -> tuple[object, ...]:
    """Where a record stands in a report: not where its synthesis happened to end."""
    collective = list(CollectiveName).index(CollectiveName(record.collective))
    return (collective, record.machine, record.strategy, record.seed, record.bytes)


def _history(store: Store, run: Run) -> dict[str, list[Past]]:
    """Every case in the last runs of suites of the same name, this one included, the oldest first."""
    runs = [other.id for other in store.runs() if other.suite == run.suite and other.id <= run.id][-HISTORY:]
    rows = store.select(
        'SELECT run, "case", time_us, efficiency FROM record WHERE run BETWEEN ? AND ? ORDER BY run', runs[0], run.id
    )
    history: dict[str, list[Past]] = {}
    for row in rows:
        if row["run"] in set(runs):
            history.setdefault(row["case"], []).append(Past(row["run"], row["time_us"], row["efficiency"]))
    return history
