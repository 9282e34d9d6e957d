"""Transfers in flight as fluids: they share every capacity on their paths max-min fairly, each up to its own rate.

Rates change only when a transfer starts or ends. Max-min fairness by progressive filling (Bertsekas and Gallager, Data Networks,
section 6.5.2): all rates rise together; a flow stops when a link of its path is full or its own limit is reached.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Relative slack in comparing rates and remaining bytes.
_EPSILON = 1e-9


class Fluid:
    """Flows over links of `capacity` (bytes a us). A flow is named by a number that `start` gives and `advance` gives back."""

    def __init__(self, capacity: Floats) -> None:
        self.capacity = capacity
        rows = 64
        self.uses: Floats = np.zeros((rows, len(capacity)))
        self.limit: Floats = np.zeros(rows)
        self.left: Floats = np.zeros(rows)
        self.size: Floats = np.zeros(rows)
        self.rate: Floats = np.zeros(rows)
        self.active = np.zeros(rows, dtype=np.bool_)
        self.free = list(range(rows - 1, -1, -1))
        self.stale = False

    def start(self, links: tuple[int, ...], size_bytes: float, limit: float) -> int:
        """Begin a flow of `size_bytes` on the wire over `links`, at most at `limit` bytes a us."""
        if not self.free:
            self._grow()
        flow = self.free.pop()
        self.uses[flow] = 0.0
        np.add.at(self.uses[flow], list(links), 1.0)
        self.limit[flow], self.left[flow], self.size[flow] = limit, size_bytes, size_bytes
        self.active[flow] = True
        self.stale = True
        return flow

    def time_to_next_end(self) -> float:
        """Microseconds until some flow ends at present rates; infinite without flows."""
        if self.stale:
            self._share()
        rows = np.flatnonzero(self.active)
        if len(rows) == 0:
            return float("inf")
        return float((self.left[rows] / self.rate[rows]).min())

    def advance(self, time_us: float) -> list[int]:
        """Let time pass (no further than the next end); the flows that ended, in order of number."""
        if self.stale:
            self._share()
        rows = np.flatnonzero(self.active)
        self.left[rows] -= self.rate[rows] * time_us
        ended = rows[self.left[rows] <= _EPSILON * np.maximum(self.size[rows], 1.0)]
        if len(ended):
            self.active[ended] = False
            self.free += sorted(ended.tolist(), reverse=True)
            self.stale = True
        return [int(flow) for flow in ended]

    def _share(self) -> None:
        """Set the max-min fair rates of all active flows."""
        self.stale = False
        rising = np.flatnonzero(self.active)
        spare = self.capacity.copy()
        level = 0.0
        while len(rising):
            uses = self.uses[rising]
            load = uses.sum(axis=0)
            used = load > 0
            by_link = np.full(len(spare), np.inf)
            by_link[used] = spare[used] / load[used]
            step = min(float(by_link.min()), float((self.limit[rising] - level).min()))
            level += step
            spare -= step * load
            full = used & (spare <= _EPSILON * self.capacity)
            stopped = (uses[:, full] > 0).any(axis=1) | (self.limit[rising] <= level * (1 + _EPSILON))
            self.rate[rising[stopped]] = level
            rising = rising[~stopped]

    def _grow(self) -> None:
        rows = len(self.limit)
        self.uses = np.vstack([self.uses, np.zeros_like(self.uses)])
        for name in ("limit", "left", "size", "rate"):
            setattr(self, name, np.concatenate([getattr(self, name), np.zeros(rows)]))
        self.active = np.concatenate([self.active, np.zeros(rows, dtype=np.bool_)])
        self.free = list(range(2 * rows - 1, rows - 1, -1))
