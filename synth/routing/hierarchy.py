"""Strategy `hierarchy`: clusters of equal boxes, routed at the cost of one box (docs/formulation.md, section 11).

Every chunk goes from box to box over a *gate*, a pair of places with a path between their boxes, or over several, along a tree of
boxes that is the same for all; and in every box that it enters, along trees inside the box from where it came in. How many chunks go
through which gates, and which trees spread them inside, is one linear program over one box's links, whatever the number of boxes.
The first box's chunks are routed; the others' are their images.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

from synth.boxes import Boxes
from synth.errors import NoAnswerError
from synth.instance import Demand, Instance
from synth.ir import Routing, Transfer
from synth.routing.box import Box
from synth.routing.box_dealing import Dealer, deal_gates
from synth.routing.box_entries import deal_entries
from synth.routing.box_program import WORTH_MORE_GATES, BoxPacking, Gates, Tree, pack_box, roots_of
from synth.routing.patterns import strides, trees_of_boxes
from synth.timing import busiest_link_us


@dataclass(frozen=True)
class HierarchyRouting:
    """`pattern` is one of `TO_ALL`, which are trees of boxes; chunks may enter a box over `several` gates, or over one each."""

    pattern: str = "ring"
    several: bool = True

    @property
    def about(self) -> str:
        """How a report calls it."""
        return f"{self.pattern} of boxes"

    def __call__(self, instance: Instance, boxes: Boxes) -> tuple[Routing, BoxPacking]:
        """The transfers of the first box's chunks, in broadcast form, on a folded instance; and the packing that they follow.

        Raises NoAnswerError where chunks do not go from one rank to all, or no gate leads to every box of the pattern.
        """
        (parents,) = trees_of_boxes(self.pattern, boxes.count)
        demands, box, own = self._sought(instance, boxes)

        def routing(spreads: Iterable[_Spread]) -> Routing:
            ordered = tuple(sorted(_transfers(spreads, box, boxes, parents)))
            return Routing(ordered, busiest_link_us(instance, ordered))

        mean, variants = box.with_mean_gates() if self.several else (None, ())
        packing, entries = pack_box(box, mean, own, boxes.count)
        found = routing(_over_one_each(box, packing, demands, boxes))
        if mean is not None and entries is not None:
            several = routing(_over_several(mean, variants, entries, demands, boxes))
            if several.relaxed_us <= found.relaxed_us * (1 - WORTH_MORE_GATES):
                return several, entries
        return found, packing

    def load_us(self, instance: Instance, boxes: Boxes) -> float:
        """What the most loaded link carries at least of the chunks of a folded instance, routed so; raises as the call does."""
        _, box, own = self._sought(instance, boxes)
        packing, entries = pack_box(box, box.with_mean_gates()[0], own, boxes.count)
        return entries.load_us if entries else packing.load_us

    def _sought(self, instance: Instance, boxes: Boxes) -> tuple[list[Demand], Box, list[int]]:
        """The demands of the first box's ranks, the box, and how many of them each of its places has."""
        demands = _deciding(instance, boxes)
        box = Box.of(instance, boxes, strides(self.pattern, boxes.count))
        return demands, box, [sum(demand.source == rank for demand in demands) for rank in boxes.ranks[0]]


class _Spread(NamedTuple):
    """How a chunk gets into a box, counted from its own, and on from there: over which gates, and along which tree inside."""

    chunk: int
    box: int
    over: Gates
    tree: Tree


def _transfers(spreads: Iterable[_Spread], box: Box, boxes: Boxes, parents: Sequence[int]) -> Iterator[Transfer]:
    moved = boxes.paths
    for chunk, there, over, tree in spreads:
        here = parents[there]
        for gate in over:
            yield Transfer(chunk, int(moved[here][box.gates[gate].paths[there - here]]))
        for path in tree:
            yield Transfer(chunk, int(moved[there][box.inside[path]]))


def _over_one_each(box: Box, packing: BoxPacking, demands: Sequence[Demand], boxes: Boxes) -> Iterator[_Spread]:
    """Chunks over one gate each, the same from every box to the next."""
    chosen = _assigned(box, demands, deal_gates(box, packing, boxes.count), boxes)
    trees = Dealer(packing.trees)
    for there in range(boxes.count):
        for demand, over in zip(demands, chosen, strict=True):
            roots = roots_of(box, over) if there else (boxes.place_of[demand.source],)
            yield _Spread(demand.chunk, there, over if there else (), trees.next(roots))


def _over_several(
    box: Box, variants: Sequence[Gates], packing: BoxPacking, demands: Sequence[Demand], boxes: Boxes
) -> Iterator[_Spread]:
    """Chunks over one gate or several of a box with mean gates: of the `variants` that one stands for each in turn."""
    ways = deal_entries(box, packing, boxes.count)
    home = Dealer({(place,): trees for place, trees in ways.home.items()})
    away = Dealer(ways.away)
    counts = {over: sum(forests.values()) for over, forests in ways.away.items()}
    turns: Counter[int] = Counter()
    for demand, over in zip(demands, _assigned(box, demands, counts, boxes), strict=True):
        yield _Spread(demand.chunk, 0, (), home.next((boxes.place_of[demand.source],)))
        gates = tuple(variants[gate][turns[gate] % len(variants[gate])] for gate in over)
        turns.update(over)
        forest = away.next(over)
        for there in range(1, boxes.count):
            yield _Spread(demand.chunk, there, gates, forest)


def _deciding(instance: Instance, boxes: Boxes) -> list[Demand]:
    """The demands of the first box's ranks, in order of place and chunk."""
    everybody = instance.num_ranks - 1
    demands = [demand for demand in instance.demands if boxes.box_of[demand.source] == 0]
    if any(len(demand.dests) != everybody for demand in demands):
        raise NoAnswerError(f"--strategy hierarchy: {instance.collective.name} has chunks that not all ranks get")
    return sorted(demands, key=lambda demand: (boxes.place_of[demand.source], demand.chunk))


def _assigned(box: Box, demands: Sequence[Demand], counts: Mapping[Gates, int], boxes: Boxes) -> list[Gates]:
    """For each demand its gates: as many as `counts` says through each, and as near to the chunk's source as that allows."""
    slots = [over for over, chunks in counts.items() for _ in range(chunks)]
    early = np.zeros((box.size, box.size))
    for path in range(len(box.inside)):
        early[:, box.network.dst[path]] = np.maximum(0.0, box.network.early_us[:, path])
    np.fill_diagonal(early, 0.0)
    to_gates = {over: early[:, [box.gates[gate].src for gate in over]].mean(axis=1) for over in counts}
    cost = np.array([[to_gates[over][boxes.place_of[d.source]] for over in slots] for d in demands])
    rows, columns = linear_sum_assignment(cost)
    return [slots[column] for _, column in sorted(zip(rows.tolist(), columns.tolist(), strict=True))]
