"""The only place that a solver is imported: models, mixed-integer solves, and linear programs."""

from synth.milp.lp import GrowingLp, GrownSolution, LpSolution, solve_lp
from synth.milp.model import Model, linear_sum, weighted_sum
from synth.milp.options import Solution, SolveOptions, SolveReport, Status
from synth.milp.solve import choose_solver, solve

__all__ = [
    "GrowingLp",
    "GrownSolution",
    "LpSolution",
    "Model",
    "Solution",
    "SolveOptions",
    "SolveReport",
    "Status",
    "choose_solver",
    "linear_sum",
    "solve",
    "solve_lp",
    "weighted_sum",
]
