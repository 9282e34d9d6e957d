"""Sums for runtimes that have no step that receives and adds (RCCL): a receive, then a `re` on the same rank.

`re` adds its source to its destination, so one of the two summands has to lie where the sum goes. A receive writes over
what is there, so it may go there only where the rank's own value is elsewhere, however the file is called.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from enum import Enum

from synth.lowering.buffers import Layout
from synth.lowering.messages import Message
from synth.lowering.order import Order


class Sum(Enum):
    """Where a contribution is received and where its sum with the rank's value goes."""

    SCRATCH = "received in scratch, where the rank's value is added to it"
    RESULT = "received where the result goes, where the rank's value is added to it"
    ONTO_RESULT = "received in scratch, and added to the rank's value where the result goes"


def plan_sums(layouts: Sequence[Layout], messages: list[Message], order: Order) -> dict[tuple[int, int], Sum]:
    """By (message index, chunk), for every contribution; `layouts` are all ways to call the file, its own names first.

    What a rank sends on is summed up in scratch, which is nobody's buffer. What ends on the rank is written to its
    output by the last contribution; the only one there is, where the input lies there too, is added to a copy of that.
    """
    copied = {
        (message.received.rank, chunk)
        for message in messages
        if not message.reduce
        for chunk in message.received.chunks
    }
    contributions: dict[tuple[int, int], list[int]] = defaultdict(list)
    for message in sorted(messages, key=lambda message: order.pop_at[message.index]):
        for chunk in message.received.chunks if message.reduce else ():
            contributions[message.received.rank, chunk].append(message.index)
    plan: dict[tuple[int, int], Sum] = {}
    for (rank, chunk), indices in contributions.items():
        source, there = layouts[0].source(rank, chunk), layouts[0].destination(rank, chunk)
        if there is None or source is None or (rank, chunk) in copied:
            kinds = [Sum.SCRATCH] * len(indices)
        elif source == there:
            kinds = [Sum.ONTO_RESULT] * len(indices)
        else:
            shared = any(layout.canonical(rank, source) == layout.canonical(rank, there) for layout in layouts)
            alone = shared and len(indices) == 1
            kinds = [Sum.SCRATCH] * (len(indices) - 1) + [Sum.ONTO_RESULT if alone else Sum.RESULT]
        plan.update({(index, chunk): kind for index, kind in zip(indices, kinds, strict=True)})
    return plan
