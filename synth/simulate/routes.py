"""Which links every connection of a program crosses, and with what latency."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from synth.constants import ProtocolConstants
from synth.errors import InputError
from synth.paths import Path, find_all_paths, kind_of
from synth.simulate.engine import Route
from synth.simulate.program import Connection, Program
from synth.topology import Topology

Paths = Mapping[tuple[int, int], Sequence[Path]]


def paths_by_pair(topology: Topology) -> Paths:
    """The equal paths of every ordered pair of ranks that a connection joins, over CPUs or the network, too: a file from elsewhere
    may join GPUs that ours go around, and gets the path that a runtime would take.
    """
    return by_pair(find_all_paths(topology))


def by_pair(paths: Iterable[Path]) -> Paths:
    """Paths of some pairs of ranks, in order, for a caller that has found all that its algorithms use."""
    pairs: dict[tuple[int, int], list[Path]] = defaultdict(list)
    for path in paths:
        pairs[path.src, path.dst].append(path)
    return pairs


def routes_of(topology: Topology, paths: Paths, program: Program, protocol: ProtocolConstants) -> list[Route]:
    """The route of each connection; equal paths of a pair take turns by channel. InputError for a pair that nothing joins."""
    return [_route(topology, paths, connection, protocol) for connection in program.connections]


def _route(topology: Topology, paths: Paths, connection: Connection, protocol: ProtocolConstants) -> Route:
    variants = paths.get((connection.src, connection.dst))
    if not variants:
        pair = f"gpu {connection.src} to gpu {connection.dst}"
        raise InputError(topology.name, "links", pair, "a path between GPUs that the algorithm connects")
    path = variants[connection.channel % len(variants)]
    return Route(path.links, path.alpha_us + protocol.hop_us(kind_of(topology, path)), path.alpha_us)
