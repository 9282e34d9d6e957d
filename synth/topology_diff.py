"""What two descriptions say differently, device by device and link by link; ids tell which is which."""

from __future__ import annotations

from collections import defaultdict

from synth.topology import Device, Link, Topology

#: Rates and latencies nearer than this share are the same figure.
_SAME = 1e-9


def differences(before: Topology, after: Topology) -> tuple[str, ...]:
    """A line for each difference, `-` for what only `before` has, `+` for what only `after` has, `~` for what changed.

    Devices come first, then links, then the rules for paths, each in the order of the files. Names and prose do not count; nor
    does the order of devices and links, or whether parallel links of one kind are one entry or several.
    """
    return (*_devices(before, after), *_links(before, after), *_rules(before, after))


def _devices(before: Topology, after: Topology) -> list[str]:
    lines = [f"- {device.kind} {id_}" for id_, device in before.by_id.items() if id_ not in after.by_id]
    for id_, device in after.by_id.items():
        old = before.by_id.get(id_)
        if old is None:
            lines.append(f"+ {device.kind} {id_}")
        elif old != device:
            lines.append(f"~ {old.kind} {id_}: {', '.join(_changed(old, device))}")
    return lines


def _changed(old: Device, new: Device) -> list[str]:
    """`rank 0 -> 3` for every field that differs."""
    fields = ("kind", "rank", "node", "arch")
    pairs = [(name, getattr(old, name), getattr(new, name)) for name in fields]
    return [f"{name} {_word(a)} -> {_word(b)}" for name, a, b in pairs if a != b]


def _word(value: object) -> str:
    return "none" if value in (None, "") else str(value)


#: Under the two devices and the kind: (GB/s, lanes, alpha in us, gap in us) of all parallel links together.
_Totals = dict[tuple[str, str, str], tuple[float, int, float, float]]


def _links(before: Topology, after: Topology) -> list[str]:
    old, new = _totals(before), _totals(after)
    lines: dict[str, None] = {}
    for key in [*old, *(key for key in new if key not in old)]:
        a, b = old.get(key), new.get(key)
        if a is not None and b is not None and all(_close(x, y) for x, y in zip(a, b, strict=True)):
            continue
        src, dst, kind = key
        mirrored = (dst, src, kind)
        both = old.get(mirrored) == a and new.get(mirrored) == b
        ends = " - ".join(_in_order(before if a else after, src, dst)) if both else f"{src} -> {dst}"
        lines[_line(ends, kind, a, b)] = None
    return list(lines)


def _line(
    ends: str, kind: str, a: tuple[float, int, float, float] | None, b: tuple[float, int, float, float] | None
) -> str:
    if a is None or b is None:
        rate, lanes, alpha, gap = a or b or (0.0, 0, 0.0, 0.0)
        gap_text = f", gap {gap:g} us" if gap else ""
        return f"{'-' if b is None else '+'} {kind} {ends}: {rate:g} GB/s, {_lanes(lanes)}, {alpha:g} us{gap_text}"
    told = []
    if not _close(a[0], b[0]):
        told.append(f"{a[0]:g} -> {b[0]:g} GB/s")
    if a[1] != b[1]:
        told.append(f"{a[1]} -> {_lanes(b[1])}")
    if not _close(a[2], b[2]):
        told.append(f"{a[2]:g} -> {b[2]:g} us")
    if not _close(a[3], b[3]):
        told.append(f"gap {a[3]:g} -> {b[3]:g} us")
    return f"~ {kind} {ends}: {', '.join(told)}"


def _lanes(count: int) -> str:
    return "1 lane" if count == 1 else f"{count} lanes"


def _in_order(topology: Topology, a: str, b: str) -> tuple[str, str]:
    """The two devices as the topology's first link between them names them."""
    first: Link | None = next((link for link in topology.links if {link.src, link.dst} == {a, b}), None)
    return (a, b) if first is None else (first.src, first.dst)


def _totals(topology: Topology) -> _Totals:
    groups: dict[tuple[str, str, str], list[Link]] = defaultdict(list)
    for link in topology.links:
        groups[link.src, link.dst, link.kind].append(link)
    return {
        key: (
            sum(link.GBps for link in links),
            sum(link.count for link in links),
            min(link.alpha_us for link in links),
            min(link.gap_us for link in links),
        )
        for key, links in groups.items()
    }


def _rules(before: Topology, after: Topology) -> list[str]:
    lines = []
    for name in ("relay_through", "fallback"):
        old, new = (sorted(getattr(topology, name)) for topology in (before, after))
        if old != new:
            lines.append(f"~ paths.{name}: {', '.join(old) or 'none'} -> {', '.join(new) or 'none'}")
    return lines


def _close(a: float, b: float) -> bool:
    return abs(a - b) <= _SAME * max(abs(a), abs(b))
