"""One box of a cluster of equal boxes, as the hierarchy's program sees it: paths inside, gates to the other boxes, and their loads.

The instance is folded: links that rotate onto each other are one. So what a path of the first box loads, its images load as
well, and the loads of one box are those of all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from synth.boxes import Boxes
from synth.collective import Collective, CollectiveName
from synth.instance import Instance
from synth.routing.packing import Commodity, Network

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Gate:
    """A way from place `src` of a box to place `dst` of another: by how many boxes further on, the path from the first box."""

    src: int
    dst: int
    paths: dict[int, int]


@dataclass(frozen=True)
class Box:
    """The first box: its own network with places as ranks, path k of which is path `inside[k]` of the instance; and its gates.

    `gate_loads[g]` is what one chunk over gate g occupies each link, in us.
    """

    network: Network
    inside: tuple[int, ...]
    gates: tuple[Gate, ...]
    gate_loads: Floats
    size: int

    @classmethod
    def of(cls, instance: Instance, boxes: Boxes, strides: Sequence[int]) -> Box:
        """The box of a folded instance; only gates that lead as far as each of `strides` boxes on."""
        place, box = boxes.place_of, boxes.box_of
        inside = [path for path in instance.paths if box[path.src] == box[path.dst] == 0]
        own = [
            replace(path, index=index, src=place[path.src], dst=place[path.dst]) for index, path in enumerate(inside)
        ]
        collective = Collective(CollectiveName.ALLGATHER, boxes.size, boxes.size)
        small = replace(instance, collective=collective, paths=tuple(own))
        gates = gates_of(instance, boxes, strides)
        loads = np.zeros((len(gates), len(instance.topology.links)))
        for row, gate in enumerate(gates):
            path = instance.paths[gate.paths[strides[0]]]
            loads[row, list(path.links)] = path.busy_us(instance.chunk_bytes)
        return cls(Network.of(small), tuple(path.index for path in inside), gates, loads, boxes.size)

    def cheapest(self, prices: Floats, root: int) -> tuple[int, ...]:
        """The cheapest tree from place `root` to all others where path k costs `prices[k]`, by path of `network`."""
        others = frozenset(range(self.size)) - {root}
        return self.network.cheapest(prices, Commodity(root, others, ()), self.size) if others else ()


def gates_of(instance: Instance, boxes: Boxes, strides: Sequence[int]) -> tuple[Gate, ...]:
    """Paths out of the first box to those `strides` on, joined to gates where they differ only in how far they lead; in order."""
    one_link = boxes.links.min(axis=0).tolist()
    found: dict[tuple[int, int, tuple[int, ...]], dict[int, int]] = defaultdict(dict)
    for path in instance.paths:
        stride = boxes.box_of[path.dst]
        if boxes.box_of[path.src] == 0 and stride in strides:
            key = (boxes.place_of[path.src], boxes.place_of[path.dst], tuple(one_link[link] for link in path.links))
            found[key].setdefault(stride, path.index)
    return tuple(Gate(src, dst, paths) for (src, dst, _), paths in found.items() if len(paths) == len(strides))
