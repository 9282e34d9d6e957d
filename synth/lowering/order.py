"""One global order of all pushes and pops, from which every threadblock's program order is taken.

A push stands at its message's start, a pop at its arrival, moved only as far as causes demand: data that a push
forwards has been popped, a connection is first in first out at both ends, and it holds few transfers. Threadblocks that
follow one such order never wait in a circle, whatever connections they own (steps longer than a FIFO and fused steps
aside: deadlock.py).
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

from synth.errors import CheckError
from synth.ir import causes_by_ends
from synth.lowering.messages import Connection, Message


@dataclass(frozen=True, slots=True)
class Order:
    """Positions in the global order by message index; `events` lists (message index, whether it is the pop)."""

    events: tuple[tuple[int, bool], ...]
    push_at: tuple[int, ...]
    pop_at: tuple[int, ...]


def global_order(messages: list[Message], capacity: int) -> Order:
    """The causal order of all pushes and pops nearest to the schedule's times; `capacity` is in transfers."""
    nodes = 2 * len(messages)
    edges = _edges(messages, capacity)
    events = sorted(range(nodes), key=lambda node: _priority(messages, node))
    place_of = _places(events)
    if any(place_of[first] > place_of[then] for first, then in edges):
        events = _causal(events, place_of, edges)
    if len(events) < nodes:
        stuck = tuple(messages[node // 2] for node in sorted(set(range(0, nodes, 2)).difference(events)))
        raise CheckError("lowering", "messages forward each other in a circle", stuck)
    position = _places(events)
    return Order(tuple((node // 2, node % 2 == 1) for node in events), tuple(position[0::2]), tuple(position[1::2]))


def _causal(wanted: list[int], place_of: list[int], edges: list[tuple[int, int]]) -> list[int]:
    """The nodes in the wanted order, moved behind those that they wait for; without those that wait in a circle."""
    after: list[list[int]] = [[] for _ in wanted]
    waits = [0] * len(wanted)
    for first, then in edges:
        after[first].append(then)
        waits[then] += 1
    ready = [place for place, node in enumerate(wanted) if not waits[node]]  # ascending, so it is a heap
    events: list[int] = []
    while ready:
        node = wanted[heapq.heappop(ready)]
        events.append(node)
        for then in after[node]:
            waits[then] -= 1
            if not waits[then]:
                heapq.heappush(ready, place_of[then])
    return events


def _places(events: list[int]) -> list[int]:
    """By node its place."""
    places = [0] * len(events)
    for place, node in enumerate(events):
        places[node] = place
    return places


def order_as_sent(order: Order) -> Order:
    """The same pushes in the same order, every one followed at once by its pop.

    In this order nothing waits for a message that is sent later, so separate threadblocks for sends and receives cannot
    wait in a circle even where messages are longer than a connection holds: the way out where the timed order leads to one.
    """
    sent = sorted(range(len(order.push_at)), key=lambda index: order.push_at[index])
    place = {index: 2 * number for number, index in enumerate(sent)}
    events = tuple((index, pop) for index in sent for pop in (False, True))
    indices = range(len(sent))
    return Order(events, tuple(place[index] for index in indices), tuple(place[index] + 1 for index in indices))


def _priority(messages: list[Message], node: int) -> tuple[float, int, int, int]:
    """At one moment, what arrives comes before what leaves."""
    message, pop = messages[node // 2], node % 2
    return (message.arrive_us if pop else message.start_us, 1 - pop, message.index, node)


def _edges(messages: list[Message], capacity: int) -> list[tuple[int, int]]:
    """Pairs (earlier, later) of nodes; node 2m is the push of message m, 2m + 1 its pop."""
    edges = [(2 * message.index, 2 * message.index + 1) for message in messages]
    for message, before in zip(messages, causes_by_ends([message.ends for message in messages]), strict=True):
        edges += [(2 * earlier + 1, 2 * message.index) for earlier in before]
    connections: dict[Connection, list[Message]] = defaultdict(list)
    for message in messages:
        connections[message.connection].append(message)
    for queue in connections.values():
        for earlier, later in pairwise(queue):
            edges += [(2 * earlier.index, 2 * later.index), (2 * earlier.index + 1, 2 * later.index + 1)]
        edges += _capacity_edges(queue, capacity)
    return edges


def _capacity_edges(queue: list[Message], capacity: int) -> list[tuple[int, int]]:
    """The last transfer of a push needs the slot of the transfer `capacity` before it, unless that is its own."""
    owner = [message.index for message in queue for _ in message.sent.chunks]
    edges = []
    end = 0
    for message in queue:
        end += len(message.sent.chunks)
        freed = end - 1 - capacity
        if freed >= 0 and owner[freed] != message.index:
            edges.append((2 * owner[freed] + 1, 2 * message.index))
    return edges
