"""Where the seconds of a job go."""

from __future__ import annotations

import time
from collections.abc import Mapping


class Ledger:
    """Seconds by stage, of all processes together; entering a stage ends the one before."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.seconds: dict[str, float] = {}
        self._current: tuple[str, float] | None = None

    def enter(self, stage: str) -> None:
        now = time.perf_counter()
        if self._current is not None:
            name, since = self._current
            self.seconds[name] = self.seconds.get(name, 0.0) + now - since
        self._current = (stage, now)

    def rest(self) -> None:
        """End the stage without entering another: other processes do the work."""
        self.enter("")
        self._current = None

    def add(self, seconds: Mapping[str, float]) -> None:
        """Add what another process spent."""
        for stage, spent in seconds.items():
            self.seconds[stage] = self.seconds.get(stage, 0.0) + spent

    def elapsed_s(self) -> float:
        """Seconds since the job began."""
        return time.perf_counter() - self.began
