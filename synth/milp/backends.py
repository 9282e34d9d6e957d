"""HiGHS, CBC and Gurobi behind PuLP: each takes a model and options and gives an `Outcome`.

PuLP's own way of running HiGHS passes no starting point, knows no node limit and holds up Ctrl-C, so PuLP builds
the HiGHS model here and the run is ours.
"""

from __future__ import annotations

import atexit
import importlib
import math
import re
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any, NamedTuple

import pulp

from synth.errors import SolverError
from synth.milp.model import Model
from synth.milp.options import SolveOptions, Status

#: How often a waiting solve looks for Ctrl-C, and how long an interrupted one may take to stop by itself.
_POLL_S = 0.05
_STOP_S = 0.8
_STOP_AT_EXIT_S = 10.0


class Outcome(NamedTuple):
    """How a solver ended: values in PuLP's variables (`varValue`) where `status` says that there are some."""

    status: Status
    objective: float | None
    bound: float | None
    nodes: int | None
    version: str


def has_highs() -> bool:
    """Whether HiGHS can be used (the package highspy)."""
    return bool(pulp.HiGHS().available())


def cbc_path() -> str | None:
    """The CBC to run: one on the PATH, else the one that ships with PuLP; None where there is neither."""
    shipped = str(pulp.PULP_CBC_CMD.pulp_cbc_path)
    return shutil.which("cbc") or (shutil.which(shipped) and shipped)


def has_gurobi() -> bool:
    """Whether Gurobi is installed and has a licence."""
    try:
        return bool(pulp.GUROBI(msg=False).available())
    except Exception:  # gurobipy raises its own kinds without a licence, and they cannot be named without importing it
        return False


def run_highs(model: Model, options: SolveOptions) -> Outcome:
    """Solve with HiGHS in a thread of its own, so that Ctrl-C gets through; KeyboardInterrupt is raised within a
    second.
    """
    import highspy

    solver = pulp.HiGHS(msg=False, gapRel=options.gap, threads=options.threads, timeLimit=options.time_limit_s)
    solver.createAndConfigureSolver(model.problem)
    highs = model.problem.solverModel
    highs.setOptionValue("random_seed", options.seed)
    highs.setOptionValue("parallel", "off" if options.threads == 1 else "choose")
    if options.node_limit is not None:
        highs.setOptionValue("mip_max_nodes", options.node_limit)
    if options.stall_nodes is not None:
        highs.setOptionValue("mip_max_stall_nodes", options.stall_nodes)
    solver.buildSolverModel(model.problem)
    _start_highs(model, highs)
    _run_interruptibly(highs)
    info = highs.getInfo()
    found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    status = _highs_status(highs, found)
    if found:
        column = highs.getSolution().col_value
        for variable in model.variables.values():
            # A variable that no constraint and no objective names is not in the model: any value does.
            variable.varValue = column[variable.index] if hasattr(variable, "index") else variable.lowBound
    objective = info.objective_function_value if found else None
    bound = info.mip_dual_bound if model.num_binaries else objective
    bound = bound if bound is not None and math.isfinite(bound) else None
    return Outcome(status, objective, bound, info.mip_node_count, highs.version())


def _start_highs(model: Model, highs: Any) -> None:
    import numpy as np

    known = [(model.variables[key], value) for key, value in model.starts.items()]
    placed = [(variable.index, value) for variable, value in known if hasattr(variable, "index")]
    if placed:
        index = np.array([at for at, _ in placed], dtype=np.int32)
        value = np.array([value for _, value in placed], dtype=np.double)
        highs.setSolution(len(placed), index, value)


def _run_interruptibly(highs: Any) -> None:
    """Run HiGHS in a thread while this one listens: a signal handler only runs in Python, and HiGHS is C++ throughout."""
    stop, started, ended = threading.Event(), threading.Event(), threading.Event()

    def interrupt(event: Any) -> None:
        if stop.is_set():
            event.interrupt()

    def run() -> None:
        started.set()
        try:
            if not stop.is_set():
                highs.run()
        finally:
            ended.set()

    for callbacks in (highs.cbMipInterrupt, highs.cbSimplexInterrupt, highs.cbIpmInterrupt):
        callbacks.subscribe(interrupt)
    try:
        threading.Thread(target=run, daemon=True).start()
        # An event, not join: a join that a signal interrupts counts the thread as ended (bpo-45274).
        while not ended.wait(_POLL_S):
            pass
    except KeyboardInterrupt:
        stop.set()
        if started.is_set():
            ended.wait(_STOP_S)
            # Were Python to end under a thread that still calls back into it, the process would abort.
            atexit.register(ended.wait, _STOP_AT_EXIT_S)
        raise


