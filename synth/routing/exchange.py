"""Strategy `exchange`: groups of ranks that are near each other, level by level, for an allreduce of few hops (synth.exchange).

Blocks of ranks are joined, a prime number of them at a time, until one is left: those whose ranks can be matched over the nearest
ways. The matched ranks are the groups of that level. Neighbouring levels whose groups make up larger ones may be one level. Where
some ranks of a block are nearer to all that is outside, these gates may own all that the block adds up.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

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
#: The groups of a level.
_Groups = tuple[tuple[int, ...], ...]
#: What decides between ways that are equally near: ranks with near numbers first. A share of the longest way's latency.
_TIE = 1e-6
#: Gates are nearer to what is outside than other ranks by more than this: what differs less are links of another width.
_NEARER = 1.03


@dataclass(frozen=True)
class ExchangeRouting:
    """Options: members of a group at most; and ranks from which on all exchanges have `few_levels` at most, and begin at the first:
    there are very many others, and those of more hops take longer.
    """

    most: int = 32
    many_ranks: int = 65
    few_levels: int = 3

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
        singles: list[_Block] = [(rank,) for rank in range(ranks)]
        found: dict[str, Exchange] = {}
        inner: set[tuple[_Groups, ...]] = set()
        for order in sorted(set(itertools.permutations(_primes(ranks)))) if ranks < 32 else [tuple(_primes(ranks))]:
            for joined in _joined(_levels(singles, near, order), self.most):
                if ranks >= self.many_ranks and len(joined) > self.few_levels:
                    continue
                levels = _in_order(joined)
                pairs = [pair for level in levels for group in level for pair in itertools.permutations(group, 2)]
                routes = _routes(direct, latencies_us, near, pairs)
                for parted in range(len(levels) + 1):
                    cut = tuple(Level(groups, number < parted) for number, groups in enumerate(levels))
                    exchange = Exchange(ranks, cut, routes)
                    if exchange.fault() is None:
                        found.setdefault(exchange.name, exchange)
                first = {tuple(levels[:number]) for number in range(1, len(levels))} - inner
                inner |= first
                for cut in itertools.chain.from_iterable(self._gated(each, near) for each in sorted(first, key=len)):
                    bare = Exchange(ranks, cut, {})
                    if bare.name not in found and bare.fault() is None:
                        ways = _routes(direct, latencies_us, near, bare.pairs)
                        found[bare.name] = replace(bare, routes=ways)
        whole = [Slices((exchange,)) for exchange in found.values()]
        if ranks < self.many_ranks:
            turned = [Slices(turns, len(turns)) for exchange in found.values() if len(turns := _turned(exchange)) > 1]
        else:
            turned = []
        return sorted((*whole, *turned), key=lambda each: (len(each.exchanges[0].levels), each.count, each.name))

    def _gated(self, inner: Sequence[_Groups], near: Floats) -> Iterator[tuple[Level, ...]]:
        """All levels that begin with these, whose sums gates own, who exchange them with the gates of other blocks: by one of each
        block, and by all of them.
        """
        blocks = _blocks(inner)
        gates = _gates(blocks, near)
        order = _primes(len(blocks))
        for count in sorted({1, len(gates[0])}) if gates else ():
            owners = [block[:count] for block in gates]
            others = [tuple(sorted({*block}.difference(own))) for block, own in zip(blocks, owners, strict=True)]
            inside = _owned(inner, frozenset(itertools.chain.from_iterable(owners)))
            outside = [
                tuple(sorted((*here, *there)))
                for here, there in zip(*(_levels(each, near, order) for each in (owners, others)), strict=True)
            ]
            for joined in _joined(outside, self.most):
                ordered = _in_order((*inner, *joined))[len(inner) :]
                for parted in range(len(joined) + 1):
                    yield (*inside, *(Level(groups, number < parted) for number, groups in enumerate(ordered)))


def _blocks(levels: Sequence[_Groups]) -> list[_Block]:
    """The ranks that have each other's contributions after so many levels."""
    whole: dict[int, _Block] = {rank: (rank,) for groups in levels for group in groups for rank in group}
    for groups in levels:
        for group in groups:
            union = tuple(sorted({each for rank in group for each in whole[rank]}))
            whole |= dict.fromkeys(union, union)
    return sorted(set(whole.values()))


def _gates(blocks: Sequence[_Block], near: Floats) -> list[_Block]:
    """Of each block as many ranks, those that are nearest to all outside; none where all of a block are as near."""
    found = []
    for block in blocks:
        inside = np.isin(np.arange(len(near)), block)
        away_us = (near[inside][:, ~inside].mean(axis=1) + near[~inside][:, inside].mean(axis=0)).tolist()
        found.append([rank for rank, us in zip(block, away_us, strict=True) if us <= min(away_us) * _NEARER])
    count = min(map(len, found))
    return [tuple(gates[:count]) for gates in found] if count < len(blocks[0]) else []


def _owned(levels: Sequence[_Groups], gates: frozenset[int]) -> list[Level]:
    """The levels within blocks, what they add up owned by the gates in the end: before, by those who give it to them."""
    owned: list[Level] = []
    owners = gates
    for groups in reversed(levels):
        owned.insert(0, Level(groups, True, owners))
        owners = frozenset(rank for group in groups if owners.intersection(group) for rank in group)
    return owned


def _turned(exchange: Exchange) -> tuple[Exchange, ...]:
    """The exchange, and those that begin at each of its other levels; itself alone where some of these are none, or gates have it
    all at one level.
    """
    if exchange.has_gates:
        return (exchange,)
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
    same_us = _TIE * near.max()
    for src, dst in pairs:
        hops: list[int] = []
        at = src
        while at != dst:
            relay = dst
            if latencies_us[at, dst] - near[at, dst] > same_us:
                longer_us = latencies_us[at] + near[:, dst] - near[at, dst]
                nearest = np.flatnonzero((near[:, dst] < near[at, dst]) & (longer_us <= same_us)).tolist()
                relay = min(nearest, key=lambda each: (taken[direct[at, each]], each))
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


def _levels(blocks: Sequence[_Block], near: Floats, order: Sequence[int]) -> list[_Groups]:
    """The groups of each level, joining so many of the blocks at a time."""
    ranks = len(near)
    away = np.subtract.outer(np.arange(ranks), np.arange(ranks)) / ranks
    tie = _TIE * float(near.max()) * away**2
    cost = np.maximum(near, near.T) + tie
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


def _joined(levels: Sequence[_Groups], most: int) -> Iterator[list[_Groups]]:
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


def _in_order(levels: Sequence[_Groups]) -> list[_Groups]:
    """The members of all groups by the lowest of the ranks whose sum they hold, so that the same sums are added in one order."""
    held: dict[int, frozenset[int]] = {rank: frozenset((rank,)) for group in levels[0] for rank in group}
    ordered = []
    for groups in levels:
        ordered.append(tuple(tuple(sorted(group, key=lambda rank: min(held[rank]))) for group in groups))
        held |= {rank: frozenset().union(*(held[each] for each in group)) for group in groups for rank in group}
    return ordered


def _together(run: Sequence[_Groups]) -> _Groups | None:
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
