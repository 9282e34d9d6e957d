"""Collecting devices, links and doubts while a machine description is read; shared by all readers of foreign formats.

A reader says what it finds with the line it finds it on; `Builder.imported` puts the doubts into the order of the file, tells
equal ones once, and makes parallel links of a kind one capacity, as our JSON does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import PurePath

from synth.doubts import Doubt, Imported
from synth.errors import InputError
from synth.inputs.defaults import link_default
from synth.topology import Device, DeviceKind, Link, Topology

#: A description beyond this is not a machine but a mistake (or an attack): no cluster file comes near.
MAX_DEVICES = 20_000
_LAST = 1 << 60


class Builder:
    """A topology in the making; `source` is the file as the user named it."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._devices: dict[str, Device] = {}
        self._links: dict[tuple[str, str, str, float], Link] = {}
        self._doubts: list[tuple[int, int, Doubt]] = []
        self._numbers: dict[str, int] = {}

    def add(self, kind: DeviceKind, name: str, node: int = 0, rank: int | None = None, arch: str = "") -> str:
        """Add a device named `name`, or as close to it as is free (`name.2`, ...); its id."""
        base = printable(name).strip()[:100] or str(kind)
        identity = base
        while identity in self._devices:
            self._numbers[base] = self._numbers.get(base, 1) + 1
            identity = f"{base}.{self._numbers[base]}"
        if len(self._devices) >= MAX_DEVICES:
            raise InputError(self.source, "devices", f"more than {MAX_DEVICES}", "the description of one machine")
        self._devices[identity] = Device(identity, kind, -1 if kind is DeviceKind.NETWORK else node, rank, arch)
        return identity

    def add_numbered(self, kind: DeviceKind, prefix: str, node: int = 0, suffix: str = "") -> str:
        """Add a device named by the next number of its prefix and suffix ("plx0", "plx1", ...); its id."""
        key = f"{prefix}#{suffix}"
        number = self._numbers.get(key, 0)
        self._numbers[key] = number + 1
        return self.add(kind, f"{prefix}{number}{suffix}", node)

    def kind_of(self, identity: str) -> DeviceKind:
        return self._devices[identity].kind

    def link(
        self, src: str, dst: str, kind: str, GBps: float, *, count: int = 1, alpha_us: float | None = None
    ) -> None:
        """Add a one-way link of `count` lanes that carry `GBps` together; `alpha_us` is the kind's default where None."""
        alpha = default_alpha_us(kind, DeviceKind.NVSWITCH in (self.kind_of(src), self.kind_of(dst)))
        key = (src, dst, kind, alpha if alpha_us is None else alpha_us)
        old = self._links.get(key)
        if old is None:
            self._links[key] = Link(src, dst, kind, GBps, key[3], 0.0, count)
        else:
            self._links[key] = replace(old, GBps=old.GBps + GBps, count=old.count + count)

    def between(self, a: str, b: str, kind: str, GBps: float, *, count: int = 1, alpha_us: float | None = None) -> None:
        """Add a link each way."""
        self.link(a, b, kind, GBps, count=count, alpha_us=alpha_us)
        self.link(b, a, kind, GBps, count=count, alpha_us=alpha_us)

    def doubt(self, where: str, what: str, cost: str = "", *, line: int = _LAST) -> None:
        """Say a doubt about `where`, which stands on `line` of the file (no line: on all of it)."""
        self._doubts.append((line, len(self._doubts), Doubt(printable(where), printable(what), cost)))

    def imported(self, about: str) -> Imported:
        """What was read, named after the file."""
        name = PurePath(self.source).stem.strip()[:100]
        topology = Topology(
            name if name and name.isprintable() else "machine",
            tuple(self._devices.values()),
            tuple(self._links.values()),
            about,
        )
        return Imported(topology, told_once(doubt for *_, doubt in sorted(self._doubts)))


def printable(text: str) -> str:
    """The text on one line, with a question mark for what cannot be printed."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def told_once(doubts: Iterable[Doubt]) -> tuple[Doubt, ...]:
    """The doubts, those that say the same of several places as one that names the first of them."""
    places: dict[tuple[str, str], dict[str, None]] = {}
    for doubt in doubts:
        places.setdefault((doubt.what, doubt.cost), {})[doubt.where] = None
    return tuple(
        Doubt(next(iter(wheres)) + (f" and {len(wheres) - 1} more" if len(wheres) > 1 else ""), what, cost)
        for (what, cost), wheres in places.items()
    )


def default_alpha_us(kind: str, touches_nvswitch: bool = False) -> float:
    """The latency in us of one traversal of a kind of link; that of a PCIe hop for kinds without a figure of their own."""
    default = link_default(kind, None, touches_nvswitch) or link_default("pcie", None, False)
    assert default is not None
    return default.alpha_us
