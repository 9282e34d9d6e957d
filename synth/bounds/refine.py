"""Linear programs made small where they look alike from many sides.

Rows and columns that cannot be told apart by their coefficients, by those of their neighbours, and so on, may be taken together: the
program of the classes has the same optimum (M. Grohe, K. Kersting, M. Mladenov and E. Selman, Dimension reduction via colour
refinement, ESA 2014). That uses every symmetry of a machine without looking for one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Hashes = NDArray[np.uint64]
#: scipy.sparse matrices; SciPy ships no types.
Matrix = Any


def classes(matrix: Matrix, row_kinds: Ints, column_kinds: Ints) -> tuple[Ints, Ints]:
    """The class of every row and of every column, numbered from 0 by first member.

    Rows of different `row_kinds` are never taken together (these stand for right-hand sides), nor columns of different kinds.
    Classes are told apart by 64-bit hashes: a collision, which nobody will live to see, would join too much, so what is derived from
    classes has to be checked by itself.
    """
    entries = coo_array(matrix)
    at_row, at_column = entries.row.astype(np.int64), entries.col.astype(np.int64)
    _, coefficient = np.unique(entries.data, return_inverse=True)
    salt = _mix(coefficient.astype(np.uint64) + np.uint64(1))
    rows, columns = _numbered(row_kinds), _numbered(column_kinds)
    counts = (int(rows.max(initial=-1)) + 1, int(columns.max(initial=-1)) + 1)
    while True:
        rows = _split(rows, at_row, columns[at_column], salt)
        columns = _split(columns, at_column, rows[at_row], salt)
        now = (int(rows.max(initial=-1)) + 1, int(columns.max(initial=-1)) + 1)
        if now == counts:
            return rows, columns
        counts = now


def joined(matrix: Matrix, rows: Ints, columns: Ints) -> Matrix:
    """The program of the classes: entry [R, C] sums a row of class R over the columns of class C."""
    first = np.unique(rows, return_index=True)[1]
    chosen = coo_array(csr_array(matrix)[first])
    shape = (len(first), int(columns.max(initial=-1)) + 1)
    return csr_array((chosen.data, (chosen.row, columns[chosen.col])), shape=shape)


def _split(kinds: Ints, at: Ints, neighbours: Ints, salt: Hashes) -> Ints:
    """The kinds, split by what multiset of neighbours (and coefficients) each has."""
    seen = np.zeros(len(kinds), dtype=np.uint64)
    np.add.at(seen, at, _mix(_mix(neighbours.astype(np.uint64)) ^ salt))
    return _numbered(_mix(seen ^ _mix(kinds.astype(np.uint64) + np.uint64(1 << 40))))


def _numbered(kinds: NDArray[Any]) -> Ints:
    """The kinds as numbers from 0, in order of first appearance."""
    _, first, inverse = np.unique(kinds, return_index=True, return_inverse=True)
    number = np.empty(len(first), dtype=np.int64)
    number[np.argsort(first)] = np.arange(len(first))
    return number[inverse]


def _mix(values: Hashes) -> Hashes:
    """A bijection of 64 bits without visible order (the finaliser of splitmix64, S. Vigna)."""
    with np.errstate(over="ignore"):
        mixed = values + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return mixed ^ (mixed >> np.uint64(31))
