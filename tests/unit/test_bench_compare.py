"""What counts as worse: each kind of regression is told, equal runs and noise are not; injected ones are caught in real runs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from synth.bench.between import compare_runs, find_run, previous
from synth.bench.compare import Comparison, Side, compare
from synth.bench.reference import _once as reference_workload
from synth.bench.store import Store
from synth.bench.values import JobRecord, Record, Stage, Tolerances
from synth.errors import InputError
from synth.ordering.keys import SORT_KEYS
from tests.benches import HERE, NEXT, cost, record, run, suite

#: An allgather whose schedule depends on the order of transfers, justified as it is, at a size at which it is solved at once.
ORDERED = """
name = "ordered"
sizes = ["64KB"]
topologies = ["dgx1"]
collectives = ["allgather"]
strategies = ["trees"]
baselines = []
"""


def between(
    before: Record | None = None,
    after: Record | None = None,
    costs: tuple[JobRecord, JobRecord] | None = None,
    *,
    same_code: bool = False,
) -> Comparison:
    """The comparison of two runs of one case."""
    first, second = before or record(), after or record()
    old, new = costs or (cost(), cost())
    sides = (Side({first.case: first}, {old.job: old}), Side({second.case: second}, {new.job: new}))
    return compare(*sides, Tolerances(), same_code=same_code)


def test_equal_runs_have_no_change() -> None:
    assert between(same_code=True).changes == ()


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"schedule_us": 2.2}, "worse: schedule: ring4/allgather/1KB/auto/0: 2 us -> 2.2 us (+10.00%)"),
        ({"time_us": 5.1}, "worse: simulated time: ring4/allgather/1KB/auto/0: 5 us -> 5.1 us (+2.00%)"),
        ({"proof": "heuristic"}, "worse: optimality: ring4/allgather/1KB:4KB/auto/0: optimal packing -> heuristic"),
        ({"gap": 0.02}, "worse: gap: ring4/allgather/1KB:4KB/auto/0: 1.00% -> 2.00%"),
        (
            {"status": "verify failed", "problem": "gpu 0 lacks chunk 1", "time_us": None},
            "worse: verification: ring4/allgather/1KB/auto/0: ok -> verify failed: gpu 0 lacks chunk 1",
        ),
        (
            {"status": "no answer", "problem": "no path", "time_us": None},
            "worse: answer: ring4/allgather/1KB/auto/0: ok -> no answer: no path",
        ),
        ({"status": "crashed", "problem": ""}, "worse: answer: ring4/allgather/1KB/auto/0: ok -> crashed"),
    ],
)
def test_each_kind_of_regression_is_told_and_its_reverse_is_better(change: dict[str, Any], line: str) -> None:
    found = between(after=record(**change))
    assert [item.line for item in found.regressions] == [line]
    back = between(before=record(**change))
    assert [item.kind for item in back.changes] == ["better"]


def test_a_simulated_time_within_the_tolerance_is_no_regression() -> None:
    found = between(after=record(time_us=5.04))
    assert found.regressions == ()
    assert [item.kind for item in found.changes] == ["changed"]


def test_one_code_has_to_agree_exactly() -> None:
    after = record(time_us=5.0000001, xml_hash="beef")
    found = between(after=after, same_code=True)
    assert [item.what for item in found.regressions] == ["not deterministic: one code, two answers"]
    assert "time_us 5, xml_hash feed" in found.changes[0].before
    assert between(after=after).regressions == ()
    quicker = between(after=record(time_us=4.0), same_code=True)
    assert [item.what for item in quicker.regressions] == ["not deterministic: one code, two answers"]
    # What a clock cut short may end otherwise.
    assert between(after=replace(after, cut=True), same_code=True).regressions == ()


@pytest.mark.parametrize("cut", [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("change", [{"schedule_us": 3.0}, {"time_us": 9.0}, {"proof": "heuristic"}, {"gap": 0.5}])
def test_how_far_a_search_came_until_a_clock_ended_it_is_told_and_not_judged(
    change: dict[str, Any], cut: tuple[bool, bool]
) -> None:
    found = between(record(cut=cut[0]), record(cut=cut[1], **change))
    assert found.regressions == ()
    assert "cut short by time" in " ".join(item.what for item in found.changes)
    lost = between(record(cut=cut[0]), record(cut=cut[1], status="verify failed", problem="gpu 0 lacks chunk 1"))
    assert [item.what for item in lost.regressions] == ["verification"]


def test_what_was_left_out_is_not_worse() -> None:
    found = between(after=record(status="left out", problem="time was up", time_us=None))
    assert [(item.kind, item.what) for item in found.changes] == [("changed", "left out")]


def test_a_case_that_asks_for_something_else_is_not_compared() -> None:
    found = between(after=record(instance_hash="another", schedule_us=99.0))
    assert (found.compared, found.others, found.changes) == (0, (record().case,), ())


def test_what_is_lost_stands_before_what_is_slower_and_the_largest_first() -> None:
    cases = [f"ring4/allgather/{size}/auto/{seed}" for size in ("1KB", "4KB") for seed in (0, 1)]
    after = [
        record(cases[0], schedule_us=2.1),
        record(cases[1], status="verify failed"),
        record(cases[2], schedule_us=3.0),
        record(cases[3], time_us=5.5),
    ]
    sides = (Side({case: record(case) for case in cases}, {}), Side({item.case: item for item in after}, {}))
    found = compare(*sides, Tolerances(), same_code=False)
    assert [change.subject for change in found.changes] == [cases[1], cases[3], cases[2], cases[0]]


def test_a_proof_that_is_lost_is_told_once_for_a_synthesis() -> None:
    cases = ["ring4/allgather/1KB/auto/0", "ring4/allgather/4KB/auto/0"]
    sides = [
        Side({case: record(case, proof=proof) for case in cases}, {}) for proof in ("optimal packing", "heuristic")
    ]
    found = compare(*sides, Tolerances(), same_code=False)
    assert [change.subject for change in found.regressions] == ["ring4/allgather/1KB:4KB/auto/0"]


def test_new_and_gone_cases_are_told() -> None:
    other = record("ring4/allgather/4KB/auto/0")
    found = between(after=other)
    assert (found.new, found.gone, found.compared) == ((other.case,), (record().case,), 0)


def slower(stage: str, factor: float) -> JobRecord:
    """The synthesis with one stage that much slower."""
    stages = tuple(
        replace(item, seconds=item.seconds * factor, cpu_s=(item.cpu_s or 0.0) * factor) if item.name == stage else item
        for item in cost().stages
    )
    return cost(
        stages=stages, cpu_s=sum(item.cpu_s or 0.0 for item in stages), seconds=sum(item.seconds for item in stages)
    )


def test_a_slower_stage_is_told_though_the_whole_is_not_twice_as_slow() -> None:
    found = between(costs=(cost(), slower("verify", 2.0)))
    assert [item.line for item in found.regressions] == [
        "worse: seconds of stage: verify: 25 reference workloads -> 50 (2.00 times)"
    ]
    assert [item.kind for item in between(costs=(slower("verify", 2.0), cost())).changes] == ["better"]


@pytest.mark.parametrize("load", [0.5, 1.7, 4.0])
def test_a_machine_that_is_busier_or_slower_is_no_change(load: float) -> None:
    """All seconds grow together, the reference's too; waiting for a core stretches wall seconds only."""
    busy = cost(
        seconds=cost().seconds * 2 * load,
        cpu_s=cost().cpu_s * load,
        reference_s=cost().reference_s * load,
        stages=tuple(
            replace(item, seconds=item.seconds * 2 * load, cpu_s=(item.cpu_s or 0.0) * load) for item in cost().stages
        ),
    )
    assert between(costs=(cost(), busy), same_code=True).changes == ()


