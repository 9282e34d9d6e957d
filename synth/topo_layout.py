"""Where the devices of a box stand beside each other in a picture: what hangs below one switch or CPU stands together."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from synth.topology import DeviceKind, Topology

_LEAVES = frozenset({DeviceKind.GPU, DeviceKind.NIC})
_INNER = frozenset({DeviceKind.CPU, DeviceKind.PCIE_SWITCH})


@dataclass(frozen=True, slots=True)
class Place:
    """A device with what hangs below it: switches and leaves below CPUs and switches, NICs below a GPU that has its own."""

    id: str
    kind: DeviceKind
    below: tuple[Place, ...] = ()

    def leaves(self) -> list[str]:
        """The GPUs and NICs of the subtree, left to right; the device itself where nothing hangs below it."""
        if not self.below:
            return [self.id]
        own = [self.id] if self.kind in _LEAVES else []
        return own + [leaf for place in self.below for leaf in place.leaves()]


def forest(topology: Topology, node: int) -> tuple[Place, ...]:
    """The trees of one box: its CPUs in order, then switches and leaves that no CPU reaches. Every device stands in one tree.

    NVSwitches and networks are in none: they join places, and are drawn as bars.
    """
    around: dict[str, list[str]] = defaultdict(list)
    for link in topology.links:
        for a, b in ((link.src, link.dst), (link.dst, link.src)):
            if b not in around[a]:
                around[a].append(b)
    members = [device for device in topology.devices if device.node == node]
    ids = {device.id for device in members if device.kind in _LEAVES | _INNER}
    children: dict[str, list[str]] = defaultdict(list)
    seen: set[str] = set()
    roots: list[str] = []
    for kind in (DeviceKind.CPU, DeviceKind.PCIE_SWITCH, DeviceKind.GPU, DeviceKind.NIC):
        starts = [device.id for device in members if device.kind is kind and device.id not in seen]
        roots += starts
        seen |= set(starts)
        _grow(topology, starts, around, ids, seen, children)

    def place(id_: str) -> Place:
        return Place(id_, topology.by_id[id_].kind, tuple(place(child) for child in children[id_]))

    return tuple(place(root) for root in roots)


def _grow(
    topology: Topology,
    starts: list[str],
    around: dict[str, list[str]],
    ids: set[str],
    seen: set[str],
    children: dict[str, list[str]],
) -> None:
    """Hang devices below the ones they are linked to, nearest first; GPUs carry nothing but NICs."""
    level = list(starts)
    while level:
        following: list[str] = []
        for here in level:
            kind = topology.by_id[here].kind
            for there in around[here]:
                below = topology.by_id[there].kind
                fits = kind in _INNER and below in _LEAVES | {DeviceKind.PCIE_SWITCH}
                if there in ids and there not in seen and (fits or (kind, below) == (DeviceKind.GPU, DeviceKind.NIC)):
                    seen.add(there)
                    children[here].append(there)
                    following.append(there)
        level = following
