"""The discrete-event engine: threadblocks run their programs tile after tile against bounded connections and shared links.

An operation moves its transfer in slices. A slice that is sent is a flow (fluid.py) that holds its threadblock until it is out; the
receiver sees it one hop latency after that, and its place in the connection is free again for the sender one wire latency after
the receiver is done with it. Everything else takes a threadblock its own rate. Events are ordered by (time, number), so equal
inputs give equal runs. Runs over many equal tiles are cut short once they repeat themselves (cycle.py).
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from typing import NamedTuple

from synth.constants import ProtocolConstants
from synth.simulate.cycle import Cycle
from synth.simulate.fluid import Fluid
from synth.simulate.hang import explain_hang
from synth.simulate.moves import IDLE, MOVING, READY, Piece, moves_of
from synth.simulate.program import Program

#: Events this close together (a share of the time that has passed) are one moment: equal sums that were rounded differently.
_MOMENT = 1e-10


class Route(NamedTuple):
    """What a connection crosses: links by index; how long a slice takes to be seen after it is out; and its credit to come back."""

    links: tuple[int, ...]
    latency_us: float
    credit_us: float


class Activity(NamedTuple):
    """One operation as it was run, for traces: a step's, or one transfer of it where its count takes several."""

    rank: int
    tb: int
    step: int
    tile: int
    start_us: float
    end_us: float


