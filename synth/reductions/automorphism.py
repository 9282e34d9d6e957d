"""Extending a permutation of ranks to the whole machine: colour refinement, then backtracking over what is left alike.

Devices are coloured by kind, the given ranks each by a colour of their own; a device's colour is refined by the
colours that its links lead to (B. Weisfeiler and A. Leman, 1968) until nothing changes. What still shares a colour
is tried in turn.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from synth.topology import Link, Topology

#: Attributes that two links must share to be alike, and which way the link points as seen from a device.
_LinkKind = tuple[str, float, float, float, int]
_Colours = dict[str, int]


class Budget:
    """Work that may still be done, in looks at a link; counted, so that equal inputs give equal answers at any
    load.
    """

    def __init__(self, work: int) -> None:
        self.left = work

    def spend(self, work: int) -> bool:
        """Take `work` off; False once nothing is left."""
        self.left -= work
        return self.left >= 0


class DeviceGraph:
    """A topology's devices and links, indexed for the search."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.kinds = {device.id: device.kind.value for device in topology.devices}
        self.around: dict[str, list[tuple[_LinkKind, bool, str]]] = defaultdict(list)
        self.between: dict[tuple[str, str], dict[_LinkKind, list[int]]] = defaultdict(lambda: defaultdict(list))
        for index, link in enumerate(topology.links):
            self.around[link.src].append((kind_of(link), True, link.dst))
            self.around[link.dst].append((kind_of(link), False, link.src))
            self.between[link.src, link.dst][kind_of(link)].append(index)

    def link_map(self, devices: Mapping[str, str]) -> tuple[int, ...] | None:
        """The image of every link under a permutation of devices, parallel links in order; None where a link has
        none.
        """
        image = list(range(len(self.topology.links)))
        for (src, dst), by_kind in self.between.items():
            there = self.between.get((devices[src], devices[dst]))
            for kind, indices in by_kind.items():
                targets = there.get(kind, []) if there is not None else []
                if len(targets) != len(indices):
                    return None
                for index, target in zip(indices, targets, strict=True):
                    image[index] = target
        return tuple(image)


def kind_of(link: Link) -> _LinkKind:
    """Everything about a link but its ends."""
    return (link.kind, link.GBps, link.alpha_us, link.gap_us, link.count)


def extend(graph: DeviceGraph, fixed: Mapping[str, str], budget: Budget) -> dict[str, str] | None:
    """A permutation of devices that respects kinds and links and takes every key of `fixed` to its value; None if
    there is none.

    None also where `budget` ends the search. Devices that may stay where they are do.
    """
    kinds = sorted(set(graph.kinds.values()))
    names = {device: len(kinds) + position for position, device in enumerate(sorted(fixed))}
    here = {device: names.get(device, kinds.index(kind)) for device, kind in graph.kinds.items()}
    back = {image: device for device, image in fixed.items()}
    there = {device: names.get(back.get(device, ""), kinds.index(kind)) for device, kind in graph.kinds.items()}
    for device, image in fixed.items():
        if graph.kinds[device] != graph.kinds[image]:
            return None
    return _search(graph, here, there, budget)


def _search(graph: DeviceGraph, here: _Colours, there: _Colours, budget: Budget) -> dict[str, str] | None:
    refined = _refine(graph, here, there, budget)
    if refined is None:
        return None
    here, there = refined
    alike = _classes(there)
    open_classes = {colour: members for colour, members in _classes(here).items() if len(members) > 1}
    if not open_classes:
        devices = {device: alike[colour][0] for device, colour in here.items()}
        return devices if graph.link_map(devices) is not None else None
    colour = min(open_classes, key=lambda colour: (len(open_classes[colour]), colour))
    device = open_classes[colour][0]
    fresh = 1 + max(here.values())
    for image in sorted(alike[colour], key=lambda image: image != device):
        found = _search(graph, {**here, device: fresh}, {**there, image: fresh}, budget)
        if found is not None or budget.left < 0:
            return found
    return None


def _refine(graph: DeviceGraph, here: _Colours, there: _Colours, budget: Budget) -> tuple[_Colours, _Colours] | None:
    """Both colourings refined in step until they are stable; None once they differ in how often a colour comes."""
    while True:
        if not budget.spend(4 * len(graph.topology.links)):
            return None
        signs_here, signs_there = _signatures(graph, here), _signatures(graph, there)
        palette = {sign: colour for colour, sign in enumerate(sorted(set(signs_here.values())))}
        if sorted(signs_here.values()) != sorted(signs_there.values()):
            return None
        stable = len(palette) == len(set(here.values()))
        here = {device: palette[sign] for device, sign in signs_here.items()}
        there = {device: palette[sign] for device, sign in signs_there.items()}
        if stable:
            return here, there


_Signature = tuple[int, tuple[tuple[_LinkKind, bool, int], ...]]


def _signatures(graph: DeviceGraph, colours: _Colours) -> dict[str, _Signature]:
    return {
        device: (colour, tuple(sorted((kind, out, colours[other]) for kind, out, other in graph.around[device])))
        for device, colour in colours.items()
    }


def _classes(colours: _Colours) -> dict[int, list[str]]:
    classes: dict[int, list[str]] = defaultdict(list)
    for device in sorted(colours):
        classes[colours[device]].append(device)
    return classes
