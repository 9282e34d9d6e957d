"""The worst cut of a collective, exactly, and the cuts that are worst for small buffers, where what is far comes late.

Newton's method (W. Dinkelbach, 1967): whatever cut does not let everything through in the time of the worst cut known is worse
itself. Every step is a maximum flow; there are finitely many cuts and each is worse than the one before, so the last is the worst.
A case that a time suffices for is done for good, since times only grow.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from synth.bounds.cases import farthest_us, pair_case
from synth.bounds.machine import Bools, Floats, Machine
from synth.bounds.oracle import Case, CutOracle
from synth.bounds.turning import Classes
from synth.bounds.value import Cut, Limit
from synth.collective import Collective

#: A cut is worse than another if its time is longer by more than rounding.
_SLIP = 1e-7
#: Distances in us are the same if these decimals are.
_DECIMALS = 9
#: Multiples of the buffer whose bandwidth takes as long as its latency: where cuts with late links matter.
_TURNS = (Fraction(1, 64), Fraction(1, 8), Fraction(1, 2), Fraction(1), Fraction(2), Fraction(8), Fraction(64))


@dataclass(frozen=True)
class Worst:
    """The cut that needs longest: `per_GBps` is its share of the buffer over its GB/s, exactly; `side` the devices that send."""

    per_GBps: Fraction
    case: Case
    side: Bools

    @property
    def us_per_byte(self) -> float:
        return float(self.per_GBps) * 1e-3


class _Late(NamedTuple):
    """A case, and the least latency of a way of its own over each edge."""

    case: Case
    delays: Floats


def worst_cut(oracle: CutOracle, cases: Sequence[Case]) -> Worst | None:
    """The worst cut over all cases; None where nothing has to move.

    Whenever a worse cut is found, all cases that are left are asked together whether its time is enough.
    """
    if not cases:
        return None
    machine, (first, *others) = oracle.machine, cases
    side = np.zeros(len(machine.topology.devices), dtype=bool)
    side[machine.gpus[sorted(first.gives)]] = True
    side[machine.gpus[sorted(first.takes)]] = False
    worst = _worse(oracle, first, Worst(_per_GBps(machine, first, side), first, side))
    while others:
        found = oracle.cuts(others, worst.per_GBps)
        others = [case for case, cut in zip(others, found, strict=True) if cut is not None]
        known = worst
        while others and worst is known:
            worst = _worse(oracle, others.pop(0), worst)
    return worst


def _worse(oracle: CutOracle, case: Case, worst: Worst) -> Worst:
    """The worst cut of a case, if that is worse than the worst known."""
    while True:
        found = oracle.cut(case, worst.per_GBps)
        if found is None:
            return worst
        per_GBps = _per_GBps(oracle.machine, case, found)
        if per_GBps <= worst.per_GBps:
            return worst
        worst = Worst(per_GBps, case, found)


def _per_GBps(machine: Machine, case: Case, side: Bools) -> Fraction:
    rate = sum((machine.GBps[edge] for edge in machine.crossing(side)), Fraction(0))
    return case.must_cross(side, machine.gpus) / rate if rate else Fraction(0)


def late_limits(oracle: CutOracle, collective: Collective, cases: Sequence[Case], known: list[Limit]) -> list[Limit]:
    """`known`, and the limits of cuts that are worse than those for some buffers between small and large.

    The turning points are tried one by one; at each, all cases are asked whether the time that is known to be needed suffices.
    """
    distance = oracle.machine.delays.distance
    limits = list(known)
    latency = farthest_us(collective, distance)
    per_byte = max((limit.us_per_byte for limit in limits), default=0.0)
    if latency <= 0 or per_byte <= 0:
        return limits
    delays = oracle.machine.delays
    split = [_Late(case, delays.between(case.gives, case.takes)) for case in _split(oracle.machine, collective, cases)]
    for turn in _TURNS:
        _ask(oracle, split, float(turn) * latency / per_byte, latency, limits)
    return limits


def _split(machine: Machine, collective: Collective, cases: Sequence[Case]) -> list[Case]:
    """The cases, for each what comes from its farthest giver to its farthest taker alone, and what has far to go: where any rank
    takes what all others give, or gives what they take, of one rank for all that rotations take to it.
    """
    distance = machine.delays.distance
    asked = set(range(machine.num_ranks))
    if collective.root is None and collective.group is None:
        asked = set(np.unique(Classes.of(machine).ranks, return_index=True)[1].tolist())
    kept = [case for case in cases if _is_asked(case, asked, machine.num_ranks)]
    pairs = dict.fromkeys(max(_pairs(case), key=lambda pair: float(distance[pair])) for case in kept)
    far = [part for case in kept for part in _far_parts(case, distance)]
    return [*kept, *(pair_case(collective, src, dst) for src, dst in pairs), *far]


def _is_asked(case: Case, asked: Container[int], num_ranks: int) -> bool:
    """Whether a case is about one of the ranks that are `asked`, and not the image of such a one."""
    for one, others in ((case.takes, case.gives), (case.gives, case.takes)):
        if len(one) == 1 and len(others) == num_ranks - 1:
            return all(rank in asked for rank in one)
    return True


def _far_parts(case: Case, distance: Floats) -> list[Case]:
    """Where one rank takes what many give, or gives what many take: what has at least so far to go, by every distance there is."""
    into = len(case.takes) == 1
    end, *more = case.takes if into else case.gives
    if more:
        return []
    others = case.gives if into else case.takes
    away = {rank: round(float(distance[(rank, end) if into else (end, rank)]), _DECIMALS) for rank in others}
    parts = []
    for least in sorted(set(away.values()))[1:]:
        kept = {rank: share for rank, share in others.items() if away[rank] >= least}
        whole = {end: sum(kept.values(), Fraction(0))}
        parts.append(Case(kept, whole) if into else Case(whole, kept))
    return parts


def _pairs(case: Case) -> list[tuple[int, int]]:
    return [(src, dst) for src in case.gives for dst in case.takes if src != dst]


def _ask(
    oracle: CutOracle, cases: Sequence[_Late], buffer_bytes: float, latency_us: float, limits: list[Limit]
) -> None:
    """Add the limits of these cases that are worse at this buffer than what is known."""
    machine = oracle.machine
    enough = max(latency_us, *(limit.time_us(buffer_bytes) for limit in limits))
    while cases:
        capacities = [machine.rates * np.maximum(enough - late.delays, 0.0) / buffer_bytes for late in cases]
        sides = oracle.late_cuts([late.case for late in cases], capacities)
        found = [
            (late, limit_of(machine, late.case, side, late.delays))
            for late, side in zip(cases, sides, strict=True)
            if side is not None
        ]
        held = enough * (1 + _SLIP)
        cases = [late for late, limit in found if limit.time_us(buffer_bytes) > held]
        for limit in sorted((limit for _, limit in found), key=lambda limit: limit.time_us(buffer_bytes)):
            if (taken := limit.time_us(buffer_bytes)) > enough * (1 + _SLIP):
                limits.append(limit)
                enough = taken


def limit_of(machine: Machine, case: Case, side: Bools, delays: Floats | None = None) -> Limit:
    """The limit of a case's cut."""
    if delays is None:
        delays = machine.delays.between(case.gives, case.takes)
    edges = machine.crossing(side)
    return Limit.of(float(case.must_cross(side, machine.gpus)), machine.rates[edges], delays[edges])


def named(machine: Machine, side: Bools) -> Cut:
    """The cut in words: the side with fewer GPUs, and the links across."""
    sending = [rank for rank in range(machine.num_ranks) if side[machine.gpus[rank]]]
    into = 2 * len(sending) > machine.num_ranks
    chosen = sorted(set(range(machine.num_ranks)) - set(sending)) if into else sending
    topology, edges = machine.topology, machine.crossing(side)
    links = (topology.links[index] for index in machine.links[edges])
    return Cut(
        gpus=tuple(topology.gpus[rank].id for rank in chosen),
        links=tuple(f"{link.src}->{link.dst}" for link in links),
        GBps=float(sum((machine.GBps[edge] for edge in edges), Fraction(0))),
        into=into,
    )
