"""Strategy `exchange`: groups of ranks that are near each other, level by level, for an allreduce of few hops (synth.exchange).

Blocks of ranks are joined, a prime number of them at a time, until one is left: those whose ranks can be matched over the nearest
ways. The matched ranks are the groups of that level. Neighbouring levels whose groups make up larger ones may be one level.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.sparse.csgraph import csgraph_from_dense, shortest_path

from synth.exchange import Exchange, Level, Slices
from synth.instance import Instance
from synth.paths import one_each

Floats = NDArray[np.float64]
#: A block of ranks: those in one place of all blocks that are joined make a group.
_Block = tuple[int, ...]
#: What decides between ways that are equally near: ranks with near numbers first. A share of the longest way's latency.
_TIE = 1e-6


@dataclass(frozen=True)
class ExchangeRouting:
    """Options: members of a group at most."""

    most: int = 32

    def __call__(self, instance: Instance) -> list[Slices]:
        """All exchanges over the levels found for an allreduce of all ranks, the fewest levels first: with each number of first
        levels parted, as far as matched ranks have the same parts then; and each with as many slices as levels, that begin at
        another one each, where that can be.
        """
        ranks = instance.num_ranks
        if ranks < 2:
            return []
        direct = one_each(ranks, instance.paths)
        latencies_us = np.full((ranks, ranks), np.inf)
        for pair, path in direct.items():
            latencies_us[pair] = instance.paths[path].latency_us(instance.chunk_bytes)
        near = shortest_path(csgraph_from_dense(latencies_us, null_value=np.inf), method="D")
        found: dict[str, Exchange] = {}
        for order in sorted(set(itertools.permutations(_primes(ranks)))) if ranks < 32 else [tuple(_primes(ranks))]:
            for levels in map(_in_order, _joined(_levels(near, order), self.most)):
                pairs = [pair for level in levels for group in level for pair in itertools.permutations(group, 2)]
                routes = _routes(direct, latencies_us, near, pairs)
                for parted in range(len(levels) + 1):
                    cut = tuple(Level(groups, number < parted) for number, groups in enumerate(levels))
                    exchange = Exchange(ranks, cut, routes)
                    if exchange.fault() is None:
                        found.setdefault(exchange.name, exchange)
        whole = [Slices((exchange,)) for exchange in found.values()]
        turned = [Slices(turns, len(turns)) for exchange in found.values() if len(turns := _turned(exchange)) > 1]
        return sorted((*whole, *turned), key=lambda each: (len(each.exchanges[0].levels), each.count, each.name))


def _turned(exchange: Exchange) -> tuple[Exchange, ...]:
    """The exchange, and those that begin at each of its other levels; itself alone where some of these are none."""
    groups = [level.groups for level in exchange.levels]
    parted = sum(level.parted for level in exchange.levels)
    turns = [exchange]
    for first in range(1, len(groups)):
        ordered = _in_order((*groups[first:], *groups[:first]))
        levels = tuple(Level(each, number < parted) for number, each in enumerate(ordered))
        turns.append(Exchange(exchange.num_ranks, levels, exchange.routes))
    return tuple(turns) if all(each.fault() is None for each in turns) else (exchange,)


def _routes(
    direct: Mapping[tuple[int, int], int], latencies_us: Floats, near: Floats, pairs: Sequence[tuple[int, int]]
) -> dict[tuple[int, int], tuple[int, ...]]:
    """For each pair the paths of a nearest way: of several, over those that fewest ways of other pairs take so far."""
    taken: Counter[int] = Counter()
    routes = {}
    for src, dst in pairs:
        hops: list[int] = []
        at = src
        while at != dst:
            longer_us = latencies_us[at] + near[:, dst] - near[at, dst]
            nearer = near[:, dst] < near[at, dst]
            nearest = [int(relay) for relay in np.flatnonzero(nearer & (longer_us <= _TIE * near.max()))]
            relay = dst if dst in nearest else min(nearest, key=lambda each: (taken[direct[at, each]], each))
            hops.append(direct[at, relay])
            at = relay
        taken.update(hops)
        routes[src, dst] = tuple(hops)
    return routes


def _primes(count: int) -> list[int]:
    """Prime factors, ascending."""
    found, factor = [], 2
    while count > 1:
        while count % factor == 0:
            found.append(factor)
            count //= factor
        factor += 1
    return found


def _levels(near: Floats, order: Sequence[int]) -> list[tuple[tuple[int, ...], ...]]:
    """The groups of each level, joining so many blocks at a time."""
    ranks = len(near)
    tie = _TIE * float(near.max()) / ranks * np.abs(np.subtract.outer(np.arange(ranks), np.arange(ranks)))
    cost = np.maximum(near, near.T) + tie
    blocks: list[_Block] = [(rank,) for rank in range(ranks)]
    levels = []
    for size in order:
        groups: list[tuple[int, ...]] = []
        joined: list[_Block] = []
        for rows in _gathered(blocks, size, cost):
            groups += list(zip(*rows, strict=True))
            joined.append(tuple(sorted(rank for row in rows for rank in row)))
        levels.append(tuple(sorted(groups)))
        blocks = sorted(joined)
    return levels


def _gathered(blocks: Sequence[_Block], size: int, cost: Floats) -> Iterator[list[_Block]]:
    """Blocks that are joined, `size` each time, with their ranks in the order in which they are matched: to the first that is left
    those whose matched ranks are nearest to it.
    """
    left = list(blocks)
    while left:
        rows = [left.pop(0)]
        while len(rows) < size:
            matched = [(_matched(rows, block, cost), number) for number, block in enumerate(left)]
            ((_, row), number) = min(matched, key=lambda each: (each[0][0], each[1]))
            rows.append(row)
            left.pop(number)
        yield rows


def _matched(rows: Sequence[_Block], block: _Block, cost: Floats) -> tuple[float, _Block]:
    """The ranks of a block in the order in which they are nearest to those of the rows together, and how near that is."""
    worst = np.max([cost[np.ix_(row, block)] for row in rows], axis=0)
    _, columns = linear_sum_assignment(worst**2)
    row = tuple(block[column] for column in columns)
    return float(max(worst[place, column] for place, column in enumerate(columns))), row


def _joined(levels: Sequence[tuple[tuple[int, ...], ...]], most: int) -> Iterator[list[tuple[tuple[int, ...], ...]]]:
    """The levels, with neighbours made one in every way that gives groups of no more than `most`."""
    for cuts in itertools.product((True, False), repeat=len(levels) - 1):
        runs = [[levels[0]]]
        for level, apart in zip(levels[1:], cuts, strict=True):
            if apart:
                runs.append([level])
            else:
                runs[-1].append(level)
        made = [_together(run) for run in runs]
        if all(groups is not None and len(groups[0]) <= most for groups in made):
            yield [groups for groups in made if groups is not None]


def _in_order(levels: Sequence[tuple[tuple[int, ...], ...]]) -> list[tuple[tuple[int, ...], ...]]:
    """The members of all groups by the lowest of the ranks whose sum they hold, so that the same sums are added in one order."""
    held: dict[int, frozenset[int]] = {rank: frozenset((rank,)) for group in levels[0] for rank in group}
    ordered = []
    for groups in levels:
        ordered.append(tuple(tuple(sorted(group, key=lambda rank: min(held[rank]))) for group in groups))
        held |= {rank: frozenset().union(*(held[each] for each in group)) for group in groups for rank in group}
    return ordered


def _together(run: Sequence[tuple[tuple[int, ...], ...]]) -> tuple[tuple[int, ...], ...] | None:
    """The groups of several levels as one; None where they do not make up groups of one size."""
    size = 1
    whole: dict[int, frozenset[int]] = {rank: frozenset((rank,)) for group in run[0] for rank in group}
    for groups in run:
        size *= len(groups[0])
        for group in groups:
            union = frozenset().union(*(whole[rank] for rank in group))
            for rank in union:
                whole[rank] = whole[rank] | union
    made = {tuple(sorted(group)) for group in whole.values()}
    if any(len(group) != size for group in made) or sum(map(len, made)) != len(whole):
        return None
    return tuple(sorted(made))
