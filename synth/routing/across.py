"""Strategy `hierarchy` for chunks with one destination: inside the box to a gate, through it, and inside the other box to the end
(docs/formulation.md, section 11).

All boxes do the same, so what counts of a chunk's way is from which place to which place it goes, not how many boxes on: a
packing over two boxes, one that sends and one that receives, has as many commodities as a box has pairs of places, whatever the
number of boxes. Loads are those of one box's links, which carry what leaves it and what enters it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from synth.boxes import Boxes
from synth.errors import NoAnswerError
from synth.instance import Demand, Instance
from synth.ir import Routing, Transfer
from synth.paths import Path
from synth.routing.box import Gate, TwoBoxes, gates_of, paths_inside
from synth.routing.packing import Packing
from synth.routing.trees import TreesRouting
from synth.timing import busiest_link_us

#: One gate between two places is as good as several if the busiest link carries no more than this share more.
_AS_EVEN = 5e-3


@dataclass(frozen=True)
class AcrossRouting:
    """`packing` is how commodities are spread over ways."""

    packing: TreesRouting = field(default_factory=TreesRouting)

    @property
    def about(self) -> str:
        """How a report calls it."""
        return "across boxes"

    def __call__(self, instance: Instance, boxes: Boxes) -> tuple[Routing, Packing]:
        """The transfers of the first box's chunks on a folded instance, and the packing that they follow.

        Raises NoAnswerError where a chunk has several destinations, where the GPUs of a box do not all reach each other inside it,
        or where no gate leads to every box.
        """
        demands = [demand for demand in instance.demands if boxes.box_of[demand.source] == 0]
        if any(len(demand.dests) != 1 for demand in demands):
            raise NoAnswerError(f"--strategy hierarchy: {instance.collective.name} has chunks for several ranks")
        inside = paths_inside(instance, boxes)
        gates = gates_of(instance, boxes, range(1, boxes.count))
        pair = _two_boxes(instance, boxes, inside, gates, demands)
        routing, packing = self.packing(pair)
        few = _one_each(pair, packing, gates)
        if len(few) < len(gates):
            fewer = _two_boxes(instance, boxes, inside, few, demands)
            over_few, few_packed = self.packing(fewer)
            if few_packed.load_us <= packing.load_us * (1 + _AS_EVEN):
                routing, packing, gates = over_few, few_packed, few
        ends = {demand.chunk: boxes.box_of[min(demand.dests)] for demand in demands}
        transfers = []
        for chunk, path, _ in routing.transfers:
            gate = pair.gate(path)
            if gate is not None:
                there = gates[gate].paths[ends[chunk]]
            else:
                second, number = pair.within(path)
                there = int(boxes.paths[ends[chunk] if second else 0][inside[number].index])
            transfers.append(Transfer(chunk, there))
        ordered = tuple(sorted(transfers))
        return Routing(ordered, busiest_link_us(instance, ordered)), packing


def _one_each(pair: TwoBoxes, packing: Packing, gates: tuple[Gate, ...]) -> tuple[Gate, ...]:
    """Of the gates between the same two places one, so that they load links as evenly as one by one they can: fewer connections."""
    crossing = pair.crossing
    amounts: defaultdict[tuple[int, int], float] = defaultdict(float)
    for column in packing.columns:
        for path in column.paths:
            if (gate := pair.gate(path)) is not None:
                amounts[gates[gate].src, gates[gate].dst] += column.amount
    load: defaultdict[int, float] = defaultdict(float)
    chosen = []
    for ends, amount in sorted(amounts.items(), key=lambda item: (-item[1], item[0])):
        ways = [number for number, gate in enumerate(gates) if (gate.src, gate.dst) == ends]
        busy = {
            way: dict(zip(crossing[way].links, crossing[way].busy_us(pair.chunk_bytes), strict=True)) for way in ways
        }
        best = min(ways, key=lambda way: (max(load[link] + amount * us for link, us in busy[way].items()), way))
        for link, us in busy[best].items():
            load[link] += amount * us
        chosen.append(best)
    return tuple(gates[number] for number in sorted(chosen))


def _two_boxes(
    instance: Instance, boxes: Boxes, inside: list[Path], gates: tuple[Gate, ...], demands: list[Demand]
) -> TwoBoxes:
    """The first box as it sends and as it receives: both load the same links."""
    asked = []
    for chunk, source, dests in demands:
        (dest,) = dests
        there = boxes.place_of[dest] + (boxes.size if boxes.box_of[dest] else 0)
        asked.append(Demand(chunk, boxes.place_of[source], frozenset({there})))
    crossing = [instance.paths[gate.paths[1]] for gate in gates]
    return TwoBoxes.of(instance, boxes, (inside, inside, crossing), asked)