def _highs_status(highs: Any, found: bool) -> Status:
    from highspy import HighsModelStatus as Highs

    ended = highs.getModelStatus()
    if ended == Highs.kOptimal:
        return Status.OPTIMAL
    if ended in (Highs.kInfeasible, Highs.kUnboundedOrInfeasible):
        return Status.INFEASIBLE
    if not found:
        return Status.NO_SOLUTION
    return Status.TIMED_OUT if ended == Highs.kTimeLimit else Status.FEASIBLE


def run_cbc(model: Model, options: SolveOptions) -> Outcome:
    """Solve with CBC as a child process, which Ctrl-C kills; its files are in a folder that is removed.

    PuLP writes and reads the files; the run is ours, for its log (only there are bound and nodes) and its end.
    """
    with tempfile.TemporaryDirectory(prefix="synth-cbc-") as folder:
        program, start, answer = (str(Path(folder, name)) for name in ("model.mps", "start.sol", "answer.sol"))
        files = pulp.COIN_CMD(path=cbc_path(), msg=False)
        written = model.problem.writeMPS(program, rename=1)[:3]
        command = [files.path, program]
        if model.starts:
            _set_starts(model)
            files.writesol(start, model.problem, *written)
            command += ["-mips", start]
        command += [*_cbc_options(options), "-solve", "-printingOptions", "all", "-solution", answer]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode != 0 or not Path(answer).exists():
            raise SolverError(f"CBC failed (exit code {done.returncode}); install highspy to solve with HiGHS instead")
        _, values, _, _, _, sol_status = files.readsol_MPS(answer, model.problem, *written)
    for variable in model.variables.values():
        variable.varValue = values.get(variable.name, variable.lowBound)
    return _cbc_outcome(model, sol_status, done.stdout)


def _cbc_options(options: SolveOptions) -> list[str]:
    words = ["-ratio", str(options.gap), "-randomSeed", str(options.seed), "-randomCbcSeed", str(options.seed)]
    if options.time_limit_s is not None:
        words += ["-sec", str(options.time_limit_s), "-timeMode", "elapsed"]
    if options.node_limit is not None:
        words += ["-maxNodes", str(options.node_limit)]
    if options.threads > 1:
        words += ["-threads", str(options.threads)]
    return words


def _cbc_outcome(model: Model, sol_status: int, log: str) -> Outcome:
    found = sol_status in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible)
    objective = float(pulp.value(model.problem.objective)) if found else None
    version = _number(r"Version: (\S+)", log) or "unknown"
    nodes = _number(r"Enumerated nodes:\s+(\d+)", log)
    bound_text = _number(r"Lower bound:\s+(\S+)", log)
    if sol_status == pulp.LpSolutionOptimal:
        # The log names a bound only where it is not the objective itself (an end within the gap).
        status, bound = Status.OPTIMAL, float(bound_text) if bound_text else objective
    elif found:
        status = Status.TIMED_OUT if "Stopped on time" in log else Status.FEASIBLE
        bound = float(bound_text) if bound_text else None
    else:
        infeasible = sol_status in (pulp.LpSolutionInfeasible, pulp.LpSolutionUnbounded)
        status, bound = Status.INFEASIBLE if infeasible else Status.NO_SOLUTION, None
    return Outcome(status, objective, bound, int(nodes) if nodes else None, version)


def _number(pattern: str, log: str) -> str | None:
    match = re.search(pattern, log)
    return match[1] if match else None


def run_gurobi(model: Model, options: SolveOptions) -> Outcome:
    """Solve with Gurobi through gurobipy."""
    gurobipy = importlib.import_module("gurobipy")
    _set_starts(model)
    limits = {} if options.node_limit is None else {"NodeLimit": options.node_limit}
    solver = pulp.GUROBI(
        msg=False,
        timeLimit=options.time_limit_s,
        gapRel=options.gap,
        warmStart=bool(model.starts),
        Threads=options.threads,
        Seed=options.seed,
        **limits,
    )
    model.problem.solve(solver)
    solved = model.problem.solverModel
    found = solved.SolCount > 0
    status = Status.TIMED_OUT if solved.Status == gurobipy.GRB.TIME_LIMIT else Status.FEASIBLE
    if solved.Status == gurobipy.GRB.OPTIMAL:
        status = Status.OPTIMAL
    elif not found:
        impossible = (gurobipy.GRB.INFEASIBLE, gurobipy.GRB.INF_OR_UNBD)
        status = Status.INFEASIBLE if solved.Status in impossible else Status.NO_SOLUTION
    bound = solved.ObjBound if math.isfinite(solved.ObjBound) else None
    version = ".".join(map(str, gurobipy.gurobi.version()))
    return Outcome(status, solved.ObjVal if found else None, bound, int(solved.NodeCount), version)


def _set_starts(model: Model) -> None:
    for key, value in model.starts.items():
        model.variables[key].setInitialValue(value, check=False)
