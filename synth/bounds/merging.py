"""allreduce of small buffers: what crosses a cut early is of one rank alone, and what crosses it late is for one rank alone.

A sum of several ranks' contributions can leave a rank only when one of these has come there from another, and what comes to a rank
of several that need it has yet to go on to the others. So what crosses a cut does so in the middle of the time, or it brings one
contribution to one rank, of which there are many (docs/formulation.md, eq. 40b).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from synth.bounds.machine import Floats, Machine
from synth.bounds.oracle import CutOracle
from synth.bounds.value import Limit


def merging_limits(oracle: CutOracle, sets: Iterable[frozenset[int]]) -> Iterator[Limit]:
    """The limits of an allreduce of all ranks at the narrowest cuts around every rank and around `sets` of ranks, both ways; no set
    is everybody.
    """
    machine = oracle.machine
    everybody = frozenset(range(machine.num_ranks))
    delays = machine.delays.between(everybody, everybody)
    near_us = _nearest_us(machine)
    around = list(dict.fromkeys((*(frozenset({rank}) for rank in everybody), *sets)))
    for into in (True, False):
        for inside, side in zip(around, oracle.narrowest(around, into=into), strict=True):
            edges = machine.crossing(~side if into else side)
            yield _limit(machine.rates[edges], delays[edges], near_us, len(inside), len(everybody - inside))


def _nearest_us(machine: Machine) -> float:
    """The least latency between two ranks."""
    apart = ~np.eye(machine.num_ranks, dtype=bool)
    return float(machine.delays.distance[apart].min())


def _limit(rates: Floats, delays: Floats, near_us: float, here: int, there: int) -> Limit:
    """Of edges between so many ranks and so many others: every byte has its share of `here * there` pairs of a rank that contributes
    and one that needs it, one pair from the start to the end, and more if there is time before it or after it.
    """
    pairs = here * there
    kinds = [(1, 0.0), (here - 1, near_us), (there - 1, near_us), ((here - 1) * (there - 1), 2 * near_us)]
    every = [(rates * (weight / pairs), delays + later_us) for weight, later_us in kinds]
    return Limit.of(1.0, np.concatenate([each for each, _ in every]), np.concatenate([each for _, each in every]))
