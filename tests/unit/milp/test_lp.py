"""Linear programs: value, point, duals, and programs without an answer."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from synth.errors import NoAnswerError
from synth.milp import solve_lp


def test_point_value_and_duals_agree() -> None:
    # Least cost diet: x + 2y >= 4, 3x + y >= 6, x + y + z == 5.
    a_ub, b_ub = csr_matrix([[-1.0, -2.0, 0.0], [-3.0, -1.0, 0.0]]), [-4.0, -6.0]
    a_eq, b_eq = csr_matrix([[1.0, 1.0, 1.0]]), [5.0]
    solution = solve_lp([2.0, 3.0, 0.5], a_ub, b_ub, a_eq, b_eq)
    assert solution.x == pytest.approx([1.6, 1.2, 2.2])
    assert solution.objective == pytest.approx(2 * 1.6 + 3 * 1.2 + 0.5 * 2.2)
    assert (solution.duals_ub <= 0).all()
    dual_value = solution.duals_ub @ np.array(b_ub) + solution.duals_eq @ np.array(b_eq)
    assert dual_value == pytest.approx(solution.objective), "strong duality"


def test_bounds_of_each_variable() -> None:
    solution = solve_lp([-1.0, 1.0], bounds=[(0, 3), (-2, None)])
    assert solution.x == pytest.approx([3.0, -2.0])


@pytest.mark.parametrize(
    ("cost", "row", "limit", "what"), [([1.0], [[1.0]], [-1.0], "infeasible"), ([-1.0], [[-1.0]], [0.0], "unbounded")]
)
def test_no_answer(cost: list[float], row: list[list[float]], limit: list[float], what: str) -> None:
    with pytest.raises(NoAnswerError, match=what):
        solve_lp(cost, csr_matrix(row), limit)
