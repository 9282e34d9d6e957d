"""Strategy `greedy`: match chunks to free links, event by event, over the time-expanded network; many seeds, the best is kept.

After TACOS (Won et al., 2024), extended to switches and shared capacities (a path is free when all its links are), to relays, and
to links of unequal speed: a chunk is not sent over a slow path to where a faster one could bring it about as soon (`patience`).
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from synth.errors import CheckError
from synth.instance import Instance
from synth.ir import Routing, Schedule, Send, Transfer
from synth.paths import Path, distances

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

_SAME_MOMENT_US = 1e-9
#: What differences of late times are off by at most, of these times.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class GreedyRouting:
    """`seeds` runs at most, fewer where `work` (transfers matched over all runs) is used up; at least one.

    Run k takes the k-th of `patience`: how many times slower than the best other way a path may be and still be used.
    """

    seed: int = 0
    seeds: int = 24
    work: int = 8_000
    patience: tuple[float, ...] = (2.5, 1.0, 1.5, 5.0, float("inf"))

    def __call__(self, instance: Instance) -> tuple[Routing, Schedule]:
        """The routing of the instance's demands with the least makespan, and the schedule in which it was found."""
        tables = _Tables.of(instance)
        transfers = max(1, sum(len(demand.dests) for demand in instance.demands))
        runs = max(1, min(self.seeds, self.work // transfers))
        best: Schedule | None = None
        for number in range(runs):
            rng = np.random.default_rng((self.seed, number))
            schedule = _Run(instance, tables, self.patience[number % len(self.patience)], rng).finish()
            if best is None or schedule.makespan_us < best.makespan_us - _SAME_MOMENT_US:
                best = schedule
        assert best is not None
        return Routing(tuple(sorted(best.transfers()))), best


@dataclass(frozen=True)
class _Tables:
    """What every run needs and no run changes. Rows of the arrays are demands, columns ranks; sets of demands are bit sets."""

    wanted: Bools
    passing: list[int]
    """By rank the chunks of several destinations that it does not want, but may get to pass them on."""
    source: Ints
    target: Ints
    """The destination of a demand with just one, else -1."""
    distance_us: Floats
    latency_us: list[float]
    busy_us: list[tuple[float, ...]]
    paths_on: list[Ints]
    _to_go_us: dict[tuple[int, int], Floats] = field(default_factory=dict)

    @cached_property
    def single(self) -> Bools:
        """By demand whether it has one destination."""
        return self.target >= 0

    @cached_property
    def any_single(self) -> bool:
        """Whether some demand has one destination."""
        return bool(self.single.any())

    @cached_property
    def all_single(self) -> bool:
        """Whether all have."""
        return bool(self.single.all())

    def to_go_us(self, rank: int, dst: int) -> Floats:
        """How far it is from a rank to every demand's destination, to `dst` for those with several."""
        if (rank, dst) not in self._to_go_us:
            self._to_go_us[rank, dst] = self.distance_us[rank, np.where(self.single, self.target, dst)]
        return self._to_go_us[rank, dst]

    def useful(self, src: int, dst: int) -> Bools:
        """The demands that a path from `src` to `dst` helps: those that end there, or come nearer to their one destination."""
        closer = self.to_go_us(dst, dst) < self.to_go_us(src, dst) - _SAME_MOMENT_US
        return np.where(self.single, closer, self.wanted[:, dst])

    def flags(self, demands: int) -> Bools:
        """By demand whether it is in a set."""
        rows = len(self.source)
        packed = np.frombuffer(demands.to_bytes(-(-rows // 8), "little"), dtype=np.uint8)
        return np.unpackbits(packed, count=rows, bitorder="little").view(np.bool_)

    @classmethod
    def of(cls, instance: Instance) -> _Tables:
        ranks = instance.num_ranks
        wanted = np.zeros((len(instance.demands), ranks), dtype=np.bool_)
        for row, demand in enumerate(instance.demands):
            wanted[row, sorted(demand.dests)] = True
        target = np.array([min(d.dests) if len(d.dests) == 1 else -1 for d in instance.demands], dtype=np.int64)
        latency = [path.latency_us(instance.chunk_bytes) for path in instance.paths]
        paths_on: list[list[int]] = [[] for _ in instance.topology.links]
        for path in instance.paths:
            for link in path.links:
                paths_on[link].append(path.index)
        source = np.array([demand.source for demand in instance.demands], dtype=np.int64)
        passing = (target < 0)[:, None] & ~wanted
        passing[np.arange(len(source)), source] = False
        return cls(
            wanted=wanted,
            passing=[_set_of(column) for column in passing.T],
            source=source,
            target=target,
            distance_us=distances(ranks, instance.paths, latency),
            latency_us=latency,
            busy_us=[path.busy_us(instance.chunk_bytes) for path in instance.paths],
            paths_on=[np.array(paths, dtype=np.int64) for paths in paths_on],
        )


def _set_of(flags: Bools) -> int:
    """The demands that are flagged, as a bit set."""
    return int.from_bytes(np.packbits(flags, bitorder="little").tobytes(), "little")


class _Run:
    """One run: who has or gets which chunk when, and which links are free when."""

    def __init__(self, instance: Instance, tables: _Tables, patience: float, rng: np.random.Generator) -> None:
        self.instance = instance
        self.tables = tables
        self.patience = patience
        rows, ranks = tables.wanted.shape
        #: By rank and demand, what decides between equals.
        self.noise: Floats = np.ascontiguousarray(0.5 * rng.random((rows, ranks)).T)
        self.rng = rng
        #: By rank what it has, and what nobody has sent there: most of the time nothing of it is the same, which bit sets soon tell.
        self.has = [_set_of(tables.source == rank) for rank in range(ranks)]
        self.unsent = [(1 << rows) - 1 & ~has for has in self.has]
        #: By path the demands that it may help.
        self.helped: dict[int, int] = {}
        #: When a rank has a chunk or is known to get it; infinite while nobody has sent it there.
        self.at_us: Floats = np.full((rows, ranks), np.inf)
        self.at_us[np.arange(rows), tables.source] = 0.0
        #: By demand how many ranks have its chunk or are known to get it.
        self.holders: Floats = np.ones(rows)
        self.missing = int(tables.wanted.sum())
        #: By path when all its links are free.
        self.free_us: Floats = np.zeros(len(instance.paths))
        self.events: list[tuple[float, int, int]] = []
        self.sends: list[Send] = []

    def finish(self) -> Schedule:
        """Run until everything wanted has been sent."""
        touched = set(range(len(self.instance.paths)))
        now = 0.0
        while self.missing:
            order = self.rng.permutation(np.array(sorted(touched), dtype=np.int64))
            taken: set[int] = set()
            for path in order[self.free_us[order] <= now + _SAME_MOMENT_US].tolist():
                if taken.isdisjoint(self.instance.paths[path].links):
                    taken.update(self._start(path, now))
            if not self.events and self.missing:
                raise CheckError("greedy", "nothing can move although chunks are missing")
            if self.events:
                now, touched = self._next_moment()
        return Schedule.of(_needed(self.instance, self.sends))

    def _next_moment(self) -> tuple[float, set[int]]:
        now = self.events[0][0]
        touched: set[int] = set()
        while self.events and self.events[0][0] <= now + _SAME_MOMENT_US:
            time_us, row, which = heapq.heappop(self.events)
            now = max(now, time_us)
            if row < 0:
                touched.update(self.tables.paths_on[which].tolist())
            else:
                self.has[which] |= 1 << row
                touched.update(path.index for path in self.instance.outgoing[which])
        return now, touched

    def _start(self, index: int, now: float) -> list[int]:
        """Send over a free path what it carries next, if anything; the links that are taken then."""
        path = self.instance.paths[index]
        row = self._pick(path, now)
        if row is None:
            return []
        busy = self.tables.busy_us[index]
        for link, busy_us in zip(path.links, busy, strict=True):
            sharing = self.tables.paths_on[link]
            self.free_us[sharing] = np.maximum(self.free_us[sharing], now + busy_us)
            heapq.heappush(self.events, (now + busy_us, -1, link))
        arrive = now + self.tables.latency_us[index]
        heapq.heappush(self.events, (arrive, row, path.dst))
        self.at_us[row, path.dst] = arrive
        self.holders[row] += 1
        self.unsent[path.dst] &= ~(1 << row)
        if self.tables.single[row]:
            # A chunk with one destination moves: nobody else sends it on.
            self.has[path.src] &= ~(1 << row)
        self.missing -= int(self.tables.wanted[row, path.dst])
        self.sends.append(Send((self.instance.demands[row].chunk,), index, False, now, arrive))
        return [link for link, busy_us in zip(path.links, busy, strict=True) if busy_us > _SAME_MOMENT_US]

    def _pick(self, path: Path, now: float) -> int | None:
        """The demand that the path carries next: of those that help, the rarest chunk, or the one with the longest way to go."""
        tables, dst = self.tables, path.dst
        movable = self.has[path.src] & self.unsent[dst]
        helped = movable & self._helped(path)
        relayed = movable & tables.passing[dst]
        if relayed:
            helped |= self._nearer(relayed, dst)
        if not helped:
            return None
        rows = tables.flags(helped).nonzero()[0]
        if self.patience < np.inf and not tables.all_single:
            rows = rows[self._worth(rows, path, now)]
            if len(rows) == 0:
                return None
        score = self._score(rows, dst, relayed) + self.noise[dst, rows]
        return int(rows[score.argmin()])

    def _helped(self, path: Path) -> int:
        """The demands that the path helps, and if all have one destination, for which it is worth it: that does not change then."""
        if path.index not in self.helped:
            useful = self.tables.useful(path.src, path.dst)
            if self.patience < np.inf and self.tables.all_single:
                useful &= self._worth(np.arange(len(useful)), path, 0.0)
            self.helped[path.index] = _set_of(useful)
        return self.helped[path.index]

    def _score(self, rows: Ints, dst: int, relayed: int) -> Floats:
        """What the demand that a path to `dst` carries next has the least of."""
        tables = self.tables
        if tables.all_single:
            return -tables.to_go_us(dst, dst)[rows]
        rarity = self.holders[rows]
        if relayed:
            # What a relay gets may serve nobody in the end: what somebody wants goes first.
            rarity = np.where(tables.flags(relayed)[rows], len(tables.distance_us) + rarity, rarity)
        if tables.any_single:
            rarity = np.where(tables.single[rows], -tables.to_go_us(dst, dst)[rows], rarity)
        return rarity

    def _nearer(self, relayed: int, dst: int) -> int:
        """Of these demands those of which a rank that does not want the chunk is nearer to one that does, and has not been sent it,
        than all that have.
        """
        distance = self.tables.distance_us
        rows = self.tables.flags(relayed).nonzero()[0]
        sent = np.isfinite(self.at_us[rows])
        lacking = self.tables.wanted[rows] & ~sent
        nearest = np.where(sent[:, :, None], distance[None], np.inf).min(axis=1)
        nearer = (lacking & (distance[dst] < nearest - _SAME_MOMENT_US)).any(axis=1)
        return sum(1 << row for row in rows[nearer].tolist())

    def _worth(self, rows: Ints, path: Path, now: float) -> Bools:
        """Whether no other way brings the chunk much sooner: from another holder, or from here over other ranks."""
        tables, dst = self.tables, path.dst
        direct_us = tables.latency_us[path.index] + tables.to_go_us(dst, dst)[rows]
        limit_us = tables.to_go_us(path.src, dst)[rows]
        if not tables.all_single:
            others_us = np.maximum(self.at_us[rows], now) + tables.distance_us[:, dst]
            others_us[:, path.src] = np.inf
            best_us = others_us.min(axis=1) - now
            limit_us = np.where(tables.single[rows], limit_us, best_us) if tables.any_single else best_us
        worth: Bools = direct_us <= self.patience * limit_us + max(_SAME_MOMENT_US, now * _ROUNDING)
        return worth


def _needed(instance: Instance, sends: list[Send]) -> list[Send]:
    """The sends without those that brought a chunk to a rank that neither wants it nor sends it on."""
    carries: dict[tuple[int, int], Send] = {(send.chunks[0], instance.paths[send.path].dst): send for send in sends}
    kept: set[Transfer] = set()
    for demand in instance.demands:
        for dest in sorted(demand.dests):
            rank = dest
            while rank != demand.source:
                send = carries[demand.chunk, rank]
                transfer = Transfer(demand.chunk, send.path)
                if transfer in kept:
                    break
                kept.add(transfer)
                rank = instance.paths[send.path].src
    return [send for send in sends if Transfer(send.chunks[0], send.path) in kept]
