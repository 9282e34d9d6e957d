"""Transfers in flight as fluids: they share every capacity on their paths max-min fairly, each up to its own limit (sharing.py).

Rates change only when a transfer starts or ends, and then only for transfers that it shares a contended link with, directly or
through others.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from synth.simulate.sharing import Kind, Region, regions_of, rounded


class Fluid:
    """Flows over links of `capacity` (bytes a us). A flow has a number that the caller gives, which is free again once it stops.

    Between `start` or `stop` and `settle`, rates are out of date: call `settle` once all changes of a moment are made.
    """

    def __init__(self, capacity: Sequence[float], paths: Sequence[tuple[int, ...]], limit: Sequence[float]) -> None:
        """`paths[flow]` are the links that the flow crosses, `limit[flow]` is its own limit in bytes a us (above 0)."""
        kinds = _kinds(capacity, paths, limit)
        numbers = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
        #: The kind of every flow; the rate of a kind's flows, which of them are under way, and its region.
        self._kind = [numbers[kind] for kind in kinds]
        self._rate = [0.0] * len(numbers)
        self._flows: list[dict[int, None]] = [{} for _ in numbers]
        #: None where a kind shares no link: its rate is its limit, whatever others do.
        self._region = _regions(list(numbers), Counter(self._kind), capacity, self._rate)
        for kind, number in numbers.items():
            if self._region[number] is None:
                self._rate[number] = kind.limit
        self._left = [0.0] * len(paths)
        self.since = [0.0] * len(paths)
        #: Flows that have started since the last `settle`, that ended, and that began again at once, whose links noticed nothing.
        self._started: dict[int, None] = {}
        self._ended: dict[int, None] = {}
        self._resumed: dict[int, None] = {}
        #: Where flows have started or ended.
        self._stirred: dict[Region, None] = {}
        #: How many kinds had their rates set because others' changed, counted each time: most of what a crowded run costs.
        self.touched = 0

    def start(self, flow: int, size_bytes: float, now_us: float) -> None:
        """Begin to move `size_bytes`; the rate is known after `settle`."""
        self._left[flow], self.since[flow] = size_bytes, now_us
        if flow in self._ended:
            del self._ended[flow]
            self._resumed[flow] = None
            return
        self._started[flow] = None
        kind = self._kind[flow]
        region = self._region[kind]
        if region is not None:
            self._flows[kind][flow] = self._stirred[region] = None
            region.add(kind)

    def stop(self, flow: int) -> None:
        """End a flow; those that shared a contended link with it have new rates after `settle`."""
        self._ended[flow] = None

    def _remove(self, flow: int) -> None:
        self._started.pop(flow, None)
        self._resumed.pop(flow, None)
        kind = self._kind[flow]
        region = self._region[kind]
        if region is not None:
            del self._flows[kind][flow]
            self._stirred[region] = None
            region.remove(kind)

    def settle(self, now_us: float) -> Mapping[int, float]:
        """Set the rates of all flows that the changes since the last call may touch; when those end that end at another time now."""
        if not (self._started or self._ended or self._resumed):
            return {}
        for flow in self._ended:
            self._remove(flow)
        changed = self._started | self._resumed
        self._started, self._ended, self._resumed = {}, {}, {}
        for region in self._stirred:
            for kind, before in region.settle():
                self._change(self._flows[kind], before, now_us)
                changed |= self._flows[kind]
            self.touched += region.touched
        self._stirred = {}
        return {flow: self.end_us(flow) for flow in changed}

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


def _kinds(capacity: Sequence[float], paths: Sequence[tuple[int, ...]], limit: Sequence[float]) -> list[Kind]:
    """The kind of every flow, without links that are wide enough for all flows at once, or that no other flow crosses: these are a
    limit like its own.
    """
    flows = Counter(link for path in paths for link in path)
    alone = (min((capacity[link] for link in path if flows[link] == 1), default=math.inf) for path in paths)
    limits = list(map(min, limit, alone))
    most: dict[int, float] = defaultdict(float)
    for path, each in zip(paths, limits, strict=True):
        for link in path:
            most[link] += each
    narrow = {link for link, asked in most.items() if asked > capacity[link] and flows[link] > 1}
    ways = (tuple(link for link in path if link in narrow) for path in paths)
    return [Kind(way, rounded(each)) for way, each in zip(ways, limits, strict=True)]


def _regions(
    kinds: Sequence[Kind], flows: Mapping[int, int], capacity: Sequence[float], rate: list[float]
) -> list[Region | None]:
    """The region of every kind that shares links, of which there are so many `flows`."""
    first = regions_of([kind.path for kind in kinds])
    together: dict[int, dict[int, Kind]] = defaultdict(dict)
    for number, kind in enumerate(kinds):
        if kind.path:
            together[first[number]][number] = kind
    regions = {each: Region(of, max(map(flows.__getitem__, of)), capacity, rate) for each, of in together.items()}
    return [regions.get(each) for each in first]
