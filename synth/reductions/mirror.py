"""Machines that look the same in both directions: what routes a broadcast there also routes it backwards.

Full-duplex machines are their own reversal: every link has a twin that leads back with the same figures, and every path a twin
over the twins of its links. There, a solution of the machine is one of the reversed machine as it stands, on twin paths.
"""

from __future__ import annotations

from synth.instance import Instance
from synth.ir import Routing, Schedule, Transfer
from synth.paths import ways_back


def twin_paths(instance: Instance) -> tuple[int, ...] | None:
    """For each path the path that goes back over the twins of its links; None where some link or path has no twin."""
    twins = ways_back(instance.topology, instance.paths)
    return twins if -1 not in twins else None


def mirror_routing(twins: tuple[int, ...], routing: Routing) -> Routing:
    """The same routing on twin paths: for the reversed machine what the given one is for the machine."""
    transfers = tuple(sorted(Transfer(t.chunk, twins[t.path], t.reduce) for t in routing.transfers))
    return Routing(transfers, routing.relaxed_us)


def mirror_schedule(twins: tuple[int, ...], schedule: Schedule) -> Schedule:
    """The same schedule on twin paths."""
    return Schedule(tuple(send._replace(path=twins[send.path]) for send in schedule.sends))
