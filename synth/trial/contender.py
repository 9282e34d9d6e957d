"""What stands trial: a candidate's schedule under a protocol in one shape."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Contender:
    """The candidate at `position` in the shape of so many channels a path (0: what its bandwidth needs) and instances.

    `up_to_bytes` is the largest buffer that its program is for (None: all that the candidate serves): where messages of larger ones
    would fill their connections, threadblocks part that need not for these. `otherwise` says whether it is on many threadblocks of
    few steps each where it would be on few of many steps, or the other way round.
    """

    position: int
    channels: int = 0
    instances: int = 1
    up_to_bytes: int | None = None
    otherwise: bool = False


#: Which contenders to simulate at which sizes, in bytes.
Runs = dict[Contender, list[int]]
