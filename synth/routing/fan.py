"""Strategy `hierarchy` for chunks of one rank with one destination each, or of all for one rank: straight from the root's box to
every other, or the other way round (docs/formulation.md, section 11).

Every box but the root's does the same with its chunks: inside the root's box to a gate, through it, and inside to the end. So a
packing over two boxes, the root's and one of the others, says how, whatever the number of boxes; the root's links carry every
box's share.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from synth.boxes import Boxes
from synth.errors import NoAnswerError
from synth.instance import Demand, Instance
from synth.ir import Routing, Transfer
from synth.paths import Path
from synth.routing.box import Gate, TwoBoxes, gates_of, paths_inside
from synth.routing.packing import Network, Packing
from synth.routing.trees import TreesRouting
from synth.timing import busiest_link_us


@dataclass(frozen=True)
class FanRouting:
    """`packing` is how chunks are spread over the ways of two boxes."""

    packing: TreesRouting = field(default_factory=TreesRouting)

    def __call__(self, instance: Instance, boxes: Boxes) -> tuple[Routing, Packing]:
        """The transfers of all chunks, and the packing that those between boxes follow.

        Raises NoAnswerError where chunks have several destinations or no common end, where the GPUs of a box do not all reach each
        other inside it, or where no gate leads to every box.
        """
        outwards, root, chunks = _outwards(instance)
        boxes = boxes.starting_at(root)
        inside = paths_inside(outwards, boxes)
        gates = gates_of(outwards, boxes, range(1, boxes.count))
        next_ones = {chunk: place for place, rank in enumerate(boxes.ranks[1]) for chunk in chunks[rank]}
        pair = _two_boxes(outwards, boxes, inside, gates, boxes.place_of[root], next_ones)
        routing, packing = self.packing(pair)
        images = {
            chunk: [chunks[ranks[place]][chunks[boxes.ranks[1][place]].index(chunk)] for ranks in boxes.ranks[1:]]
            for chunk, place in next_ones.items()
        }
        moved = boxes.paths.tolist()
        transfers = _at_home(pair, boxes, inside, chunks)
        for chunk, path, _ in routing.transfers:
            gate = pair.gate(path)
            for box, image in enumerate(images[chunk], 1):
                if gate is not None:
                    there = gates[gate].paths[box]
                else:
                    second, number = pair.within(path)
                    there = moved[box if second else 0][inside[number].index]
                transfers.append(Transfer(image, there))
        ordered = tuple(sorted(transfers))
        return Routing(ordered, busiest_link_us(instance, ordered)), packing


def _outwards(instance: Instance) -> tuple[Instance, int, dict[int, list[int]]]:
    """The instance as one of chunks that leave a root, which it names, and the chunks for every other rank: what comes to the root
    is what leaves it on the reversed machine, whose paths have the same numbers.
    """
    sources = {demand.source for demand in instance.demands}
    ends = frozenset[int]().union(*(demand.dests for demand in instance.demands))
    single = all(len(demand.dests) == 1 for demand in instance.demands)
    if not single or min(len(sources), len(ends)) != 1:
        name = instance.collective.name
        raise NoAnswerError(f"--strategy hierarchy: {name} has chunks that are not all of one rank or for one")
    leaving = len(sources) == 1
    chunks: defaultdict[int, list[int]] = defaultdict(list)
    for demand in instance.demands:
        chunks[min(demand.dests) if leaving else demand.source].append(demand.chunk)
    return (instance, min(sources), chunks) if leaving else (instance.reversed(), min(ends), chunks)


def _two_boxes(
    instance: Instance, boxes: Boxes, inside: Sequence[Path], gates: Sequence[Gate], root: int, asked: dict[int, int]
) -> TwoBoxes:
    """The root's box, whose links carry the chunks of all others, and the next one, whose places have the chunks `asked`."""
    others = boxes.count - 1
    both = [[instance.paths[gate.paths[stride]].links for stride in (1, others)] for gate in gates]
    shared = {link for near, far in both for link in near if link in far}
    shared |= {link for path in inside for link in path.links}

    def loaded(path: Path) -> Path:
        """The path as so many boxes load it, where they share its links."""
        occupancy = [
            (gap * others, per_byte * others) if link in shared else (gap, per_byte)
            for link, (gap, per_byte) in zip(path.links, path.occupancy, strict=True)
        ]
        return replace(path, occupancy=tuple(occupancy))

    home = [loaded(path) for path in inside]
    there = [instance.paths[number] for number in boxes.paths[1][[path.index for path in inside]].tolist()]
    crossing = [loaded(instance.paths[gate.paths[1]]) for gate in gates]
    demands = [Demand(chunk, root, frozenset({boxes.size + place})) for chunk, place in asked.items()]
    return TwoBoxes.of(instance, boxes, (home, there, crossing), demands)


def _at_home(pair: TwoBoxes, boxes: Boxes, inside: Sequence[Path], chunks: dict[int, list[int]]) -> list[Transfer]:
    """The transfers inside the root's box, over the shortest ways: they are few beside those of all other boxes."""
    network, root = Network.of(pair), pair.demands[0].source
    others = [place for place in range(boxes.size) if place != root]
    ends = [frozenset({place}) for place in others]
    ways = network.cheapest_from(network.early_us[root], root, ends, pair.num_ranks)
    return [
        Transfer(chunk, inside[path].index)
        for place, way in zip(others, ways, strict=True)
        for chunk in chunks[boxes.ranks[0][place]]
        for path in way
    ]
