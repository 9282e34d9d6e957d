"""The best bound that is known for a collective on a machine: its worst cut or linear program, its latency, and both together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from synth.bounds.cases import cases_of, farthest_us, pair_case
from synth.bounds.ingress import partings
from synth.bounds.machine import Machine
from synth.bounds.merging import merging_limits
from synth.bounds.oracle import Case, CutOracle
from synth.bounds.search import late_limits, limit_of, named, worst_cut
from synth.bounds.value import Bound, Limit
from synth.bounds.words import cut_words
from synth.collective import Collective, CollectiveName
from synth.paths import Path
from synth.topology import Topology

if TYPE_CHECKING:
    from synth.bounds.concurrent import Priced

#: Ranks up to which cuts are sought for small buffers too.
MOST_LATE = 128
#: One figure is better than another if it is by more than rounding.
_SLIP = 1e-9
#: And one that names no cut has to say that much more than one that does.
_MORE = 1e-6


def bound_of(
    topology: Topology, collective: Collective, paths: Sequence[Path] | None = None, *, small: bool = True
) -> Bound:
    """What no algorithm over `paths` (those of `find_paths` for the collective, all of them) can beat; for allreduce see
    `Bound.any_us_per_byte`.

    Where a group of the ranks takes part, the others are devices like switches, and only cuts are asked.
    Without `paths`, which are many on large machines, the bound is over the links that shortest paths cross, and has no cuts for
    small buffers; without `small` it has none either. Raises NoAnswerError as `find_paths` does.
    """
    if collective.num_ranks < 2:
        return Bound(0.0, 0.0, "cut bound: nothing has to move")
    machine = Machine.of(topology, paths, collective)
    oracle = CutOracle(machine)
    latency = farthest_us(collective, machine.delays.distance)
    cases = [*cases_of(collective), *_box_cases(machine, collective)]
    worst = worst_cut(oracle, cases)
    if worst is None or worst.us_per_byte <= 0:
        return Bound(latency, 0.0, "cut bound: nothing has to move")
    cut = named(machine, worst.side)
    limits = [limit_of(machine, worst.case, worst.side)]
    bound = Bound(latency, worst.us_per_byte, f"cut bound: what must get {cut_words(cut)}", cut=cut)
    timed = small and paths is not None
    if timed and machine.num_ranks <= MOST_LATE:
        limits = late_limits(oracle, collective, _late_cases(machine, collective, cases), limits)
    if collective.group is not None:
        return _with_limits(bound, limits)
    match collective.name:
        case CollectiveName.ALLTOALL:
            bound, limits = _with_flow(machine, bound, limits)
        case CollectiveName.ALLREDUCE:
            islands = _islands(topology, paths)
            if timed:
                limits = [*limits, *merging_limits(oracle, islands)]
            bound, limits = _with_roots(oracle, islands, bound, limits)
    bound, limits = _with_copies(machine, collective, bound, limits)
    return _with_limits(bound, limits)


def _box_cases(machine: Machine, collective: Collective) -> list[Case]:
    """alltoall's cases are single GPUs, since no flow finds its worst cut; boxes are what else suggests itself."""
    topology, ranks = machine.topology, machine.num_ranks
    if collective.name is not CollectiveName.ALLTOALL or topology.num_nodes < 2:
        return []
    cases = []
    for node in sorted({topology.node_of(rank) for rank in collective.members}):
        inside = [rank for rank in sorted(collective.members) if topology.node_of(rank) == node]
        outside = sorted(collective.members.difference(inside))
        if not outside:
            continue
        for here, there in ((inside, outside), (outside, inside)):
            gives = dict.fromkeys(here, Fraction(len(there), ranks))
            cases.append(Case(gives, dict.fromkeys(there, Fraction(len(here), ranks))))
    return cases


def _late_cases(machine: Machine, collective: Collective, cases: Sequence[Case]) -> Sequence[Case]:
    """allreduce: what is farthest from each rank; the cases of its worst cut are all about rank 0."""
    if collective.name is not CollectiveName.ALLREDUCE:
        return cases
    ranks = sorted(collective.members)
    farthest = np.argmax(machine.delays.distance[np.ix_(ranks, ranks)], axis=0)
    pairs = [(ranks[int(place)], dst) for dst, place in zip(ranks, farthest, strict=True)]
    return [pair_case(collective, src, dst) for src, dst in pairs if src != dst]


