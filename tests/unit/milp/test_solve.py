"""The door to the solvers: statuses, starting points, absent solvers, silence, Ctrl-C."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from synth.errors import CheckError, SolverError
from synth.milp import (
    Model,
    SolveOptions,
    SolveReport,
    Status,
    backends,
    choose_solver,
    linear_sum,
    solve,
    weighted_sum,
)

ROOT = Path(__file__).resolve().parents[3]
SOLVERS = ["highs", "cbc"]


def knapsack() -> Model:
    """Least total price of items whose weights 1..5 add up to 7 or more: items 3 and 4, price 6."""
    model = Model("a knapsack")
    items = [model.binary(("item", i)) for i in range(5)]
    model.add("weigh-enough", weighted_sum((item, i + 1) for i, item in enumerate(items)) >= 7)
    model.minimise(weighted_sum((item, (2, 3, 5, 2, 4)[i]) for i, item in enumerate(items)))
    return model


def market_split(seed: int = 1, rows: int = 5, columns: int = 40) -> Model:
    """Cornuéjols and Dawande's market split problem: tiny, and far beyond branch and bound."""
    rng = random.Random(seed)
    model = Model("market-split")
    items = [model.binary(("item", i)) for i in range(columns)]
    slacks = []
    for row in range(rows):
        weights = [rng.randrange(100) for _ in items]
        over, under = (model.continuous((name, row), 0, 1e4) for name in ("over", "under"))
        split = weighted_sum(zip(items, weights, strict=True)) + over - under == sum(weights) // 2
        model.add("split", split)
        slacks += [over, under]
    model.minimise(linear_sum(slacks))
    return model


@pytest.mark.parametrize("solver", SOLVERS)
def test_optimum_and_report(solver: str) -> None:
    solution = solve(knapsack(), SolveOptions(solver=solver))
    report = solution.report
    assert (report.status, report.objective) == (Status.OPTIMAL, 6.0)
    assert {key for key, value in solution.values.items() if value} == {("item", 3), ("item", 4)}
    assert (report.solver, report.variables, report.binaries, report.constraints) == (solver, 5, 5, 1)
    assert report.bound == pytest.approx(6.0)
    assert report.version[0].isdigit()


@pytest.mark.parametrize("solver", SOLVERS)
def test_infeasible(solver: str) -> None:
    model = knapsack()
    model.add("carry-little", linear_sum(model.variables.values()) <= 1)
    solution = solve(model, SolveOptions(solver=solver))
    assert solution.report.status is Status.INFEASIBLE
    assert not solution.found
    assert not solution.values


def test_node_limit_is_work_and_gives_the_same_answer_twice() -> None:
    options = SolveOptions(solver="highs", node_limit=50)
    first, second = (solve(market_split(), options) for _ in range(2))
    assert first.report.status is Status.FEASIBLE
    assert first.values == second.values
    assert first.report.bound is not None
    assert first.report.objective is not None
    assert first.report.bound <= first.report.objective


@pytest.mark.parametrize("solver", SOLVERS)
def test_time_limit_is_told(solver: str) -> None:
    solution = solve(market_split(), SolveOptions(solver=solver, time_limit_s=0.3, node_limit=None))
    assert solution.report.status is Status.TIMED_OUT
    assert solution.found


def test_start_is_the_answer_where_no_node_may_be_searched() -> None:
    model = market_split()
    for key in model.variables:
        model.start(key, 0.0)
    for row, constraint in enumerate(model.problem.constraints()):
        model.start(("over", row), -constraint.constant)
    solution = solve(model, SolveOptions(solver="highs", node_limit=0))
    assert solution.found
    starting_cost = sum(-constraint.constant for constraint in model.problem.constraints())
    assert solution.report.objective is not None
    assert solution.report.objective <= starting_cost


@pytest.mark.parametrize("solver", ["highs", "cbc", "gurobi"])
def test_absent_solver_that_was_asked_for(solver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    absent(monkeypatch)
    with pytest.raises(SolverError, match=f"{solver} is not available; .*(install|put)"):
        solve(knapsack(), SolveOptions(solver=solver))


def test_auto_prefers_highs_then_cbc(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_solver(SolveOptions()) == "highs"
    monkeypatch.setattr(backends, "has_highs", lambda: False)
    assert solve(knapsack(), SolveOptions()).report.solver == "cbc"
    absent(monkeypatch)
    with pytest.raises(SolverError, match="no solver is available"):
        choose_solver(SolveOptions())


def absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "has_highs", lambda: False)
    monkeypatch.setattr(backends, "has_gurobi", lambda: False)
    monkeypatch.setattr(backends, "cbc_path", lambda: None)


@pytest.mark.parametrize("solver", SOLVERS)
def test_silent_and_tidy(
    solver: str, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    solve(knapsack(), SolveOptions(solver=solver))
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


def test_unbounded_variables_and_doubles_are_refused() -> None:
    model = Model("m")
    with pytest.raises(CheckError, match="bounds"):
        model.continuous("time", 0.0, float("inf"))
    model.binary("x")
    with pytest.raises(CheckError, match="twice"):
        model.binary("x")


def test_big_m_is_the_most_that_the_bounds_allow() -> None:
    model = Model("m")
    early, late = model.continuous("early", 1.0, 4.0), model.continuous("late", 2.0, 9.0)
    assert model.maximum(early + 5 - 2 * late) == 4.0 + 5 - 2 * 2.0
    off = model.binary("off")
    model.add_unless("in-order", off, early + 5 - late)
    model.add_unless("in-order", off, early - late - 3)
    assert model.num_constraints == 1, "what always holds is left out"
    model.minimise(late + 10 * off)
    assert solve(model, SolveOptions()).values == {"early": 1.0, "late": 6.0, "off": 0.0}


def test_restated_report_never_claims_more_than_was_proved() -> None:
    report = SolveReport(Status.OPTIMAL, 10.2, 10.1, 0.01, 0.0, 1, "highs", "1", 1, 1, 1)
    told = report.restated(10.0, tie_break=0.2)
    assert (told.objective, told.bound) == (10.0, pytest.approx(9.9))
    assert told.gap == pytest.approx(0.01)
    assert report.restated(9.0, tie_break=0.2).bound == 9.0


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_ctrl_c_reaches_the_caller_during_a_solve() -> None:
    code = (
        "import signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a background job of a shell ignores it
        "from tests.unit.milp.test_solve import market_split\n"
        "from synth.milp import SolveOptions, solve\n"
        "model = market_split(rows=6, columns=50)\n"
        "try:\n    print('solving', flush=True)\n"
        "    solve(model, SolveOptions(solver='highs', node_limit=None))\n"
        "except KeyboardInterrupt:\n    print('interrupted')\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "solving\n"
        process.send_signal(signal.SIGINT)
        try:
            output, _ = process.communicate(timeout=30)
        finally:
            process.kill()
    assert output == "interrupted\n"
    assert process.returncode == 0
