"""Linear programs: value, point, duals, and programs without an answer."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from synth.errors import NoAnswerError
from synth.milp import GrowingLp, solve_lp


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


def test_a_program_that_grows_comes_to_what_one_solved_at_once_does() -> None:
    # Three links carry a demand of 6; ways come one after the other, and the first column is what links are loaded at most.
    ways = np.array([[1.0, 0.0, 0.5], [1.0, 1.0, 0.0], [0.0, 1.0, 0.5]])
    growing = GrowingLp(np.array([-np.inf] * 3 + [6.0]), np.array([0.0] * 3 + [6.0]))
    growing.add(np.array([[-1.0], [-1.0], [-1.0], [0.0]]))
    loads = []
    for count in range(1, 4):
        growing.add(csr_matrix(np.append(ways[:, count - 1], 1.0)[:, None]))
        grown = growing.solve(np.append(1.0, np.zeros(count)), np.ones(count + 1, dtype=bool))
        columns = np.column_stack([-np.ones(3), ways[:, :count]])
        once = solve_lp(np.append(1.0, np.zeros(count)), columns, np.zeros(3), [[0.0, *[1.0] * count]], [6.0])
        assert grown.objective == pytest.approx(once.objective)
        assert grown.duals[3] * 6 == pytest.approx(grown.objective), "strong duality"
        assert (grown.duals[:3] <= 0).all()
        loads.append(grown.objective)
    assert loads == pytest.approx([6.0, 6.0, 3.0])
    without = growing.solve(np.append(1.0, np.zeros(3)), np.array([True, True, True, False]))
    assert without.x[3] == 0
    assert without.objective == pytest.approx(6.0)
    dear = growing.solve(np.array([1.0, 0.0, 0.0, 9.0]), np.ones(4, dtype=bool))
    assert dear.x[3] == pytest.approx(0.0), "costs may change"
    with pytest.raises(NoAnswerError, match="infeasible"):
        growing.solve(np.append(1.0, np.zeros(3)), np.array([True, False, False, False]))
