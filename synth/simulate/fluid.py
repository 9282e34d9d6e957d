"""Transfers in flight as fluids: they share every capacity on their paths max-min fairly, each up to its own limit.

Rates change only when a transfer starts or ends, and then only for transfers that it shares a contended link with, directly or
through others. Max-min fairness by progressive filling (Bertsekas and Gallager, Data Networks, section 6.5.2): all rates rise
together; a transfer stops when a link of its path is full or its own limit is reached.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

#: Relative slack in comparing rates, as floating point sums need it.
_EPSILON = 1e-9
#: Links that fill up at levels this close, relatively, fill up together: sums that were rounded differently.
_SAME = 1e-12
_INFINITE = float("inf")
#: Groups of flows whose rates are remembered.
_MOST_KNOWN = 10_000


class Fluid:
    """Flows over links of `capacity` (bytes a us). A flow has a number that the caller gives, which is free again once it stops.

    Between `start` or `stop` and `settle`, rates are out of date: call `settle` once all changes of a moment are made.
    """

    def __init__(self, capacity: Sequence[float], paths: Sequence[tuple[int, ...]], limit: Sequence[float]) -> None:
        """`paths[flow]` are the links that the flow crosses, `limit[flow]` is its own limit in bytes a us (above 0)."""
        self.capacity = capacity
        #: Links that are asked for more than this are contended.
        self._full = [each * (1 + _EPSILON) for each in capacity]
        self.paths = paths
        self.limit = limit
        self.rate = [0.0] * len(paths)
        self.left = [0.0] * len(paths)
        self.since = [0.0] * len(paths)
        self._flows: list[dict[int, None]] = [{} for _ in capacity]
        self._demand = [0.0] * len(capacity)
        self._dirty: dict[int, None] = {}
        #: Whether any of these may cross a contended link: else each has its own limit.
        self._contended = False
        #: Flows that ended since the last `settle`, and those that began again at once, whose links noticed nothing.
        self._ended: dict[int, None] = {}
        self._resumed: dict[int, None] = {}
        self._known: dict[frozenset[int], dict[int, float]] = {}
        #: How many flows had their rates set because others' changed, counted each time: most of what a crowded run costs.
        self.touched = 0

    def start(self, flow: int, size_bytes: float, now_us: float) -> None:
        """Begin to move `size_bytes`; the rate is known after `settle`."""
        self.left[flow], self.since[flow] = size_bytes, now_us
        if flow in self._ended:
            del self._ended[flow]
            self._resumed[flow] = None
            return
        self.rate[flow] = 0.0
        self._dirty[flow] = None
        demand, limit = self._demand, self.limit[flow]
        for link in self.paths[flow]:
            self._flows[link][flow] = None
            demand[link] += limit
            if demand[link] > self._full[link]:
                self._contended = True

    def stop(self, flow: int) -> None:
        """End a flow; those that shared a contended link with it have new rates after `settle`."""
        self._ended[flow] = None

    def _remove(self, flow: int) -> None:
        demand, limit = self._demand, self.limit[flow]
        for link in self.paths[flow]:
            flows = self._flows[link]
            if demand[link] > self._full[link]:
                self._dirty.update(flows)
                self._contended = True
            del flows[flow]
            # Summed anew where nobody is left: a rest of rounding would add up over a long run.
            demand[link] = demand[link] - limit if flows else 0.0
        self._dirty.pop(flow, None)

    def settle(self, now_us: float) -> Iterable[int]:
        """Set the rates of all flows that the changes since the last call may touch; the flows that end at another time now."""
        if self._ended:
            for flow in self._ended:
                self._remove(flow)
            self._ended = {}
        changed, self._resumed = self._resumed, {}
        if not self._dirty:
            return changed
        if self._contended:
            rates = self._rates(*self._coupled(self._dirty))
            self.touched += len(rates)
            self._contended = False
        else:
            rates = {flow: self.limit[flow] for flow in reversed(self._dirty)}
        self._dirty = {}
        for flow, rate in rates.items():
            before = self.rate[flow]
            if abs(rate - before) > _EPSILON * rate:
                if before:
                    self.left[flow] = max(0.0, self.left[flow] - before * (now_us - self.since[flow]))
                    changed.pop(flow, None)
                self.since[flow], self.rate[flow] = now_us, rate
                changed[flow] = None
        return changed

    def end_us(self, flow: int) -> float:
        """When the flow ends if its rate stays."""
        return self.since[flow] + self.left[flow] / self.rate[flow]

    def _coupled(self, seeds: Iterable[int]) -> tuple[list[int], list[int]]:
        """The flows that share a contended link with a seed, directly or through others, and those links; the seeds among them."""
        flows = dict.fromkeys(seeds)
        links: dict[int, None] = {}
        demand, full = self._demand, self._full
        stack = list(flows)
        while stack:
            for link in self.paths[stack.pop()]:
                if demand[link] > full[link] and link not in links:
                    links[link] = None
                    fresh = [flow for flow in self._flows[link] if flow not in flows]
                    flows.update(dict.fromkeys(fresh))
                    stack += fresh
        return list(flows), list(links)

    def _rates(self, flows: list[int], links: list[int]) -> dict[int, float]:
        """`_fair`, remembered: the same flows share the same links tile after tile."""
        key = frozenset(flows)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            known = self._known[key] = self._fair(flows, links)
        return known

    def _fair(self, flows: list[int], links: list[int]) -> dict[int, float]:
        """Max-min fair rates of `flows`, which alone use `links`; no other link constrains any of them."""
        rates: dict[int, float] = {}
        spare = {link: self.capacity[link] for link in links}
        rising = {link: len(self._flows[link]) for link in links}
        limit = self.limit
        by_limit = sorted(flows, key=limit.__getitem__, reverse=True)
        while by_limit:
            if by_limit[-1] in rates:
                by_limit.pop()
                continue
            level = _INFINITE
            for link, number in rising.items():
                share = spare[link] / number
                if share < level:
                    level = share
            if limit[by_limit[-1]] <= level:
                level = limit[by_limit[-1]]
                stopped = self._at_their_limit(by_limit, level, rates)
            else:
                most = level * (1 + _SAME)
                full = [link for link, number in rising.items() if spare[link] <= most * number]
                stopped = list(dict.fromkeys(flow for link in full for flow in self._flows[link] if flow not in rates))
            for flow in stopped:
                rates[flow] = level
                for link in self.paths[flow]:
                    if link in rising:
                        spare[link] -= level
                        rising[link] -= 1
                        if not rising[link]:
                            del rising[link]
        return rates

    def _at_their_limit(self, by_limit: list[int], level: float, rates: dict[int, float]) -> list[int]:
        """Take the flows off the end of `by_limit` that can go no faster than `level`; those that have no rate yet."""
        taken = []
        while by_limit and self.limit[by_limit[-1]] <= level:
            flow = by_limit.pop()
            if flow not in rates:
                taken.append(flow)
        return taken
