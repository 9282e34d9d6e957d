"""Max-min fair shares of links that transfers contend for, by progressive filling (Bertsekas and Gallager, Data Networks, section
6.5.2): all rates rise together; a transfer stops when a link of its path is full or its own limit is reached.

Transfers of one path and limit, a *kind*, move alike: rates are found for kinds, of which a crowded run has a quarter as many. Sets
of kinds are integers of a bit each, since a crowded moment touches hundreds of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple

#: Relative slack in comparing what is asked of a link, as floating point sums need it.
_EPSILON = 1e-9
#: Links that fill up at levels this close, relatively, fill up together: sums that were rounded differently.
_SAME = 1e-12
_INFINITE = float("inf")
#: Sets of kinds whose rates are remembered.
_MOST_KNOWN = 10_000


class Kind(NamedTuple):
    """What the flows of a kind cross (links by index), and what each moves at most, in bytes a us (above 0)."""

    path: tuple[int, ...]
    limit: float


class Region:
    """Kinds that share links with each other, directly or through others, and with no kind beside. Between `add` or `remove` and
    `settle`, rates are out of date.
    """

    def __init__(self, kinds: Mapping[int, Kind], most: int, capacity: Sequence[float], rate: list[float]) -> None:
        """The kinds by number, of each `most` flows at most; `capacity` (bytes a us) by link; the region keeps its kinds' rates
        (bytes a us for each flow, 0 where there are none) in `rate`.
        """
        self._kinds = kinds
        self._order = list(kinds)
        self._bit = {kind: 1 << place for place, kind in enumerate(kinds)}
        self._rate = rate
        links = dict.fromkeys(link for kind in kinds.values() for link in kind.path)
        self._capacity = {link: capacity[link] for link in links}
        #: Links that are asked for more than this are contended.
        self._full = {link: capacity[link] * (1 + _EPSILON) for link in links}
        #: By link the kinds under way, how many flows these are, and what they ask for; and which links are contended.
        self._present = dict.fromkeys(links, 0)
        self._number = dict.fromkeys(links, 0)
        self._demand = dict.fromkeys(links, 0.0)
        self._crowded: dict[int, None] = {}
        #: How many flows of a kind are under way, and the kinds of which more than so many are.
        self._flows = dict.fromkeys(kinds, 0)
        self._with_more = [0] * most
        #: The kinds of every limit, ascending, and of every rate.
        of_limit: dict[float, int] = defaultdict(int)
        for kind, (_, limit) in kinds.items():
            of_limit[limit] |= self._bit[kind]
        self._of_limit = sorted(of_limit.items())
        self._of_rate: dict[float, int] = defaultdict(int)
        #: Kinds whose rates may change: those of which a flow has started, and those that crossed a contended link with one that
        #: ended; and whether any may cross a contended link: else each has its own limit.
        self._fresh: dict[int, None] = {}
        self._loosened = 0
        self._contended = False
        self._known: dict[tuple[int, ...], list[tuple[float, int]]] = {}
        #: How many kinds the last `settle` looked at beside contended links.
        self.touched = 0

    def add(self, kind: int) -> None:
        """A flow of the kind starts."""
        bit = self._bit[kind]
        self._with_more[self._flows[kind]] |= bit
        self._flows[kind] += 1
        self._fresh[kind] = None
        path, limit = self._kinds[kind]
        demand = self._demand
        for link in path:
            self._present[link] |= bit
            self._number[link] += 1
            demand[link] += limit
            if demand[link] > self._full[link]:
                self._crowded[link] = None
                self._contended = True

    def remove(self, kind: int) -> None:
        """A flow of the kind ends."""
        bit = self._bit[kind]
        self._flows[kind] -= 1
        self._with_more[self._flows[kind]] ^= bit
        is_last = not self._flows[kind]
        path, limit = self._kinds[kind]
        demand = self._demand
        for link in path:
            if link in self._crowded:
                self._loosened |= self._present[link]
                self._contended = True
            if is_last:
                self._present[link] ^= bit
            self._number[link] -= 1
            # Summed anew where nobody is left: a rest of rounding would add up over a long run.
            demand[link] = demand[link] - limit if self._number[link] else 0.0
            if demand[link] <= self._full[link]:
                self._crowded.pop(link, None)
        if is_last:
            self._set_rate(kind, 0.0)
            self._fresh.pop(kind, None)

    def settle(self) -> list[tuple[int, float]]:
        """Set the rates of all kinds that the changes since the last call may touch; those whose flows had others before, and these
        (0 where none was under way).
        """
        changed: list[tuple[int, float]] = []
        self.touched = 0
        if self._contended:
            for rate, alike in self._new_rates():
                for kind in self._members(alike & ~self._of_rate[rate]):
                    changed.append((kind, self._rate[kind]))
                    self._set_rate(kind, rate)
        else:
            for kind in self._fresh:
                self._set_rate(kind, self._kinds[kind].limit)
        self._fresh, self._loosened, self._contended = {}, 0, False
        return changed

    def _set_rate(self, kind: int, rate: float) -> None:
        bit, before = self._bit[kind], self._rate[kind]
        if before:
            self._of_rate[before] ^= bit
        if rate:
            self._of_rate[rate] |= bit
        self._rate[kind] = rate

    def _members(self, bits: int) -> Iterator[int]:
        """The kinds of a set."""
        while bits:
            lowest = bits & -bits
            yield self._order[lowest.bit_length() - 1]
            bits ^= lowest

    def _new_rates(self) -> list[tuple[float, int]]:
        """Rates and the kinds of each, remembered: as many flows of the same kinds share the same links tile after tile."""
        seeds = self._loosened & self._with_more[0]
        for kind in self._fresh:
            seeds |= self._bit[kind]
        kinds, links = self._coupled(seeds)
        self.touched = kinds.bit_count()
        key = tuple(takewhile(bool, (kinds & more for more in self._with_more)))
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            known = self._known[key] = self._fair(key, links) if key else []
        return known

    def _coupled(self, seeds: int) -> tuple[int, list[int]]:
        """The kinds that share a contended link with a seed, directly or through others, and those links; the seeds among them."""
        present, kinds = self._present, seeds
        links: list[int] = []
        left = list(self._crowded)
        while True:
            others = []
            for link in left:
                if present[link] & kinds:
                    kinds |= present[link]
                    links.append(link)
                else:
                    others.append(link)
            if len(others) == len(left):
                return kinds, links
            left = others

    def _fair(self, with_more: tuple[int, ...], links: Sequence[int]) -> list[tuple[float, int]]:
        """Max-min fair rates, and the kinds that have each, of those which alone use `links`, and which no other link constrains; of
        these the ones `with_more` flows than none, than one, and so on.
        """
        rates: list[tuple[float, int]] = []
        spare = {link: self._capacity[link] for link in links}
        rising = {link: self._number[link] for link in links}
        share = {link: spare[link] / rising[link] for link in links}
        kinds = with_more[0]
        while kinds:
            level = min(share.values(), default=_INFINITE)
            limit, limited = next((limit, each & kinds) for limit, each in self._of_limit if each & kinds)
            if limit <= level:
                level, stopped = limit, limited
            else:
                most, stopped = level * (1 + _SAME), 0
                for link, each in share.items():
                    if each <= most:
                        stopped |= self._present[link] & kinds
            rates.append((rounded(level), stopped))
            kinds ^= stopped
            for link in list(rising):
                if there := stopped & self._present[link]:
                    number = sum((there & more).bit_count() for more in with_more)
                    spare[link] -= level * number
                    rising[link] -= number
                    if rising[link]:
                        share[link] = spare[link] / rising[link]
                    else:
                        del rising[link], share[link]
        return rates


def rounded(rate: float) -> float:
    """A rate such that equal sums that were rounded differently are equal."""
    return float(f"{rate:.12g}")


def regions_of(paths: Sequence[tuple[int, ...]]) -> list[int]:
    """For every path one that stands for all that it shares a link with, directly or through others."""
    first = list(range(len(paths)))

    def root(path: int) -> int:
        while first[path] != path:
            first[path] = path = first[first[path]]
        return path

    seen: dict[int, int] = {}
    for number, path in enumerate(paths):
        for link in path:
            one, other = sorted((root(number), root(seen.setdefault(link, number))))
            first[other] = one
    return [root(path) for path in range(len(paths))]
