"""Machines that look the same in both directions: what routes a broadcast there also routes it backwards.

Full-duplex machines are their own reversal: every link has a twin that leads back with the same figures, and every path a twin
over the twins of its links. There, a solution of the machine is one of the reversed machine as it stands, on twin paths.
"""

from __future__ import annotations

from collections import defaultdict

from synth.instance import Instance
from synth.ir import Routing, Schedule, Transfer


def twin_paths(instance: Instance) -> tuple[int, ...] | None:
    """For each path the path that goes back over the twins of its links; None where some link or path has no twin."""
    alike: dict[tuple[str, str, str, float, float, float], list[int]] = defaultdict(list)
    links = instance.topology.links
    for index, link in enumerate(links):
        alike[link.src, link.dst, link.kind, link.GBps, link.alpha_us, link.gap_us].append(index)
    twin: dict[int, int] = {}
    for (src, dst, *figures), there in alike.items():
        back = alike.get((dst, src, *figures), [])  # type: ignore[arg-type]
        if len(back) == len(there):
            twin.update(zip(there, back, strict=True))
    by_links = {path.links: path.index for path in instance.paths}
    twins = [by_links.get(tuple(twin.get(link, -1) for link in reversed(path.links)), -1) for path in instance.paths]
    return tuple(twins) if -1 not in twins else None


def mirror_routing(twins: tuple[int, ...], routing: Routing) -> Routing:
    """The same routing on twin paths: for the reversed machine what the given one is for the machine."""
    transfers = tuple(sorted(Transfer(t.chunk, twins[t.path], t.reduce) for t in routing.transfers))
    return Routing(transfers, routing.relaxed_us)


def mirror_schedule(twins: tuple[int, ...], schedule: Schedule) -> Schedule:
    """The same schedule on twin paths."""
    return Schedule(tuple(send._replace(path=twins[send.path]) for send in schedule.sends))
