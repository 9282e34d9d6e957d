"""The ranks of one run as one of them sees them: exchange of values, barriers, faults, and the watch over all ranks.

Everything goes through torch's key-value store, which still answers when messages no longer do. A fault is told under one key;
every wait looks at it. Rank 0 declares a hang when all ranks wait (in a call or for each other) and none has got further.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Sequence
from typing import Any

from synth.errors import SynthError
from synth.execute.errors import FollowError, HangError, LostError
from synth.execute.watch import PATIENCE_S, TICK_S

FAULT = "fault"
HANG = b"hang"
#: A rank that computes says nothing; after so many times the patience for a hang it counts as gone.
_SILENCE = 10
#: Seconds that rank 0 gives the others to say what they wait for.
_REPORTS_S = 5.0
_BUSY = b"busy"
#: Pauses between two looks at a key that is waited for.
_SHORTEST_S, _LONGEST_S = 0.0002, 0.02


class Session:
    """One rank of a run: `store` is torch's, common to all ranks and used by nobody else."""

    def __init__(self, store: Any, rank: int, world: int, patience_s: float = PATIENCE_S) -> None:
        self.store, self.rank, self.world, self.patience_s = store, rank, world, patience_s
        self.kept: dict[object, Any] = {}
        """what jobs keep for the jobs after them"""
        self._count = 0
        self._told = _BUSY
        self._seen: list[bytes] = []
        self._since: list[float] = []
        store.set(f"state/{rank}", _BUSY)

    def exchange(self, value: Any) -> list[Any]:
        """Everybody's value, by rank; all ranks have to call it. Raises FollowError, LostError or HangError as `tick`."""
        self._count += 1
        name = f"exchange/{self._count}"
        self.store.set(f"{name}/{self.rank}", pickle.dumps(value))
        if self._count > 2:  # everybody has read what lies two exchanges back
            self.store.delete_key(f"exchange/{self._count - 2}/{self.rank}")
        keys = [f"{name}/{rank}" for rank in range(self.world)]
        self._await(keys)
        return [pickle.loads(found) for found in self.store.multi_get(keys)]

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.exchange(None)

    def begin(self) -> None:
        """As `Watch.begin`."""

    def tick(self, progress: int, waits: Callable[[], Sequence[str]]) -> None:
        """As `Watch.tick`: tell how far this rank is, and look at the others.

        Raises HangError on rank 0 and FollowError elsewhere where all hang; LostError where a rank no longer answers.
        """
        self._tell(b"at %d.%d" % (self._count, progress))
        if self.store.check([FAULT]):
            self._follow(waits)
        self._look_round(waits)

    def end(self) -> None:
        """As `Watch.end`."""
        self._tell(_BUSY)

    def fail(self, reason: str) -> bool:
        """Tell the others to stop; whether this rank was the first to."""
        told: bytes = self.store.compare_set(FAULT, "", f"{self.rank} {reason}")
        return told == f"{self.rank} {reason}".encode()

    def _await(self, keys: list[str]) -> None:
        try:
            pause_s, ticked = _SHORTEST_S, time.monotonic()
            while not self.store.check(keys):  # torch's own wait complains on standard error where it takes longer
                time.sleep(pause_s)
                pause_s = min(pause_s * 1.5, _LONGEST_S)
                if time.monotonic() - ticked >= TICK_S:
                    ticked = time.monotonic()
                    self.tick(0, lambda: [])
        finally:
            self.end()

    def _tell(self, state: bytes) -> None:
        if state != self._told:
            self._told = state
            self.store.set(f"state/{self.rank}", state)

    def _follow(self, waits: Callable[[], Sequence[str]]) -> None:
        fault: bytes = self.store.get(FAULT)
        if fault == HANG:
            self.store.set(f"waits/{self.rank}", pickle.dumps(list(waits())))
        raise FollowError(fault.decode(errors="replace"))

    def _look_round(self, waits: Callable[[], Sequence[str]]) -> None:
        now, states = time.monotonic(), self._states()
        if not self._since:
            self._seen, self._since = states, [now] * self.world
        for rank, (old, new) in enumerate(zip(self._seen, states, strict=True)):
            if old != new:
                self._since[rank] = now
        self._seen = states
        still_s = [now - since for since in self._since]
        if self.rank == 0 and _BUSY not in states and min(still_s) >= self.patience_s:
            self.store.set(FAULT, HANG)
            raise HangError(self.patience_s, [*waits(), *self._reports()])
        for rank, state in enumerate(states):
            if state == _BUSY and still_s[rank] >= _SILENCE * self.patience_s:
                self.fail("silence")
                raise LostError(f"rank {rank} has not answered for {still_s[rank]:.0f} s")

    def _states(self) -> list[bytes]:
        keys = [f"state/{rank}" for rank in range(self.world)]
        if not self.store.check(keys):  # a rank that has not come so far
            return [self.store.get(key) if self.store.check([key]) else _BUSY for key in keys]
        found: list[bytes] = self.store.multi_get(keys)
        return found

    def _reports(self) -> list[str]:
        """What the other ranks wait for, as far as they say so in time."""
        until = time.monotonic() + _REPORTS_S
        lines: list[str] = []
        for rank in range(1, self.world):
            key = f"waits/{rank}"
            while not self.store.check([key]) and time.monotonic() < until:
                time.sleep(0.02)
            lines += pickle.loads(self.store.get(key)) if self.store.check([key]) else [f"rank {rank} does not say"]
        return lines


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


def as_synth_error(error: BaseException, rank: int) -> SynthError:
    """What a rank met, in one line: what gloo or NCCL raise is a lost connection or a lack of memory."""
    if isinstance(error, SynthError):
        return error
    if isinstance(error, MemoryError) or "not enough memory" in str(error) or "out of memory" in str(error):
        return SynthError(f"rank {rank}: out of memory: {_first_line(error)}")
    return LostError(f"rank {rank} lost its connection: {_first_line(error)}")
