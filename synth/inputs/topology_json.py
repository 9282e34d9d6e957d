"""Our topology JSON (docs/design.md, section 2): text to Topology and back.

What the format leaves open is settled here:

- Parallel links of one kind, latency and gap between the same devices in the same direction are one capacity: lanes
  and rates add up. They stay apart where any of these differs.
- A link's kind is any word. Kinds with default figures (`synth.inputs.defaults`) may leave `GBps` or `alpha_us` out,
  others may not.
- `sources` (where figures come from) is part of the description: it is appended to `about`, a line each.
- A network belongs to no node; a `node` written for one is ignored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from decimal import Decimal
from pathlib import PurePath
from typing import Any

from synth.errors import InputError
from synth.inputs.defaults import LINK_KINDS, generations, link_default
from synth.inputs.fields import Fields, decode_json
from synth.topology import DEFAULT_FALLBACK, DEFAULT_RELAY_THROUGH, Device, DeviceKind, Link, Topology

FORMAT = 1
_KEYS = ("$schema", "format", "name", "about", "sources", "devices", "links", "paths")
_DEVICE_KEYS = ("id", "kind", "rank", "node", "arch")
_LINK_KEYS = ("between", "from", "to", "kind", "gen", "count", "GBps", "alpha_us", "gap_us")
_PATH_KEYS = ("relay_through", "fallback")
_LINK_KIND = re.compile(r"[a-z][a-z0-9-]{0,39}")
#: What compilers call a GPU: sm_70 (CUDA), gfx90a (ROCm).
ARCH = re.compile(r"sm_\d{2,3}|gfx[0-9a-f]{3,5}")
#: Bounds that only a mistake of unit crosses: 1e6 GB/s, 1e9 us (a quarter of an hour), a million nodes, ranks or lanes.
_MAX_GBPS = 1_000_000
_MAX_US = 1_000_000_000
_MAX_COUNT = 1_000_000
_CROSSABLE = tuple(kind for kind in DeviceKind if kind is not DeviceKind.GPU)


def parse_topology(text: str, source: str) -> Topology:
    """The topology that JSON `text` describes; `source` is the file as the user named it.

    Raises InputError naming the field (`links[3].between[1]`), what stands there and what may. Whether all ranks can
    reach each other is not looked at here: `synth.paths.find_paths` does.
    """
    root = Fields.of(decode_json(text, source), source, "", _KEYS)
    root.integer("format", FORMAT, FORMAT)
    name = root.text("name", PurePath(source).stem or "topology")
    devices = _devices(root)
    links = _links(root, {device.id: device for device in devices})
    paths = Fields.of(root.data.get("paths", {}), source, "paths", _PATH_KEYS)
    relay_through = _kinds(paths, "relay_through", DEFAULT_RELAY_THROUGH)
    fallback = _kinds(paths, "fallback", DEFAULT_FALLBACK)
    return Topology(name, devices, links, _about(root), relay_through, fallback)


def to_json(topology: Topology) -> str:
    """The file that `parse_topology` reads back as an equal topology (parallel links merged); always the same bytes."""
    lines = [f'  "format": {FORMAT},', f'  "name": {_string(topology.name)},']
    if topology.about:
        lines.append(f'  "about": {_string(topology.about)},')
    lines += _block("devices", [_device_json(device) for device in topology.devices])
    lines[-1] += ","
    lines += _block("links", _links_json(topology.links))
    rules = {"relay_through": topology.relay_through, "fallback": topology.fallback}
    defaults = {"relay_through": DEFAULT_RELAY_THROUGH, "fallback": DEFAULT_FALLBACK}
    changed = {
        key: [str(kind) for kind in _CROSSABLE if kind in rules[key]] for key in rules if rules[key] != defaults[key]
    }
    if changed:
        lines[-1] += ","
        lines.append(f'  "paths": {json.dumps(changed)}')
    return "\n".join(["{", *lines, "}", ""])


def _about(root: Fields) -> str:
    """The text of `about`, and a line for each entry of `sources`."""
    about = root.text("about", "", lines=True)
    sources = root.data.get("sources", {})
    entries = Fields.of(sources, root.source, "sources", tuple(sources) if isinstance(sources, dict) else ())
    lines = [f"{key}: {entries.text(key, lines=True)}" for key in entries.data]
    return Fields(root.source, "", {"about": "\n".join([about, *lines] if about else lines)}).text("about", lines=True)


def _devices(root: Fields) -> tuple[Device, ...]:
    devices: list[Device] = []
    ids: set[str] = set()
    items = root.items("devices")
    for position, item in enumerate(items):
        fields = Fields.of(item, root.source, f"devices[{position}]", _DEVICE_KEYS)
        device = _device(fields)
        if device.id in ids:
            fields.fail("id", device.id, "an id that no other device has")
        ids.add(device.id)
        devices.append(device)
    _check_ranks(root, devices)
    return tuple(devices)


def _device(fields: Fields) -> Device:
    identity = fields.text("id")
    kind = DeviceKind(fields.choice("kind", tuple(DeviceKind)))
    node = fields.integer("node", -1 if kind is DeviceKind.NETWORK else 0, _MAX_COUNT, 0)
    if kind is DeviceKind.GPU:
        return Device(identity, kind, node, fields.integer("rank", 0, _MAX_COUNT), _arch(fields))
    for key in ("rank", "arch"):
        if key in fields.data:
            fields.fail(key, fields.data[key], f"no {key} on a {kind}: only GPUs have one")
    return Device(identity, kind, -1 if kind is DeviceKind.NETWORK else node)


def _arch(fields: Fields) -> str:
    if "arch" not in fields.data:
        return ""
    arch = fields.text("arch")
    if not ARCH.fullmatch(arch):
        fields.fail("arch", arch, "a GPU architecture such as sm_70 or gfx90a")
    return arch


def _check_ranks(root: Fields, devices: list[Device]) -> None:
    """Ranks have to be 0..R-1, a GPU each; the first device that breaks this is named."""
    gpus = [device for device in devices if device.kind is DeviceKind.GPU]
    if not gpus:
        root.fail("devices", f"{len(devices)} devices and no GPU", "at least one device of kind gpu")
    seen: set[int | None] = set()
    for position, device in enumerate(devices):
        if device.kind is not DeviceKind.GPU:
            continue
        if device.rank in seen or device.rank is None or device.rank >= len(gpus):
            root.fail(f"devices[{position}].rank", device.rank, f"ranks 0 to {len(gpus) - 1}, one for each of the GPUs")
        seen.add(device.rank)


def _links(root: Fields, by_id: dict[str, Device]) -> tuple[Link, ...]:
    """The one-way links in order of the file, `between` as two, parallel equals summed at the place of the first."""
    merged: dict[tuple[object, ...], Link] = {}
    for position, item in enumerate(root.items("links", [])):
        fields = Fields.of(item, root.source, f"links[{position}]", _LINK_KEYS)
        ends = _ends(fields, by_id)
        for link in _directions(fields, ends, by_id):
            key = (link.src, link.dst, link.kind, link.alpha_us, link.gap_us)
            old = merged.get(key)
            if old is not None:
                link = replace(old, GBps=old.GBps + link.GBps, count=old.count + link.count)
            merged[key] = link
    return tuple(merged.values())


def _ends(fields: Fields, by_id: dict[str, Device]) -> tuple[str, str]:
    """The two devices of a link, checked; (from, to) where the link is one-way."""
    data = fields.data
    if ("between" in data) == ("from" in data or "to" in data):
        given = ", ".join(key for key in ("between", "from", "to") if key in data) or "neither"
        raise InputError(fields.source, fields.where, given, "either between: [a, b] or from and to")
    if "between" in data:
        ends = fields.items("between")
        if len(ends) != 2:
            fields.fail("between", ends, "two device ids")
        named = (("between[0]", ends[0]), ("between[1]", ends[1]))
    else:
        named = (("from", fields.text("from")), ("to", fields.text("to")))
    for key, end in named:
        if not isinstance(end, str) or end not in by_id:
            fields.fail(key, end, "the id of a device in this file")
    if named[0][1] == named[1][1]:
        fields.fail(named[1][0], named[1][1], "another device than the one the link starts at")
    return named[0][1], named[1][1]


def _directions(fields: Fields, ends: tuple[str, str], by_id: dict[str, Device]) -> list[Link]:
    """The one or two links that an entry stands for."""
    count = fields.integer("count", 1, _MAX_COUNT, 1)
    lane, alpha = _figures(fields, any(by_id[end].kind is DeviceKind.NVSWITCH for end in ends))
    gap = fields.number("gap_us", _MAX_US, positive=False) or Decimal(0)
    link = Link(ends[0], ends[1], fields.data["kind"], _total_GBps(lane, count), float(alpha), float(gap), count)
    return [link, replace(link, src=ends[1], dst=ends[0])] if "between" in fields.data else [link]


def _figures(fields: Fields, touches_nvswitch: bool) -> tuple[Decimal, Decimal]:
    """(GB/s of one lane, alpha in us) of a link, as written or by default."""
    kind = fields.text("kind")
    if not _LINK_KIND.fullmatch(kind):
        fields.fail("kind", kind, f"a word in small letters such as {', '.join(LINK_KINDS)}")
    gen = None
    if "gen" in fields.data:
        gen = fields.data["gen"]
        known = generations(kind)
        if isinstance(gen, bool) or not isinstance(gen, int) or gen not in known:
            fields.fail("gen", gen, f"a generation of {kind}: {', '.join(map(str, known)) or 'it has none'}")
    lane = fields.number("GBps", _MAX_GBPS, positive=True)
    alpha = fields.number("alpha_us", _MAX_US, positive=False)
    if lane is not None and alpha is not None:
        return lane, alpha
    default = link_default(kind, gen, touches_nvswitch)
    if default is None:
        fields.fail("kind", kind, f"GBps and alpha_us, or a kind with defaults: {', '.join(LINK_KINDS)}")
    return (
        Decimal(repr(default.GBps)) if lane is None else lane,
        Decimal(repr(default.alpha_us)) if alpha is None else alpha,
    )


def _total_GBps(lane: Decimal, count: int) -> float:
    """Rate of all lanes together, exact before it is rounded to a float."""
    return float(lane * count)


def _kinds(paths: Fields, key: str, default: frozenset[DeviceKind]) -> frozenset[DeviceKind]:
    if key not in paths.data:
        return default
    for position, item in enumerate(paths.items(key)):
        if not isinstance(item, str) or item not in _CROSSABLE:
            paths.fail(f"{key}[{position}]", item, f"one of {', '.join(_CROSSABLE)}")
    return frozenset(DeviceKind(item) for item in paths.data[key])


def _block(key: str, rows: list[str]) -> list[str]:
    if not rows:
        return [f'  "{key}": []']
    return [f'  "{key}": [', *(f"    {row}," for row in rows[:-1]), f"    {rows[-1]}", "  ]"]


def _device_json(device: Device) -> str:
    entry: dict[str, Any] = {"id": device.id, "kind": str(device.kind)}
    if device.rank is not None:
        entry["rank"] = device.rank
    if device.kind is not DeviceKind.NETWORK:
        entry["node"] = device.node
    if device.arch:
        entry["arch"] = device.arch
    return json.dumps(entry, ensure_ascii=False)


def _links_json(links: Iterable[Link]) -> list[str]:
    """One entry for each link, one for two where a link and its mirror image follow each other."""
    rows: list[str] = []
    pending: Link | None = None
    for link in links:
        if pending is None:
            pending = link
        elif link == replace(pending, src=pending.dst, dst=pending.src):
            rows.append(_link_json(pending, f'"between": [{_string(pending.src)}, {_string(pending.dst)}]'))
            pending = None
        else:
            rows.append(_link_json(pending, f'"from": {_string(pending.src)}, "to": {_string(pending.dst)}'))
            pending = link
    if pending is not None:
        rows.append(_link_json(pending, f'"from": {_string(pending.src)}, "to": {_string(pending.dst)}'))
    return rows


def _link_json(link: Link, ends: str) -> str:
    count = f', "count": {link.count}' if link.count != 1 else ""
    gap = f', "gap_us": {link.gap_us!r}' if link.gap_us else ""
    rate = f'"GBps": {_lane_text(link)}, "alpha_us": {link.alpha_us!r}'
    return f'{{{ends}, "kind": {_string(link.kind)}{count}, {rate}{gap}}}'


def _lane_text(link: Link) -> str:
    """The shortest spelling of one lane's rate that gives the link's rate again; more digits where a float's do not."""
    text = repr(link.GBps / link.count)
    if _total_GBps(Decimal(text), link.count) == link.GBps:
        return text
    return str(Decimal(link.GBps) / link.count)


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
