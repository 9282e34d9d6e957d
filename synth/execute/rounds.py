"""A program as rounds, for backends whose messages have an order instead of tags (NCCL).

NCCL matches the sends and receives between two ranks in the order in which they are issued, and a send that nobody receives stops
everything behind it. So the order is fixed beforehand: the program is walked through without time or data, round after round. A
round begins with messages: of every threadblock that has come to a send and whose connection has a free slot. All of them
travel together, as one group on every rank. Then every threadblock does what it can until it has to send or to wait. All
ranks work out the same rounds from the same program, so that both ends of every message agree on its round and, within it, on
the order (by connection); a group waits for no message of a later one. So it cannot deadlock unless the algorithm does, which shows
here, before anything runs. What the algorithm does side by side shares a round, whatever its threadblocks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from synth.execute.errors import HangError
from synth.execute.program import Block, Operation, Program


class Act(NamedTuple):
    """One part of an operation in one tile of a rank's threadblock; `slot` of its receive connection holds its message, if any."""

    block: int
    operation: int
    part: int
    tile: int
    slot: int


class Receive(NamedTuple):
    """A message into `slot` of `connection`, as many elements as `sender` (an act of the other rank) moves."""

    connection: int
    slot: int
    sender: Act


class Send(NamedTuple):
    """A message on `connection`: the source of an `s`, the message of a fused step."""

    connection: int
    act: Act


@dataclass(slots=True)
class Round:
    """What one rank does: all messages of the round at once, by connection; then its acts in order."""

    sends: list[Send] = field(default_factory=list)
    receives: list[Receive] = field(default_factory=list)
    acts: list[Act] = field(default_factory=list)


@dataclass(slots=True)
class _Walker:
    """How far a threadblock is."""

    rank: int
    number: int
    block: Block
    tile: int = 0
    operation: int = 0
    part: int = 0
    flag: int = 0
    taken: int = 0
    """messages that it is done with"""
    sending: Act | None = None

    @property
    def doing(self) -> Operation:
        return self.block.operations[self.operation]


def plan_rounds(program: Program, tiles: int) -> list[list[Round]]:
    """The rounds of every rank for a program of so many tiles; all ranks have equally many.

    Raises HangError with who waits for what where the algorithm waits for itself.
    """
    return _Planner(program, tiles).plan()


class _Planner:
    def __init__(self, program: Program, tiles: int) -> None:
        self.program, self.tiles = program, tiles
        self.ranks = [
            [_Walker(rank, number, block) for number, block in enumerate(blocks)]
            for rank, blocks in enumerate(program.ranks)
        ]
        size = len(program.connections)
        self.reserved, self.arrived, self.freed = [0] * size, [0] * size, [0] * size
        self.rounds: list[list[Round]] = [[] for _ in program.ranks]

    def plan(self) -> list[list[Round]]:
        self._open_round()
        self._settle()
        while sending := [walker for rank in self.ranks for walker in rank if walker.sending is not None]:
            self._open_round()
            self._exchange(sending)
            self._settle()
        stuck = [walker for rank in self.ranks for walker in rank if not self._over(walker)]
        if stuck:
            raise HangError(0, [self._told(walker) for walker in stuck])
        return self.rounds

    def _open_round(self) -> None:
        for rounds in self.rounds:
            rounds.append(Round())

    def _over(self, walker: _Walker) -> bool:
        return not walker.block.operations or walker.tile == self.tiles

    def _settle(self) -> None:
        """Let every threadblock do what it can without a message: until nobody can do any more."""
        moved = True
        while moved:
            moved = False
            for rank in self.ranks:
                for walker in rank:
                    while self._step(walker):
                        moved = True

    def _step(self, walker: _Walker) -> bool:
        """One part, if it can be done now, or be left to the next round's messages."""
        if self._over(walker) or walker.sending is not None or self._waits_for(walker) is not None:
            return False
        kind, recv, send = walker.doing.type, walker.block.recv, walker.block.send
        slot = walker.taken % self.program.slots if kind.receives else -1
        act = Act(walker.number, walker.operation, walker.part, walker.tile, slot)
        if kind.receives or not kind.sends:
            self.rounds[walker.rank][-1].acts.append(act)
        if kind.sends:
            self.reserved[send] += 1
            walker.sending = act
            return True
        if kind.receives:
            walker.taken += 1
            self.freed[recv] += 1
        self._advance(walker)
        return True

    def _waits_for(self, walker: _Walker) -> str | None:
        """What keeps the threadblock from its next part."""
        operation = walker.doing
        if walker.part == 0:
            for wait in operation.waits:
                awaited = self.ranks[walker.rank][wait.block]
                if awaited.flag < walker.tile * awaited.block.stride + wait.step + 1:
                    return f"the flag of tb {awaited.block.tb} step {wait.step}"
        recv, send = walker.block.recv, walker.block.send
        if operation.type.receives and self.arrived[recv] <= walker.taken:
            return f"data of gpu {self.program.connections[recv].src}"
        if operation.type.sends and self.reserved[send] - self.freed[send] >= self.program.slots:
            return f"room towards gpu {self.program.connections[send].dst}"
        return None

    def _exchange(self, sending: list[_Walker]) -> None:
        for walker in sorted(sending, key=lambda one: one.block.send):
            connection, act = walker.block.send, walker.sending
            assert act is not None
            slot = self.arrived[connection] % self.program.slots
            self.rounds[walker.rank][-1].sends.append(Send(connection, act))
            there = self.program.connections[connection].dst
            self.rounds[there][-1].receives.append(Receive(connection, slot, act))
            self.arrived[connection] += 1
            if walker.doing.type.receives:
                walker.taken += 1
                self.freed[walker.block.recv] += 1
            walker.sending = None
            self._advance(walker)

    def _advance(self, walker: _Walker) -> None:
        operation = walker.doing
        walker.part += 1
        if walker.part < len(operation.parts):
            return
        if operation.publishes:
            walker.flag = walker.tile * walker.block.stride + operation.step + 1
        walker.part = 0
        walker.operation += 1
        if walker.operation == len(walker.block.operations):
            walker.operation, walker.tile = 0, walker.tile + 1

    def _told(self, walker: _Walker) -> str:
        where = f" tile {walker.tile}" if self.tiles > 1 else ""
        step = f"step {walker.doing.step} ({walker.doing.type}){where}"
        return f"gpu {walker.rank} tb {walker.block.tb} {step} waits for {self._waits_for(walker)}"
