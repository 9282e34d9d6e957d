"""Which candidate serves which sizes: the split of a range into at most so many files that costs least."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

#: What one more file must save, as a share of one size's cost: files cost load time and a reader's attention.
_FILE_PENALTY = 0.005

#: What being off squared counts for: 10 % at one size are as bad as 14 % in small parts over many.
_FAR_OFF = 4.0
#: And what being behind others' algorithms counts for beside: nobody should be worse off at any size.
_BEHIND = 12.0


class Segment(NamedTuple):
    """Candidate `candidate` serves the sizes at positions `first` to `last` of the list, both included."""

    candidate: int
    first: int
    last: int


def split_range(
    sizes: Sequence[int],
    costs: Sequence[Mapping[int, float]],
    max_files: int,
    others: Mapping[int, float] = MappingProxyType({}),
) -> list[Segment]:
    """The segments, in order, that cover all `sizes` with the least regret (plus a small price a file): the sum of what each size
    costs beyond the best that is known for it, as a logarithm, and of the squares of that, since being far off at one size is worse
    than being a little off at many.

    `costs[k]` maps a size to what candidate k costs there (us, or any score like it); a size that it does not have is one the
    candidate cannot serve. `others` is what others' algorithms cost where that is known: to be behind them counts for more. Empty
    if no split covers every size.
    """
    count = len(sizes)
    least = [min((known[size] for known in costs if size in known), default=math.inf) for size in sizes]
    cost: list[list[tuple[float, int]]] = [[(math.inf, -1)] * count for _ in range(count)]
    for first in range(count):
        for candidate, known in enumerate(costs):
            total = _FILE_PENALTY
            for last in range(first, count):
                if sizes[last] not in known:
                    break
                cost_there = known[sizes[last]]
                total += _regret(cost_there, least[last], others.get(sizes[last], math.inf))
                if total < cost[first][last][0] - 1e-12:
                    cost[first][last] = (total, candidate)
    best: list[dict[int, tuple[float, list[Segment]]]] = [{} for _ in range(count + 1)]
    best[0][0] = (0.0, [])
    for end in range(1, count + 1):
        for first in range(end):
            price, candidate = cost[first][end - 1]
            for files, (before, segments) in best[first].items():
                if files < max_files and price < math.inf:
                    total = before + price
                    if files + 1 not in best[end] or total < best[end][files + 1][0] - 1e-12:
                        best[end][files + 1] = (total, [*segments, Segment(candidate, first, end - 1)])
    finished = [best[count][files] for files in sorted(best[count])]
    return _joined(min(finished, key=lambda entry: entry[0])[1]) if finished else []


def _regret(cost: float, least: float, others: float) -> float:
    excess = math.log(max(cost, 1e-6) / max(least, 1e-6))
    behind = math.log(max(1.0, cost / max(others, 1e-6)))
    return excess + _FAR_OFF * excess**2 + _BEHIND * behind


def _joined(segments: list[Segment]) -> list[Segment]:
    """Neighbouring segments of one candidate as one."""
    joined: list[Segment] = []
    for segment in segments:
        if joined and joined[-1].candidate == segment.candidate:
            joined[-1] = joined[-1]._replace(last=segment.last)
        else:
            joined.append(segment)
    return joined
