"""Reductions by reversal: a tree that broadcasts a chunk, run backwards, sums it (docs/formulation.md, section 8).

reduce-scatter is allgather backwards on the reversed machine, reduce is broadcast backwards. A schedule turns around in time:
what arrived last leaves first.
"""

from __future__ import annotations

from synth.instance import Instance
from synth.ir import Message, Routing, Schedule, Transfer
from synth.timing import retime


def reverse_routing(routing: Routing) -> Routing:
    """The reducing routing on the machine itself of a broadcasting one on the reversed machine (paths keep their index)."""
    transfers = tuple(sorted(Transfer(t.chunk, t.path, not t.reduce) for t in routing.transfers))
    return Routing(transfers, routing.relaxed_us)


def reverse_messages(schedule: Schedule) -> list[Message]:
    """The schedule's messages backwards, as reductions: by falling time of arrival."""
    backwards = sorted(schedule.sends, key=lambda send: (-send.arrive_us, -send.start_us, send.path, send.chunks))
    return [Message(send.chunks, send.path, not send.reduce) for send in backwards]


def reverse_schedule(instance: Instance, schedule: Schedule) -> Schedule:
    """The reducing schedule on `instance` of a broadcasting schedule on `instance.reversed()`, with exact times."""
    return retime(instance, reverse_messages(schedule))
