"""The discrete-event engine: threadblocks run their programs tile after tile against bounded connections and shared links.

An operation moves its transfer in slices. A slice that is sent is a flow (fluid.py) that holds its threadblock until it is out; it is
visible to the receiver one hop latency after that, and its place in the connection is free again one hop latency after the receiver
is done with it. Everything else takes a threadblock its own rate. Events are ordered by (time, number), so equal
inputs give equal runs.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from typing import NamedTuple

import numpy as np

from synth.errors import NoAnswerError
from synth.simulate.constants import ProtocolConstants
from synth.simulate.fluid import Fluid
from synth.simulate.program import Program

_VISIBLE, _CREDIT, _WAKE = 0, 1, 2


class Route(NamedTuple):
    """What a connection crosses: links by index, and the latency of one hop over them under the protocol."""

    links: tuple[int, ...]
    latency_us: float


class Activity(NamedTuple):
    """One operation as it was run, for traces."""

    rank: int
    tb: int
    step: int
    tile: int
    start_us: float
    end_us: float


class Engine:
    """One run of a program. `run` gives the time of the last operation; `activities` is filled if `trace` is set."""

    def __init__(
        self,
        program: Program,
        routes: list[Route],
        capacity_bytes_per_us: list[float],
        constants: ProtocolConstants,
        *,
        trace: bool = False,
    ) -> None:
        self.program = program
        self.routes = routes
        self.constants = constants
        self.rate = constants.rate_GBps * 1e3
        self.fluid = Fluid(np.array(capacity_bytes_per_us))
        self.room = constants.in_flight * constants.slices
        size, links = len(program.blocks), len(program.connections)
        self.tile, self.index, self.slice = [0] * size, [0] * size, [0] * size
        self.charged = [False] * size
        self.done = [0] * size
        self.began = [0.0] * size
        self.pushed, self.visible, self.popped, self.freed = ([0] * links for _ in range(4))
        self.receiver, self.sender = [-1] * links, [-1] * links
        self.flag_waiters: dict[int, list[int]] = defaultdict(list)
        self.flows: dict[int, int] = {}
        self.events: list[tuple[float, int, int, int]] = []
        self.count = 0
        self.now = 0.0
        self.trace = trace
        self.activities: list[Activity] = []

    def run(self) -> float:
        """Microseconds until everything is done. Raises NoAnswerError where nothing can go on."""
        for block in range(len(self.program.blocks)):
            self._go(block)
        while self.events or self.flows:
            until_flow = self.fluid.time_to_next_end() if self.flows else float("inf")
            until_event = self.events[0][0] - self.now if self.events else float("inf")
            step = max(0.0, min(until_flow, until_event))
            self.now += step
            for flow in self.fluid.advance(step) if self.flows else ():
                self._finish_slice(self.flows.pop(flow))
            while self.events and self.events[0][0] <= self.now + 1e-12 * self.now:
                _, _, kind, which = heapq.heappop(self.events)
                self._happen(kind, which)
        stuck = [
            b for b in range(len(self.tile)) if self.tile[b] < self.program.tiles and self.program.blocks[b].operations
        ]
        if stuck:
            raise NoAnswerError(self._stuck(stuck))
        return self.now

    def _stuck(self, stuck: list[int]) -> str:
        shown = []
        for block in stuck[:5]:
            where = self.program.blocks[block]
            operation = where.operations[self.index[block]]
            shown.append(
                f"gpu {where.rank} tb {where.tb} step {operation.step} ({operation.type}) tile {self.tile[block]}"
            )
        return f"the algorithm hangs at {self.now:.1f} us: waiting for ever: " + "; ".join(shown)

    def _at(self, delay_us: float, kind: int, which: int) -> None:
        self.count += 1
        heapq.heappush(self.events, (self.now + delay_us, self.count, kind, which))

    def _happen(self, kind: int, which: int) -> None:
        if kind == _VISIBLE:
            self.visible[which] += 1
            self._retry(self.receiver, which)
        elif kind == _CREDIT:
            self.freed[which] += 1
            self._retry(self.sender, which)
        elif self.charged[which]:
            self._finish_slice(which)
        else:
            self.charged[which] = True
            self._go(which)

    def _retry(self, waiting: list[int], connection: int) -> None:
        block = waiting[connection]
        if block >= 0:
            waiting[connection] = -1
            self._go(block)

    def _go(self, block: int) -> None:
        """Start the block's next slice, or leave the block with whatever it has to wait for."""
        where = self.program.blocks[block]
        if self.tile[block] >= self.program.tiles or not where.operations:
            return
        operation = where.operations[self.index[block]]
        if not self.charged[block]:
            for wait in operation.waits:
                if (
                    self.done[wait.tb]
                    < self.tile[block] * len(self.program.blocks[wait.tb].operations) + wait.operations
                ):
                    self.flag_waiters[wait.tb].append(block)
                    return
            self.began[block] = self.now
            self._at(self.constants.step_us, _WAKE, block)
            return
        if operation.type.receives and self.visible[where.recv] <= self.popped[where.recv]:
            self.receiver[where.recv] = block
            return
        if operation.type.sends and self.pushed[where.send] - self.freed[where.send] >= self.room:
            self.sender[where.send] = block
            return
        data = operation.chunks * self.program.bytes_of(self.tile[block]) / self.constants.slices
        if operation.type.sends:
            self.pushed[where.send] += 1
            wire = data / self.constants.wire
            flow = self.fluid.start(self.routes[where.send].links, max(wire, 1e-6), self.rate / self.constants.wire)
            self.flows[flow] = block
        else:
            self._at(data / self.rate, _WAKE, block)

    def _finish_slice(self, block: int) -> None:
        where = self.program.blocks[block]
        operation = where.operations[self.index[block]]
        if operation.type.receives:
            self.popped[where.recv] += 1
            self._at(self.routes[where.recv].latency_us, _CREDIT, where.recv)
        if operation.type.sends:
            self._at(self.routes[where.send].latency_us, _VISIBLE, where.send)
        self.slice[block] += 1
        if self.slice[block] == self.constants.slices:
            self._finish_operation(block, where.rank, where.tb, operation.step, len(where.operations))
        self._go(block)

    def _finish_operation(self, block: int, rank: int, tb: int, step: int, operations: int) -> None:
        if self.trace:
            self.activities.append(Activity(rank, tb, step, self.tile[block], self.began[block], self.now))
        self.slice[block] = 0
        self.charged[block] = False
        self.done[block] += 1
        self.index[block] += 1
        if self.index[block] == operations:
            self.index[block] = 0
            self.tile[block] += 1
        for waiter in self.flag_waiters.pop(block, []):
            self._go(waiter)
