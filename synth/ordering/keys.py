"""Sort keys: which of the transfers that could start on a link starts first, by name.

A key maps what is known of a transfer before any time is fixed (`Facts`) to a tuple; the smallest goes first. The first two are
TACCL's (NSDI 2023, section 5.2); the others came out of trials on the catalogue.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

#: Of trees that are fed evenly a deep one goes so many times its depth ahead: its chunks wait at every hop for others.
_LITTLE_SOONER = 2.0
_SOONER = 5.0
_MUCH_SOONER = 12.0


class Facts(NamedTuple):
    """What a key may look at. Times are unloaded latencies in microseconds."""

    chunk: int
    path: int
    so_far_us: float
    """From the chunk's start to the moment this transfer could leave at the earliest."""
    to_go_us: float
    """From this transfer's start to the last arrival that depends on it."""
    behind: int
    """How many transfers depend on this one, directly or not."""
    turn: int
    """The chunk's number among those of its owner: in turns, all owners' chunks advance together."""
    rotation: int
    """(dst - src) modulo the ranks: transfers of equal rotation do not meet in a switch."""
    due_us: float
    """When the chunk's turn comes if all trees of its owner are fed evenly until the busiest link has carried its load."""
    even_us: float
    """When it comes if the chunks of its owner are evenly spread over that time, whatever their trees."""


Key = Callable[[Facts], tuple[float, ...]]


def _shortest_so_far(facts: Facts) -> tuple[float, ...]:
    return (facts.so_far_us, -facts.to_go_us, facts.turn, facts.rotation)


def _longest_to_go(facts: Facts) -> tuple[float, ...]:
    return (-facts.to_go_us, facts.so_far_us, facts.turn, facts.rotation)


def _most_behind(facts: Facts) -> tuple[float, ...]:
    return (-facts.behind, -facts.to_go_us, facts.turn, facts.rotation)


def _longest_path(facts: Facts) -> tuple[float, ...]:
    return (-(facts.so_far_us + facts.to_go_us), -facts.to_go_us, facts.turn, facts.rotation)


def _chunk_by_chunk(facts: Facts) -> tuple[float, ...]:
    return (facts.chunk, facts.so_far_us)


def _in_turns(facts: Facts) -> tuple[float, ...]:
    return (facts.turn, -facts.to_go_us, facts.rotation)


def _by_rotation(facts: Facts) -> tuple[float, ...]:
    return (facts.rotation, -facts.to_go_us, facts.turn)


def _pipelined(facts: Facts) -> tuple[float, ...]:
    """Each chunk has its middle when its turn comes: its sums are that much earlier, and its copies later."""
    return (facts.even_us + facts.so_far_us - facts.to_go_us, facts.chunk, facts.path)


def _sooner(times: float) -> Key:
    """Trees that are fed evenly, each so many times its depth ahead."""
    return lambda facts: (facts.due_us - times * facts.to_go_us, facts.so_far_us, facts.turn, facts.rotation)


SORT_KEYS: Mapping[str, Key] = {
    "longest-path-to-go": _longest_to_go,
    "deep-trees-sooner": _sooner(_SOONER),
    "trees-abreast": _sooner(1.0),
    "shortest-path-so-far": _shortest_so_far,
    "most-transfers-behind": _most_behind,
    "longest-path-first": _longest_path,
    "in-turns": _in_turns,
    "chunk-by-chunk": _chunk_by_chunk,
    "by-rotation": _by_rotation,
    "deep-trees-little-sooner": _sooner(_LITTLE_SOONER),
    "deep-trees-much-sooner": _sooner(_MUCH_SOONER),
    "pipelined": _pipelined,
}
