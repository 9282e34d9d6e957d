"""The rotations of a machine's boxes, where all boxes are alike: they make a linear program as small as that of one box."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from synth.bounds.machine import Ints, Machine
from synth.topology import DeviceKind


@dataclass(frozen=True)
class Classes:
    """Ranks, edges and devices that rotations take to each other; every array gives the number of a class, from 0."""

    ranks: Ints
    edges: Ints
    devices: Ints

    @classmethod
    def of(cls, machine: Machine) -> Classes:
        """Classes under rotations of boxes, each of its own where a rotation is no symmetry of the machine."""
        found = _by_place(machine)
        if found is None or not _turns(machine, found[0]):
            return cls(*(np.arange(n) for n in (machine.num_ranks, len(machine.links), len(machine.topology.devices))))
        turned, place = found
        return cls(_numbers(place[machine.gpus]), _edge_classes(machine, turned), _numbers(place))


def _by_place(machine: Machine) -> tuple[Ints, Ints] | None:
    """Where the rotation by one box takes each device, and the device's place in its box; None where boxes differ in size."""
    boxes: dict[int, list[int]] = {}
    turned = np.arange(len(machine.topology.devices))
    place = -1 - turned
    for index, device in enumerate(machine.topology.devices):
        if device.kind is not DeviceKind.NETWORK:
            boxes.setdefault(device.node, []).append(index)
    rows = [boxes[node] for node in sorted(boxes)]
    if len(rows) < 2 or len({len(row) for row in rows}) > 1:
        return None
    for row, onward in zip(rows, [*rows[1:], rows[0]], strict=True):
        turned[row] = onward
        place[row] = np.arange(len(row))
    return turned, place


def _turns(machine: Machine, turned: Ints) -> bool:
    """Whether the rotation takes GPUs to GPUs, and links to links as fast."""
    if not np.array_equal(np.sort(turned[machine.gpus]), np.sort(machine.gpus)):
        return False
    there = sorted(zip(turned[machine.tails], turned[machine.heads], machine.rates, strict=True))
    return there == sorted(zip(machine.tails, machine.heads, machine.rates, strict=True))


def _edge_classes(machine: Machine, turned: Ints) -> Ints:
    """Edges by what rotations take to each other; parallel edges as fast are alike."""
    ends = list(zip(machine.tails.tolist(), machine.heads.tolist(), machine.rates.tolist(), strict=True))
    label: dict[tuple[int, int, float], int] = {}
    for edge, (tail, head, rate) in enumerate(ends):
        while (tail, head, rate) not in label:
            label[tail, head, rate] = edge
            tail, head = int(turned[tail]), int(turned[head])
    return _numbers(np.array([label[key] for key in ends]))


def _numbers(labels: Ints) -> Ints:
    numbers: Ints = np.unique(labels, return_inverse=True)[1]
    return numbers
