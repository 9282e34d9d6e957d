"""What a solve is given and what it gives back, as values."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Literal

SolverName = Literal["auto", "highs", "cbc", "gurobi"]


class Status(StrEnum):
    """How a solve ended."""

    OPTIMAL = "optimal"
    """Proved within the gap asked for."""
    FEASIBLE = "feasible"
    """A limit counted in work ended it; the best found so far is the answer, the same on every run."""
    TIMED_OUT = "timed out"
    """The clock ended it; the best found so far is the answer, and another run may find another."""
    INFEASIBLE = "infeasible"
    NO_SOLUTION = "no solution"
    """A limit ended it before anything was found."""


@dataclass(frozen=True, slots=True)
class SolveOptions:
    """Which solver, and when it may stop. `auto` is HiGHS, or CBC where HiGHS is not installed."""

    solver: SolverName = "auto"
    node_limit: int | None = 20_000
    stall_nodes: int | None = None
    """End after so many nodes in a row that did not better the answer (HiGHS only)."""
    time_limit_s: float | None = None
    gap: float = 1e-3
    """Relative distance between answer and bound at which the answer counts as optimal."""
    threads: int = 1
    seed: int = 0


@dataclass(frozen=True, slots=True)
class SolveReport:
    """What is told of a solve. `objective`, `bound` and `gap` are None where there is none; so is what a solver
    keeps back.
    """

    status: Status
    objective: float | None
    bound: float | None
    gap: float | None
    seconds: float
    nodes: int | None
    solver: str
    version: str
    variables: int
    binaries: int
    constraints: int

    def restated(self, objective: float, tie_break: float) -> SolveReport:
        """The same solve in the stage's own cost, to which the model's objective adds at most `tie_break`."""
        bound = None if self.bound is None else min(self.bound - tie_break, objective)
        gap = None if bound is None else (objective - bound) / max(objective, 1e-12)
        return replace(self, objective=objective, bound=bound, gap=gap)


@dataclass(frozen=True, slots=True)
class Solution:
    """The report of a solve and, where one was found, the value of every variable by key (binaries are exactly
    0.0 or 1.0).
    """

    report: SolveReport
    values: Mapping[Hashable, float] = field(default_factory=dict)

    @property
    def found(self) -> bool:
        """Whether there are values."""
        return self.report.status in (Status.OPTIMAL, Status.FEASIBLE, Status.TIMED_OUT)
