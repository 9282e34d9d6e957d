"""Who looks whether a call still gets on, while the threadblocks work: the interface, and the one that knows one rank alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from synth.execute.errors import HangError

#: Seconds between two looks at a call that is taking long.
TICK_S = 0.25
#: Seconds without any progress after which a run counts as hung.
PATIENCE_S = 30.0


class Watch(Protocol):
    """Looked after by the thread that called; `tick` raises where the call is to end."""

    def begin(self) -> None:
        """A call begins, or a wait for the other ranks."""

    def tick(self, progress: int, waits: Callable[[], Sequence[str]]) -> None:
        """The call is still going on: `progress` grows with every operation, `waits` says what each threadblock waits for."""

    def end(self) -> None:
        """The call is over."""


class LocalWatch:
    """A watch that sees this rank only: a hang is a rank that has got no further for `patience_s` seconds."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self.patience_s = patience_s
        self._progress = -1
        self._since = 0.0

    def begin(self) -> None:
        self._progress, self._since = -1, time.monotonic()

    def tick(self, progress: int, waits: Callable[[], Sequence[str]]) -> None:
        """Raises HangError with what this rank's threadblocks wait for."""
        now = time.monotonic()
        if progress != self._progress:
            self._progress, self._since = progress, now
        elif now - self._since >= self.patience_s:
            raise HangError(self.patience_s, waits())

    def end(self) -> None:
        """Nothing to put away."""
