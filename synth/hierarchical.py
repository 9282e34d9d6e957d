"""A cluster of equal boxes through the stages: folded onto its first box, solved there, and unfolded (docs/formulation.md,
section 11).

Routing, ordering and scheduling see one box's chunks, and are checked on those; the answer is checked as a whole, chunk by
chunk and link by link.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from synth.boxes import Boxes
from synth.errors import NoAnswerError
from synth.instance import Instance
from synth.interpreted import as_described, as_interpreted
from synth.ordering import Ordering, Rounds
from synth.reductions.fold import Fold, fold, merged
from synth.reductions.mirror import twin_paths
from synth.reductions.padding import Padding
from synth.routing.across import AcrossRouting
from synth.routing.fan import FanRouting
from synth.routing.hierarchy import HierarchyRouting
from synth.routing.patterns import DIRECT
from synth.routing.rooted import RootedRouting
from synth.scheduling import MilpScheduling
from synth.solve import Checks, Folded, Routed, Solution, Stages
from synth.strategies import AS_EVEN, Route, StrategyOptions, over_few_ways, rotated, strategy
from synth.timing import busiest_link_us, check_routing, check_schedule, messages_of, retime

#: Transfers of one box's chunks up to which every rule of taking messages is tried: the others look at all paths of a link
#: each time.
_FEW_TRANSFERS = 3_000
#: So many runs of ranks or more whose packing loads a link with no more than so many times what it has to carry are made in so much
#: less time that a more even one of all ranks is not looked for.
_MANY_RUNS = 4
_EVEN_ENOUGH = 1.015


def over_boxes(way: HierarchyRouting | AcrossRouting) -> Route:
    """The route of chunks for all ranks, or of those with one destination, from box to box."""

    def routed(folded: Instance, boxes: Boxes) -> Routed:
        routing, packing = way(folded, boxes)
        return Routed("hierarchy", routing, None, way.about, packing.load_us)

    return routed


_RING = over_boxes(HierarchyRouting())


def hierarchical(
    instance: Instance, boxes: Boxes, stages: Stages, route: Route = _RING, view: str | None = None
) -> Solution:
    """The solution of an instance on a cluster of equal boxes; `route` is for the first box's chunks, `stages` are those after it,
    and `view` is the protocol for whose connections messages are ordered, if any.

    Raises NoAnswerError where chunks of one box are no images of another's (their counts differ, or a root is special), or where
    boxes share a link that they cannot use at the same time; CheckError for a bug of ours.
    """
    seen = as_interpreted(instance, view) if view else instance
    folded = _folded(seen, replace(boxes, rotation=seen.symmetries[0]))

    def routed(shown: Instance) -> Routed:
        return route(as_described(shown) if view else shown, boxes)

    solution = _on_one_box(stages, folded, instance)(folded.instance, routed)
    one = Folded(boxes, solution.schedule)
    if view:
        timed = retime(merged(instance, boxes), messages_of(solution.schedule))
        one = Folded(boxes, timed, solution.schedule)
    return _unfolded(instance, folded, solution, one)


def hierarchical_in_rounds(
    instance: Instance, boxes: Boxes, stages: Stages, route: Route, rounds: Rounds, most: int | None = None
) -> Solution:
    """`hierarchical` with one box's messages, over few ways, ordered in rounds, in pieces where `most` are said.

    Raises NoAnswerError where a connection has too many messages for that, too.
    """
    folded = _folded(instance, boxes)
    few = over_few_ways(lambda shown: route(shown, boxes))
    solution = _on_one_box(stages, folded, instance).in_rounds(folded.instance, few, partial(rounds, boxes=boxes), most)
    return _unfolded(instance, folded, solution, Folded(boxes, solution.schedule, solution.interpreted))


def evenly_rotated(instance: Instance, turns: Sequence[tuple[Instance, Boxes]]) -> tuple[Instance, Boxes] | None:
    """Of the rotations of an instance (synth.reductions.rotation) the first whose packing, in whole chunks, loads links about as
    evenly as can be: the more runs of ranks do alike, the fewer chunks there are to choose ways for. If none does, the one that is
    nearest to that; None where that is far, and the packing of all ranks is the more even.
    """
    best, least = None, math.inf
    for turn in turns:
        uneven = _unevenness(_folded(*turn).instance, turn[1])
        if uneven < least:
            best, least = turn, uneven
        if least <= 1 + AS_EVEN:
            return best
    enough = best is not None and best[1].count >= _MANY_RUNS and least <= _EVEN_ENOUGH
    return best if enough or least <= _unevenness(instance) * (1 + AS_EVEN) else None


def _unevenness(instance: Instance, boxes: Boxes | None = None) -> float:
    """What the busiest link carries of a packing in whole chunks, over what it has to; with `boxes`, folded onto the first."""
    shown = instance.reversed() if instance.collective.combining else instance
    found = rotated("trees")(shown, boxes) if boxes else strategy("trees", StrategyOptions())(shown)
    return busiest_link_us(shown, found.routing.transfers) / (found.bound_us or math.inf)


def chained(instance: Instance, boxes: Boxes, pattern: str) -> Routed:
    """The routing, in broadcast form, of chunks of one rank, or for one, over boxes that do not all do the same: it is not folded.
    `pattern` is one of `synth.routing.patterns.FROM_ONE`, or `DIRECT` where chunks have one end each. Raises NoAnswerError as
    `RootedRouting` and `FanRouting` do.
    """
    if pattern == DIRECT:
        routing, spread = FanRouting()(instance, boxes)
        return Routed("hierarchy", routing, None, "a fan of boxes", spread.load_us)
    routing, packing = RootedRouting(pattern)(instance, boxes)
    return Routed("hierarchy", routing, None, f"{pattern} of boxes", packing.load_us)


def without_surplus(solution: Solution, padding: Padding) -> Solution:
    """The solution of the instance that was padded, from that of the padded one: boxes then differ in what is left out."""
    schedule = retime(padding.instance, messages_of(padding.without_surplus(solution.schedule)))
    check_schedule(padding.instance, schedule)
    interpreted = padding.without_surplus(solution.interpreted) if solution.interpreted else None
    return replace(solution, instance=padding.instance, schedule=schedule, folded=None, interpreted=interpreted)


def _unfolded(instance: Instance, folded: Fold, solution: Solution, one: Folded) -> Solution:
    """The solution of all boxes, whose first does `one`, checked as a whole."""
    schedule = folded.unfold(one.schedule)
    check_schedule(instance, schedule)
    interpreted = folded.unfold(one.interpreted) if one.interpreted else None
    return replace(solution, instance=instance, schedule=schedule, bound_us=None, folded=one, interpreted=interpreted)


def _folded(instance: Instance, boxes: Boxes) -> Fold:
    folded = fold(instance, boxes)
    if folded is None:
        raise NoAnswerError(
            f"--strategy hierarchy: {instance.topology.name}: its boxes cannot be rotated with their chunks"
        )
    return folded


def _on_one_box(stages: Stages, folded: Fold, instance: Instance) -> Stages:
    """The stages for one box's chunks, each checked on the folded machine."""
    chunks = folded.deciding
    checks = Checks(
        routing=lambda shown, routing: check_routing(shown, routing, chunks),
        schedule=lambda shown, schedule, routing: check_schedule(shown, schedule, routing, chunks),
        twins=lambda shown: twin_paths(instance),
    )
    exact = MilpScheduling(max_binaries=0)
    many = len(chunks) * instance.num_ranks > _FEW_TRANSFERS
    return replace(
        stages,
        ordering=_with_rules(stages.ordering, many),
        reordering=_with_rules(stages.reordering, many),
        scheduling=replace(stages.scheduling, exact=exact),
        checks=checks,
    )


def _with_rules(ordering: Ordering, many: bool) -> Ordering:
    return replace(ordering, rules=("",)) if many else ordering
