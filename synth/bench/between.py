"""Runs of a store by the names that people give them, and the comparison of two of them."""

from __future__ import annotations

import re

from synth.bench.compare import Comparison, Side, compare
from synth.bench.rows import Run
from synth.bench.store import Store
from synth.errors import InputError

_EXPECTED = "a run's number, the beginning of its commit, latest, or latest~1"


def find_run(store: Store, name: str) -> Run:
    """The run of a number (`12`), of the newest with a commit (`3f2a1b`), or counted back from the newest finished one (`latest~1`).

    Raises InputError where there is none.
    """
    runs = store.runs()
    finished = [run for run in runs if run.finished is not None]
    back = re.fullmatch(r"latest(?:~([0-9]{1,6}))?", name)
    if back is not None:
        steps = int(back[1] or 0)
        if steps < len(finished):
            return finished[-1 - steps]
        raise InputError("run", "", name, f"one of the {len(finished)} finished runs of {store.path}")
    for run in reversed(runs):
        if name == str(run.id) or (len(name) >= 6 and run.origin.commit.startswith(name)):
            return run
    raise InputError("run", "", name, f"{_EXPECTED}, in {store.path}")


def previous(store: Store, run: Run) -> Run | None:
    """The newest finished run before this one that has a suite of the same name."""
    earlier = [
        other for other in store.runs() if other.id < run.id and other.finished is not None and other.suite == run.suite
    ]
    return earlier[-1] if earlier else None


def require_previous(store: Store, run: Run) -> Run:
    """As `previous`; InputError where there is none."""
    found = previous(store, run)
    if found is None:
        raise InputError("run", "", run.title, f"a run that another of the same suite went before, in {store.path}")
    return found


def compare_runs(store: Store, before: Run, after: Run) -> Comparison:
    """What changed from one run to another, with the tolerances of the later one's suite."""
    first, second = (Side(store.records(run), store.jobs(run)) for run in (before, after))
    same = bool(before.code) and before.code == after.code
    return compare(first, second, after.tolerances, same_code=same)
