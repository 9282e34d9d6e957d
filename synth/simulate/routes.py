"""Which links every connection of a program crosses, and with what latency."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from synth.constants import ProtocolConstants
from synth.errors import InputError, NoAnswerError
from synth.paths import Path, find_paths, kind_of
from synth.simulate.engine import Route
from synth.simulate.program import Connection, Program
from synth.topology import Topology

Paths = Mapping[tuple[int, int], Sequence[Path]]


def paths_by_pair(topology: Topology) -> Paths:
    """The equal paths of every ordered pair of ranks.

    A file from elsewhere may join GPUs that ours go around: such pairs get the path over CPUs or the network that a runtime would
    take. Pairs that nothing joins are absent.
    """
    pairs: dict[tuple[int, int], list[Path]] = defaultdict(list)
    for path in find_paths(topology):
        pairs[path.src, path.dst].append(path)
    everything: dict[tuple[int, int], list[Path]] = defaultdict(list)
    try:
        for path in find_paths(replace(topology, fallback=frozenset())):
            everything[path.src, path.dst].append(path)
    except NoAnswerError:  # cannot be: fewer paths are left out than above, where all ranks were joined
        return pairs
    return {**everything, **pairs}


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
