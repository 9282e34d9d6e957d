"""Machines as the interpreter uses them: a path is some connections, each with a threadblock's rate and room for a few transfers.

Cost level 2 knows links. What decides at small and middle sizes is the connection: a message waits until one of the few transfers
in flight has been received, and its threadblock moves so much a microsecond. An interpreted instance says that in the terms of level
2: every path crosses one more link, its own, whose gap is the turn-round of a connection over what it holds (docs/formulation.md,
section 9). Candidates are made and ranked for it; the simulator (level 3) judges.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import replace

from synth.constants import Constants, ProtocolConstants
from synth.instance import Instance, Symmetry
from synth.paths import Path
from synth.protocols import under_protocol
from synth.topology import Link

#: Kind of the links that stand for connections.
CONNECTION = "connection"
_RATES = Constants()
#: GB/s that one threadblock is counted on for, on any GPU: Volta's figures. Newer GPUs' threadblocks move more when all they do is
#: move, but take turns at sending and receiving, so that a link is not kept busy by as few of them as that. LL is chosen where
#: latency rules and more threadblocks do not pay, so it is not given more of them than Simple.
THREADBLOCK_GBPS: dict[str, float] = {
    "Simple": _RATES.simple.rate_GBps,
    "LL": _RATES.simple.rate_GBps,
    "LL128": _RATES.ll128.rate_GBps,
}
#: A share this little above a whole number of threadblocks is rounding of the description, not bandwidth.
_ROUNDING = 1e-6


def channels_needed(instance: Instance, used: Iterable[int], protocol: str) -> dict[int, float]:
    """For every used path, the threadblocks that drive its share of its narrowest link: above 0, not rounded.

    A link that fifteen used paths share gives each a fifteenth.
    """
    paths, rate_GBps = sorted(used), THREADBLOCK_GBPS[protocol]
    users = Counter(link for path in paths for link in instance.paths[path].links)
    links = instance.topology.links
    return {
        path: min(links[link].GBps / users[link] for link in instance.paths[path].links) / rate_GBps - _ROUNDING
        for path in paths
    }


def as_interpreted(
    instance: Instance, protocol: str, used: Collection[int] | None = None, *, instances: int = 1
) -> Instance:
    """The instance with each of the paths `used` (None: all of them), which share the links, as so many connections of a protocol as
    its bandwidth needs, all of that `instances` times, each of which carries its part of every message.

    Links of the instance keep their index; those of the connections follow, one for every path, in their order. Raises InputError
    for a protocol that nobody has.
    """
    constants = Constants.for_topology(instance.topology).of(protocol)
    needed = channels_needed(instance, range(len(instance.paths)) if used is None else used, protocol)
    first = len(instance.topology.links)
    paths = [*under_protocol(instance, protocol, needed).paths]
    for index, threadblocks in needed.items():
        count = max(1, math.ceil(threadblocks))
        paths[index] = _path(paths[index], instance.paths[index].alpha_us, first + index, constants, count, instances)
    links = tuple(Link(_gpu(instance, path.src), _gpu(instance, path.dst), CONNECTION, 1.0, 0.0) for path in paths)
    return replace(
        instance,
        topology=replace(instance.topology, links=(*instance.topology.links, *links)),
        paths=tuple(paths),
        symmetries=tuple(_extended(symmetry, first) for symmetry in instance.symmetries),
        reduce_us_per_byte=1 / (constants.rate_GBps * 1e3 * instances),
    )


def as_described(instance: Instance) -> Instance:
    """An interpreted instance without the links that stand for connections: what is left are rates and shares."""
    links = tuple(link for link in instance.topology.links if link.kind != CONNECTION)
    kept = len(links)
    paths = []
    for path in instance.paths:
        both = [pair for pair in zip(path.links, path.occupancy, strict=True) if pair[0] < kept]
        own = tuple(link for link, _ in both)
        occupied = tuple(occupancy for _, occupancy in both)
        paths.append(replace(path, links=own, occupancy=occupied, message_us_per_byte=0.0))
    symmetries = tuple(replace(symmetry, links=symmetry.links[:kept]) for symmetry in instance.symmetries)
    return replace(
        instance,
        topology=replace(instance.topology, links=links),
        paths=tuple(paths),
        symmetries=symmetries,
        reduce_us_per_byte=0.0,
    )


def _path(path: Path, back_us: float, link: int, protocol: ProtocolConstants, channels: int, instances: int) -> Path:
    """The path with its connections as one more link; `back_us` is what it takes until a sender hears of a receive. Messages take
    turns on the channels; of each, every instance carries a part.

    A message is there no later for being followed closely, so what the gap adds to its latency is taken off alpha.
    """
    turn_us = path.alpha_us + back_us + 2 * protocol.step_us
    gap_us = max(protocol.step_us, turn_us / protocol.in_flight) / channels
    per_byte = 1 / (protocol.rate_GBps * 1e3 * channels * instances)
    return replace(
        path,
        alpha_us=max(0.0, path.alpha_us + protocol.step_us - gap_us),
        links=(*path.links, link),
        occupancy=(*path.occupancy, (gap_us, per_byte)),
        message_us_per_byte=per_byte * channels * (1 + 1 / protocol.slices),
    )


def _gpu(instance: Instance, rank: int) -> str:
    return instance.topology.gpus[rank].id


def _extended(symmetry: Symmetry, first: int) -> Symmetry:
    return replace(symmetry, links=(*symmetry.links, *(first + path for path in symmetry.paths)))
