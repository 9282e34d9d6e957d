"""One finding of a check of a machine's description, and the arithmetic on links that the checks share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from synth.topology import Link, Topology


@dataclass(frozen=True, slots=True)
class Suspicion:
    """What is odd, where, and the machine without the oddity (None where that cannot be told), or its `cost` outright."""

    where: str
    what: str
    mended: Topology | None = None
    cost: str = ""
    between_nodes: bool = False
    """Whether only traffic between boxes can feel it."""


def majority(values: Iterable[float]) -> float | None:
    """The value that more than half of them have; None where none does."""
    counted = Counter(values)
    if not counted:
        return None
    value, count = counted.most_common(1)[0]
    return value if 2 * count > counted.total() else None


def lane_GBps(link: Link) -> float:
    """GB/s of one lane, rounded so that equal lanes are equal whatever their number."""
    return float(f"{link.GBps / link.count:.6g}")


def pairs(topology: Topology) -> dict[tuple[str, str], list[Link]]:
    """The links between every two devices that are joined, both directions, under the first one's (src, dst)."""
    joined: dict[tuple[str, str], list[Link]] = {}
    for link in topology.links:
        there, back = (link.src, link.dst), (link.dst, link.src)
        joined.setdefault(back if back in joined else there, []).append(link)
    return joined


def relinked(topology: Topology, changed: dict[Link, Link], added: Iterable[Link] = ()) -> Topology:
    """The machine with some links replaced and some more."""
    links = tuple(changed.get(link, link) for link in topology.links)
    return replace(topology, links=(*links, *added))


def listed(names: Iterable[str], most: int = 8) -> str:
    """`gpu0, gpu1 and 6 more`."""
    all_names = list(names)
    more = f" and {len(all_names) - most} more" if len(all_names) > most else ""
    return ", ".join(all_names[:most]) + more
