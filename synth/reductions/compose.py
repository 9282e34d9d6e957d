"""allreduce from two halves: every chunk is reduced at its owner, then broadcast from there (docs/formulation.md, section 8).

The second half of a chunk starts as soon as that chunk is reduced; there is no barrier between the halves.
"""

from __future__ import annotations

from synth.instance import Instance
from synth.ir import Routing, Schedule
from synth.timing import messages_of, retime


def compose_routings(up: Routing, down: Routing) -> Routing:
    """The transfers of both halves; `up` reduces, `down` copies."""
    return Routing(tuple(sorted((*up.transfers, *down.transfers))), up.relaxed_us + down.relaxed_us)


def compose_schedules(instance: Instance, up: Schedule, down: Schedule) -> Schedule:
    """Both schedules one behind the other on every link, each message as early as its chunks and its links allow."""
    return retime(instance, [*messages_of(up), *messages_of(down)])
