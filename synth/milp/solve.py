"""The door to the solvers: `solve(model, options)` gives a value, whoever solved it and however it ended.

What shapes the answer is counted in work (nodes), so equal inputs give equal answers at any load; the clock only
ends a solve, and the status then says so.
"""

from __future__ import annotations

import time
from collections.abc import Hashable

import pulp

from synth.errors import SolverError
from synth.milp import backends
from synth.milp.model import Model
from synth.milp.options import Solution, SolveOptions, SolveReport, Status

_RUN = {"highs": backends.run_highs, "cbc": backends.run_cbc, "gurobi": backends.run_gurobi}
_AVAILABLE = {
    "highs": lambda: backends.has_highs(),
    "cbc": lambda: backends.cbc_path() is not None,
    "gurobi": lambda: backends.has_gurobi(),
}
_INSTALL = {
    "highs": "install the package highspy",
    "cbc": "install pulp with its CBC, or put a cbc on the PATH",
    "gurobi": "install the package gurobipy and its licence",
}


def solve(model: Model, options: SolveOptions) -> Solution:
    """Minimise the model. Never prints; Ctrl-C reaches the caller within a second.

    Raises SolverError where the solver asked for, or with `auto` both HiGHS and CBC, cannot be used.
    """
    solver = choose_solver(options)
    began = time.perf_counter()
    outcome = _RUN[solver](model, options)
    seconds = time.perf_counter() - began
    gap = None
    if outcome.objective is not None and outcome.bound is not None:
        gap = abs(outcome.objective - outcome.bound) / max(abs(outcome.objective), 1e-12)
    report = SolveReport(
        outcome.status,
        outcome.objective,
        outcome.bound,
        gap,
        seconds,
        outcome.nodes,
        solver,
        outcome.version,
        len(model.variables),
        model.num_binaries,
        model.num_constraints,
    )
    has_values = outcome.status in (Status.OPTIMAL, Status.FEASIBLE, Status.TIMED_OUT)
    return Solution(report, _values(model) if has_values else {})


def choose_solver(options: SolveOptions) -> str:
    """The solver that `options` lead to: "highs", "cbc" or "gurobi"; SolverError where it cannot be used."""
    if options.solver != "auto":
        if not _AVAILABLE[options.solver]():
            raise SolverError(f"--solver: {options.solver} is not available; {_INSTALL[options.solver]}")
        return options.solver
    for name in ("highs", "cbc", "gurobi"):
        if _AVAILABLE[name]():
            return name
    raise SolverError(f"no solver is available; {_INSTALL['highs']}")


def _values(model: Model) -> dict[Hashable, float]:
    """Values by key; binaries are rounded, since solvers give them within a tolerance."""
    values: dict[Hashable, float] = {}
    for key, variable in model.variables.items():
        value = float(variable.varValue if variable.varValue is not None else variable.lowBound)
        values[key] = float(round(value)) if variable.cat == pulp.LpInteger else value
    return values
