"""An instance: everything that routing, ordering and scheduling may know of one problem.

Combining collectives are solved in *broadcast form* (docs/formulation.md, section 2): a chunk is reduced at its owner along the
reverse of the tree that would broadcast it from there. `Demand` is that form: one source, some destinations.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from synth.collective import Collective, CollectiveName
from synth.paths import Path, reverse_path
from synth.topology import Topology


class Demand(NamedTuple):
    """Chunk `chunk` has to get from rank `source` to the ranks `dests` (the source itself is never among them)."""

    chunk: int
    source: int
    dests: frozenset[int]


@dataclass(frozen=True)
class Symmetry:
    """An automorphism of the machine: rank r becomes `ranks[r]`, path p `paths[p]`, link l `links[l]` (unused links stay)."""

    ranks: tuple[int, ...]
    paths: tuple[int, ...]
    links: tuple[int, ...]


def dealt(chunk: int, chunks: int, ranks: Sequence[int]) -> int:
    """Whose chunk it is if `chunks` are dealt to `ranks` in contiguous blocks as even as the counts allow."""
    return ranks[chunk * len(ranks) // chunks]


@dataclass(frozen=True)
class Instance:
    """One collective, of one chunk size, on one machine whose `paths` (index = position) may be used.

    `symmetries` generate the group under which routing may identify chunks; the identity is not listed.
    """

    topology: Topology
    collective: Collective
    paths: tuple[Path, ...]
    chunk_bytes: float
    symmetries: tuple[Symmetry, ...] = ()
    reduce_us_per_byte: float = 0.0
    """What adding a byte to a chunk takes a rank, which adds one message to it at a time; 0: nothing, as cost level 2 has it."""
    backwards: bool = False
    """Whether time runs backwards, so that what is sent on here is what is added there (`reversed`)."""

    @property
    def num_ranks(self) -> int:
        return self.collective.num_ranks

    def owner(self, chunk: int) -> int:
        """The rank whose broadcast the chunk's demand is: its source, or where it is reduced.

        allreduce deals its chunks to the ranks that take part in contiguous blocks as even as the counts allow.
        """
        collective = self.collective
        if collective.name is CollectiveName.ALLREDUCE:
            ranks = collective.group or range(collective.num_ranks)
            return dealt(chunk, collective.chunks, ranks)
        if collective.combining:
            return min(collective.destinations(chunk))
        return min(collective.sources(chunk))

    def by_owner(self, chunks: Iterable[int]) -> dict[int, list[int]]:
        """The chunks by `owner`, each once and ascending; owners in order of their first."""
        owned: dict[int, list[int]] = {}
        for chunk in sorted(set(chunks)):
            owned.setdefault(self.owner(chunk), []).append(chunk)
        return owned

    @cached_property
    def demands(self) -> tuple[Demand, ...]:
        """The broadcast form, in order of chunk; chunks that are at home from the start, or not moved at all, have none."""
        demands = []
        for chunk in range(self.collective.num_chunk_ids):
            if not self.collective.sources(chunk):
                continue
            source = self.owner(chunk)
            dests = self.collective.sources(chunk) if self.collective.combining else self.collective.destinations(chunk)
            if dests - {source}:
                demands.append(Demand(chunk, source, dests - {source}))
        return tuple(demands)

    @cached_property
    def unlike_paths(self) -> tuple[Path, ...]:
        """Of the paths that cost the same the first: a large cluster has but a few kinds."""
        kinds = {(path.alpha_us, path.occupancy, path.message_us_per_byte): path for path in reversed(self.paths)}
        return tuple(kinds.values())

    @cached_property
    def outgoing(self) -> tuple[tuple[Path, ...], ...]:
        """Paths that leave each rank, in order of index."""
        table: list[list[Path]] = [[] for _ in range(self.num_ranks)]
        for path in self.paths:
            table[path.src].append(path)
        return tuple(map(tuple, table))

    @cached_property
    def incoming(self) -> tuple[tuple[Path, ...], ...]:
        """Paths that enter each rank, in order of index."""
        table: list[list[Path]] = [[] for _ in range(self.num_ranks)]
        for path in self.paths:
            table[path.dst].append(path)
        return tuple(map(tuple, table))

    def reversed(self) -> Instance:
        """The same demands on the machine with every link turned around (paths and links keep their index)."""
        paths = tuple(reverse_path(path) for path in self.paths)
        return replace(self, topology=self.topology.reversed(), paths=paths, backwards=not self.backwards)

    @property
    def as_copies(self) -> Instance:
        """What is solved for the demands in broadcast form: sums that are no allreduce are copies on the reversed machine, played
        backwards.
        """
        collective = self.collective
        backwards = collective.combining and collective.name is not CollectiveName.ALLREDUCE
        return self.reversed() if backwards else self

    def with_chunk_bytes(self, chunk_bytes: float) -> Instance:
        """The same problem at another size."""
        return replace(self, chunk_bytes=chunk_bytes)

    def owned_by(self, owners: tuple[int, ...]) -> OwnedInstance:
        """The same problem with chunk k of an allreduce reduced at rank `owners[k]`."""
        fields = {name: getattr(self, name) for name in Instance.__dataclass_fields__}
        return OwnedInstance(**fields, owners=owners)


@dataclass(frozen=True)
class OwnedInstance(Instance):
    """An instance whose chunks are reduced where `owners` says: chunk k at rank `owners[k]`."""

    owners: tuple[int, ...] = ()

    def owner(self, chunk: int) -> int:
        return self.owners[chunk]
