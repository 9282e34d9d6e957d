"""The engine for gloo: a thread for each threadblock, each of which waits for nothing but what its own step needs.

A connection is a FIFO of as many slots as the protocol has. The receiving threadblock keeps one receive posted for each free
slot, under a tag of its own (connection and slot); the sender's send ends when that receive has taken it. gloo moves no data
before a receive is posted, so a sender blocks exactly where the interpreter's does: when all slots are full. No message waits
behind another one's: what lies in a socket has its receive. gloo's send and recv may be called from many threads; they wait without
Python's lock.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from synth.execute.act import compute, outgoing
from synth.execute.arithmetic import combiner
from synth.execute.call import BrokenError, Call, TorchEngine
from synth.execute.program import Block, Operation, Part
from synth.execute.watch import TICK_S, Watch

if TYPE_CHECKING:
    import torch

#: Slots of a connection at most: tags are connection * this + slot.
_TAGS = 8
_Jobs = SimpleQueue[Callable[[], None] | None]
#: Longest pause before an operation of a shaken run.
_SHAKE_S = 0.004


class ThreadEngine(TorchEngine):
    """Runs calls on a process group whose send and recv take tags (gloo); `shake` makes threadblocks dawdle by that seed."""

    most_tiles: int | None = None

    def __init__(self, group: Any, shake: int | None = None) -> None:
        self.group = group
        self.shake = shake
        self._workers: list[tuple[_Jobs, threading.Thread]] = []
        self._broken = False

    def run(self, call: Call, watch: Watch) -> None:
        """Run this rank's part of `call`; raises what a threadblock met, or what `watch` raises."""
        if self._broken:
            raise BrokenError("this communicator failed in an earlier call: make a new one")
        run = _Run(self, call)
        for number in range(len(call.blocks)):
            self._worker(number).put(lambda number=number: run.go(number))  # type: ignore[misc]
        watch.begin()
        try:
            run.wait(watch)
        except BaseException:
            self._broken = True
            run.stop()
            raise
        finally:
            watch.end()

    def close(self) -> None:
        """Let the threads end, and wait for them: Python must not end while one is in torch. Those of a failed call may never."""
        for jobs, thread in self._workers:
            jobs.put(None)
            if not self._broken:
                thread.join()
        self._workers = []

    def _worker(self, number: int) -> _Jobs:
        while len(self._workers) <= number:
            jobs: _Jobs = SimpleQueue()
            thread = threading.Thread(
                target=_serve, args=(jobs,), name=f"threadblock {len(self._workers)}", daemon=True
            )
            thread.start()
            self._workers.append((jobs, thread))
        return self._workers[number][0]


def _serve(jobs: _Jobs) -> None:
    """A worker thread: do what comes until None does."""
    import torch

    with torch.no_grad():
        while (job := jobs.get()) is not None:
            job()


#: What a threadblock waits for: its operation and tile, and the words for it.
_Doing = tuple[Operation, int, str, object]


class _StoppedError(Exception):
    """Another threadblock of this rank failed: this one need not go on."""


class _Run:
    """One call in progress: flags, what every threadblock is at, and the first error."""

    def __init__(self, engine: ThreadEngine, call: Call) -> None:
        self.engine, self.call = engine, call
        self.combine = combiner(call.op)
        size = len(call.blocks)
        self.flags = [0] * size
        self.raised = [threading.Condition() for _ in range(size)]
        self.done = [0] * size
        self.doing: list[_Doing | None] = [None] * size
        self.through = [False] * size
        self.left = size
        self.lock = threading.Lock()
        self.over = threading.Event()
        self.error: BaseException | None = None

    def go(self, number: int) -> None:
        """In a worker thread: run a threadblock to its end."""
        try:
            _BlockRun(self, number).run()
            self.through[number] = True
        except _StoppedError:
            pass
        except BaseException as error:
            self.fail(error)
        finally:
            with self.lock:
                self.left -= 1
                if not self.left:
                    self.over.set()

    def fail(self, error: BaseException) -> None:
        """Keep the first error, and wake whoever waits for a flag."""
        with self.lock:
            self.error = self.error or error
        self.over.set()
        self.stop()

    def stop(self) -> None:
        """Let no threadblock wait for a flag any longer."""
        self.error = self.error or _StoppedError()
        for condition in self.raised:
            with condition:
                condition.notify_all()

    def wait(self, watch: Watch) -> None:
        """In the thread that called: until all threadblocks are done, one fails, or `watch` has enough."""
        while not self.over.wait(TICK_S):
            watch.tick(sum(self.done), self.waits)
        if self.error is not None:
            raise self.error

    def waits(self) -> list[str]:
        """What every threadblock that is not done waits for."""
        return [
            f"gpu {self.call.rank} tb {block.tb} {self._told(doing)}"
            for block, doing, through in zip(self.call.blocks, self.doing, self.through, strict=True)
            if not through
        ]

    def _told(self, doing: _Doing | None) -> str:
        if doing is None:
            return "has waited for nothing yet"
        operation, tile, what, whom = doing
        where = f" tile {tile}" if self.call.cut.tiles > 1 else ""
        return f"step {operation.step} ({operation.type}){where} {what} {whom}"

    def publish(self, number: int, value: int) -> None:
        """Raise a threadblock's flag."""
        with self.raised[number]:
            self.flags[number] = value
            self.raised[number].notify_all()

    def await_flag(self, number: int, value: int) -> None:
        """Wait until a threadblock's flag has got that far."""
        if self.flags[number] >= value:
            return
        with self.raised[number]:
            while self.flags[number] < value:
                if self.error is not None:
                    raise _StoppedError
                self.raised[number].wait()


