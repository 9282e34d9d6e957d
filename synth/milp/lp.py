"""Linear programs over sparse matrices: whole ones solved by SciPy's HiGHS, growing ones by HiGHS itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog
from scipy.sparse import csc_matrix

from synth.errors import NoAnswerError, SolverError

Vector = npt.NDArray[np.float64]
#: scipy.sparse matrix or dense array; SciPy ships no types.
Matrix = Any

#: HiGHS's number for the primal simplex, and its words for programs without an answer.
_PRIMAL = 4
_WITHOUT_ANSWER = ("Infeasible", "Unbounded", "Primal infeasible or unbounded")


@dataclass(frozen=True, slots=True)
class LpSolution:
    """An optimal point. Duals are the change of the objective per unit of right-hand side (those of `<=` are
    never positive).
    """

    x: Vector
    objective: float
    duals_ub: Vector
    duals_eq: Vector


def solve_lp(
    c: Vector | Sequence[float],
    A_ub: Matrix | None = None,
    b_ub: Vector | Sequence[float] | None = None,
    A_eq: Matrix | None = None,
    b_eq: Vector | Sequence[float] | None = None,
    bounds: Sequence[tuple[float | None, float | None]] | tuple[float | None, float | None] = (0, None),
) -> LpSolution:
    """Minimise `c x` subject to `A_ub x <= b_ub`, `A_eq x == b_eq` and `bounds` (one pair for all, or one for each).

    Shapes: `c` (n,), `A_ub` (m, n), `b_ub` (m,), `A_eq` (k, n), `b_eq` (k,). The dual simplex is used, which is
    deterministic and ends in a vertex. Raises NoAnswerError where the program is infeasible or unbounded,
    SolverError where the solver fails.
    """
    result = linprog(c, A_ub=A_ub, b_ub=b_ub, A_eq=A_eq, b_eq=b_eq, bounds=bounds, method="highs-ds")
    if result.status in (2, 3):
        raise NoAnswerError(f"linear program: {'infeasible' if result.status == 2 else 'unbounded'}")
    if result.status != 0:
        raise SolverError(f"linear program: {result.message}")
    return LpSolution(
        np.asarray(result.x, dtype=np.float64),
        float(result.fun or 0.0),
        np.asarray(result.ineqlin.marginals, dtype=np.float64),
        np.asarray(result.eqlin.marginals, dtype=np.float64),
    )


@dataclass(frozen=True, slots=True)
class GrownSolution:
    """An optimal point over the columns so far; duals of the rows as in `LpSolution`."""

    x: Vector
    objective: float
    duals: Vector


class GrowingLp:
    """Minimise `c x` subject to `lower <= A x <= upper` and `x >= 0`, where columns of A come in the course of column generation.

    A solve begins where the last one ended, which is still feasible: the primal simplex needs a few pivots for what is new, where
    a program solved from the beginning needs all of them again. One thread, so that the same calls end in the same vertices.
    """

    def __init__(self, lower: Vector, upper: Vector) -> None:
        """`lower` and `upper`, (rows,), may be infinite."""
        import highspy

        engine: Any = highspy  # ships no types that say more
        self._highs = engine.Highs()
        self._highs.silent()
        options = {"threads": 1, "parallel": "off", "presolve": "off", "simplex_strategy": _PRIMAL}
        for name, value in options.items():
            self._highs.setOptionValue(name, value)
        rows, nothing = len(lower), np.zeros(0)
        self._highs.addRows(rows, lower, upper, 0, np.zeros(rows, dtype=np.int32), nothing.astype(np.int32), nothing)
        self.columns = 0

    def add(self, columns: Matrix) -> None:
        """New columns of A, (rows, k)."""
        added = csc_matrix(columns)
        count = added.shape[1]
        none, unlimited = np.zeros(count), np.full(count, np.inf)
        start, index = added.indptr[:-1].astype(np.int32), added.indices.astype(np.int32)
        self._highs.addCols(count, none, none, unlimited, added.nnz, start, index, added.data.astype(np.float64))
        self.columns += count

    def solve(self, costs: Vector, usable: npt.NDArray[np.bool_]) -> GrownSolution:
        """The best point at these `costs`, (columns,), where what is not `usable`, (columns,), is 0.

        Raises NoAnswerError where the program is infeasible or unbounded, SolverError where the solver fails.
        """
        every = np.arange(self.columns, dtype=np.int32)
        self._highs.changeColsCost(self.columns, every, costs)
        limits = np.where(usable, np.inf, 0.0)
        self._highs.changeColsBounds(self.columns, every, np.zeros(self.columns), limits)
        self._highs.run()
        ended = self._highs.modelStatusToString(self._highs.getModelStatus())
        if ended != "Optimal":
            fails = NoAnswerError if ended in _WITHOUT_ANSWER else SolverError
            raise fails(f"linear program: {ended.lower()}")
        point = self._highs.getSolution()
        duals = np.asarray(point.row_dual, dtype=np.float64)
        return GrownSolution(
            np.asarray(point.col_value, dtype=np.float64), float(self._highs.getObjectiveValue()), duals
        )
