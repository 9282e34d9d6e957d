"""A machine as a picture of plain characters: CPUs and PCIe trees above, GPUs and NICs in a row, their fast links below.

cpu0 ---------------- 10 ----- cpu1
+----+----+                    +----+
gpu0 gpu1 nic0                 gpu2 gpu3
+=240=+                        +=240=+
"""

from __future__ import annotations

import itertools
import textwrap
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from synth.topo_layout import Place, forest
from synth.topology import Device, DeviceKind, Link, Topology

_LEAVES = frozenset({DeviceKind.GPU, DeviceKind.NIC})
_HUBS = {DeviceKind.NVSWITCH: "=", DeviceKind.NETWORK: "~"}
#: From so many GPUs on, a full mesh of equal links is told in one line.
_FULL_MESH = 4


def picture(topology: Topology, width: int) -> str:
    """All boxes of the machine, at most `width` characters wide; boxes that look alike are drawn once.

    What does not fit is left out, and the picture says so: first NICs, then the box.
    """
    drawn: dict[str, list[int]] = defaultdict(list)
    bodies: dict[str, str] = {}
    for node in sorted({gpu.node for gpu in topology.gpus}):
        shape = _box(topology, node, width, plain=True)
        drawn[shape].append(node)
        bodies.setdefault(shape, _box(topology, node, width, plain=False))
    blocks = []
    for shape, nodes in drawn.items():
        which = "" if topology.num_nodes == 1 else f" of node {', '.join(map(str, nodes))}"
        alike = " (ids of the first)" if len(nodes) > 1 else ""
        title = textwrap.fill(f"Picture{which}{alike}, rates in GB/s each way", width, subsequent_indent="  ")
        blocks.append(f"{title}\n{bodies[shape]}")
    return "\n\n".join(blocks)


def _box(topology: Topology, node: int, width: int, *, plain: bool) -> str:
    """One box; `plain` calls GPUs and NICs by number, so that boxes can be compared."""
    roots = forest(topology, node)
    notes: list[str] = []
    canvas = _Canvas.of(topology, roots, width, plain)
    if canvas is None:
        roots = _without_nics(roots)
        canvas = _Canvas.of(topology, roots, width, plain)
        notes = ["  (NICs left out: too many for the width)"]
    if canvas is None:
        return f"  (not drawn: more GPUs than {width} characters hold)"
    if canvas.short and not plain:
        notes.append("  (gN: GPU of rank N; nN: NIC N of the box)")
    rows = [*_trees(topology, roots, canvas), *_spans(topology, canvas), *_bars(topology, canvas, width)]
    return "\n".join(["  " + row.rstrip() for row in rows] + notes + _rates(topology, node, width))


@dataclass
class _Canvas:
    """Where each GPU and NIC stands: `column` by id, `label` by id."""

    column: dict[str, int]
    label: dict[str, str]
    width: int
    short: bool
    suffix: str = ""
    """What is left out of the names of all else, where boxes are to be compared."""

    @classmethod
    def of(cls, topology: Topology, roots: Sequence[Place], width: int, plain: bool) -> _Canvas | None:
        """The columns under long names, or short ones where those are too wide; None where both are."""
        leaves = [leaf for root in roots for leaf in root.leaves()]
        devices = [topology.by_id[leaf] for leaf in leaves]
        for short in (True,) if plain else (False, True):
            labels = _short_labels(devices) if short else {leaf: leaf for leaf in leaves}
            step = max([3, *map(len, labels.values())]) + 1
            if len(leaves) * step + 3 <= width:
                columns = {leaf: position * step for position, leaf in enumerate(leaves)}
                suffix = f".{devices[0].node}" if plain else ""
                return cls(columns, labels, len(leaves) * step, short, suffix)
        return None

    def row(self) -> list[str]:
        return [" "] * (self.width + 1)

    def name(self, id_: str) -> str:
        return id_.removesuffix(self.suffix)


def _short_labels(devices: Sequence[Device]) -> dict[str, str]:
    first = min((device.rank for device in devices if device.rank is not None), default=0)
    nics = [device.id for device in devices if device.kind is DeviceKind.NIC]
    labels = {nic: f"n{position}" for position, nic in enumerate(nics)}
    labels |= {device.id: f"g{device.rank - first}" for device in devices if device.rank is not None}
    return labels | {device.id: device.id[:3] for device in devices if device.kind not in _LEAVES}


def _without_nics(roots: Sequence[Place]) -> tuple[Place, ...]:
    return tuple(replace(root, below=_without_nics(root.below)) for root in roots if root.kind is not DeviceKind.NIC)


def _put(row: list[str], column: int, text: str) -> None:
    for offset, letter in enumerate(text):
        if column + offset < len(row):
            row[column + offset] = letter


def _trees(topology: Topology, roots: Sequence[Place], canvas: _Canvas) -> list[str]:
    """The PCIe trees, CPUs first, down to the row of GPUs and NICs."""
    depth = max(map(_depth, roots), default=0)
    lines: list[str] = []
    level: list[Place] = list(roots)
    for here in range(depth):
        names, joints = canvas.row(), canvas.row()
        if here == 0:
            _sockets(topology, level, canvas, names)
        below: list[Place] = []
        for place in level:
            column = canvas.column[place.leaves()[0]]
            if place.kind in _LEAVES or not place.below:
                # Stands in the last row; a GPU under a CPU is led down past the switches of others.
                if here > 0:
                    _put(names, column, "|")
                    _put(joints, column, "|")
                below.append(place)
                continue
            _put(names, column, canvas.name(place.id))
            columns = [canvas.column[child.leaves()[0]] for child in place.below]
            _put(joints, columns[0], "-" * (columns[-1] - columns[0]))
            for joint in columns:
                _put(joints, joint, "+" if len(columns) > 1 else "|")
            below += place.below
        lines += ["".join(names), "".join(joints)]
        level = below
    last = canvas.row()
    for leaf, column in canvas.column.items():
        _put(last, column, canvas.label[leaf])
    return [*lines, "".join(last)]


