"""What changed between two runs, and what of it is worse.

A regression is: an answer or a verification lost, optimality lost, a worse schedule, a simulated time beyond the tolerance, a stage
or a synthesis that takes more reference workloads than the tolerance allows, and, between two runs of one code, any difference in
a deterministic column. Figures that got better are told too. A case whose machine or request changed is compared with nothing, and
where a clock ended a search its figures are told without being judged.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace

from synth.bench.values import LEFT_OUT, OK, VERIFY, JobRecord, Record, Tolerances

WORSE, BETTER, CHANGED = "worse", "better", "changed"
#: What is told first among what is equally bad or good.
_FIRST = (
    "verification",
    "answer",
    "not deterministic",
    "simulated time",
    "schedule",
    "optimality",
    "gap",
    "seconds of stage",
)
#: Columns that two runs of one code agree in; the others name the case.
DETERMINISTIC = tuple(
    field.name
    for field in fields(Record)
    if field.name not in ("case", "job", "machine", "collective", "bytes", "strategy", "seed", "instance_hash")
)
#: Reference workloads (some 30 ms each) that a stage over all syntheses, or one synthesis, has to grow by to be told: below, it is
#: noise of the clock and of imports.
_LEAST_GROWTH = 10.0


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that is not as before: `kind` is worse, better or changed; `subject` a case, a synthesis or a stage."""

    kind: str
    what: str
    subject: str
    before: str
    after: str
    weight: float = 0.0
    """How much it is, among changes of the same what: the largest is told first."""

    @property
    def line(self) -> str:
        """`worse: schedule: dgx1/allreduce/1MB/auto/0: 12.1 us -> 13.5 us (+11.6%)`."""
        return f"{self.kind}: {self.what}: {self.subject}: {self.before} -> {self.after}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """All changes between two runs, worse ones first; `new` and `gone` are cases, `others` those that cannot be compared."""

    changes: tuple[Change, ...]
    compared: int
    new: tuple[str, ...]
    gone: tuple[str, ...]
    others: tuple[str, ...]

    @property
    def regressions(self) -> tuple[Change, ...]:
        """What is worse."""
        return tuple(change for change in self.changes if change.kind == WORSE)


@dataclass(frozen=True, slots=True)
class Side:
    """What a run has: its records by case and its costs by synthesis."""

    records: Mapping[str, Record]
    jobs: Mapping[str, JobRecord]


def compare(before: Side, after: Side, tolerances: Tolerances, *, same_code: bool) -> Comparison:
    """The comparison of two runs. `same_code`: both were made by the same commit, changes and packages."""
    both = [case for case in after.records if case in before.records]
    alike = [case for case in both if before.records[case].instance_hash == after.records[case].instance_hash]
    changes: list[Change] = []
    for case in alike:
        changes += _of_pair(before.records[case], after.records[case], tolerances, same_code)
    changes += [] if same_code else _of_proofs(before, after, alike, tolerances)
    changes += _of_seconds(before, after, {after.records[case].job for case in alike}, tolerances)
    return Comparison(
        changes=tuple(sorted(changes, key=_place)),
        compared=len(alike),
        new=tuple(case for case in after.records if case not in before.records),
        gone=tuple(case for case in before.records if case not in after.records),
        others=tuple(case for case in both if case not in set(alike)),
    )


def _of_pair(before: Record, after: Record, tolerances: Tolerances, same_code: bool) -> list[Change]:
    """Changes of one case. For one code, better figures are as wrong as worse ones."""
    if same_code and before.status == after.status == OK:
        return _undetermined(before, after, same_code)
    return list(_of_case(before, after, tolerances)) or _undetermined(before, after, same_code)


def _of_case(before: Record, after: Record, tolerances: Tolerances) -> Iterator[Change]:
    """Changes of one case that matter to a reader."""
    case = after.case
    if before.status != after.status:
        yield _of_status(before, after)
        return
    if after.status != OK:
        return
    figures = (("schedule", "schedule_us", tolerances.schedule), ("simulated time", "time_us", tolerances.time))
    for what, name, tolerance in figures:
        old, new = getattr(before, name), getattr(after, name)
        if old is None or new is None:
            continue
        if abs(new - old) > tolerance * old:
            share = f"{new / old - 1:+.2%}" if old > 0 else "from nothing"
            told = f"{_figure(old)} us", f"{_figure(new)} us ({share})"
            weight = abs(new / old - 1) if old > 0 else math.inf
            yield _judged(Change(WORSE if new > old else BETTER, what, case, *told, weight), before, after)


def _judged(change: Change, before: Record, after: Record) -> Change:
    """The change as it is, unless a clock ended one of the searches: how far that came says nothing of the code."""
    if not before.cut and not after.cut:
        return change
    return replace(change, kind=CHANGED, what=f"{change.what}, cut short by time")


def _place(change: Change) -> tuple[int, int, float]:
    kind = (WORSE, BETTER, CHANGED).index(change.kind)
    what = next((place for place, name in enumerate(_FIRST) if change.what.startswith(name)), len(_FIRST))
    return (kind, what, -change.weight)


def _of_proofs(before: Side, after: Side, cases: Sequence[str], tolerances: Tolerances) -> Iterator[Change]:
    """What is proved is proved of a synthesis: it is told once, not for each of its cases."""
    for case in {after.records[case].job: case for case in cases}.values():
        old, new = before.records[case], after.records[case]
        if {old.status, new.status} != {OK}:
            continue
        if old.is_optimal != new.is_optimal:
            kind = WORSE if old.is_optimal else BETTER
            yield _judged(Change(kind, "optimality", new.job, old.proof or "none", new.proof or "none"), old, new)
        elif old.gap is not None and new.gap is not None and abs(new.gap - old.gap) > tolerances.gap * (1 + old.gap):
            told = f"{old.gap:.2%}", f"{new.gap:.2%}"
            kind = WORSE if new.gap > old.gap else BETTER
            yield _judged(Change(kind, "gap", new.job, *told, abs(new.gap - old.gap)), old, new)


def _of_status(before: Record, after: Record) -> Change:
    what = "verification" if VERIFY in (before.status, after.status) else "answer"
    kind = WORSE if before.status == OK else BETTER if after.status == OK else CHANGED
    if LEFT_OUT in (before.status, after.status):
        # Nothing was lost but the time to look.
        kind, what = CHANGED, "left out"
    told = f"{after.status}: {after.problem}" if after.problem else after.status
    return Change(kind, what, after.case, before.status, told)


def _undetermined(before: Record, after: Record, same_code: bool) -> list[Change]:
    """Differences in deterministic columns: a bug between runs of one code, worth a line otherwise.

    Between different code, what is proved is told elsewhere, once for a synthesis.
    """
    names = [name for name in DETERMINISTIC if same_code or name not in ("proof", "gap")]
    differing = [name for name in names if getattr(before, name) != getattr(after, name)]
    if not differing:
        return []
    old, new = (
        ", ".join(f"{name} {_shown(getattr(record, name))}" for name in differing[:4]) for record in (before, after)
    )
    if before.cut or after.cut:
        return [Change(CHANGED, "cut short by time", after.case, old, new)]
    if same_code:
        return [Change(WORSE, "not deterministic: one code, two answers", after.case, old, new)]
    return [Change(CHANGED, "answer", after.case, old, new)]


def _figure(value: float) -> str:
    """Four digits, and no exponent."""
    return f"{value:.4g}" if value < 1e4 else f"{value:.0f}"


def _shown(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _of_seconds(before: Side, after: Side, jobs: set[str], tolerances: Tolerances) -> Iterator[Change]:
    """Stages, over all syntheses that both runs have, and single syntheses that cost more or less reference workloads."""
    common = [
        job for job in after.jobs if job in jobs and job in before.jobs and _was_run(before.jobs[job], after.jobs[job])
    ]
    split = [job for job in common if before.jobs[job].stage_cpu_s() and after.jobs[job].stage_cpu_s()]
    old, new = _by_stage(before, split), _by_stage(after, split)
    for stage in sorted({*old, *new}):
        yield from _of_cost("seconds of stage", stage, old.get(stage, 0.0), new.get(stage, 0.0), tolerances.seconds)
    for job in common:
        old_cost, new_cost = (side.jobs[job].cpu_s / side.jobs[job].reference_s for side in (before, after))
        yield from _of_cost("seconds", job, old_cost, new_cost, tolerances.job_seconds)


def _was_run(*jobs: JobRecord) -> bool:
    return all(job.reference_s > 0 and job.stages for job in jobs)


def _by_stage(side: Side, jobs: list[str]) -> dict[str, float]:
    """Reference workloads by stage, added up."""
    total: dict[str, float] = {}
    for job in jobs:
        cost = side.jobs[job]
        for stage, seconds in cost.stage_cpu_s().items():
            total[stage] = total.get(stage, 0.0) + seconds / cost.reference_s
    return total


def _of_cost(what: str, subject: str, old: float, new: float, factor: float) -> Iterator[Change]:
    if abs(new - old) < _LEAST_GROWTH or max(new, old) <= factor * min(new, old):
        return
    share = f"{new / old:.2f} times" if old > 0 else "from nothing"
    told = f"{old:.0f} reference workloads", f"{new:.0f} ({share})"
    yield Change(WORSE if new > old else BETTER, what, subject, *told, abs(new - old))
