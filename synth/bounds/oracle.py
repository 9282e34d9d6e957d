"""The minimum cut of a machine as far as a bound needs it: would so much time let everything through, and if not, what does not.

A *case* is one thing that must happen: ranks have shares of the buffer to give, others have shares to take. In a time T, links
carry at most rate times T, or less where delays are known. A maximum flow that falls short shows a cut, and the cut is a limit by
itself: how the flow was found, and how it was rounded, is of no account.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from synth.bounds.machine import Floats, Ints, Machine

#: scipy.sparse arrays, and SciPy's answer to a maximum flow; SciPy ships no types.
Matrix = Any
Flow = Any

#: SciPy's maximum flow counts in 32 bits, and adds a flow to the capacity of the edge back.
_MOST = 1 << 29


@dataclass(frozen=True)
class Case:
    """Ranks give and take shares of the buffer; both sum to the same."""

    gives: Mapping[int, Fraction]
    takes: Mapping[int, Fraction]

    @cached_property
    def total(self) -> Fraction:
        """The share of the buffer that is given, and taken."""
        return sum((share * count for share, count in Counter(self.takes.values()).items()), Fraction(0))

    @cached_property
    def parts(self) -> int:
        """All shares are multiples of 1 / parts."""
        return math.lcm(*(share.denominator for share in {*self.gives.values(), *self.takes.values()}))

    def must_cross(self, side: NDArray[np.bool_], gpus: Ints) -> Fraction:
        """The share that has to leave a set of devices, at least."""
        taken = sum((share for rank, share in self.takes.items() if not side[gpus[rank]]), Fraction(0))
        given = sum((share for rank, share in self.gives.items() if not side[gpus[rank]]), Fraction(0))
        return taken - given


class CutOracle:
    """Minimum cuts of one machine, for any capacities."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        size = len(machine.topology.devices)
        self.source, self.sink, self.size = size, size + 1, size + 2
        ranks = machine.num_ranks
        tails = np.concatenate([machine.tails, np.full(ranks, self.source), machine.gpus])
        heads = np.concatenate([machine.heads, machine.gpus, np.full(ranks, self.sink)])
        keys, self.slot = np.unique(tails * self.size + heads, return_inverse=True)
        self.columns = (keys % self.size).astype(np.int32)
        self.starts = np.searchsorted(keys, np.arange(self.size + 1) * self.size).astype(np.int32)
        unit = math.lcm(*(rate.denominator for rate in machine.GBps))
        self.unit = Fraction(1, unit)
        self.whole = np.array([float(rate * unit) for rate in machine.GBps])
        self.rates = machine.rates

    def cut(self, case: Case, per_GBps: Fraction) -> NDArray[np.bool_] | None:
        """A set of devices that cannot let out what must leave it in a time of `per_GBps` (shares of the buffer over GB/s).

        The counts are exact where they fit 32 bits, as for rates with few digits, and rounded otherwise. None if all gets
        through.
        """
        factor = per_GBps * self.unit * case.parts
        total = int(case.total * case.parts) * factor.denominator
        if total <= _MOST:
            # Products that matter are below `total`, and doubles that small are exact.
            edges = np.minimum(self.whole * float(factor.numerator), float(total))
            scale = float(case.parts * factor.denominator)
        else:
            scale = _MOST / float(case.total)
            edges = np.minimum(self.rates * float(per_GBps) * 1e-3 * scale, _MOST)
        return self._cut(case, edges, scale)

    def late_cut(self, case: Case, capacities: Floats) -> NDArray[np.bool_] | None:
        """As `cut`, where edge i lets at most `capacities[i]` of the buffer through."""
        scale = _MOST / float(case.total)
        return self._cut(case, np.minimum(capacities * scale, _MOST), scale)

    def root_cut(
        self, weights: Floats, rank: int, capacities: Floats, reduces: bool, slip: float
    ) -> NDArray[np.bool_] | None:
        """A set of devices that does not let through what every root, of `weights` that sum to 1, has for a rank, or it for them.

        None where at most a share `slip` is held back.
        """
        ranks = self.machine.num_ranks
        ends = np.zeros(2 * ranks)
        ends[ranks:][:] = weights if reduces else 0.0
        ends[:ranks] = 0.0 if reduces else weights
        ends[rank + (0 if reduces else ranks)] = 1.0
        return self._side(np.minimum(capacities, 1.0) * _MOST, ends * _MOST, int(_MOST * (1 - slip)))

    def narrowest(self, ranks: Collection[int], *, into: bool) -> NDArray[np.bool_]:
        """The set of devices that holds these ranks and no others, whose links in (or out of it) carry least."""
        inside = np.zeros(self.machine.num_ranks, dtype=bool)
        inside[sorted(ranks)] = True
        sources = ~inside if into else inside
        ends = np.concatenate([sources, ~sources]).astype(np.float64) * _MOST
        edges = self.machine.rates * (_MOST / float(self.machine.rates.sum()))
        side = self._reached(*self._flow(edges, ends))
        return ~side if into else side

    def _cut(self, case: Case, edges: Floats, scale: float) -> NDArray[np.bool_] | None:
        ranks = self.machine.num_ranks
        ends = np.zeros(2 * ranks)
        for rank, share in case.gives.items():
            ends[rank] = float(share) * scale
        for rank, share in case.takes.items():
            ends[ranks + rank] = float(share) * scale
        # What is given and what is taken may differ by rounding.
        side = self._side(edges, ends, int(min(ends[:ranks].round().sum(), ends[ranks:].round().sum())))
        return side if side is not None and case.must_cross(side, self.machine.gpus) > 0 else None

    def _side(self, edges: Floats, ends: Floats, enough: int) -> NDArray[np.bool_] | None:
        """The source's side of a minimum cut; None where the maximum flow is `enough`."""
        graph, answer = self._flow(edges, ends)
        return None if answer.flow_value >= enough else self._reached(graph, answer)

    def _flow(self, edges: Floats, ends: Floats) -> tuple[Matrix, Flow]:
        """The network and its maximum flow; `ends` are the capacities from the source to each rank, then from ranks to the sink."""
        capacity = np.bincount(self.slot, np.round(np.concatenate([edges, ends])), minlength=len(self.columns))
        whole = np.minimum(capacity, _MOST).astype(np.int32)
        graph = csr_array((whole, self.columns, self.starts), shape=(self.size, self.size))
        return graph, maximum_flow(graph, self.source, self.sink)

    def _reached(self, graph: Matrix, answer: Flow) -> NDArray[np.bool_]:
        """The devices that the source reaches over what the flow leaves: the smallest source's side of any minimum cut."""
        left = graph - answer.flow
        left.data = np.maximum(left.data, 0)
        left.eliminate_zeros()
        side = np.zeros(self.size, dtype=bool)
        side[breadth_first_order(left, self.source, return_predecessors=False)] = True
        return side[: self.source]


def evenly(ranks: Sequence[int], total: Fraction) -> dict[int, Fraction]:
    """`total`, shared evenly between ranks."""
    return dict.fromkeys(ranks, total / len(ranks))
