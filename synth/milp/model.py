"""A linear model with named parts: the thin layer between the formulations and PuLP.

Variables are keyed by NamedTuples and always bounded; constraints belong to a family named in words. A constraint
that holds only in some case takes its big-M from the bounds of its own variables, so every M follows from the
instance (its horizon) and none is a guess.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Any

import pulp

from synth.errors import CheckError

#: PuLP is untyped: variables, affine expressions and constraints are its own.
Variable = Any
Expression = Any
Constraint = Any


class Model:
    """A minimisation over bounded variables. Stages build it, `solve` reads it; nothing else sees PuLP."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.problem: Any = pulp.LpProblem(name.replace(" ", "_"), pulp.LpMinimize)
        self.variables: dict[Hashable, Variable] = {}
        self.starts: dict[Hashable, float] = {}
        self.families: Counter[str] = Counter()
        self.num_binaries = 0

    def binary(self, key: Hashable) -> Variable:
        """A new 0/1 variable named by `key`."""
        self.num_binaries += 1
        return self._variable(key, 0.0, 1.0, pulp.LpInteger)

    def continuous(self, key: Hashable, low: float, up: float) -> Variable:
        """A new variable between two finite bounds; CheckError for a bound that is not finite."""
        return self._variable(key, low, up, pulp.LpContinuous)

    def add(self, family: str, constraint: Constraint) -> None:
        """Demand a constraint, filed under `family`."""
        self.problem.addConstraint(constraint, f"c{self.num_constraints:07d}")
        self.families[family] += 1

    def add_unless(self, family: str, off: Expression, expression: Expression) -> None:
        """Demand `expression <= 0` unless `off` is 1 (an expression that is never below 0); M is the most
        `expression` can be.
        """
        most = self.maximum(expression)
        if most > 0:
            self.add(family, expression <= most * off)

    def maximum(self, expression: Expression) -> float:
        """The most an expression can be by the bounds of its variables alone."""
        total = float(expression.constant)
        for variable, coefficient in expression.items():
            total += coefficient * (variable.upBound if coefficient > 0 else variable.lowBound)
        return total

    def minimise(self, objective: Expression) -> None:
        """Set what is minimised."""
        self.problem.setObjective(objective)

    def start(self, key: Hashable, value: float) -> None:
        """Suggest a value for a variable: the solver begins from the point so suggested where it is feasible."""
        self.starts[key] = value

    @property
    def num_constraints(self) -> int:
        return self.families.total()

    def _variable(self, key: Hashable, low: float, up: float, kind: str) -> Variable:
        if not (math.isfinite(low) and math.isfinite(up) and low <= up):
            raise CheckError("milp", f"{self.name}: variable {key} has bounds {low}..{up}")
        if key in self.variables:
            raise CheckError("milp", f"{self.name}: variable {key} is made twice")
        # PuLP orders variables by name; the number keeps that the order in which they were made.
        name = f"v{len(self.variables):07d}"
        variable = self.problem.add_variable(name, low, up, kind)
        self.variables[key] = variable
        return variable


def linear_sum(terms: Iterable[Expression]) -> Expression:
    """The sum of expressions, variables and numbers (0 for none), in time linear in their number."""
    return pulp.lpSum(terms)


def weighted_sum(terms: Iterable[tuple[Variable, float]]) -> Expression:
    """The sum of variable times weight; a variable may come more than once."""
    total = pulp.LpAffineExpression()
    for variable, weight in terms:
        total.addterm(variable, weight)
    return total
