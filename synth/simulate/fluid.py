"""Transfers in flight as fluids: they share every capacity on their paths max-min fairly, each up to its own limit.

Rates change only when a transfer starts or ends, and then only for transfers that it shares a contended link with, directly or
through others. Max-min fairness by progressive filling (Bertsekas and Gallager, Data Networks, section 6.5.2): all rates rise
together; a transfer stops when a link of its path is full or its own limit is reached. Transfers of one path and limit, a *kind*,
move alike: rates are found for kinds, of which a crowded run has a quarter as many.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

#: Relative slack in comparing rates, as floating point sums need it.
_EPSILON = 1e-9
#: Links that fill up at levels this close, relatively, fill up together: sums that were rounded differently.
_SAME = 1e-12
_INFINITE = float("inf")
#: Sets of kinds whose rates are remembered.
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
        numbers: dict[tuple[tuple[int, ...], float], int] = {}
        #: The kind of every flow; the links and the limit of a kind, the rate of its flows, and which are under way.
        self._kind = [numbers.setdefault(each, len(numbers)) for each in zip(paths, limit, strict=True)]
        self._paths = [path for path, _ in numbers]
        self._limit = [most for _, most in numbers]
        self._rate = [0.0] * len(numbers)
        self._flows: list[dict[int, None]] = [{} for _ in numbers]
        #: A number for a kind and how many of its flows are under way.
        self._state = [kind * (len(paths) + 1) for kind in range(len(numbers))]
        self._left = [0.0] * len(paths)
        self.since = [0.0] * len(paths)
        #: The kinds under way on every link, how many flows these are, and what they ask for.
        self._kinds: list[dict[int, None]] = [{} for _ in capacity]
        self._number = [0] * len(capacity)
        self._demand = [0.0] * len(capacity)
        #: Kinds whose rates may change, and whether any of these may cross a contended link: else each has its own limit.
        self._dirty: dict[int, None] = {}
        self._contended = False
        #: Flows that have started since the last `settle`, that ended, and that began again at once, whose links noticed nothing.
        self._started: dict[int, None] = {}
        self._ended: dict[int, None] = {}
        self._resumed: dict[int, None] = {}
        self._known: dict[frozenset[int], dict[int, float]] = {}
        #: How many kinds had their rates set because others' changed, counted each time: most of what a crowded run costs.
        self.touched = 0

    def start(self, flow: int, size_bytes: float, now_us: float) -> None:
        """Begin to move `size_bytes`; the rate is known after `settle`."""
        self._left[flow], self.since[flow] = size_bytes, now_us
        if flow in self._ended:
            del self._ended[flow]
            self._resumed[flow] = None
            return
        kind = self._kind[flow]
        self._started[flow] = self._dirty[kind] = self._flows[kind][flow] = None
        self._state[kind] += 1
        demand, limit = self._demand, self._limit[kind]
        for link in self._paths[kind]:
            self._kinds[link][kind] = None
            self._number[link] += 1
            demand[link] += limit
            if demand[link] > self._full[link]:
                self._contended = True

    def stop(self, flow: int) -> None:
        """End a flow; those that shared a contended link with it have new rates after `settle`."""
        self._ended[flow] = None

    def _remove(self, flow: int) -> None:
        kind = self._kind[flow]
        flows = self._flows[kind]
        del flows[flow]
        self._started.pop(flow, None)
        self._resumed.pop(flow, None)
        self._state[kind] -= 1
        demand, limit = self._demand, self._limit[kind]
        for link in self._paths[kind]:
            if demand[link] > self._full[link]:
                self._dirty.update(self._kinds[link])
                self._contended = True
            if not flows:
                del self._kinds[link][kind]
            self._number[link] -= 1
            # Summed anew where nobody is left: a rest of rounding would add up over a long run.
            demand[link] = demand[link] - limit if self._number[link] else 0.0
        if not flows:
            self._rate[kind] = 0.0
            self._dirty.pop(kind, None)

    def settle(self, now_us: float) -> Mapping[int, float]:
        """Set the rates of all flows that the changes since the last call may touch; when those end that end at another time now."""
        if not (self._started or self._ended or self._resumed):
            return {}
        for flow in self._ended:
            self._remove(flow)
        changed = self._started | self._resumed
        self._started, self._ended, self._resumed = {}, {}, {}
        if self._contended:
            for kind, before in self._set_rates():
                self._change(self._flows[kind], before, now_us)
                changed |= self._flows[kind]
        else:
            for kind in self._dirty:
                self._rate[kind] = self._limit[kind]
        self._dirty = {}
        return {flow: self.end_us(flow) for flow in changed}

    def _set_rates(self) -> list[tuple[int, float]]:
        """Have what may share a contended link with what has changed at its new rate; the kinds that had another, and that."""
        self._contended = False
        rates = self._rates(*self._coupled(self._dirty)) if self._dirty else {}
        self.touched += len(rates)
        others = []
        for kind, rate in rates.items():
            before = self._rate[kind]
            if abs(rate - before) > _EPSILON * rate:
                self._rate[kind] = rate
                others.append((kind, before))
        return others

    def _change(self, flows: Iterable[int], before: float, now_us: float) -> None:
        """What is left of `flows`, which had the rate `before` until now; those that have only started have as much left."""
        left, since = self._left, self.since
        for flow in flows:
            rest = left[flow] - before * (now_us - since[flow])
            left[flow] = rest if rest > 0.0 else 0.0
            since[flow] = now_us

    def rate(self, flow: int) -> float:
        """Bytes a us at which a flow moves since the last `settle`."""
        return self._rate[self._kind[flow]]

    def end_us(self, flow: int) -> float:
        """When the flow ends if its rate stays."""
        return self.since[flow] + self._left[flow] / self._rate[self._kind[flow]]

    def _coupled(self, seeds: Iterable[int]) -> tuple[list[int], list[int]]:
        """The kinds that share a contended link with a seed, directly or through others, and those links; the seeds among them."""
        kinds = dict.fromkeys(seeds)
        links: dict[int, None] = {}
        demand, full = self._demand, self._full
        stack = list(kinds)
        while stack:
            for link in self._paths[stack.pop()]:
                if demand[link] > full[link] and link not in links:
                    links[link] = None
                    fresh = [kind for kind in self._kinds[link] if kind not in kinds]
                    kinds.update(dict.fromkeys(fresh))
                    stack += fresh
        return list(kinds), list(links)

    def _rates(self, kinds: list[int], links: list[int]) -> dict[int, float]:
        """`_fair`, remembered: as many flows of the same kinds share the same links tile after tile."""
        key = frozenset(map(self._state.__getitem__, kinds))
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            known = self._known[key] = self._fair(kinds, links)
        return known

    def _fair(self, kinds: list[int], links: list[int]) -> dict[int, float]:
        """Max-min fair rates of `kinds`, which alone use `links`; no other link constrains any of them."""
        rates: dict[int, float] = {}
        spare = {link: self.capacity[link] for link in links}
        rising = {link: self._number[link] for link in links}
        limit = self._limit
        by_limit = sorted(kinds, key=limit.__getitem__, reverse=True)
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
                stopped = list(dict.fromkeys(kind for link in full for kind in self._kinds[link] if kind not in rates))
            for kind in stopped:
                rates[kind] = level
                number = len(self._flows[kind])
                for link in self._paths[kind]:
                    if link in rising:
                        spare[link] -= level * number
                        rising[link] -= number
                        if not rising[link]:
                            del rising[link]
        return rates

    def _at_their_limit(self, by_limit: list[int], level: float, rates: dict[int, float]) -> list[int]:
        """Take the kinds off the end of `by_limit` that can go no faster than `level`; those that have no rate yet."""
        taken = []
        while by_limit and self._limit[by_limit[-1]] <= level:
            kind = by_limit.pop()
            if kind not in rates:
                taken.append(kind)
        return taken
