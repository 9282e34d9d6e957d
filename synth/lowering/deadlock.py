"""Would the threadblocks wait for each other for ever, and which of them to split if so.

A run of one tile decides: connections hold few transfers, a step of n chunks makes n of them where buffers are large, fewer where
several chunks fit a transfer, a fused step needs a message and a free slot. All waits only ever end, so it does not matter in
which order threadblocks run.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from synth.lowering.messages import Connection
from synth.lowering.operations import Operation
from synth.lowering.threadblocks import Owner, Program
from synth.lowering.turns import Turns

Waits = dict[tuple[int, int], tuple[tuple[int, int], ...]]
#: What a threadblock waits for: a push or pop on a connection, or the end of an operation of a rank.
_Cause = tuple[str, Connection] | tuple[str, tuple[int, tuple[int, int]]]


@dataclass(slots=True)
class _Run:
    capacity: int
    blocks: dict[Owner, list[Operation]]
    ends: dict[Owner, _Ends]
    chunks: int
    """of a transfer"""
    at: dict[Owner, tuple[int, int]] = field(default_factory=dict)
    """by threadblock its next operation, and the transfers of it that are done"""
    pushed: Counter[Connection] = field(default_factory=Counter)
    popped: Counter[Connection] = field(default_factory=Counter)
    done: set[tuple[int, tuple[int, int]]] = field(default_factory=set)

    def run(self) -> dict[Owner, _Cause]:
        """Run as far as possible; what is stuck, and on what."""
        ready = sorted(self.blocks)
        sleeping: dict[_Cause, list[Owner]] = defaultdict(list)
        stuck: dict[Owner, _Cause] = {}
        while ready:
            owner = ready.pop()
            stuck.pop(owner, None)
            cause, events = self._advance(owner)
            for event in events:
                ready += sleeping.pop(event, [])
            if cause is not None:
                sleeping[cause].append(owner)
                stuck[owner] = cause
        return stuck

    def _advance(self, owner: Owner) -> tuple[_Cause | None, set[_Cause]]:
        """Run a threadblock as far as it comes: what stops it, if anything does, and what others may have waited for."""
        number, transfer = self.at.get(owner, (0, 0))
        program, here = self.blocks[owner], self.ends[owner]
        events: set[_Cause] = set()
        cause: _Cause | None = None
        while number < len(program):
            operation = program[number]
            needed = 1
            if not (operation.lane.recv == operation.lane.send == -1):
                needed = -(-len(operation.chunks) // self.chunks)
            able, cause = self._able(owner.rank, operation, transfer, here)
            if cause is not None:
                break
            able = min(able, needed - transfer)
            if operation.pops is not None:
                self.popped[here.inbound] += able
                events.add(("pop", here.inbound))
            if operation.pushes is not None:
                self.pushed[here.outbound] += able
                events.add(("push", here.outbound))
            transfer += able
            if transfer == needed:
                end = (owner.rank, operation.position)
                self.done.add(end)
                events.add(("done", end))
                number, transfer = number + 1, 0
        self.at[owner] = (number, transfer)
        return cause, events

    def _able(self, rank: int, operation: Operation, transfer: int, here: _Ends) -> tuple[int, _Cause | None]:
        """How many transfers of an operation can be made now, that one and on; or what there is to be waited for."""
        if transfer == 0:
            for position in here.waits.get(operation.position, ()):
                if (rank, position) not in self.done:
                    return 0, ("done", (rank, position))
        able = len(operation.chunks)
        if operation.pops is not None:
            able = min(able, self.pushed[here.inbound] - self.popped[here.inbound])
            if able == 0:
                return 0, ("push", here.inbound)
        if operation.pushes is not None:
            able = min(able, self.capacity - self.pushed[here.outbound] + self.popped[here.outbound])
            if able == 0:
                return 0, ("pop", here.outbound)
        return able, None


class _Ends(NamedTuple):
    """A threadblock's connections, and what the operations of its rank wait for."""

    inbound: Connection
    outbound: Connection
    waits: Waits


def find_splits(
    programs: list[Program], waits: list[Waits], capacity: int, chunks: int = 1, turns: Turns | None = None
) -> frozenset[Owner] | None:
    """Threadblocks whose receives and sends must be parted so that nothing waits in a circle; empty where nothing does.

    A connection holds `capacity` transfers of so many `chunks` (0: a chunk takes several). Of smaller buffers they hold more, which
    is never worse (docs/formulation.md, section 9). One of every circle is named, the first that both receives and sends; None
    where a circle has no such threadblock. With `turns`, `programs` and `waits` are those of the first box, which stands for
    all: they come equally far.
    """
    turns = turns or Turns(len(programs), len(programs))
    blocks = {Owner(rank, lane): ops for rank, program in enumerate(programs) for lane, ops in program.items()}
    ends = {
        Owner(rank, lane): _Ends(
            turns.home(lane.recv, rank, lane.channel), Connection(rank, lane.send, lane.channel), waits[rank]
        )
        for rank, lane in blocks
    }
    stuck = _Run(capacity, blocks, ends, max(1, chunks)).run()
    if not stuck:
        return frozenset()
    home = {(owner.rank, op.position): owner for owner, ops in blocks.items() for op in ops}
    senders = {ends[owner].outbound: owner for owner in blocks if owner.lane.send >= 0}
    receivers = {ends[owner].inbound: owner for owner in blocks if owner.lane.recv >= 0}
    awaited: dict[Owner, Owner] = {}
    for owner, (word, what) in stuck.items():
        if isinstance(what, Connection):
            awaited[owner] = senders[what] if word == "push" else receivers[what]
        else:
            awaited[owner] = home[what]
    splits = set()
    for circle in _circles(awaited):
        joint = [owner for owner in circle if owner.lane.recv >= 0 and owner.lane.send >= 0]
        if not joint:
            return None
        splits.add(min(joint))
    return frozenset(splits)


def _circles(awaited: dict[Owner, Owner]) -> Iterable[list[Owner]]:
    """The circles of a map."""
    seen: set[Owner] = set()
    for start in sorted(awaited):
        path: list[Owner] = []
        on_path: dict[Owner, int] = {}
        owner = start
        while owner not in seen and owner not in on_path:
            on_path[owner] = len(path)
            path.append(owner)
            owner = awaited[owner]
        if owner in on_path:
            yield path[on_path[owner] :]
        seen.update(path)