def test_a_stage_of_a_few_milliseconds_is_not_judged() -> None:
    short = cost(stages=(*cost().stages, Stage("bound", 0.01, "done", cpu_s=0.01)))
    shorter = cost(stages=(*cost().stages, Stage("bound", 0.001, "done", cpu_s=0.001)))
    assert between(costs=(shorter, short)).changes == ()


def test_waiting_for_a_core_during_one_stage_is_no_change() -> None:
    """The pipeline's seconds of a stage may be many times its CPU time on a busy machine."""
    stages = tuple(replace(item, seconds=item.seconds * 9) if item.name == "verify" else item for item in cost().stages)
    assert between(costs=(cost(), cost(stages=stages, seconds=13.0))).changes == ()


def test_stages_are_compared_with_stages_that_were_looked_at_alike() -> None:
    """Records of before have no CPU time of their stages: the whole is compared all the same."""
    older = cost(stages=tuple(replace(item, cpu_s=None) for item in cost().stages))
    assert older.stage_cpu_s() == {}
    assert between(costs=(older, slower("verify", 3.0))).changes == ()
    whole = between(costs=(older, slower("verify", 9.0)))
    assert [item.what for item in whole.regressions] == ["seconds"]


def test_a_synthesis_that_was_not_run_has_no_seconds_to_compare() -> None:
    nothing = cost(seconds=0.0, cpu_s=0.0, reference_s=0.0, stages=())
    assert between(costs=(nothing, cost())).changes == ()


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with one real run of the ordered suite."""
    path = str(tmp_path_factory.mktemp("ordered") / "h.sqlite")
    run(path, suite(ORDERED))
    return path


def next_run(path: str, *, same: bool = False) -> Comparison:
    """A further run, of other code unless `same`, compared with the first."""
    latest = run(path, suite(ORDERED), HERE if same else NEXT)
    with Store(path) as store:
        return compare_runs(store, store.runs()[0], latest)


def test_a_worse_ordering_key_is_caught(history: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SORT_KEYS:
        monkeypatch.setitem(SORT_KEYS, name, lambda facts: (facts.to_go_us, -facts.chunk))  # type: ignore[index]
    found = next_run(history)
    assert [change.subject for change in found.regressions if change.what == "schedule"] == [
        "dgx1/allgather/64KB/trees/0"
    ]


def test_a_slower_stage_is_caught(history: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from synth.ordering import orderer

    def slow(*args: Any) -> Any:
        for _ in range(5):
            reference_workload()
        return facts(*args)

    facts = orderer._facts
    monkeypatch.setattr(orderer, "_facts", slow)
    found = next_run(history)
    assert "seconds of stage: ordering" in " ".join(change.line for change in found.regressions)
    assert not [change for change in found.regressions if change.what in ("schedule", "simulated time")]


@contextmanager
def loaded(processes: int) -> Iterator[None]:
    """So many processes that never rest."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def test_a_loaded_machine_is_not_taken_for_a_regression(history: str) -> None:
    with loaded(2):
        found = next_run(history, same=True)
    assert [change.line for change in found.regressions] == []


def test_runs_go_by_number_commit_and_age(tmp_path: Path) -> None:
    with Store(str(tmp_path / "h.sqlite"), write=True) as store:
        for origin in (HERE, NEXT):
            store.finish(store.begin_run(suite(), origin), 1.0)
        unfinished = store.begin_run(suite(), HERE)
        found = {name: find_run(store, name).id for name in ("1", "2", "3", "latest", "latest~1", "c0ffee", "deadbeef")}
        assert found == {"1": 1, "2": 2, "3": 3, "latest": 2, "latest~1": 1, "c0ffee": 3, "deadbeef": 2}
        before = previous(store, unfinished)
        assert before is not None
        assert before.id == 2
        assert previous(store, find_run(store, "1")) is None
        for name in ("4", "latest~2", "beef", "nosuch", ""):
            with pytest.raises(InputError, match="run: "):
                find_run(store, name)
