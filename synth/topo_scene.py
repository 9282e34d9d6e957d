"""Where everything stands in the drawing of a machine (`synth.topo_svg`), in pixels from the upper left.

From top to bottom: networks, NICs, PCIe switches, CPUs, GPUs, and below them NVSwitches and the direct links between GPUs as
arcs. From three boxes on, half of them stand upside down above the network, so that the drawing keeps a handy shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from synth.topo_layout import Place, forest
from synth.topology import DeviceKind, Link, Topology

#: A column for a GPU or NIC, the height of its box, and that of a row of boxes.
SLOT, BOX_HEIGHT, ROW = 62.0, 24.0, 64.0
#: The margin, and the middle of the first row.
PAD, TOP = 26.0, 64.0
#: Faster links are drawn no wider: what NCCL calls local carries 5000 GB/s in its model.
CLIPPED_GBPS = 1000.0
_GAP, _BAR = 34.0, 34.0
#: Room for the title, and how many boxes stand side by side before half of them move above the network.
_HEAD, _SIDE_BY_SIDE = 40.0, 2


@dataclass
class Scene:
    """Where everything stands: the middle of each device, and the frame (left, right) of each box."""

    at: dict[str, tuple[float, float]] = field(default_factory=dict)
    frames: list[tuple[int, float, float]] = field(default_factory=list)
    width: float = 0.0
    height: float = 0.0
    rows: dict[str, float] = field(default_factory=dict)
    most_GBps: float = 1.0
    upside_down: frozenset[str] = frozenset()
    """Devices of the boxes above the network."""
    axis: float = 0.0
    """Where those are mirrored; 0 where there are none."""

    @classmethod
    def of(cls, topology: Topology) -> Scene:
        """The places of all devices of a machine."""
        scene = cls()
        networks = [device for device in topology.devices if device.kind is DeviceKind.NETWORK]
        nics = any(device.kind is DeviceKind.NIC for device in topology.devices)
        trees = {node: forest(topology, node) for node in sorted({device.node for device in topology.devices} - {-1})}
        levels = max((_levels(root) for roots in trees.values() for root in roots), default=0)
        scene._set_rows(len(networks), nics, levels, any(_has_cpu(roots) for roots in trees.values()))
        above = _boxes_above(topology, list(trees))
        for group in (above, [node for node in trees if node not in above]):
            left = PAD
            for node in group:
                right = left
                for root in trees[node]:
                    right = scene._place(root, right, 0)
                scene.frames.append((node, left - PAD / 2, right + PAD / 2))
                left = right + _GAP
            scene.width = max(scene.width, left - _GAP + PAD)
        scene._place_hubs(topology, above)
        scene.most_GBps = max((min(link.GBps, CLIPPED_GBPS) for link in topology.links), default=1.0)
        if above:
            scene._turn(frozenset(device.id for device in topology.devices if device.node in above), len(networks))
        return scene

    def _turn(self, upside_down: frozenset[str], networks: int) -> None:
        """Mirror some boxes at the middle of the networks, and move everything down to make room for them."""
        self.upside_down = upside_down
        axis = TOP - 10 + max(networks - 1, 0) * _BAR / 2
        down = _HEAD + self.height - 2 * axis
        for id_, (x, y) in self.at.items():
            self.at[id_] = (x, 2 * axis - y + down if id_ in upside_down else y + down)
        self.axis, self.height = axis + down, self.height + down

    def _set_rows(self, networks: int, nics: bool, levels: int, cpus: bool) -> None:
        y = TOP + networks * _BAR
        self.rows["nic"] = y
        y += ROW * nics
        for level in range(levels):
            self.rows[f"switch{level}"] = y
            y += ROW * 0.75
        # Below one level of switches; between the first two of several, so that no line to a CPU crosses a switch.
        self.rows["cpu"] = y if levels < 2 else self.rows["switch0"] + ROW * 0.375
        self.rows["gpu"] = y + ROW * (cpus if levels < 2 else 0.25)

    def _place(self, place: Place, left: float, level: int) -> float:
        """Put a tree's devices from `left` on; returns where the next tree begins."""
        if place.kind is DeviceKind.CPU:
            return self._place_cpu(place, left)
        gpus = [child for child in place.below if child.kind is DeviceKind.GPU]
        nics = [child for child in place.below if child.kind is DeviceKind.NIC]
        inner = [child for child in place.below if child.kind is DeviceKind.PCIE_SWITCH]
        slots = max(len(gpus), len(nics), 0 if inner else 1)
        right = left
        if slots:
            right = self._leaves(gpus, nics, left, slots)
        for child in inner:
            right = self._place(child, right, level + 1)
        row = {DeviceKind.GPU: "gpu", DeviceKind.NIC: "nic"}.get(place.kind, f"switch{level}")
        self.at[place.id] = ((left + right) / 2, self.rows[row])
        return right

    def _place_cpu(self, place: Place, left: float) -> float:
        """A CPU stands in the middle of its switches, above its own GPUs and below its own NICs."""
        gpus = [child for child in place.below if child.kind is DeviceKind.GPU]
        nics = [child for child in place.below if child.kind is DeviceKind.NIC]
        inner = [child for child in place.below if child.kind is DeviceKind.PCIE_SWITCH]
        half = (len(inner) + 1) // 2
        right = left
        for child in inner[:half]:
            right = self._place(child, right, 0)
        middle = right
        right = self._leaves(gpus, nics, right, max(len(gpus), len(nics), 1))
        self.at[place.id] = ((middle + right) / 2, self.rows["cpu"])
        for child in inner[half:]:
            right = self._place(child, right, 0)
        return right

    def _leaves(self, gpus: Sequence[Place], nics: Sequence[Place], left: float, slots: int) -> float:
        right = left + slots * SLOT
        for row, group in (("gpu", gpus), ("nic", nics)):
            start = left + (slots - len(group)) * SLOT / 2
            for position, leaf in enumerate(group):
                x = start + (position + 0.5) * SLOT
                self.at[leaf.id] = (x, self.rows[row])
                for number, child in enumerate(leaf.below):
                    self.at[child.id] = (x + 14 * number, self.rows["nic"])
        return right

    def _place_hubs(self, topology: Topology, above: Sequence[int]) -> None:
        """Networks stand above the NICs; NVSwitches below the GPUs, side by side where they join different ones."""
        first, networks = self.rows["gpu"] + ROW, 0
        bars: list[tuple[bool, float, float, float]] = []
        for device in topology.devices:
            xs = [self.at[other][0] for other in neighbours(topology, device.id) if other in self.at]
            left, right = min(xs, default=self.width / 2), max(xs, default=self.width / 2)
            if device.kind is DeviceKind.NETWORK:
                self.at[device.id] = ((left + right) / 2, TOP - 10 + networks * _BAR)
                networks += 1
            elif device.kind is DeviceKind.NVSWITCH:
                y, side = first, device.node in above
                while any(
                    (side, y) == (there, other) and left <= end + SLOT and start <= right + SLOT
                    for there, start, end, other in bars
                ):
                    y += _BAR
                bars.append((side, left, right, y))
                self.at[device.id] = ((left + right) / 2, y)
        arcs = [arc_depth(self, link) for link in topology.links if _is_arc(topology, link)]
        below = max((y + _BAR for *_, y in bars), default=first)
        self.height = max(below, self.rows["gpu"] + BOX_HEIGHT + max(arcs, default=0.0)) + 10