def _depth(place: Place) -> int:
    if place.kind in _LEAVES or not place.below:
        return 0
    return 1 + max(map(_depth, place.below))


def _sockets(topology: Topology, roots: Sequence[Place], canvas: _Canvas, row: list[str]) -> None:
    """Lines from each CPU to the next one that it is linked to, with the rate in the middle."""
    cpus = [root for root in roots if root.kind is DeviceKind.CPU and root.below]
    for left, right in itertools.pairwise(cpus):
        rate = sum(link.GBps for link in topology.links if (link.src, link.dst) == (left.id, right.id))
        start, end = (
            canvas.column[left.leaves()[0]] + len(canvas.name(left.id)) + 1,
            canvas.column[right.leaves()[0]] - 1,
        )
        if rate and end - start >= 1:
            _put(row, start, _line(end - start, "-", f" {rate:.3g} "))


def _line(length: int, letter: str, text: str) -> str:
    """A line of so many letters with the text in its middle, where it leaves room for it."""
    text = text if len(text) + 2 <= length else text.strip()
    return text.center(length, letter) if len(text) <= length else letter * length


def _spans(topology: Topology, canvas: _Canvas) -> list[str]:
    """Direct links between GPUs and NICs of the box, packed into as few rows as their order allows."""
    pairs: dict[tuple[int, int], list[Link]] = defaultdict(list)
    for link in topology.links:
        if link.src in canvas.column and link.dst in canvas.column:
            ends = sorted((canvas.column[link.src], canvas.column[link.dst]))
            pairs[ends[0], ends[1]].append(link)
    gpus = [column for id_, column in canvas.column.items() if topology.by_id[id_].kind is DeviceKind.GPU]
    whole = _full_mesh(pairs, gpus)
    if whole is not None:
        row = canvas.row()
        _put(row, gpus[0], "=" * (gpus[-1] - gpus[0]))
        for column in gpus:
            _put(row, column, "+")
        count = "1 lane" if whole.count == 1 else f"{whole.count} lanes"
        return ["".join(row), f"every two GPUs: {count} of {whole.kind}, {whole.GBps:g}"]
    rows: list[list[str]] = []
    ends_at: list[int] = []
    for (left, right), links in sorted(pairs.items(), key=lambda item: (item[0][0], item[0][1])):
        at = next((position for position, end in enumerate(ends_at) if end < left), len(rows))
        if at == len(rows):
            rows.append(canvas.row())
            ends_at.append(0)
        ends_at[at] = right
        lanes = max(link.count for link in links)
        rate = max(link.GBps for link in links)
        _put(rows[at], left, "+" + _line(right - left - 1, "=" if lanes > 1 else "-", f"{rate:.3g}") + "+")
    return ["".join(row) for row in rows]


def _full_mesh(pairs: dict[tuple[int, int], list[Link]], gpus: Sequence[int]) -> Link | None:
    """A link of the mesh where every two GPUs are joined, all by equal links, both ways; else None."""
    wanted = {(a, b) for a in gpus for b in gpus if a < b}
    if len(gpus) < _FULL_MESH or set(pairs) != wanted:
        return None
    links = [link for both in pairs.values() for link in both]
    like = {(link.kind, link.count, link.GBps) for link in links}
    return links[0] if len(like) == 1 and len(links) == 2 * len(wanted) else None


def _bars(topology: Topology, canvas: _Canvas, width: int) -> list[str]:
    """NVSwitches and networks as bars below the GPUs and NICs that they join."""
    lines: list[str] = []
    hubs = [device for kind in _HUBS for device in topology.devices if device.kind is kind]
    for device in hubs:
        links = [link for link in topology.links if link.dst == device.id and link.src in canvas.column]
        if not links:
            continue
        columns = sorted(canvas.column[link.src] for link in links)
        row = canvas.row()
        _put(row, columns[0], _HUBS[device.kind] * (columns[-1] - columns[0]))
        for column in columns:
            _put(row, column, "+")
        rates = sorted({link.GBps for link in links})
        lanes = {link.count for link in links}
        count = f"{next(iter(lanes))} lanes, " if lanes != {1} and len(lanes) == 1 else ""
        rate = f"{rates[0]:g}" if len(rates) == 1 else f"{rates[0]:g} to {rates[-1]:g}"
        told = f"{canvas.name(device.id)}: {count}{rate} each"
        text = "".join(row).rstrip()
        lines += [f"{text}  {told}"] if len(text) + len(told) + 4 <= width else [text, told]
    return lines


def _rates(topology: Topology, node: int, width: int) -> list[str]:
    """A line of rates for each kind of link inside the box that the picture draws without them."""
    groups: dict[str, dict[str, set[float]]] = defaultdict(lambda: defaultdict(set))
    for link in topology.links:
        ends = [topology.by_id[link.src], topology.by_id[link.dst]]
        kinds = sorted(end.kind for end in ends)
        if all(end.node == node for end in ends) and not set(kinds) <= {DeviceKind.GPU, DeviceKind.NVSWITCH}:
            groups[link.kind][" - ".join(kinds)].add(link.GBps)
    lines = []
    for kind, ends_rates in groups.items():
        told = (f"{ends} {'/'.join(f'{rate:g}' for rate in sorted(rates))}" for ends, rates in ends_rates.items())
        lines.append(textwrap.fill(f"{kind}: {', '.join(told)}", width, initial_indent="  ", subsequent_indent="    "))
    return lines
