"""Linear programs over sparse matrices, solved by SciPy's HiGHS: value, point and duals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog

from synth.errors import NoAnswerError, SolverError

Vector = npt.NDArray[np.float64]
#: scipy.sparse matrix or dense array; SciPy ships no types.
Matrix = Any


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
