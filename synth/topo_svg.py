"""A machine as a picture: a self-contained SVG, boxes side by side (`synth.topo_scene` says where everything stands).

The wider a line, the more GB/s; every line tells its figures where the pointer rests on it. Colours follow the reader's light
or dark setting.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import sqrt
from xml.sax.saxutils import escape

from synth.suspicion import pairs
from synth.topo_scene import BOX_HEIGHT, PAD, TOP, Scene, arc_depth, neighbours
from synth.topology import DeviceKind, Link, Topology

_BOX_WIDTH = 52.0
#: Lines are this wide at the fastest link and at the slowest; the square root of the rate decides between.
_WIDEST, _THINNEST = 8.0, 0.8
_KINDS = ("nvlink", "xgmi", "c2c", "pcie", "socket", "network")
_STYLE = """
text{font:11px sans-serif;fill:#1b1f24}.title{font-size:15px;font-weight:bold}.bg{fill:#fff}.node{fill:none;stroke:#aab2bb}
.gpu{fill:#d7f0c8;stroke:#4d8a2b}.nic{fill:#d6e6fa;stroke:#2f6db3}.cpu{fill:#ececec;stroke:#777}.hub{fill:#f7e3c3;stroke:#b07a1e}
.nvlink,.xgmi{stroke:#4d9a2b}.c2c{stroke:#9a6ad0}.pcie{stroke:#8a8f98}.socket{stroke:#c2571a}.network{stroke:#3b82d0}.other{stroke:#a0407a}
path,line{fill:none;stroke-linecap:round;opacity:.75}
@media(prefers-color-scheme:dark){text{fill:#e8eaed}.bg{fill:#14181d}.node{stroke:#555e69}.gpu{fill:#2b4d1c;stroke:#8ccf62}
.nic{fill:#1d3a5c;stroke:#7ab3ee}.cpu{fill:#33383f;stroke:#9aa2ac}.hub{fill:#553d12;stroke:#e0aa4a}}
""".strip()


def topology_svg(topology: Topology) -> str:
    """The picture as text. Devices keep the order of their trees; the same machine gives the same bytes."""
    scene = Scene.of(topology)
    lines = [_line(scene, topology, ends, links) for ends, links in pairs(topology).items()]
    boxes = [*_bars(scene, topology), *_devices(scene, topology)]
    height = scene.height + 46
    legend, legend_width = _legend(scene, topology, height)
    width = max(scene.width, legend_width, 2 * PAD + 9 * len(topology.name))
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}">',
        f"<style>{_STYLE}</style>",
        f'<rect class="bg" width="{width:.0f}" height="{height:.0f}"/>',
        _text(PAD, 26, topology.name, "title", "start"),
    ]
    return "\n".join([*head, *_frames(scene, topology), *filter(None, lines), *boxes, *legend, "</svg>"]) + "\n"


def _line(scene: Scene, topology: Topology, ends: tuple[str, str], links: Sequence[Link]) -> str:
    """All links between two devices as one line, as wide as the better direction is fast."""
    if ends[0] not in scene.at or ends[1] not in scene.at or ends[0] == ends[1]:
        return ""
    (x1, y1), (x2, y2) = scene.at[ends[0]], scene.at[ends[1]]
    kinds = [topology.by_id[end].kind for end in ends]
    rate = max(sum(link.GBps for link in links if link.src == end) for end in ends)
    wide = _width(scene, rate)
    kind = links[0].kind if links[0].kind in _KINDS else "other"
    style = f'class="{kind}" stroke-width="{wide:.2f}"'
    title = f"<title>{escape(_printable(_told(ends, links)))}</title>"
    if kinds.count(DeviceKind.GPU) == 2 or kinds.count(DeviceKind.NIC) == 2:
        away = -1 if ends[0] in scene.upside_down else 1
        down = away * BOX_HEIGHT / 2 * (1 if kinds[0] is DeviceKind.GPU else -1)
        reach = away * 2 * arc_depth(scene, links[0]) * (1 if kinds[0] is DeviceKind.GPU else -0.5)
        curve = (
            f"M{x1:.1f} {y1 + down:.1f}Q{(x1 + x2) / 2:.1f} {(y1 + y2) / 2 + down + reach:.1f} {x2:.1f} {y2 + down:.1f}"
        )
        return f'<path {style} d="{curve}">{title}</path>'
    hubs = (DeviceKind.NETWORK, DeviceKind.NVSWITCH)
    x1, x2 = (x2 if kinds[0] in hubs else x1), (x1 if kinds[1] in hubs else x2)
    return f'<line {style} x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}">{title}</line>'


def _width(scene: Scene, GBps: float) -> float:
    return _THINNEST + (_WIDEST - _THINNEST) * sqrt(min(GBps / scene.most_GBps, 1.0))


def _told(ends: tuple[str, str], links: Sequence[Link]) -> str:
    there, back = (sum(link.GBps for link in links if link.src == end) for end in ends)
    rate = f"{there:g} GB/s each way" if there == back else f"{there:g} GB/s there, {back:g} back"
    lanes = max(sum(link.count for link in links if link.src == end) for end in ends)
    kinds = ", ".join(dict.fromkeys(link.kind for link in links))
    return f"{ends[0]} - {ends[1]}: {kinds}, {lanes} lane{'s' * (lanes != 1)}, {rate}"


def _bars(scene: Scene, topology: Topology) -> Iterator[str]:
    """Networks and NVSwitches: as wide as what they join."""
    for device in topology.devices:
        if device.kind not in (DeviceKind.NETWORK, DeviceKind.NVSWITCH):
            continue
        xs = [scene.at[other][0] for other in neighbours(topology, device.id) if other in scene.at]
        left, right = min(xs, default=scene.at[device.id][0]), max(xs, default=scene.at[device.id][0])
        y = scene.at[device.id][1]
        yield _rect(left - _BOX_WIDTH / 2, y, right - left + _BOX_WIDTH, "hub")
        yield _text((left + right) / 2, y + 4, device.id)


def _devices(scene: Scene, topology: Topology) -> Iterator[str]:
    classes = {DeviceKind.GPU: "gpu", DeviceKind.NIC: "nic", DeviceKind.CPU: "cpu", DeviceKind.PCIE_SWITCH: "cpu"}
    for device in topology.devices:
        if device.kind in classes and device.id in scene.at:
            x, y = scene.at[device.id]
            yield _rect(x - _BOX_WIDTH / 2, y, _BOX_WIDTH, classes[device.kind])
            yield _text(x, y + 4, _fitting(device.id), title=device.id)


def _frames(scene: Scene, topology: Topology) -> Iterator[str]:
    """A rounded frame round each of several boxes, with its number."""
    if len(scene.frames) < 2:
        return
    above = {topology.by_id[id_].node for id_ in scene.upside_down}
    mirror, shift = 2 * scene.axis, (scene.axis - (TOP - 10)) if scene.axis else 0.0
    for node, left, right in scene.frames:
        top, bottom = scene.rows["nic"] - BOX_HEIGHT + shift, scene.height
        if node in above:
            top, bottom = mirror - bottom, mirror - top
        size = f'width="{right - left:.1f}" height="{bottom - top:.1f}"'
        yield f'<rect class="node" x="{left:.1f}" y="{top:.1f}" {size} rx="8"/>'
        yield _text(left + 6, top + 14 if node in above else bottom - 5, f"node {node}", anchor="start")


def _legend(scene: Scene, topology: Topology, height: float) -> tuple[list[str], float]:
    """The kinds of link with their rates, in their colours and widths; and how far it reaches."""
    rates: dict[str, set[float]] = defaultdict(set)
    for link in topology.links:
        rates[link.kind].add(link.GBps)
    x, y = PAD, height - 18
    parts = []
    for kind, values in rates.items():
        style = f'class="{kind if kind in _KINDS else "other"}" stroke-width="{_width(scene, max(values)):.2f}"'
        parts.append(f'<line {style} x1="{x:.1f}" y1="{y:.1f}" x2="{x + 22:.1f}" y2="{y:.1f}"/>')
        told = f"{kind} {_span(values)} GB/s"
        parts.append(_text(x + 30, y + 4, told, anchor="start"))
        x += 46 + 6.5 * len(told)
    return parts, x + PAD


def _span(values: set[float]) -> str:
    low, high = f"{min(values):.4g}", f"{max(values):.4g}"
    return low if low == high else f"{low} to {high}"


def _rect(x: float, y: float, width: float, style: str) -> str:
    top = y - BOX_HEIGHT / 2
    return f'<rect class="{style}" x="{x:.1f}" y="{top:.1f}" width="{width:.1f}" height="{BOX_HEIGHT:.1f}" rx="4"/>'


def _text(x: float, y: float, text: str, style: str = "", anchor: str = "middle", title: str = "") -> str:
    words = f' class="{style}"' if style else ""
    more = f"<title>{escape(_printable(title))}</title>" if title and title != text else ""
    return f'<text{words} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(_printable(text))}{more}</text>'


def _fitting(text: str) -> str:
    """As much of a name as a box holds, with its end, which tells twins apart."""
    return text if len(text) <= 8 else f"{text[:3]}..{text[-4:]}"


def _printable(text: str) -> str:
    """XML has no place for control characters, and a name from a file may hold some."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
