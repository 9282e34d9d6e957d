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
from synth.errors import NoAnswerError
from synth.instance import Demand, Instance
from synth.paths import Path, strongly_connected
from synth.routing.packing import Commodity, Network
from synth.topology import DeviceKind

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Gate:
    """A way from place `src` of a box to place `dst` of another: by how many boxes further on, the path from the first box."""

    src: int
    dst: int
    paths: dict[int, int]


@dataclass(frozen=True)
class Box:
    """The first box: its own network with places as ranks, path k of which is path `inside[k]` of the instance; and its gates,
    through one door each where that can be.

    `gate_loads[g]` is what one chunk over gate g occupies each link, in us. `entering` is the network of a box that others send to:
    its paths are those inside, then a path for every gate, from place `size`, which stands for all other boxes.
    """

    network: Network
    entering: Network
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
        gates = _through_one_door(instance, boxes, gates_of(instance, boxes, strides))
        crossing = [
            replace(instance.paths[gate.paths[strides[0]]], index=len(own) + number, src=boxes.size, dst=gate.dst)
            for number, gate in enumerate(gates)
        ]
        network, entering = _network(instance, own, boxes.size), _network(instance, own + crossing, boxes.size + 1)
        loads = entering.occupancy[len(own) :]
        return cls(network, entering, tuple(path.index for path in inside), gates, loads, boxes.size)

    def cheapest(self, prices: Floats, root: int) -> tuple[int, ...]:
        """The cheapest tree from place `root` to all others where path k costs `prices[k]`, by path of `network`."""
        others = frozenset(range(self.size)) - {root}
        return self.network.cheapest(prices, Commodity(root, others, ()), self.size) if others else ()

    def with_mean_gates(self) -> tuple[Box, tuple[tuple[int, ...], ...]]:
        """The box with one gate between two places, which loads links as those that there are do on the mean; and by gate which
        these are.
        """
        between: dict[tuple[int, int], list[int]] = defaultdict(list)
        for number, gate in enumerate(self.gates):
            between[gate.src, gate.dst].append(number)
        variants = tuple(map(tuple, between.values()))
        if len(variants) == len(self.gates):
            return self, variants
        loads = np.array([self.gate_loads[numbers].mean(axis=0) for numbers in between.values()])
        within = len(self.inside)
        kept = [*range(within), *(within + numbers[0] for numbers in between.values())]
        entering = replace(
            self.entering,
            src=self.entering.src[kept],
            dst=self.entering.dst[kept],
            latency_us=self.entering.latency_us[kept],
            occupancy=np.concatenate([self.entering.occupancy[:within], loads]),
            early_us=self.entering.early_us[:, kept],
        )
        gates = tuple(self.gates[numbers[0]] for numbers in between.values())
        return replace(self, entering=entering, gates=gates, gate_loads=loads), variants

    def cheapest_entry(self, prices: Floats) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The gates over which a chunk from outside enters, and the paths inside along which it spreads from there, that are
        cheapest together where path k of `entering` costs `prices[k]`.
        """
        everybody = Commodity(self.size, frozenset(range(self.size)), ())
        tree = self.entering.cheapest(prices, everybody, self.size + 1)
        within = len(self.inside)
        return tuple(path - within for path in tree if path >= within), tuple(path for path in tree if path < within)


def _network(instance: Instance, paths: Sequence[Path], places: int) -> Network:
    collective = Collective(CollectiveName.ALLGATHER, places, places)
    return Network.of(replace(instance, collective=collective, paths=tuple(paths)))


def gates_of(instance: Instance, boxes: Boxes, strides: Sequence[int]) -> tuple[Gate, ...]:
    """Paths out of the first box to those `strides` on, joined to gates where they differ only in how far they lead; in order.

    Raises NoAnswerError where there are none.
    """
    one_link = boxes.links.min(axis=0).tolist()
    found: dict[tuple[int, int, tuple[int, ...]], dict[int, int]] = defaultdict(dict)
    for path in instance.paths:
        stride = boxes.box_of[path.dst]
        if boxes.box_of[path.src] == 0 and stride in strides:
            key = (boxes.place_of[path.src], boxes.place_of[path.dst], tuple(one_link[link] for link in path.links))
            found[key].setdefault(stride, path.index)
    gates = tuple(Gate(src, dst, paths) for (src, dst, _), paths in found.items() if len(paths) == len(strides))
    if not gates:
        raise NoAnswerError(f"{instance.topology.name}: no path leads to the same place of every box")
    return gates


def _through_one_door(instance: Instance, boxes: Boxes, gates: Sequence[Gate]) -> tuple[Gate, ...]:
    """The gates without those for which there are ones through one door: these leave a box over the NIC over which they enter the
    next one. A GPU that copies over one NIC and adds up over another, the other way, shares both with its neighbours, and waits for
    each of them.
    """
    links, one_link = instance.topology.links, boxes.links.min(axis=0).tolist()
    nics = {device.id for device in instance.topology.devices if device.kind is DeviceKind.NIC}
    doors: dict[tuple[int, int], dict[int, tuple[str, str]]] = defaultdict(dict)
    for number, gate in enumerate(gates):
        # What it crosses of the other box is seen as what that is in the first one.
        crossed = [links[one_link[link]] for link in instance.paths[min(gate.paths.values())].links]
        out = next((link.dst for link in crossed if link.dst in nics), "")
        into = next((link.src for link in reversed(crossed) if link.src in nics), "")
        doors[gate.src, gate.dst][number] = out, into
    kept: list[int] = []
    for found in doors.values():
        same = {out for out, into in found.values() if out == into}
        kept += [number for number, (out, into) in found.items() if out == into or not {out, into} <= same]
    return tuple(gates[number] for number in sorted(kept))


def paths_inside(instance: Instance, boxes: Boxes) -> list[Path]:
    """The paths between GPUs of the first box. Raises NoAnswerError where these do not all reach each other over them."""
    inside = [path for path in instance.paths if boxes.box_of[path.src] == boxes.box_of[path.dst] == 0]
    within = [(boxes.place_of[path.src], boxes.place_of[path.dst]) for path in inside]
    if strongly_connected(boxes.size, within) is not None:
        raise NoAnswerError(f"{instance.topology.name}: the GPUs of a box reach each other over other boxes only")
    return inside


@dataclass(frozen=True)
class TwoBoxes(Instance):
    """A box that sends and one that receives, and what is `asked` of them: place i of the first is rank i, of the second rank
    size + i; chunks are numbered as in the instance that they stand for.
    """

    asked: tuple[Demand, ...] = ()
    num_inside: int = 0
    """how many paths either box has: those of the first come first, then those of the second, then gates"""

    @property
    def demands(self) -> tuple[Demand, ...]:
        return self.asked

    @classmethod
    def of(
        cls, instance: Instance, boxes: Boxes, layers: Sequence[Sequence[Path]], asked: Sequence[Demand]
    ) -> TwoBoxes:
        """`layers` are paths inside the first box, inside the second, and from the first to the second, in this order; `asked` has
        the pair's ranks.
        """
        size, place = boxes.size, boxes.place_of
        shifts = ((0, 0), (size, size), (0, size))
        paths = [
            replace(path, src=place[path.src] + there, dst=place[path.dst] + here)
            for layer, (there, here) in zip(layers, shifts, strict=True)
            for path in layer
        ]
        collective = Collective(CollectiveName.ALLTOALL, 2 * size, 2 * size)
        numbered = tuple(replace(path, index=index) for index, path in enumerate(paths))
        return cls(
            instance.topology, collective, numbered, instance.chunk_bytes, asked=tuple(asked), num_inside=len(layers[0])
        )

    @property
    def crossing(self) -> tuple[Path, ...]:
        """The paths from the first box to the second, one a gate."""
        return self.paths[2 * self.num_inside :]

    def gate(self, path: int) -> int | None:
        """Which gate a path of the pair stands for; None for a path inside a box."""
        return path - 2 * self.num_inside if path >= 2 * self.num_inside else None

    def within(self, path: int) -> tuple[bool, int]:
        """Whether a path inside a box is the second's, and which of its paths it is."""
        second, number = divmod(path, self.num_inside)
        return bool(second), number