class _BlockRun:
    """One threadblock's way through a call."""

    def __init__(self, run: _Run, number: int) -> None:
        self.run_, self.number = run, number
        self.call = run.call
        self.block: Block = run.call.blocks[number]
        self.group = run.engine.group
        self.slots = run.call.program.slots
        connections = run.call.program.connections
        self.send_to = connections[self.block.send].dst if self.block.send >= 0 else -1
        self.recv_from = connections[self.block.recv].src if self.block.recv >= 0 else -1
        self.sent = self.posted = 0
        self.inbox: deque[tuple[Any, torch.Tensor]] = deque()
        self.coming = self._sizes()
        self.slot_tensors: list[torch.Tensor] = []
        shake = run.engine.shake
        self.random = None if shake is None else random.Random(f"{shake} {run.call.rank} {number}")

    def run(self) -> None:
        """All operations on every tile, in order."""
        for _ in range(self.slots):
            self._post()
        for tile in range(self.call.cut.tiles):
            base = tile * self.block.stride
            for operation in self.block.operations:
                self._dawdle()
                for wait in operation.waits:
                    awaited = self.call.blocks[wait.block]
                    self._say(operation, tile, "waits for the flag of tb", f"{awaited.tb} step {wait.step}")
                    self.run_.await_flag(wait.block, tile * awaited.stride + wait.step + 1)
                for part in operation.parts:
                    self._do(operation, part, tile)
                self.run_.done[self.number] += 1
                if operation.publishes:
                    self.run_.publish(self.number, base + operation.step + 1)

    def _do(self, operation: Operation, part: Part, tile: int) -> None:
        kind, call = operation.type, self.call
        message = self._receive(operation, tile) if kind.receives else None
        compute(call, operation, part, tile, message, self.run_.combine)
        if kind.sends:
            self._send(operation, tile, outgoing(call, operation, part, tile, message))
        if message is not None:
            self._post()

    def _send(self, operation: Operation, tile: int, data: torch.Tensor) -> None:
        self._say(operation, tile, "waits for room towards gpu", self.send_to)
        tag = self.block.send * _TAGS + self.sent % self.slots
        self.group.send([data], self.send_to, tag).wait()
        self.sent += 1

    def _receive(self, operation: Operation, tile: int) -> torch.Tensor:
        self._say(operation, tile, "waits for data of gpu", self.recv_from)
        work, message = self.inbox.popleft()
        work.wait()
        return message

    def _post(self) -> None:
        """Post a receive for the next message, if there is one to come: a free slot."""
        elements = next(self.coming, 0)
        if not elements:
            return
        slot = self.posted % self.slots
        if slot == len(self.slot_tensors):
            self.slot_tensors.append(self.call.like.new_empty(self.largest))
        message = self.slot_tensors[slot][:elements]
        work = self.group.recv([message], self.recv_from, self.block.recv * _TAGS + slot)
        self.inbox.append((work, message))
        self.posted += 1

    def _sizes(self) -> Iterator[int]:
        """Elements of each message to come, in order."""
        parts = [part for operation in self.block.operations if operation.type.receives for part in operation.parts]
        tiles, elements = range(self.call.cut.tiles), self.call.elements
        self.largest = max((elements(part, 0) for part in parts), default=0)
        return (elements(part, tile) for tile in tiles for part in parts)

    def _say(self, operation: Operation, tile: int, what: str, whom: object) -> None:
        self.run_.doing[self.number] = (operation, tile, what, whom)

    def _dawdle(self) -> None:
        if self.random is not None and self.random.random() < 0.5:
            time.sleep(self.random.random() * _SHAKE_S)
