"""Streams: chunks that go round the same ring and so can have channels of their own.

Where two of a library's rings share a link that is several wide, each keeps its channel all the way round: then a rank receives
and sends in one threadblock, a step of which passes a tile on as soon as it is there. Dealt to channels link by link the rings
would mix, and no receive would belong to one send alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from synth.ir import Send
from synth.lowering.options import MAX_CHANNELS
from synth.paths import Path

#: Streams that may have channels of their own: what is packed of many trees has hundreds of ways.
_MOST_STREAMS = 12

#: The paths that come into a rank (True) and go out of it (False), by rank.
_Way = dict[tuple[int, bool], frozenset[int]]


@dataclass(frozen=True)
class Streams:
    """The streams of a schedule by number: `of` has every chunk's, `paths` the paths of each."""

    of: Mapping[int, int]
    paths: Sequence[frozenset[int]]

    @cached_property
    def sharing(self) -> Counter[int]:
        """How many streams share each path."""
        return Counter(path for paths in self.paths for path in paths)


def find_streams(paths: Sequence[Path], sends: Sequence[Send]) -> Streams | None:
    """The streams of a schedule over `paths`; None where some chunk's way parts or meets, which no threadblock follows, where ways
    are too many or a message has chunks of several, and where no two streams share a path: then each has its channels already.

    A chunk is of the first stream that it goes part of the way with, if both go on alike at every rank that both pass: only begin or
    end may one of them there.
    """
    routes: dict[int, set[int]] = defaultdict(set)
    for send in sends:
        for chunk in send.chunks:
            routes[chunk].add(send.path)
    ways: list[_Way] = []
    number: dict[frozenset[int], int] = {}
    for route in dict.fromkeys(frozenset(routes[chunk]) for chunk in sorted(routes)):
        way = _way(paths, route)
        if any(len(there) > 1 for there in way.values()):
            return None
        place = next((place for place, other in enumerate(ways) if _go_together(other, way)), len(ways))
        if place == len(ways):
            ways.append({})
        ways[place] |= way
        number[route] = place
        if len(ways) > _MOST_STREAMS:
            return None
    streams = Streams(
        {chunk: number[frozenset(route)] for chunk, route in routes.items()},
        [frozenset().union(*way.values()) for way in ways],
    )
    mixed = any(len({streams.of[chunk] for chunk in send.chunks}) > 1 for send in sends)
    return None if mixed or max(streams.sharing.values(), default=0) < 2 else streams


def _way(paths: Sequence[Path], route: Iterable[int]) -> _Way:
    """A route as what comes into every rank, and what goes out."""
    way: dict[tuple[int, bool], set[int]] = defaultdict(set)
    for path in route:
        way[paths[path].src, False].add(path)
        way[paths[path].dst, True].add(path)
    return {end: frozenset(there) for end, there in way.items()}


def _go_together(one: _Way, other: _Way) -> bool:
    """Whether two ways share a path, and at every rank that both come to, or leave, do so over the same paths."""
    shared = one.keys() & other.keys()
    return bool(shared) and all(one[end] == other[end] for end in shared)


def stream_width(paths: Sequence[Path], sends: Sequence[Send], peers_per_channel: int) -> int:
    """Channels that the streams of a schedule take where each has one; 1 where it has no streams."""
    streams = find_streams(paths, sends)
    channels = streams and stream_channels(paths, streams, streams.sharing, peers_per_channel)
    return 1 + max(map(max, channels)) if channels else 1


def stream_channels(
    paths: Sequence[Path], streams: Streams, parallel: Mapping[int, int], peers_per_channel: int
) -> list[tuple[int, ...]] | None:
    """Channels of every stream, none of which another that shares a path with it has: as many as any of its paths needs, whose
    `parallel` channels the streams over it share. None where no runtime has as many, or takes its paths on one (`Path.variants`).
    """
    channels: list[tuple[int, ...]] = []
    peers: Counter[tuple[int, int]] = Counter()
    for route in streams.paths:
        taken = {
            channel
            for other, there in zip(streams.paths, channels, strict=False)
            if not route.isdisjoint(other)
            for channel in there
        }
        ends = Counter(rank for path in route for rank in (paths[path].src, paths[path].dst))
        free = [
            channel
            for channel in range(MAX_CHANNELS)
            if channel not in taken
            and all(channel % paths[path].variants == paths[path].variant for path in route)
            and all(peers[rank, channel] + count <= peers_per_channel for rank, count in ends.items())
        ]
        width = max(-(-parallel[path] // streams.sharing[path]) for path in route)
        if len(free) < width:
            return None
        channels.append(tuple(free[:width]))
        peers.update({(rank, channel): count for channel in free[:width] for rank, count in ends.items()})
    return channels
