"""The discrete-event engine: threadblocks run their programs tile after tile against bounded connections and shared links.

An operation moves its transfer in slices. A slice that is sent is a flow (fluid.py) that holds its threadblock until it is out; the
receiver sees it one hop latency after that, and its place in the connection is free again for the sender one wire latency after
the receiver is done with it. Everything else takes a threadblock its own rate. Events are ordered by (time, number), so equal
inputs give equal runs. Runs over many equal tiles are cut short once they repeat themselves (cycle.py).
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from heapq import heappop, heappush
from typing import NamedTuple

from synth.constants import ProtocolConstants
from synth.errors import EffortError
from synth.simulate.cycle import Cycle
from synth.simulate.fluid import Fluid
from synth.simulate.hang import explain_hang
from synth.simulate.moves import DATA, IDLE, MOVING, NOTHING, READY, ROOM, pieces_of
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

    `trace` keeps up to so many `activities` and ends the run there (`cut`); `full` simulates every tile one by one; `most_events`
    is how many there may be, and how often flows may get new rates, all together.
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
        most_events: int | None = None,
    ) -> None:
        self.program = program
        self.most_events = math.inf if most_events is None else most_events
        self.step_us = constants.step_us
        blocks, size, links = program.blocks, len(program.blocks), len(program.connections)
        #: By threadblock where it is: the tile, the operation and the slice of that tile, the operations that are done in all.
        self.tile, self.index, self.slice, self.done, self.phase = ([0] * size for _ in range(5))
        self.began, self.wake_us = [0.0] * size, [0.0] * size
        self.length = [len(block.operations) for block in blocks]
        self.waits = [[operation.waits for operation in block.operations] for block in blocks]
        #: The slices of the tile that each threadblock is at, and of the last one.
        self._last = pieces_of(program, constants, program.last_bytes)
        self.pieces = self._last if program.tiles == 1 else pieces_of(program, constants, program.tile_bytes)
        rate = constants.rate_GBps * 1e3 / constants.wire
        paths = [routes[block.send].links if block.send >= 0 else () for block in blocks]
        self.fluid = Fluid(capacity_bytes_per_us, paths, [rate] * size)
        #: The number and the time of the last event that was set for each block.
        self.expected, self.due_us = [-1] * size, [0.0] * size
        #: By connection when slices and slots are there; the last is of threadblocks that have none.
        self.arrivals: list[deque[float]] = [deque() for _ in range(links + 1)]
        self.credits = [deque([0.0] * (constants.in_flight * constants.slots)) for _ in range(links + 1)]
        self._connect([*routes, Route((), 0.0, 0.0)])
        self.flag_waiters: dict[int, list[int]] = defaultdict(list)
        self.events: list[tuple[float, int, int]] = []
        self.count = 0
        self.now = self.horizon = 0.0
        self.trace = trace
        self.cut = False
        self.activities: list[Activity] = []
        self.cycle = None if full or trace else Cycle.of(self)
        self.steps_done = 0

    def _connect(self, routes: list[Route]) -> None:
        """By threadblock what its slices need of its connections, so that none has to look for it."""
        blocks = self.program.blocks
        nobody = len(blocks)
        senders = {block.send: number for number, block in enumerate(blocks)}
        receivers = {block.recv: number for number, block in enumerate(blocks)}
        #: Who sends what it receives, and who receives what it sends.
        self.source = [senders.get(block.recv, nobody) for block in blocks]
        self.target = [receivers.get(block.send, nobody) for block in blocks]
        #: What it waits for, if for one of these; nobody waits for anything.
        self.lacks = [NOTHING] * (nobody + 1)
        #: What comes in and the room that this leaves, what goes out and the room that there is for it.
        self.inbound, self.freed = (
            [queues[block.recv] for block in blocks] for queues in (self.arrivals, self.credits)
        )
        self.outbound, self.room = (
            [queues[block.send] for block in blocks] for queues in (self.arrivals, self.credits)
        )
        self.latency = [routes[block.send].latency_us for block in blocks]
        self.credit = [routes[block.recv].credit_us for block in blocks]

    def run(self) -> float:
        """Microseconds until everything is done.

        Raises NoAnswerError, saying who waits for what, where nothing can go on; EffortError where `most_events` do not do.
        """
        for block in range(len(self.program.blocks)):
            self._go(block)
        self._settle()
        events, expected, wake_us, phase = self.events, self.expected, self.wake_us, self.phase
        while events and not self.cut:
            time_us, number, block = heappop(events)
            if expected[block] != number:
                continue
            self.now = max(self.now, time_us)
            horizon = self.horizon = self.now * (1 + _MOMENT)
            while True:
                if expected[block] == number:
                    if phase[block] == MOVING and wake_us[block] > horizon:
                        self._at(wake_us[block], block)
                    # Its slice ends, or what the next one needs is there.
                    elif phase[block] != MOVING or self._finish_slice(block):
                        self._look(block)
                if not events or events[0][0] > horizon:
                    break
                _, number, block = heappop(events)
            self._settle()
            if max(self.count, self.fluid.touched) > self.most_events:
                raise EffortError(
                    f"simulation: {self.count} events, {self.fluid.touched} new rates up to {self.now:.1f} us, "
                    f"{self.most_events} allowed"
                )
            if self.cycle is not None and self.cycle.due:
                self.cycle.look(self)
        if not self.cut:
            explain_hang(self)
        return self.now

    def _settle(self) -> None:
        """Have every block whose slice ends at another time than was thought looked at then: what ends later is looked at when it
        was to end, as it may be sooner again until then.
        """
        wake_us, due_us, horizon = self.wake_us, self.due_us, self.horizon
        for block, end_us in self.fluid.settle(self.now).items():
            if horizon < due_us[block] <= end_us:
                wake_us[block] = end_us
            else:
                self._at(end_us, block)

    def _at(self, time_us: float, block: int) -> None:
        """Look at the block again then. It replaces what was set before: the end of a flow moves as its rate changes."""
        self.count += 1
        self.expected[block] = self.count
        self.wake_us[block] = self.due_us[block] = time_us
        heappush(self.events, (time_us, self.count, block))

    def _go(self, block: int) -> None:
        """Begin the block's next operation, or leave the block with whatever that waits for."""
        if self._begins(block):
            self._look(block)

    def _begins(self, block: int) -> bool:
        """Begin the block's next operation, if it has one and all flags are there that this waits for."""
        tile = self.tile[block]
        if tile >= self.program.tiles or not self.length[block]:
            return False
        for producer, operations in self.waits[block][self.index[block]]:
            if self.done[producer] < tile * self.length[producer] + operations:
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
        work, take, _, sends, receives, _ = self.pieces[block][self.slice[block]]
        at_us = self.wake_us[block]
        if receives:
            queue = self.inbound[block]
            if not queue:
                self.lacks[block] = DATA
                return
            if queue[0] > at_us:
                at_us = queue[0]
        if not sends:
            self.phase[block] = MOVING
            self._at(at_us + work, block)
            return
        room = self.room[block]
        if take:
            if len(room) < take:
                self.lacks[block] = ROOM
                return
            if room[take - 1] > at_us:
                at_us = room[take - 1]
        if at_us > self.horizon:
            self._at(at_us, block)
            return
        self.phase[block] = MOVING
        for _ in range(take):
            room.popleft()
        self.fluid.start(block, work, self.now)

    def _finish_slice(self, block: int) -> bool:
        """The block's slice ends; whether the block is ready for another one."""
        _, _, give, sends, receives, ends = self.pieces[block][self.slice[block]]
        if receives:
            self.inbound[block].popleft()
            if give:
                source, back_us = self.source[block], self.now + self.credit[block]
                self.freed[block].extend((back_us,) * give)
                if self.lacks[source] == ROOM:
                    self.lacks[source] = NOTHING
                    self._look(source)
        if sends:
            self.fluid.stop(block)
            target = self.target[block]
            self.outbound[block].append(self.now + self.latency[block])
            if self.lacks[target] == DATA:
                self.lacks[target] = NOTHING
                self._look(target)
        self.slice[block] += 1
        self.wake_us[block] = self.now
        if ends:
            self._finish_operation(block)
            return self._begins(block)
        self.phase[block] = READY
        return True

    def _finish_operation(self, block: int) -> None:
        if self.trace:
            self._record(block)
        self.steps_done += 1
        self.phase[block] = IDLE
        self.done[block] += 1
        self.index[block] += 1
        if self.index[block] == self.length[block]:
            self.index[block] = self.slice[block] = 0
            self.tile[block] += 1
            if self.tile[block] == self.program.tiles - 1:
                self.pieces[block] = self._last[block]
            if self.cycle is not None:
                self.cycle.ended(block, self.now)
        if block in self.flag_waiters:
            for waiter in self.flag_waiters.pop(block):
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