class Engine:
    """One run of a program. `run` gives the time of the last operation.

    `trace` keeps up to so many `activities` and ends the run there (`cut`); `full` simulates every tile one by one.
    """

    def __init__(
        self,
        program: Program,
        routes: list[Route],
        capacity_bytes_per_us: list[float],
        constants: ProtocolConstants,
        *,
        trace: int = 0,
        full: bool = False,
    ) -> None:
        self.program = program
        self.step_us = constants.step_us
        size, links = len(program.blocks), len(program.connections)
        self.tile, self.index, self.slice, self.phase = ([0] * size for _ in range(4))
        self.done = [0] * size
        self.began, self.wake_us = [0.0] * size, [0.0] * size
        self.operations = [block.operations for block in program.blocks]
        self.moves = moves_of(program, constants)
        #: By threadblock, the slices of every operation in the tile that it is at.
        self.cuts = [[move.last if program.tiles == 1 else move.full for move in moves] for moves in self.moves]
        self.latency = [route.latency_us for route in routes]
        self.credit = [route.credit_us for route in routes]
        self.sends = [block.send for block in program.blocks]
        self.recvs = [block.recv for block in program.blocks]
        rate = constants.rate_GBps * 1e3 / constants.wire
        paths = [routes[send].links if send >= 0 else () for send in self.sends]
        self.fluid = Fluid(capacity_bytes_per_us, paths, [rate] * size)
        self.expected = [-1] * size
        self.arrivals: list[deque[float]] = [deque() for _ in range(links)]
        self.credits = [deque([0.0] * (constants.in_flight * constants.slots)) for _ in range(links)]
        self.receiver, self.sender = [-1] * links, [-1] * links
        self.flag_waiters: dict[int, list[int]] = defaultdict(list)
        self.events: list[tuple[float, int, int]] = []
        self.count = 0
        self.now = self.horizon = 0.0
        self.trace = trace
        self.cut = False
        self.activities: list[Activity] = []
        self.cycle = None if full or trace else Cycle.of(self)
        self.steps_done = 0

    def run(self) -> float:
        """Microseconds until everything is done. Raises NoAnswerError, saying who waits for what, where nothing can go on."""
        for block in range(len(self.program.blocks)):
            self._go(block)
        self._settle()
        events, expected = self.events, self.expected
        while events and not self.cut:
            time_us, number, block = heapq.heappop(events)
            if expected[block] != number:
                continue
            self.now = max(self.now, time_us)
            self.horizon = self.now * (1 + _MOMENT)
            self._happen(block)
            while events and events[0][0] <= self.horizon:
                _, number, block = heapq.heappop(events)
                if expected[block] == number:
                    self._happen(block)
            self._settle()
            if self.cycle is not None and self.cycle.due:
                self.cycle.look(self)
        if not self.cut:
            explain_hang(self)
        return self.now

    def _settle(self) -> None:
        fluid = self.fluid
        for block in fluid.settle(self.now):
            self._at(fluid.end_us(block), block)

    def _at(self, time_us: float, block: int) -> None:
        """Look at the block again then. It replaces what was set before: the end of a flow moves as its rate changes."""
        self.count += 1
        self.expected[block] = self.count
        self.wake_us[block] = time_us
        heapq.heappush(self.events, (time_us, self.count, block))

    def _happen(self, block: int) -> None:
        if self.phase[block] == MOVING:
            self._finish_slice(block)
        if self.phase[block] == READY or self._begins(block):
            self._look(block)

    def _go(self, block: int) -> None:
        """Begin the block's next operation, or leave the block with whatever that waits for."""
        if self._begins(block):
            self._look(block)

    def _begins(self, block: int) -> bool:
        """Begin the block's next operation, if it has one and all flags are there that this waits for."""
        tile, program = self.tile[block], self.operations[block]
        if tile >= self.program.tiles or not program:
            return False
        for producer, operations in program[self.index[block]].waits:
            if self.done[producer] < tile * len(self.moves[producer]) + operations:
                self.flag_waiters[producer].append(block)
                return False
        self.phase[block] = READY
        self.began[block] = self.now
        self.wake_us[block] = self.now + self.step_us
        return True

    def _look(self, block: int) -> None:
        """Start the block's next slice if all that it needs is there; else have it woken when it is, as soon as that is known: what
        is there for a block nobody else takes. A slice that is not sent ends when it does, whatever others do.
        """
        index = self.index[block]
        sends, receives, _, _ = self.moves[block][index]
        piece = self.cuts[block][index][self.slice[block]]
        at_us = self.wake_us[block]
        if receives:
            connection = self.recvs[block]
            queue = self.arrivals[connection]
            if not queue:
                self.receiver[connection] = block
                return
            at_us = max(at_us, queue[0])
        if sends and piece.take:
            connection = self.sends[block]
            queue = self.credits[connection]
            if len(queue) < piece.take:
                self.sender[connection] = block
                return
            at_us = max(at_us, queue[piece.take - 1])
        if not sends:
            self.phase[block] = MOVING
            self._at(at_us + piece.work, block)
        elif at_us > self.horizon:
            self._at(at_us, block)
        else:
            self._send(block, piece)

    def _send(self, block: int, piece: Piece) -> None:
        """Start to send the block's next slice, for which there is room."""
        self.phase[block] = MOVING
        queue = self.credits[self.sends[block]]
        for _ in range(piece.take):
            queue.popleft()
        self.fluid.start(block, piece.work, self.now)

    def _finish_slice(self, block: int) -> None:
        index = self.index[block]
        move, pieces = self.moves[block][index], self.cuts[block][index]
        if move.receives:
            connection = self.recvs[block]
            self.arrivals[connection].popleft()
            give = pieces[self.slice[block]].give
            if give:
                back = self.now + self.credit[connection]
                self._hand_over(self.credits[connection], self.sender, connection, back, give)
        if move.sends:
            self.fluid.stop(block)
            connection = self.sends[block]
            there = self.now + self.latency[connection]
            self._hand_over(self.arrivals[connection], self.receiver, connection, there, 1)
        self.phase[block] = READY
        self.wake_us[block] = self.now
        self.slice[block] += 1
        if self.slice[block] == len(pieces):
            self._finish_operation(block)

    def _hand_over(self, queue: deque[float], waiting: list[int], connection: int, time_us: float, number: int) -> None:
        """Put so many slices or slots in a queue, there from `time_us` on, and wake who waits for them then."""
        for _ in range(number):
            queue.append(time_us)
        block = waiting[connection]
        if block >= 0:
            waiting[connection] = -1
            self._look(block)

    def _finish_operation(self, block: int) -> None:
        if self.trace:
            self._record(block)
        self.steps_done += 1
        self.slice[block] = 0
        self.phase[block] = IDLE
        self.done[block] += 1
        self.index[block] += 1
        if self.index[block] == len(self.moves[block]):
            self.index[block] = 0
            self.tile[block] += 1
            if self.tile[block] == self.program.tiles - 1:
                self.cuts[block] = [move.last for move in self.moves[block]]
            if self.cycle is not None:
                self.cycle.ended(block, self.now)
        for waiter in self.flag_waiters.pop(block, ()):
            self._go(waiter)

    def ask_again(self) -> None:
        """Have every threadblock that waits for a flag look at it once more: it may have been leapt over."""
        waiting, self.flag_waiters = self.flag_waiters, defaultdict(list)
        for blocks in waiting.values():
            for block in blocks:
                self._go(block)

    def _record(self, block: int) -> None:
        if len(self.activities) >= self.trace:
            self.cut = True
            return
        where = self.program.blocks[block]
        step = where.operations[self.index[block]].step
        self.activities.append(Activity(where.rank, where.tb, step, self.tile[block], self.began[block], self.now))