def _with_flow(machine: Machine, bound: Bound, limits: list[Limit]) -> tuple[Bound, list[Limit]]:
    """The maximum concurrent flow, where it says more than single GPUs and boxes; a remark where it is too large to ask."""
    from synth.bounds.concurrent import concurrent_flow

    found = concurrent_flow(machine)
    if found is None:
        more = f"{bound.what}; single GPUs and boxes only, the maximum concurrent flow is too large here"
        return _replaced(bound, bound.us_per_byte, more), limits
    if found.limit.us_per_byte <= bound.us_per_byte * (1 + _SLIP):
        return bound, limits
    return _with_full_links(machine, bound, limits, found, "maximum concurrent flow: {} are full")


def _with_copies(
    machine: Machine, collective: Collective, bound: Bound, limits: list[Limit]
) -> tuple[Bound, list[Limit]]:
    """What all ranks take in or give away path by path, where that says more than any cut."""
    from synth.bounds.copies import copies_limit

    found = copies_limit(machine, collective.name)
    if found is None or found.limit.us_per_byte <= bound.us_per_byte * (1 + _MORE):
        return bound, limits
    taken = ", each piece reduced at one rank and broadcast" if collective.name is CollectiveName.ALLREDUCE else ""
    what = f"limit of copies{taken}: {{}} are full when every copy has a path of its own"
    return _with_full_links(machine, bound, limits, found, what)


def _with_full_links(
    machine: Machine, bound: Bound, limits: list[Limit], found: Priced, what: str
) -> tuple[Bound, list[Limit]]:
    """What prices prove in place of a cut; `what` with a place for how many links are full."""
    full = _link_names(machine, found.edges)
    said = what.format(f"{len(full)} of {len(machine.links)} links")
    better = replace(bound, us_per_byte=found.limit.us_per_byte, what=said, cut=None, full=full)
    return better, [*limits, found.limit]


def _with_roots(
    oracle: CutOracle, sets: Sequence[frozenset[int]], bound: Bound, limits: list[Limit]
) -> tuple[Bound, list[Limit]]:
    """The limit of reducing at one rank, quoted in place of the cut bound, which is kept beside it."""
    from synth.bounds.rooted import rooted_allreduce

    found = rooted_allreduce(oracle, sets)
    per_byte = max(found.limit.us_per_byte, bound.us_per_byte)
    how = "linear program over trees and roots" if found.settled else "cuts around GPUs and boxes"
    what = f"limit of reducing each piece at one rank and broadcasting it: {how}"
    rooted = Bound(
        latency_us=bound.latency_us,
        us_per_byte=per_byte,
        what=what,
        full=_link_names(oracle.machine, found.edges),
        any_us_per_byte=bound.us_per_byte,
        any_cut=bound.cut,
    )
    return rooted, [*limits, found.limit]


def _islands(topology: Topology, paths: Sequence[Path] | None) -> list[frozenset[int]]:
    """Sets of ranks that stand apart: boxes, and what wider paths join."""
    if paths is not None:
        return [ranks for _, sets in partings(topology, paths) for ranks in sets if 1 < len(ranks) < topology.num_ranks]
    boxes: dict[int, set[int]] = {}
    for rank in range(topology.num_ranks):
        boxes.setdefault(topology.node_of(rank), set()).add(rank)
    return [frozenset(ranks) for ranks in boxes.values() if len(boxes) > 1 and len(ranks) > 1]


def _with_limits(bound: Bound, limits: list[Limit]) -> Bound:
    """The bound with the limits that are the largest for some buffer, or may be."""
    kept: list[Limit] = []
    for limit in dict.fromkeys(limits):
        if not any(_implied(limit, other) for other in kept):
            kept = [*(other for other in kept if not _implied(other, limit)), limit]
    return Bound(
        bound.latency_us,
        bound.us_per_byte,
        bound.what,
        tuple(sorted(kept, key=lambda limit: limit.us_per_byte)),
        bound.cut,
        bound.full,
        bound.any_us_per_byte,
        bound.any_cut,
    )


def _implied(limit: Limit, other: Limit) -> bool:
    """Whether `other` says at least as much at every size: later from the start, and slower."""
    return other.delays_us[0] >= limit.delays_us[-1] and other.us_per_byte >= limit.us_per_byte


def _replaced(bound: Bound, us_per_byte: float, what: str) -> Bound:
    return Bound(bound.latency_us, us_per_byte, what, cut=bound.cut)


def _link_names(machine: Machine, edges: Sequence[int]) -> tuple[str, ...]:
    links = (machine.topology.links[int(machine.links[edge])] for edge in edges)
    return tuple(f"{link.src}->{link.dst}" for link in links)
