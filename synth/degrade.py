"""Machines with something broken or slow: a device gone, a link gone, a link at another rate.

What is changed is named as people say it: `gpu3` or `nic1` for a device, `gpu3-gpu5` for all links between two devices, and
`gpu0-gpu1=10` for their rate in GB/s. The changed machine's name tells, so that its files are not taken for the whole one's.
"""

from __future__ import annotations

import difflib
import math
from dataclasses import replace

from synth.errors import InputError
from synth.topology import DeviceKind, Topology, restrict

WITHOUT, LINK = "--without", "--link"
#: Above this only a mistake of unit lies (as in the topology format).
_MAX_GBPS = 1_000_000


def without(topology: Topology, what: str) -> Topology:
    """The machine without a device and its links, or without the links between two devices (both directions).

    Ranks close up where a GPU goes. Raises InputError (`--without`) for what the machine does not have, naming what is close to
    it, and for its last GPU.
    """
    if what in topology.by_id:
        return _renamed(_without_device(topology, what), f"{topology.name} without {what}")
    ends = _ends(topology, what, WITHOUT)
    links = tuple(link for link in topology.links if {link.src, link.dst} != ends)
    return _renamed(replace(topology, links=links), f"{topology.name} without {what}")


def with_link(topology: Topology, change: str) -> Topology:
    """The machine with the links between two devices at another rate: `gpu0-gpu1=10` is 10 GB/s in all, each way.

    Where several links run side by side, they keep their shares. Raises InputError (`--link`) for what is no rate, and for
    devices that the machine does not have or that no link joins.
    """
    what, equals, text = change.rpartition("=")
    rate = _rate(text)
    if not equals or rate is None:
        raise InputError(LINK, "", change, f"two devices and GB/s above 0, at most {_MAX_GBPS}, such as gpu0-gpu1=10")
    ends = _ends(topology, what, LINK)
    total: dict[str, float] = {}
    for link in topology.links:
        if {link.src, link.dst} == ends:
            total[link.src] = total.get(link.src, 0.0) + link.GBps
    links = tuple(
        replace(link, GBps=rate * (link.GBps / total[link.src])) if {link.src, link.dst} == ends else link
        for link in topology.links
    )
    return _renamed(replace(topology, links=links), f"{topology.name} with {change}")


def _renamed(topology: Topology, name: str) -> Topology:
    return replace(topology, name=name)


def _without_device(topology: Topology, gone: str) -> Topology:
    if topology.by_id[gone].kind is DeviceKind.GPU:
        if topology.num_ranks == 1:
            raise InputError(WITHOUT, "", gone, f"something else than the only GPU of {topology.name}")
        return restrict(topology, [rank for rank, gpu in enumerate(topology.gpus) if gpu.id != gone])
    devices = tuple(device for device in topology.devices if device.id != gone)
    links = tuple(link for link in topology.links if gone not in (link.src, link.dst))
    return replace(topology, devices=devices, links=links)


def _ends(topology: Topology, what: str, option: str) -> set[str]:
    """The two devices that `a-b` names (ids may hold dashes themselves); InputError unless a link joins them."""
    cuts = [(what[:at], what[at + 1 :]) for at, letter in enumerate(what) if letter == "-"]
    known = [cut for cut in cuts if cut[0] in topology.by_id and cut[1] in topology.by_id and cut[0] != cut[1]]
    joined = {frozenset((link.src, link.dst)) for link in topology.links}
    linked = [cut for cut in known if frozenset(cut) in joined]
    if len(linked) == 1:
        return set(linked[0])
    if known:
        raise InputError(option, "", what, _no_link(topology, known[0][0], known[0][1]))
    kinds = "a device, or two devices that a link joins" if option == WITHOUT else "two devices that a link joins"
    raise InputError(option, "", what, f"{kinds}, in {topology.name}{_close(topology, what, cuts, option)}")


def _no_link(topology: Topology, a: str, b: str) -> str:
    near = list(dict.fromkeys(link.dst for link in topology.links if link.src == a))
    return f"a link: none joins {a} and {b}; links of {a} lead to {', '.join(near[:16]) or 'nothing'}"


def _close(topology: Topology, what: str, cuts: list[tuple[str, str]], option: str) -> str:
    """What could have been meant: devices like the name, or links between devices like its two halves."""
    ids = list(topology.by_id)
    pairs = {frozenset((link.src, link.dst)): f"{link.src}-{link.dst}" for link in reversed(topology.links)}
    links = list(reversed(pairs.values()))
    names = ids if option == WITHOUT and not cuts else links
    close = difflib.get_close_matches(what, names, n=3, cutoff=0.5)
    return (
        f" (close to it: {', '.join(close)})" if close else f" ({', '.join(names[:12])}{', ...' * (len(names) > 12)})"
    )


def _rate(text: str) -> float | None:
    try:
        rate = float(text)
    except ValueError:
        return None
    return rate if math.isfinite(rate) and 1e-9 <= rate <= _MAX_GBPS else None
