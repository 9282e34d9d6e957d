"""Collectives as pre- and postconditions over chunks, and where each chunk lies in a rank's buffers.

A collective cuts its vector into `chunks` equal chunks (`nchunksperloop` of MSCCL XML). A chunk starts on its sources and has to
end on its destinations; where the collective combines, a chunk ends as the sum of what all its sources held. Chunks are
numbered so that both offsets follow from the number (docs/formulation.md, section 1):

| collective     | chunks | chunk id         | sources  | destinations | input offset on a source | output offset     |
|----------------|--------|------------------|----------|--------------|--------------------------|-------------------|
| allgather      | R c    | r c + k          | r        | all          | k                        | id                |
| reduce-scatter | R c    | r c + k          | all      | r            | id                       | k                 |
| allreduce      | C      | k                | all      | all          | k                        | k                 |
| alltoall       | R R c  | (s R + d) c + k  | s        | d            | d c + k                  | s c + k           |
| broadcast      | C      | k                | root     | all          | k                        | k                 |
| reduce         | C      | k                | all      | root         | k                        | k                 |
| gather         | R c    | r c + k          | r        | root         | k                        | id                |
| scatter        | R c    | r c + k          | root     | r            | id                       | k                 |

For alltoall `nchunksperloop` is R c (a rank's whole buffer), and ids name the R R c chunks of all ranks together.

Where a *group* of the ranks takes part, offsets stay: sources and destinations are those of the group, and a chunk that would
have none of either is not moved. The other ranks may relay, and their buffers are neither read nor written.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from synth.errors import InputError


class CollectiveName(StrEnum):
    ALLREDUCE = "allreduce"
    ALLGATHER = "allgather"
    REDUCE_SCATTER = "reduce-scatter"
    ALLTOALL = "alltoall"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    GATHER = "gather"
    SCATTER = "scatter"


ROOTED = frozenset({CollectiveName.BROADCAST, CollectiveName.REDUCE, CollectiveName.GATHER, CollectiveName.SCATTER})
#: The root sends, or receives.
FROM_ROOT = frozenset({CollectiveName.BROADCAST, CollectiveName.SCATTER})
TO_ROOT = ROOTED - FROM_ROOT
COMBINING = frozenset({CollectiveName.ALLREDUCE, CollectiveName.REDUCE_SCATTER, CollectiveName.REDUCE})
#: What replaces what it is given, unless asked otherwise.
IN_PLACE_BY_DEFAULT = frozenset({CollectiveName.ALLREDUCE, CollectiveName.REDUCE, CollectiveName.BROADCAST})
#: A rank's share is 1/R of the vector: the vector is cut into a multiple of R chunks.
SHARED = frozenset(
    {
        CollectiveName.ALLGATHER,
        CollectiveName.REDUCE_SCATTER,
        CollectiveName.ALLTOALL,
        CollectiveName.GATHER,
        CollectiveName.SCATTER,
    }
)


def root_of(name: CollectiveName, root: int | None, group: tuple[int, ...] | None) -> int | None:
    """The root: `root` where it is given, else the first rank that takes part; None where the collective has none."""
    if root is not None or name not in ROOTED:
        return root
    return group[0] if group else 0


@cache
def _ranks(count: int) -> frozenset[int]:
    return frozenset(range(count))


@cache
def _members(group: tuple[int, ...]) -> frozenset[int]:
    return frozenset(group)


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective over `num_ranks` ranks whose vector is cut into `chunks` (= nchunksperloop) chunks; `root` if it has one,
    `group` if not all ranks take part: two or more, ascending.

    Raises InputError for a root that is no rank, for a group that is none of some ranks, root included, and for a chunk count that
    is not a positive multiple of the ranks where every rank has its share.
    """

    name: CollectiveName
    num_ranks: int
    chunks: int
    root: int | None = None
    group: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.chunks < 1 or (self.name in SHARED and self.chunks % self.num_ranks):
            raise InputError("--chunks", "", self.chunks, f"a positive multiple of {self.num_ranks} for {self.name}")
        if (self.root is not None) != (self.name in ROOTED):
            raise InputError(
                "--root", "", self.root, f"{'a rank' if self.name in ROOTED else 'nothing'} for {self.name}"
            )
        if self.root is not None and not 0 <= self.root < self.num_ranks:
            raise InputError("--root", "", self.root, f"a rank from 0 to {self.num_ranks - 1}")
        if self.group is not None:
            self._check_group(self.group)

    def _check_group(self, group: tuple[int, ...]) -> None:
        shown = ",".join(map(str, group))
        ascending = all(rank < after for rank, after in itertools.pairwise(group))
        if len(group) < 2 or not ascending or not 0 <= group[0] <= group[-1] < self.num_ranks:
            raise InputError(
                "--group", "", shown, f"2 or more different ranks from 0 to {self.num_ranks - 1}, ascending"
            )
        if self.root is not None and self.root not in group:
            raise InputError("--root", "", self.root, f"a rank of the group {shown}")

    @property
    def combining(self) -> bool:
        """Whether chunks are summed over their sources."""
        return self.name in COMBINING

    @property
    def per_rank(self) -> int:
        """c: chunks of one rank's share where ranks have shares; all chunks of the vector otherwise."""
        return self.chunks // self.num_ranks if self.name in SHARED else self.chunks

    @property
    def num_chunk_ids(self) -> int:
        """How many chunks there are over all ranks (R R c for alltoall, `chunks` otherwise)."""
        return self.chunks * self.num_ranks if self.name is CollectiveName.ALLTOALL else self.chunks

    @property
    def all_ranks(self) -> frozenset[int]:
        return _ranks(self.num_ranks)

    @property
    def members(self) -> frozenset[int]:
        """The ranks that take part."""
        return self.all_ranks if self.group is None else _members(self.group)

    @property
    def senders(self) -> frozenset[int]:
        """The ranks that hold something at the start."""
        return frozenset({self._root}) if self.name in FROM_ROOT else self.members

    @property
    def receivers(self) -> frozenset[int]:
        """The ranks that have to end with something; something of every sender's gets to every receiver."""
        return frozenset({self._root}) if self.name in TO_ROOT else self.members

    def sources(self, chunk: int) -> frozenset[int]:
        """The ranks that hold the chunk, or a contribution to it, at the start; none for a chunk that is not moved."""
        if self.group is None:
            return self._sources(chunk)
        return self._sources(chunk) & self.members if self._destinations(chunk) & self.members else frozenset()

    def destinations(self, chunk: int) -> frozenset[int]:
        """The ranks that must hold the chunk (its full sum where combining) at the end; none for a chunk that is not moved."""
        if self.group is None:
            return self._destinations(chunk)
        return self._destinations(chunk) & self.members if self._sources(chunk) & self.members else frozenset()

    def _sources(self, chunk: int) -> frozenset[int]:
        match self.name:
            case CollectiveName.ALLREDUCE | CollectiveName.REDUCE_SCATTER | CollectiveName.REDUCE:
                return self.all_ranks
            case CollectiveName.BROADCAST | CollectiveName.SCATTER:
                return frozenset({self._root})
            case CollectiveName.ALLGATHER | CollectiveName.GATHER:
                return frozenset({chunk // self.per_rank})
            case CollectiveName.ALLTOALL:
                return frozenset({chunk // (self.num_ranks * self.per_rank)})

    def _destinations(self, chunk: int) -> frozenset[int]:
        match self.name:
            case CollectiveName.ALLREDUCE | CollectiveName.ALLGATHER | CollectiveName.BROADCAST:
                return self.all_ranks
            case CollectiveName.REDUCE | CollectiveName.GATHER:
                return frozenset({self._root})
            case CollectiveName.REDUCE_SCATTER | CollectiveName.SCATTER:
                return frozenset({chunk // self.per_rank})
            case CollectiveName.ALLTOALL:
                return frozenset({chunk // self.per_rank % self.num_ranks})

    def input_offset(self, chunk: int, rank: int) -> int | None:
        """Where the chunk (or the rank's contribution) lies in the rank's input buffer; None where it does not."""
        if rank not in self.sources(chunk):
            return None
        if self.name in (CollectiveName.ALLGATHER, CollectiveName.GATHER):
            return chunk % self.per_rank
        if self.name is CollectiveName.ALLTOALL:
            return chunk % self.chunks
        return chunk

    def output_offset(self, chunk: int, rank: int) -> int | None:
        """Where the chunk has to end in the rank's output buffer; None where it does not."""
        if rank not in self.destinations(chunk):
            return None
        if self.name in (CollectiveName.REDUCE_SCATTER, CollectiveName.SCATTER):
            return chunk % self.per_rank
        if self.name is CollectiveName.ALLTOALL:
            return chunk // self.chunks * self.per_rank + chunk % self.per_rank
        return chunk

    def inputs(self, rank: int) -> dict[int, int]:
        """`input_offset` by chunk, of all chunks that lie in the rank's input buffer; ascending."""
        return self._moved(self._ids_in_input(rank), rank, self.sources)

    def outputs(self, rank: int) -> dict[int, int]:
        """`output_offset` by chunk, of all chunks that have to end in the rank's output buffer; ascending."""
        return self._moved(self._ids_in_output(rank), rank, self.destinations)

    def _moved(self, ids: Iterable[int], rank: int, ends: Callable[[int], frozenset[int]]) -> dict[int, int]:
        """Where the chunks of a buffer lie, one behind the other; of a group, those that are moved."""
        whole = self.group is None
        return {chunk: place for place, chunk in enumerate(ids) if whole or rank in ends(chunk)}

    def _ids_in_input(self, rank: int) -> range:
        match self.name:
            case CollectiveName.ALLREDUCE | CollectiveName.REDUCE_SCATTER | CollectiveName.REDUCE:
                return range(self.chunks)
            case CollectiveName.BROADCAST | CollectiveName.SCATTER:
                return range(self.chunks if rank == self._root else 0)
            case CollectiveName.ALLGATHER | CollectiveName.GATHER:
                return range(rank * self.per_rank, (rank + 1) * self.per_rank)
            case CollectiveName.ALLTOALL:
                return range(rank * self.chunks, (rank + 1) * self.chunks)

    def _ids_in_output(self, rank: int) -> Iterable[int]:
        shares = range(rank * self.per_rank, (rank + 1) * self.per_rank)
        match self.name:
            case CollectiveName.ALLREDUCE | CollectiveName.ALLGATHER | CollectiveName.BROADCAST:
                return range(self.chunks)
            case CollectiveName.REDUCE | CollectiveName.GATHER:
                return range(self.chunks if rank == self._root else 0)
            case CollectiveName.REDUCE_SCATTER | CollectiveName.SCATTER:
                return shares
            case CollectiveName.ALLTOALL:
                return (source * self.chunks + share for source in range(self.num_ranks) for share in shares)

    def input_chunks(self, rank: int) -> int:
        """Length of the rank's input buffer in chunks (0 where it has none)."""
        match self.name:
            case CollectiveName.ALLGATHER | CollectiveName.GATHER:
                return self.per_rank
            case CollectiveName.BROADCAST | CollectiveName.SCATTER:
                return self.chunks if rank == self.root else 0
            case _:
                return self.chunks

    def output_chunks(self, rank: int) -> int:
        """Length of the rank's output buffer in chunks (0 where it has none)."""
        match self.name:
            case CollectiveName.REDUCE_SCATTER | CollectiveName.SCATTER:
                return self.per_rank
            case CollectiveName.REDUCE | CollectiveName.GATHER:
                return self.chunks if rank == self.root else 0
            case _:
                return self.chunks

    def in_place_shift(self, rank: int) -> int | None:
        """In place, output chunk k is input chunk k + shift; None where an in-place call does not exist.

        NCCL's layouts: allgather has sendbuff = recvbuff + rank count, reduce-scatter recvbuff = sendbuff + rank count (gather
        and scatter likewise); the others use one buffer. Source: msccl-xml notes, "aliasing when called in place".
        """
        match self.name:
            case CollectiveName.ALLGATHER | CollectiveName.GATHER:
                return -rank * self.per_rank
            case CollectiveName.REDUCE_SCATTER | CollectiveName.SCATTER:
                return rank * self.per_rank
            case CollectiveName.ALLTOALL:
                return None
            case _:
                return 0

    def chunk_bytes(self, buffer_bytes: float) -> float:
        """Bytes of one chunk for a buffer of `buffer_bytes` as nccl-tests counts it."""
        return buffer_bytes / self.chunks

    def busbw_factor(self) -> float:
        """busbw / algbw as nccl-tests defines it (doc/PERFORMANCE.md of nccl-tests), for the ranks that take part; their shares are
        a part of the buffer that algbw is about.
        """
        n = len(self.members)
        if self.name is CollectiveName.ALLREDUCE:
            return 2 * (n - 1) / n
        return (n - 1) / self.num_ranks if self.name in SHARED else 1.0

    @property
    def _root(self) -> int:
        if self.root is None:
            raise InputError("--root", "", None, f"a rank for {self.name}")
        return self.root