def _boxes_above(topology: Topology, nodes: list[int]) -> list[int]:
    """The boxes that stand above the network: the first half of many, unless an NVSwitch joins several boxes."""
    for device in topology.devices:
        if device.kind is DeviceKind.NVSWITCH:
            joined = {topology.by_id[other].node for other in neighbours(topology, device.id)}
            if len(joined) > 1:
                return []
    return nodes[: (len(nodes) + 1) // 2] if len(nodes) > _SIDE_BY_SIDE else []


def _has_cpu(roots: Sequence[Place]) -> bool:
    return any(root.kind is DeviceKind.CPU for root in roots)


def _levels(place: Place) -> int:
    """How many PCIe switches lie above each other in a tree."""
    own = place.kind is DeviceKind.PCIE_SWITCH
    return own + max(map(_levels, place.below), default=0)


def neighbours(topology: Topology, device: str) -> Iterator[str]:
    """The other ends of a device's links."""
    for link in topology.links:
        if device in (link.src, link.dst):
            yield link.dst if link.src == device else link.src


def _is_arc(topology: Topology, link: Link) -> bool:
    ends = {topology.by_id[link.src].kind, topology.by_id[link.dst].kind}
    return ends == {DeviceKind.GPU}


def arc_depth(scene: Scene, link: Link) -> float:
    """How far below the GPUs an arc hangs: the farther apart they are, the deeper."""
    return 26.0 + 0.3 * abs(scene.at[link.src][0] - scene.at[link.dst][0])
