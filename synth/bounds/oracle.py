"""The minimum cut of a machine as far as a bound needs it: would so much time let everything through, and if not, what does not.

A *case* is one thing that must happen: ranks have shares of the buffer to give, others have shares to take. In a time T, links
carry at most rate times T, or less where delays are known. A maximum flow that falls short shows a cut, and the cut is a limit by
itself: how the flow was found, and how it was rounded, is of no account.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from synth.bounds.machine import Bools, Floats, Ints, Machine

#: scipy.sparse arrays; SciPy ships no types.
Matrix = Any

#: SciPy's maximum flow counts in 32 bits, and adds a flow to the capacity of the edge back.
_MOST = 1 << 29
#: Edges of the networks that are solved as one.
_MOST_EDGES = 1 << 16


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

    def must_cross(self, side: Bools, gpus: Ints) -> Fraction:
        """The share that has to leave a set of devices, at least."""
        taken = sum((share for rank, share in self.takes.items() if not side[gpus[rank]]), Fraction(0))
        given = sum((share for rank, share in self.gives.items() if not side[gpus[rank]]), Fraction(0))
        return taken - given


class _Scaled(NamedTuple):
    """What each edge lets through, in units of 1 / `scale` of the buffer."""

    edges: Floats
    scale: float


class _Network(NamedTuple):
    """A machine whose edges let so much through, with `ends`: what comes from the source to each rank, then what goes from each
    to the sink. A maximum flow that is `enough` shows no cut (None: none is).
    """

    edges: Floats
    ends: Floats
    enough: int | None


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
        self._narrowest: dict[tuple[frozenset[int], bool], Bools] = {}

    def cut(self, case: Case, per_GBps: Fraction) -> Bools | None:
        """A set of devices that cannot let out what must leave it in a time of `per_GBps` (shares of the buffer over GB/s).

        The counts are exact where they fit 32 bits, as for rates with few digits, and rounded otherwise. None if all gets
        through.
        """
        return self.cuts([case], per_GBps)[0]

    def cuts(self, cases: Sequence[Case], per_GBps: Fraction) -> list[Bools | None]:
        """`cut` of every case."""
        return self._cuts(cases, [self._scaled(case, per_GBps) for case in cases])

    def _scaled(self, case: Case, per_GBps: Fraction) -> _Scaled:
        """What edges let through of a case in a time of `per_GBps`."""
        factor = per_GBps * self.unit * case.parts
        total = int(case.total * case.parts) * factor.denominator
        if total <= _MOST:
            # Products that matter are below `total`, and doubles that small are exact.
            return _Scaled(
                np.minimum(self.whole * float(factor.numerator), float(total)), float(case.parts * factor.denominator)
            )
        scale = _MOST / float(case.total)
        return _Scaled(np.minimum(self.rates * float(per_GBps) * 1e-3 * scale, _MOST), scale)

    def late_cuts(self, cases: Sequence[Case], capacities: Sequence[Floats]) -> list[Bools | None]:
        """As `cuts`, where edge i lets at most `capacities[case][i]` of the buffer through."""
        scales = [_MOST / float(case.total) for case in cases]
        edges = [np.minimum(own * scale, _MOST) for own, scale in zip(capacities, scales, strict=True)]
        return self._cuts(cases, list(map(_Scaled, edges, scales)))

    def root_cuts(
        self, weights: Floats, ranks: Sequence[int], capacities: Floats, reduces: bool, slip: float
    ) -> list[Bools | None]:
        """For each of the ranks a set of devices that does not let through what every root, of `weights` that sum to 1, has for it,
        or it for them.

        None where at most a share `slip` is held back.
        """
        edges = np.minimum(capacities, 1.0) * _MOST
        everybody = self.machine.num_ranks
        networks = []
        for rank in ranks:
            ends = np.zeros((2, everybody))
            ends[int(reduces)] = weights
            ends[int(not reduces), rank] = 1.0
            networks.append(_Network(edges, ends.ravel() * _MOST, int(_MOST * (1 - slip))))
        return self._sides(networks)

    def narrowest(self, sets: Sequence[frozenset[int]], *, into: bool) -> list[Bools]:
        """For each of the sets the devices that hold these ranks and no others, whose links in (or out of it) carry least."""
        edges = self.machine.rates * (_MOST / float(self.machine.rates.sum()))
        new = [ranks for ranks in dict.fromkeys(sets) if (ranks, into) not in self._narrowest]
        networks = []
        for ranks in new:
            inside = np.zeros(self.machine.num_ranks, dtype=bool)
            inside[sorted(ranks)] = True
            sources = ~inside if into else inside
            networks.append(_Network(edges, np.concatenate([sources, ~sources]) * float(_MOST), None))
        for ranks, side in zip(new, self._sides(networks), strict=True):
            assert side is not None  # nothing is enough
            self._narrowest[ranks, into] = ~side if into else side
        return [self._narrowest[ranks, into] for ranks in sets]

    def _cuts(self, cases: Sequence[Case], scaled: Sequence[_Scaled]) -> list[Bools | None]:
        """Of every case what holds it back; where that is so by rounding alone, nothing does."""
        ranks = self.machine.num_ranks
        networks = []
        for case, (edges, scale) in zip(cases, scaled, strict=True):
            ends = np.zeros(2 * ranks)
            for rank, share in case.gives.items():
                ends[rank] = float(share) * scale
            for rank, share in case.takes.items():
                ends[ranks + rank] = float(share) * scale
            # What is given and what is taken may differ by rounding.
            networks.append(_Network(edges, ends, int(min(ends[:ranks].round().sum(), ends[ranks:].round().sum()))))
        return [
            side if side is not None and case.must_cross(side, self.machine.gpus) > 0 else None
            for case, side in zip(cases, self._sides(networks), strict=True)
        ]

    def _sides(self, networks: Sequence[_Network]) -> list[Bools | None]:
        """For each the source's side of a minimum cut, the smallest there is; None where the maximum flow is enough."""
        most = max(1, _MOST_EDGES // len(self.columns))
        parts = (networks[first : first + most] for first in range(0, len(networks), most))
        return [side for part in parts for side in self._together(part)]

    def _together(self, networks: Sequence[_Network]) -> list[Bools | None]:
        """The sides of some networks, solved as one whose parts have the source and the sink alone in common: what SciPy does
        before and after a flow takes several times as long as the flow.
        """
        graph = self._joined([np.concatenate([network.edges, network.ends]) for network in networks])
        source = len(networks) * self.source
        flow = maximum_flow(graph, source, source + 1).flow
        row = slice(*flow.indptr[source : source + 2])
        passed = np.bincount(flow.indices[row] // self.source, flow.data[row], minlength=len(networks))
        fails = [network.enough is None or got < network.enough for network, got in zip(networks, passed, strict=True)]
        if not any(fails):
            return [None] * len(networks)
        sides = self._reached(graph - flow, source).reshape(len(networks), self.source)
        return [side if short else None for side, short in zip(sides, fails, strict=True)]

    def _joined(self, capacities: Sequence[Floats]) -> Matrix:
        """The networks with these capacities of edges and ends side by side, then the source and the sink."""
        count, edges = len(capacities), len(self.columns)
        sums = np.array([np.bincount(self.slot, np.round(each), minlength=edges) for each in capacities])
        whole = np.minimum(sums, _MOST).astype(np.int32)
        inner = self.starts[self.source]  # what leaves devices comes before what leaves the source
        offsets = (self.source * np.arange(count))[:, None]
        heads, firsts = self.columns[:inner], self.columns[inner:]
        columns = np.where(heads == self.sink, count * self.source + 1, heads + offsets)
        starts = (self.starts[: self.source] + (inner * np.arange(count))[:, None]).ravel()
        ends = np.array([count * inner, count * edges, count * edges])
        return csr_array(
            (
                np.concatenate([whole[:, :inner].ravel(), whole[:, inner:].ravel()]),
                np.concatenate([columns.ravel(), (firsts + offsets).ravel()]).astype(np.int32),
                np.concatenate([starts, ends]).astype(np.int32),
            ),
            shape=(count * self.source + 2,) * 2,
        )

    def _reached(self, left: Matrix, source: int) -> Bools:
        """The devices that the source reaches over what flows leave: the smallest source's side of any minimum cut."""
        left.data = np.maximum(left.data, 0)
        left.eliminate_zeros()
        side = np.zeros(source + 2, dtype=bool)
        side[breadth_first_order(left, source, return_predecessors=False)] = True
        return side[:source]


def evenly(ranks: Sequence[int], total: Fraction) -> dict[int, Fraction]:
    """`total`, shared evenly between ranks."""
    return dict.fromkeys(ranks, total / len(ranks))
