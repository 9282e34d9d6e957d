"""What to try where one of several equal boxes is solved, for all of them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from synth.candidates.candidate import FEW_HOPS, HIERARCHICAL, LARGE_VIEW, RING, STAR, Candidate
from synth.candidates.cuts import FINEST_LARGE, across_cuts, large_cuts, worth_cutting, worth_reading
from synth.candidates.pieces import boxed_pieces
from synth.candidates.sizes import CONNECTION_BOUND_BYTES, PACED_BEYOND_BYTES
from synth.candidates.transfers import (
    FEW_RANKS,
    FINE,
    MAX_FINE_TRANSFERS,
    MAX_FINEST_PACED_TRANSFERS,
    MAX_PACED_TRANSFERS,
    MOST_READ_TRANSFERS,
    is_large,
    most_readable,
    readable_counts,
    transfers_of,
    with_count,
)
from synth.collective import SHARED, CollectiveName
from synth.instance import Instance

#: Copies that a candidate over equal boxes may make: one box's are routed and scheduled, all are checked and lowered.
_MAX_BOXED_TRANSFERS = 140_000
#: The same in rounds for an interpreter, which need some messages of every rank.
_MAX_PACED_OVER_MANY = 280_000
#: Chunks of a rank's share that such a candidate is cut into at most: finer cuts gain less than a percent.
_FINEST_BOXED = 8
#: Over equal boxes of more ranks than this what passes few boxes is tried beside rings of them for large buffers, too.
_MANY_RANKS = 32
#: Many boxes send to each other directly for buffers up to this.
LARGEST_STARRED = 16 << 20
#: Ranks up to which they are in a range, too: programs of so many connections take long, and sizes share the time.
_MOST_STARRED_OF_A_RANGE = 128
#: Over equal boxes, up to this size, what is made for so many times as much is tried, too: it keeps links busier, and interpreters
#: overlap what estimates and schedules say nothing of.
_LARGEST_MADE_FOR_MORE = 256 << 20
_MADE_FOR_MORE = 8


def hierarchy_candidates(
    instance: Instance, strategy: str, counts: Sequence[int], buffer_bytes: int, *, by_time: bool, single: bool = False
) -> list[Candidate]:
    """What to solve for one of several equal boxes at one buffer size: the coarsest cut that gives every rank a share along the tree
    of few hops, and finer ones along either tree; for buffers that are not small, on an interpreter (`by_time`), what is cut as
    large packings are, in rounds and not. Where that size is all that is asked for (`single`), what is made for more bytes, too, and
    of many ranks what passes few boxes. Of very many what is made for an interpreter comes first, in a range the first of that.
    """
    name, ranks = instance.collective.name, instance.num_ranks
    if strategy not in ("auto", "hierarchy"):
        return []
    if name is CollectiveName.ALLTOALL:
        return _across_boxes(instance, counts, buffer_bytes)
    if name not in HIERARCHICAL:
        return []
    if by_time and buffer_bytes > PACED_BEYOND_BYTES and not is_large(instance.collective):
        finest, *others = large_cuts(instance, counts, buffer_bytes)
        # Solved for one box, a finer cut is hardly more work, and sums gain by it.
        cuts = (*others[:1], finest, *others[1:]) if instance.collective.combining else (finest, *others)
        listed = [Candidate(RING, count, buffer_bytes, LARGE_VIEW) for count in cuts]
        usual, finest_read = _paced_cuts(instance, counts)
        in_turns = dict.fromkeys((usual, finest_read) if instance.collective.combining else (usual,))
        paced = [replace(listed[0], count=count, in_rounds=True) for count in in_turns]
        if single:
            paced += boxed_pieces(instance, counts, paced[0])
        if single and buffer_bytes <= _LARGEST_MADE_FOR_MORE:
            more = [replace(each, anchor_bytes=_MADE_FOR_MORE * buffer_bytes) for each in listed]
            listed = [each for pair in zip(more, listed, strict=True) for each in pair]
        return [*paced, *listed, *(_few_hops(instance, counts, buffer_bytes) if single else [])]
    pieces: list[Candidate] = []
    if by_time and single:
        coarsest = Candidate(RING, counts[0], buffer_bytes, LARGE_VIEW, in_rounds=True)
        pieces = boxed_pieces(instance, counts, coarsest)
    shares = 1 if name in SHARED else ranks
    enough = [count for count in counts if count >= shares] or list(counts[-1:])
    # Where a finer cut is asked for there are no few.
    few = [count for count in enough if count <= _FINEST_BOXED * shares] or enough[:1]
    whole = [count for count in few if count % shares == 0] or few
    whole_cuts = {count: with_count(instance.collective, count) for count in whole}
    fitting = [
        count
        for count, cut in whole_cuts.items()
        if cut.chunks * (ranks - 1) <= _MAX_BOXED_TRANSFERS and transfers_of(cut) <= MOST_READ_TRANSFERS * ranks
    ] or whole[:1]
    worth = [count for count in fitting if worth_cutting(instance, count, buffer_bytes)] or fitting[:1]
    rings = [(RING, count) for count in reversed(worth[-2:])]
    doubling = [(FEW_HOPS, count) for count in dict.fromkeys((*worth[:1], *worth[-1:]))]
    starred = (
        is_large(instance.collective)
        and buffer_bytes <= LARGEST_STARRED
        and (single or ranks <= _MOST_STARRED_OF_A_RANGE)
    )
    stars = [(STAR, count) for _, count in doubling[:1]] if starred else []
    tried = [*doubling, *stars, *rings] if len(worth) == 1 else [*rings, *doubling, *stars]
    linked = [Candidate(each, count, buffer_bytes) for each, count in tried]
    kept_up_with = _over_many(instance, whole, worth, buffer_bytes) if by_time else []
    if pieces:
        kept_up_with = [each for each in kept_up_with if not each.in_rounds]
    return [*pieces, *(kept_up_with if single else kept_up_with[:1]), *linked]


def _across_boxes(instance: Instance, counts: Sequence[int], buffer_bytes: int) -> list[Candidate]:
    """alltoall over equal boxes, solved for one."""
    cuts = across_cuts(instance, counts, buffer_bytes)
    return [Candidate("hierarchy-direct", count, buffer_bytes) for count in cuts]


def _paced_cuts(instance: Instance, counts: Sequence[int]) -> tuple[int, int]:
    """Cuts over equal boxes for rounds: a fine one that more instances can be had of, since rounds need some chunks of every rank
    and gain little by more; and the finest that a runtime reads, for sums, which are long in coming from many boxes, and for what is
    not near with the other.
    """
    ranks = instance.num_ranks
    cuts = {count: with_count(instance.collective, count) for count in counts}
    fitting = [count for count in counts if cuts[count].chunks <= FINEST_LARGE * ranks]

    def most(count: int) -> int:
        return MAX_PACED_TRANSFERS if cuts[count].chunks <= FINE * ranks else MAX_FINE_TRANSFERS

    usual = max((count for count in fitting if transfers_of(cuts[count]) <= most(count)), default=counts[0])
    return usual, max(readable_counts(instance, fitting, MAX_FINEST_PACED_TRANSFERS), default=usual)


def _few_hops(instance: Instance, counts: Sequence[int], buffer_bytes: int) -> list[Candidate]:
    """What passes few boxes on its way, where ranks are many: in a list of few chunks, and in rounds as fine as a runtime reads;
    beside these copies round the ring as finely.
    """
    ranks = instance.num_ranks
    if ranks <= _MANY_RANKS:
        return []
    most = _FINEST_BOXED * ranks
    few = max((count for count in counts if with_count(instance.collective, count).chunks <= most), default=counts[0])
    listed = Candidate(FEW_HOPS, few, buffer_bytes, LARGE_VIEW)
    _, finest = _paced_cuts(instance, counts)
    paced = replace(listed, count=finest, in_rounds=True)
    copied = [] if instance.collective.combining else [replace(paced, strategy=RING)]
    return [listed, *copied, paced]


def _over_many(instance: Instance, counts: Sequence[int], listed: Sequence[int], buffer_bytes: int) -> list[Candidate]:
    """What is made for an interpreter over equal boxes of very many ranks, the likeliest to be the best first: in rounds, cut as
    finely as a runtime reads and is worth it, and in a list of one of the counts `listed`, ascending. Medium buffers have few hops
    first, and of copies the coarsest list, whose chunks are passed on soonest.
    """
    if buffer_bytes <= PACED_BEYOND_BYTES:
        return []
    combining, large = instance.collective.combining, buffer_bytes > CONNECTION_BOUND_BYTES
    readable = readable_counts(instance, counts, _MAX_PACED_OVER_MANY)
    paced = max((count for count in readable if worth_cutting(instance, count, buffer_bytes)), default=counts[0])
    count = listed[-1] if large or combining else listed[0]
    ring, few_hops = (Candidate(each, paced, buffer_bytes, LARGE_VIEW, in_rounds=True) for each in (RING, FEW_HOPS))
    ring_list, few_hops_list = (replace(each, count=count, in_rounds=False) for each in (ring, few_hops))
    if not large:
        return [few_hops, ring, few_hops_list]
    if instance.collective.name is CollectiveName.ALLREDUCE:
        return [ring_list, few_hops_list, few_hops, ring]
    return [few_hops_list, ring, few_hops, ring_list] if combining else [ring, few_hops_list, few_hops]


def packed_candidates(
    instance: Instance, counts: Sequence[int], boxed: Sequence[Candidate], finer: Sequence[int]
) -> list[Candidate]:
    """What to solve for equal boxes where what is made for one, `boxed`, loads links as little as anything can, and ranks are few:
    besides that, copies in a list as fine as the first rounds, since nothing holds these up; and the next of the `finer` counts in
    rounds, if a runtime reads it.
    """
    paced = [each for each in boxed if each.in_rounds and not each.pieces]
    if not paced or instance.num_ranks > FEW_RANKS:
        return list(boxed)
    listed = [] if instance.collective.combining else [replace(paced[0], in_rounds=False)]
    readable = readable_counts(instance, finer, MAX_FINEST_PACED_TRANSFERS)
    next_count = [count for count in readable if count > paced[-1].count][:1]
    finest = [replace(paced[-1], count=count) for count in next_count]
    rest = [each for each in boxed if each not in paced]
    return list(dict.fromkeys((*paced, *finest, *listed, *rest)))


def gated_candidates(instance: Instance, strategy: str, counts: Sequence[int], buffer_bytes: int) -> list[Candidate]:
    """What to solve first for one size that is compared by schedule, over equal boxes in which many GPUs share a NIC: for one of
    these, half as finely as a runtime reads, since a GPU beside the NIC passes most on more than once, and half as finely again.
    """
    if strategy not in ("auto", "hierarchy") or instance.collective.name not in HIERARCHICAL:
        return []
    most = most_readable(instance, MAX_FINEST_PACED_TRANSFERS)
    cuts = (worth_reading(instance, counts, buffer_bytes, most // share) for share in (2, 4))
    return [Candidate(RING, count, buffer_bytes) for count in dict.fromkeys(itertools.chain(*cuts))]
