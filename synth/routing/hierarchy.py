"""Strategy `hierarchy`: clusters of equal boxes, routed at the cost of one box (docs/formulation.md, section 11).

Every chunk goes from box to box over one *gate*, a pair of places with a path between their boxes, along a tree of boxes that is the
same for all; and in every box that it enters, along a tree inside the box from where it came in. How many chunks go through
which gate, and which trees spread them inside, is one linear program over one box's links, whatever the number of boxes.
The first box's chunks are routed; the others' are their images.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from synth.boxes import Boxes
from synth.errors import NoAnswerError
from synth.instance import Demand, Instance
from synth.ir import Routing, Transfer
from synth.routing.box import Box
from synth.routing.box_program import BoxPacking, pack_box
from synth.routing.patterns import strides, trees_of_boxes
from synth.timing import busiest_link_us

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class HierarchyRouting:
    """`pattern` is one of `TO_ALL`, which are trees of boxes."""

    pattern: str = "ring"

    def __call__(self, instance: Instance, boxes: Boxes) -> tuple[Routing, BoxPacking]:
        """The transfers of the first box's chunks, in broadcast form, on a folded instance; and the packing that they follow.

        Raises NoAnswerError where chunks do not go from one rank to all, or no gate leads to every box of the pattern.
        """
        (parents,) = trees_of_boxes(self.pattern, boxes.count)
        demands = _deciding(instance, boxes)
        box = Box.of(instance, boxes, strides(self.pattern, boxes.count))
        packing = pack_box(box, [sum(d.source == rank for d in demands) for rank in boxes.ranks[0]], boxes.count)
        gates = deal_gates(box, packing, boxes.count)
        chosen = _assigned(box, demands, gates, boxes)
        trees = _Dealer(packing)
        transfers: list[Transfer] = []
        inside, moved = box.inside, boxes.paths
        for hop in range(boxes.count):
            for demand, number in zip(demands, chosen, strict=True):
                gate = box.gates[number]
                if hop:
                    here = parents[hop]
                    transfers.append(Transfer(demand.chunk, int(moved[here][gate.paths[hop - here]])))
                tree = trees.next(gate.dst if hop else boxes.place_of[demand.source])
                transfers += [Transfer(demand.chunk, int(moved[hop][inside[path]])) for path in tree]
        ordered = tuple(sorted(transfers))
        return Routing(ordered, busiest_link_us(instance, ordered)), packing


def _deciding(instance: Instance, boxes: Boxes) -> list[Demand]:
    """The demands of the first box's ranks, in order of place and chunk."""
    everybody = instance.num_ranks - 1
    demands = [demand for demand in instance.demands if boxes.box_of[demand.source] == 0]
    if any(len(demand.dests) != everybody for demand in demands):
        raise NoAnswerError(f"--strategy hierarchy: {instance.collective.name} has chunks that not all ranks get")
    return sorted(demands, key=lambda demand: (boxes.place_of[demand.source], demand.chunk))


def deal_gates(box: Box, packing: BoxPacking, count: int) -> list[int]:
    """Whole chunks for every gate: the packing's amounts rounded down, then each chunk left to where the loads stay most even, and
    chunks moved while that evens them out.

    A chunk over a gate counts with the trees that spread it in the boxes behind; `count` boxes.
    """
    loads = np.array(
        [(count - 1) * (box.gate_loads[g] + packing.mean_load(gate.dst)) for g, gate in enumerate(box.gates)]
    )
    counts = [int(amount + 1e-6) for amount in packing.gates]
    total = np.array(counts, dtype=np.float64) @ loads + packing.home_load
    scale = float(loads[loads > 0].min()) / 2
    for _ in range(packing.chunks - sum(counts)):
        best = int(np.argmin(_potential(total + loads, scale)))
        counts[best] += 1
        total = total + loads[best]
    for _ in range(packing.chunks):
        now = float(_potential(total[None], scale)[0])
        moves = []
        for gate in (gate for gate, chunks in enumerate(counts) if chunks):
            after = _potential(total - loads[gate] + loads, scale)
            moves.append((float(after.min()), gate, int(np.argmin(after))))
        potential, gate, other = min(moves)
        if potential >= now - 1e-9:
            break
        counts[gate] -= 1
        counts[other] += 1
        total = total - loads[gate] + loads[other]
    return counts


def _potential(loads: Floats, scale: float) -> Floats:
    """By row, log of the sum over links of exp(load / scale): it follows the largest load, and does not overflow."""
    top = loads.max(axis=1)
    summed: Floats = top / scale + np.log(np.exp((loads - top[:, None]) / scale).sum(axis=1))
    return summed


def _assigned(box: Box, demands: Sequence[Demand], counts: Sequence[int], boxes: Boxes) -> list[int]:
    """For each demand its gate: as many as `counts` says through each, and as near to the chunk's source as that allows."""
    slots = [gate for gate, chunks in enumerate(counts) for _ in range(chunks)]
    early = np.zeros((box.size, box.size))
    for path in range(len(box.inside)):
        early[:, box.network.dst[path]] = np.maximum(0.0, box.network.early_us[:, path])
    np.fill_diagonal(early, 0.0)
    cost = np.array([[early[boxes.place_of[d.source], box.gates[gate].src] for gate in slots] for d in demands])
    rows, columns = linear_sum_assignment(cost)
    return [slots[column] for _, column in sorted(zip(rows.tolist(), columns.tolist(), strict=True))]


class _Dealer:
    """Deals the uses of each root's trees in turn, so that at every moment they are near the packing's shares."""

    def __init__(self, packing: BoxPacking) -> None:
        self.streams: Mapping[int, Iterator[tuple[int, ...]]] = {
            root: _in_turns(trees) for root, trees in packing.trees.items()
        }

    def next(self, root: int) -> tuple[int, ...]:
        """The tree of the root's next chunk."""
        return next(self.streams[root])


def _in_turns(trees: Mapping[tuple[int, ...], float]) -> Iterator[tuple[int, ...]]:
    """Trees without end, each as often as its share says: the one that is furthest behind comes next."""
    whole = sum(trees.values())
    used: dict[tuple[int, ...], int] = defaultdict(int)
    number = 0
    while True:
        number += 1
        tree = max(trees, key=lambda tree: (trees[tree] / whole * number - used[tree], tree))
        used[tree] += 1
        yield tree
