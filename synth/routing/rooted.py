"""Strategy `hierarchy` for chunks that go from one rank to all: from the root's box to the others, over trees of boxes
(docs/formulation.md, section 11).

Every box but the root's does the same with a chunk: it comes in over some gate, spreads inside, and leaves over the same gate. So a
packing over two boxes, the root's and one that takes part in passing on, says how, whatever the number of boxes. What that box
passes on is as much as comes in: each link carries what a chunk over a gate loads coming and going.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from synth.boxes import Boxes
from synth.errors import NoAnswerError
from synth.instance import Demand, Instance
from synth.ir import Routing, Transfer
from synth.paths import Path
from synth.routing.box import Gate, TwoBoxes, gates_of, paths_inside
from synth.routing.packing import Commodity, Network, Packing
from synth.routing.patterns import Parents, strides, trees_of_boxes
from synth.routing.trees import TreesRouting
from synth.timing import busiest_link_us


@dataclass(frozen=True)
class RootedRouting:
    """`pattern` is one of `FROM_ONE`, `packing` how chunks are spread over the links of two boxes."""

    pattern: str = "two-trees"
    packing: TreesRouting = field(default_factory=TreesRouting)

    def __call__(self, instance: Instance, boxes: Boxes) -> tuple[Routing, Packing]:
        """The transfers of all chunks, in broadcast form, and the packing that they follow.

        Raises NoAnswerError where chunks do not go from one rank to all, where the GPUs of a box do not all reach each other
        inside it, or where no gate leads as far as the pattern does.
        """
        boxes = boxes.starting_at(_root(instance))
        trees = trees_of_boxes(self.pattern, boxes.count)
        inside = paths_inside(instance, boxes)
        gates = gates_of(instance, boxes, strides(self.pattern, boxes.count))
        pair = _two_boxes(instance, boxes, inside, gates)
        routing, packing = self.packing(pair, _shallow(pair))
        ordered = tuple(sorted(_everywhere(routing.transfers, pair, boxes, trees, inside, gates)))
        return Routing(ordered, busiest_link_us(instance, ordered)), packing


def _root(instance: Instance) -> int:
    """Where all chunks start."""
    everybody = instance.num_ranks - 1
    sources = {demand.source for demand in instance.demands}
    if len(sources) != 1 or any(len(demand.dests) != everybody for demand in instance.demands):
        name = instance.collective.name
        raise NoAnswerError(f"--strategy hierarchy: {name} has chunks that do not go from one rank to all")
    return min(sources)


def _everywhere(
    transfers: Sequence[Transfer],
    pair: TwoBoxes,
    boxes: Boxes,
    trees: Sequence[Parents],
    inside: Sequence[Path],
    gates: Sequence[Gate],
) -> list[Transfer]:
    """The transfers of two boxes carried out in all: chunks over the same gates take turns with the trees of boxes."""
    moved = boxes.paths.tolist()
    over: dict[int, list[int]] = {}
    for chunk, path, _ in transfers:
        over.setdefault(chunk, [])
        if (gate := pair.gate(path)) is not None:
            over[chunk].append(gate)
    turns: Counter[tuple[int, ...]] = Counter()
    everywhere = []
    for chunk, crossed in over.items():
        parents = trees[turns[tuple(crossed)] % len(trees)]
        turns[tuple(crossed)] += 1
        for number in crossed:
            for box in range(1, boxes.count):
                path = gates[number].paths[(box - parents[box]) % boxes.count]
                everywhere.append(Transfer(chunk, moved[parents[box]][path]))
    for chunk, path, _ in transfers:
        if pair.gate(path) is None:
            second, number = pair.within(path)
            there = range(1, boxes.count) if second else (0,)
            everywhere += [Transfer(chunk, moved[box][inside[number].index]) for box in there]
    return everywhere


def _two_boxes(instance: Instance, boxes: Boxes, inside: Sequence[Path], gates: Sequence[Gate]) -> TwoBoxes:
    """The root's box and the next one, which gates load with what they take on from there, too, if anything is."""
    next_box = boxes.paths[1].tolist()
    crossing = []
    for gate in gates:
        path = instance.paths[gate.paths[1]]
        if boxes.count > 2:
            on = instance.paths[next_box[path.index]]
            path = replace(path, links=path.links + on.links, occupancy=path.occupancy + on.occupancy)
        crossing.append(path)
    root, everybody = boxes.place_of[_root(instance)], frozenset(range(2 * boxes.size))
    asked = [Demand(demand.chunk, root, everybody - {root}) for demand in instance.demands]
    there = [instance.paths[next_box[path.index]] for path in inside]
    return TwoBoxes.of(instance, boxes, (inside, there, crossing), asked)


def _shallow(pair: TwoBoxes) -> list[tuple[int, ...]]:
    """For every gate of a pair of boxes two shallow trees over it: all GPUs of the root's box get a chunk from the root, or from
    the GPU where it leaves, which gets it first.
    """
    network, ranks = Network.of(pair), pair.num_ranks
    size, root = ranks // 2, pair.demands[0].source

    def spread(source: int, first: int) -> tuple[int, ...]:
        """The shallowest tree inside one of the boxes, that of rank `first` and those after it."""
        others = Commodity(source, frozenset(range(first, first + size)) - {source}, ())
        return network.cheapest(network.early_us[source], others, ranks) if size > 1 else ()

    trees = []
    from_root = spread(root, 0)
    for gate in pair.crossing:
        behind = (gate.index, *spread(gate.dst, size))
        trees.append((*from_root, *behind))
        if gate.src != root:
            there = network.cheapest(network.early_us[root], Commodity(root, frozenset({gate.src}), ()), ranks)
            reached = {root, *network.dst[list(there)].tolist()}
            from_there = [path for path in spread(gate.src, 0) if network.dst[path] not in reached]
            trees.append((*there, *from_there, *behind))
    return [tuple(sorted(tree)) for tree in trees]
