"""What to try for a buffer size: how finely to cut, with which strategies. All limits are counted in transfers, not seconds."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from synth.boxes import Boxes
from synth.collective import ROOTED, SHARED, Collective, CollectiveName
from synth.constants import Constants
from synth.exchange import EXCHANGE
from synth.instance import Instance
from synth.paths import Path

#: Transfers that one candidate may have: above, stages take many seconds and files outgrow the runtimes.
MAX_TRANSFERS = 10_000
#: The same for one candidate of the largest buffers.
_MAX_FINE_TRANSFERS = 16_000
#: The same for one over equal boxes that is ordered in rounds, if each rank has no more chunks than this.
_MAX_PACED_TRANSFERS = 32_000
FINE = 32
#: The same for the finest of these, which is for one instance.
_MAX_FINEST_PACED_TRANSFERS = 65_000
#: Transfers a rank that a runtime reads: a send and a receive each, of 4,095 elements of its file.
MOST_READ_TRANSFERS = 2_000
#: The same where every chunk has one destination: routes are short, and loads even with few of them.
MAX_DIRECT_TRANSFERS = 4_000
#: The same where schedules decide and nothing coarser is near the limit.
_MAX_FINE_DIRECT = 8_000
#: Transfers up to which `auto` tries the greedy beside the trees: it is run many times.
MAX_GREEDY_TRANSFERS = 5_000
#: The same where chunks have one destination each, which pass many ranks on their ways.
_MAX_DIRECT_GREEDY = 1_500
#: And so many of the finest of these, or of the coarsest, where finer cuts are looked for, for so many ranks: more take long.
_FINEST_GREEDY = 2
_FEW_RANKS = 16
#: Buffers up to this are mostly latency on every machine of the catalogue: there the coarsest cut is tried, too.
LATENCY_BOUND_BYTES = 64 << 10
#: The strategy that routes both halves of an allreduce as one, and the ranks up to which it ends in seconds.
JOINT = "joint"
_MOST_JOINT_RANKS = 32
#: The strategies that reduce at so many ranks in the middle of the machine (synth.routing.central): "central-4".
CENTRAL = "central-"
#: The strategies over equal boxes in which each passes on to the next what it gets, in which few do so on any way, and in which
#: every one sends to every other itself.
RING = "hierarchy-ring"
FEW_HOPS = "hierarchy-doubling"
STAR = "hierarchy-star"
#: The strategies over equal boxes, by the tree of boxes that each follows (synth.routing.hierarchy), and which collectives
#: have them.
HIERARCHIES = {
    RING: "ring",
    FEW_HOPS: "doubling",
    STAR: "star",
    "hierarchy-direct": "direct",
}
_HIERARCHICAL = frozenset({CollectiveName.ALLGATHER, CollectiveName.REDUCE_SCATTER, CollectiveName.ALLREDUCE})
#: The same for what one rank sends or gets: boxes do not all do the same.
CHAINS = {"hierarchy-chain": "ring", "hierarchy-two-trees": "two-trees", "hierarchy-fan": "direct"}
CHAINED = frozenset({CollectiveName.BROADCAST, CollectiveName.REDUCE})
_FANNED = frozenset({CollectiveName.GATHER, CollectiveName.SCATTER})
#: Ranks up to which a flow of what one rank sends or gets ends in seconds; it comes nearer to the limit than a fan of boxes.
_MOST_FLOWN_RANKS = 128
#: Copies that a candidate over equal boxes may make: one box's are routed and scheduled, all are checked and lowered.
MAX_BOXED_TRANSFERS = 140_000
#: The same in rounds for an interpreter, which need some messages of every rank.
_MAX_PACED_OVER_MANY = 280_000
#: Chunks of a rank's share that such a candidate is cut into at most: finer cuts gain less than a percent.
_FINEST_BOXED = 8
#: The same where every chunk has one destination.
_FINEST_ACROSS = 4
#: Transfers of a reduce over equal boxes: sums are made chunk after chunk, and wait less for small ones.
_MAX_SUMMED_TRANSFERS = 20_000
#: Chunks from one rank to all over equal boxes are routed so many for each place of a box, whose parts follow each other; with
#: fewer, gates carry uneven loads.
WAYS_OF_A_PLACE = 4
#: Over equal boxes of more ranks than this what passes few boxes is tried beside rings of them for large buffers, too.
_MANY_RANKS = 32
#: Boxes from which on a ring of them is long beside trees.
_MANY_BOXES = 8
#: Where one size is all that is asked for, this many of the coarsest cuts are tried whatever their chunks cost.
_FEWEST_CUTS = 4
#: And so many of the finest that are worth their transfers, for packings; one less for many ranks, whose orders take long.
_FINEST_CUTS = 3
#: Chunks of a rank's share in a list for an interpreter at most.
_FINEST_LISTED = 64
#: Transfers that are solved in a tenth of a second.
_FEW_TRANSFERS = 1_000
#: A chunk whose time on the slowest path is less than this share of its latency gains nothing by being cut further.
_FINEST_SHARE = 0.25
#: Where schedules are all that counts and nothing coarser is near the limit, it still gains something by so many times less.
_FINER_STILL = 4
#: The same where latency counts, and parts follow one another from hop to hop.
_FINEST_LATE = 16


#: Buffers up to this are decided by connections as much as by links: candidates are made for an interpreter, too.
CONNECTION_BOUND_BYTES = 64 << 20
#: Many boxes send to each other directly for buffers up to this.
LARGEST_STARRED = 16 << 20
#: Ranks up to which they are in a range, too: programs of so many connections take long, and sizes share the time.
_MOST_STARRED_OF_A_RANGE = 128
#: The protocol whose connections stand for all where candidates are made for an interpreter: LL has less latency, Simple more.
VIEW = "LL128"
#: The same for buffers that are larger than `CONNECTION_BOUND_BYTES`.
LARGE_VIEW = "Simple"
#: Buffers above this are ordered in rounds where they have a long way to go: over boxes, and from sums at free roots to copies.
_PACED_BEYOND_BYTES = 8 << 20
_TILE_BYTES = Constants().simple.tile_bytes
#: A chunk of such a buffer that is cut as finely as a runtime reads has at least so many bytes.
_LEAST_READ_BYTES = 512 << 10
#: Chunks of such a buffer at most, times the ranks, unless a finer cut is tried on purpose: it takes longer and is hardly better.
_FINEST_LARGE = 64
#: And of a rank's share in a list over paths that keep apart, whose messages come in order.
_FINEST_APART = 128
#: Chunks of a candidate for an interpreter, of the vector or of all shares together: more cost a message each, fewer do not fill
#: the links of the machines that have the most.
_COARSE_CHUNKS = 64
#: Up to this size candidates are made for so many times as much, too, and above for as many times less.
_LARGEST_LOOKED_BEYOND = 256 << 10
_BEYOND = 16
#: Up to this size coarser cuts are tried, too, of which one is made for so many times as much.
_LARGEST_COARSER = 512 << 10
_SOMEWHAT_MORE = 4
#: Over equal boxes, up to this size, what is made for so many times as much is tried, too: it keeps links busier, and interpreters
#: overlap what estimates and schedules say nothing of.
_LARGEST_MADE_FOR_MORE = 256 << 20
_MADE_FOR_MORE = 8
#: A rank's chunks come in pieces if there are at least so many of these, of so many bytes or more, and no more transfers than this.
_FEWEST_PIECES = 12
_LEAST_PIECE_BYTES = 128 << 10
_LEAST_PIECE_ALONE_BYTES = 64 << 10
_CHUNKS_OF_A_PIECE = 2.5
_CHUNKS_OF_A_SUMMED_PIECE = 4.0
#: And so many over equal boxes of so few ranks that a runtime reads as many messages as the finest rounds have.
_CHUNKS_OF_A_FINE_PIECE = 1.3
#: Where a runtime reads all chunks as they are, buffers up to this come in pieces, too, unless ways of several ranks meet.
_LARGEST_PIECED_ANYWAY = 256 << 20
#: Of the pieces that a runtime reads, the share that it reads however their threadblocks and waits come out.
_PIECES_READ_SURELY = 0.95
#: Pieces of a share of `_PIECED_BYTES` at most, and of others by the cube root of their size (eq. 14f): with more of them messages
#: cost more than what they save until all links are busy, and threadblocks, of which there are so many, have more steps.
_PIECES = 64
_PIECED_BYTES = 8 << 20
_MAX_PIECED_TRANSFERS = 530_000
#: Copies over equal boxes, of which the last to come is all that is waited for, gain by it where they are cut so much less finely.
_COARSE_COPIES = 4
#: A message of less costs its step and nothing else.
_LEAST_CHUNK_BYTES = 1 << 10


@dataclass(frozen=True, slots=True)
class Candidate:
    """One combination to try: a strategy, a chunk count (as in synth.chunks), the buffer size it is solved at, and whether
    for links alone or for the connections of an interpreter (synth.interpreted), by protocol; for these in a list or in rounds
    (synth.ordering.rounds).
    """

    strategy: str
    count: int
    anchor_bytes: int
    view: str | None = None
    in_rounds: bool = False
    pieces: int | None = None
    """in rounds, how many pieces a rank's chunks make (synth.ordering.pieces); None: every chunk is one"""
    apart: bool = False
    """whether trees go over paths that keep apart (synth.routing.apart)"""

    @property
    def ordered(self) -> str:
        """How its messages are ordered, in a word."""
        return "pieces" if self.pieces else "rounds" if self.in_rounds else "list"

    @property
    def boxed(self) -> bool:
        """Whether one of several equal boxes is solved, for all of them."""
        return self.strategy in HIERARCHIES

    @property
    def exchanged(self) -> bool:
        """Whether it is an allreduce in which every rank adds up for itself (synth.exchange)."""
        return self.strategy.startswith(EXCHANGE)

    @property
    def central(self) -> bool:
        """Whether an allreduce is reduced at ranks in the middle of the machine."""
        return self.strategy.startswith(CENTRAL)

    @property
    def chained(self) -> bool:
        """Whether equal boxes pass on what one rank sends, or what it gets: tiles need not wait for whole chunks on the way."""
        return self.strategy in CHAINS


def anchors(min_bytes: int, max_bytes: int, count: int = 4) -> tuple[int, ...]:
    """Buffer sizes to solve at, ascending: the largest, and down in equal ratios towards the smallest, as powers of two."""
    if min_bytes == max_bytes:
        return (max_bytes,)
    ratio = (max_bytes / min_bytes) ** (1 / count)
    sizes = {max_bytes}
    for step in range(1, count):
        sizes.add(max(min_bytes, 1 << (round(max_bytes / ratio**step).bit_length() - 1)))
    return tuple(sorted(sizes))


def with_count(collective: Collective, count: int) -> Collective:
    """The collective cut into `count` chunks a rank where ranks have shares, `count` in all otherwise."""
    return replace(collective, chunks=count * collective.num_ranks if collective.name in SHARED else count)


def direct(collective: Collective) -> bool:
    """Whether every chunk has one destination, so that routes are paths and routing is a flow."""
    return collective.name in (CollectiveName.GATHER, CollectiveName.SCATTER, CollectiveName.ALLTOALL)


def transfers_of(collective: Collective) -> int:
    """How many transfers a routing of the collective has at least; of a group's chunks, all count."""
    others = len(collective.members) - 1
    match collective.name:
        case CollectiveName.GATHER | CollectiveName.SCATTER | CollectiveName.ALLTOALL:
            return collective.num_chunk_ids
        case CollectiveName.ALLREDUCE:
            return 2 * collective.chunks * others
        case _:
            return collective.chunks * others


def worthwhile_counts(instance: Instance, counts: Sequence[int], buffer_bytes: int, most: int) -> list[int]:
    """Of the admissible counts (as in chunk_counts), at most `most` worth trying at this size, ascending.

    Cutting stops where transfers get too many or chunks too small to be worth their latency. The finest counts come first; below
    them, each next is at most half of the one before.
    """
    fitting = [count for count in counts if _fits(instance, count, buffer_bytes)] or [counts[0]]
    chosen = fitting[-1:]
    for count in reversed(fitting[:-1]):
        if 2 * count <= chosen[-1] or len(fitting) <= most:
            chosen.append(count)
    return sorted(chosen[:most])


def lean_candidates(
    instance: Instance,
    counts: Sequence[int],
    buffer_bytes: int,
    *,
    single: bool,
    boxes: bool = False,
    inside: bool = False,
    exchanged: bool = False,
) -> list[Candidate]:
    """Of what could be solved for an interpreter at one buffer size, what decides in practice; `single` where that size is all
    that is asked for, `boxes` where the machine is a cluster of equal ones, `inside` where unequal links in these are what limits,
    `exchanged` where exchanges are tried.

    Below what is bound by bandwidth alone: packings cut as finely as is worth it, and coarsely, since every message costs a step;
    and where latency rules the coarsest, and one piece for every rank to reduce, unless these are exchanged, over boxes that are
    crossed once then. Above: `_large_candidates`.
    """
    if buffer_bytes > CONNECTION_BOUND_BYTES:
        return _large_candidates(instance, counts, buffer_bytes, single=single, boxes=boxes and single, inside=inside)
    packed = "flow" if direct(instance.collective) else "trees"
    coarse = _coarse(instance, counts, buffer_bytes)
    worthwhile = worthwhile_counts(instance, counts, buffer_bytes, 1)[0]
    finest, *others = _for_lists(instance, counts, worthwhile, coarse) if single else [worthwhile]
    tried: list[tuple[str, int, str | None]] = [
        (packed, finest, VIEW),
        ("greedy", coarse, VIEW),
        (packed, coarse, VIEW),
        *((packed, count, VIEW) for count in others),
    ]
    if buffer_bytes <= LATENCY_BOUND_BYTES:
        each = [count for count in counts if count >= instance.num_ranks][:1]
        tried.append(("greedy", counts[0], None))
        if instance.collective.name is CollectiveName.ALLREDUCE and not (exchanged and boxes):
            tried += [("greedy", count, VIEW) for count in each]
    fitting = [each for each in tried if _small(instance, *each[:2])] or tried[:1]
    chosen = [Candidate(name, count, buffer_bytes, view) for name, count, view in dict.fromkeys(fitting)]
    if buffer_bytes > LATENCY_BOUND_BYTES:
        chosen += _made_for_less(instance, worthwhile, buffer_bytes, single=single)
    if single:
        return _for_one_size(instance, counts, buffer_bytes, chosen)
    between = LATENCY_BOUND_BYTES < buffer_bytes <= _BEYOND * LATENCY_BOUND_BYTES
    if between and instance.collective.name is CollectiveName.ALLREDUCE:
        # A range has hardly a size to solve at between this and the smallest, and an allreduce twice as many steps to save.
        chosen += _coarser(instance, counts, buffer_bytes // _BEYOND)
    return chosen


def _for_one_size(
    instance: Instance, counts: Sequence[int], buffer_bytes: int, chosen: Sequence[Candidate]
) -> list[Candidate]:
    """What is `chosen` for every size with what is tried beside it where one is all that is asked for, and without what is hardly
    ever the best then.
    """
    coarse = _coarse(instance, counts, buffer_bytes)
    beyond: list[Candidate] = []
    if buffer_bytes <= _LARGEST_LOOKED_BEYOND:
        # What is made for more bytes keeps links busier, which LL, with less latency than what candidates are made for, can use.
        beyond = [
            replace(each, anchor_bytes=_BEYOND * buffer_bytes) for each in chosen if each.count == coarse and each.view
        ]
    few = _coarser(instance, counts, buffer_bytes) if buffer_bytes <= _LARGEST_COARSER else []
    between = bool(few) and _is_cut_coarser(instance, buffer_bytes)
    late = buffer_bytes > _PACED_BEYOND_BYTES and instance.num_ranks >= _FEW_RANKS
    if (between or late) and instance.collective.name in _HIERARCHICAL:
        # Of sums and copies coarser cuts, and what is made for more bytes, take less in between; of large buffers packings.
        chosen = [each for each in chosen if each != Candidate("greedy", coarse, buffer_bytes, VIEW)]
    return [*chosen, *beyond, *few]


def _is_cut_coarser(instance: Instance, buffer_bytes: int) -> bool:
    """Whether coarser cuts of the greedy, and what it makes for more bytes, leave nothing to messages just worth their step."""
    many = instance.num_ranks >= _FEW_RANKS
    return LATENCY_BOUND_BYTES <= buffer_bytes <= (LATENCY_BOUND_BYTES if many else _LARGEST_LOOKED_BEYOND)


def _for_lists(instance: Instance, counts: Sequence[int], finest: int, coarse: int) -> list[int]:
    """Where one size is asked for, the `finest` cut that is worth it, and if that is finer than the `coarse` one, one half as fine.
    In a list for an interpreter ranks' shares of more chunks than some hardly ever gain by them.
    """
    if instance.collective.name in SHARED & _HIERARCHICAL and finest > _FINEST_LISTED:
        return [max((count for count in counts if count <= _FINEST_LISTED), default=finest)]
    return [finest, *(count for count in counts if 2 * count == finest and count > coarse)]


def _made_for_less(instance: Instance, finest: int, buffer_bytes: int, *, single: bool) -> list[Candidate]:
    """The `finest` packing that is worth it made for fewer bytes, which takes latency for as important as it is to Simple, whose
    hops take several times the links'. Trees for one size that is no small one only where ways of few ranks meet in a link, or where
    that is little work: over links of their own, and for many ranks, others are the faster, unless all is one rank's.
    """
    packed = "flow" if direct(instance.collective) else "trees"
    quick = transfers_of(with_count(instance.collective, finest)) <= _FEW_TRANSFERS
    crowded = instance.num_ranks < _FEW_RANKS and is_crowded(instance.paths)
    symmetric = instance.collective.name in _HIERARCHICAL
    if single and buffer_bytes > _LARGEST_COARSER and symmetric and not (quick or crowded):
        return []
    if not _small(instance, packed, finest):
        return []
    return [Candidate(packed, finest, max(1, buffer_bytes // _BEYOND))]


def few_long_messages(instance: Instance, counts: Sequence[int], buffer_bytes: int) -> list[Candidate]:
    """The greedy for an interpreter: messages that are worth their step, unless coarser cuts are better, and these."""
    coarse = Candidate("greedy", _coarse(instance, counts, buffer_bytes), buffer_bytes, VIEW)
    coarser = _coarser(instance, counts, buffer_bytes)
    between = bool(coarser) and _is_cut_coarser(instance, buffer_bytes)
    return coarser if between or not _small(instance, coarse.strategy, coarse.count) else [coarse, *coarser]


def _coarser(instance: Instance, counts: Sequence[int], buffer_bytes: int) -> list[Candidate]:
    """Few long messages, which LL on many threadblocks sends soonest: what is half as fine as a message that is worth its step, made
    for somewhat more bytes, and a quarter.
    """
    coarse = _coarse(instance, counts, buffer_bytes)
    half = [count for count in counts if 2 * count <= coarse][-1:]
    quarter = [count for count in counts if 4 * count <= coarse][-1:]
    tried = [
        *(Candidate("greedy", count, _SOMEWHAT_MORE * buffer_bytes, VIEW) for count in half),
        *(Candidate("greedy", count, buffer_bytes, VIEW) for count in quarter),
    ]
    return [each for each in tried if _small(instance, each.strategy, each.count)]


def _large_candidates(
    instance: Instance, counts: Sequence[int], buffer_bytes: int, *, single: bool, boxes: bool, inside: bool
) -> list[Candidate]:
    """What to solve where bandwidth is all that counts: packings cut as finely as is worth it, in rounds (for one size) and in a
    list, and for links alone (for one size where ways of several ranks meet in one, or all is one rank's); a cut finer still where
    chunks are long, since sums are made tile after tile, else one half as fine, whose threadblocks have fewer steps; and the
    coarsest that gives every rank a piece, whose tiles overlap without a schedule. For one size the coarser ones over equal links
    alone, and over unequal ones ranks' shares in pieces, and first of all what is finer still if these have few chunks.

    Over `boxes`, beside what is made for these, only the finest cut is worth it: in rounds, for connections where something is added
    up, and else for links alone, since nothing holds copies up. Where unequal links `inside` boxes are what limits, it is all that
    is worth it, cut as finely as it is made in seconds, in rounds (or in pieces) and for connections.
    """
    if direct(instance.collective):
        finest = worthwhile_counts(instance, counts, buffer_bytes, 1)[0]
        return [Candidate("flow", finest, buffer_bytes, view) for view in (None, LARGE_VIEW)]
    finest, *others = _large_cuts(instance, counts, buffer_bytes)
    top = max((finest, *others))
    listed = [Candidate("trees", count, buffer_bytes, LARGE_VIEW) for count in (finest, *others)]
    alone = Candidate("trees", finest, buffer_bytes)
    fine = Candidate("trees", top, buffer_bytes, LARGE_VIEW, in_rounds=True)
    pieces: list[Candidate] = []
    if single and (inside or (not boxes and is_uneven(instance.paths))) and instance.collective.name in SHARED:
        pieces = _in_pieces(instance, counts, fine, alone=not inside)
    if inside:
        fine = replace(fine, count=max((*_readable(instance, counts, _MAX_PACED_TRANSFERS), top)))
        return [*(pieces or [fine]), replace(fine, in_rounds=False)]
    if boxes:
        return [fine, replace(fine, view=LARGE_VIEW if instance.collective.combining else None, in_rounds=False)]
    if not single:
        return list(dict.fromkeys([listed[0], alone, *listed[1:]]))
    most: list[Candidate] = []
    if is_uneven(instance.paths):
        most = _most_read(instance, counts, buffer_bytes)
        # Coarser trees share unequal links out worse.
        listed = [each for each in listed if each.count >= finest]
    # Shares of few chunks are never near the limit over unequal links.
    opening = top if is_uneven(instance.paths) and _own(instance, finest) < FINE else finest
    first = [replace(fine, count=opening), replace(listed[0], count=opening)]
    if instance.collective.name in ROOTED or is_crowded(instance.paths):
        first.append(alone)
    return list(dict.fromkeys([*pieces, *first, *most, fine, *listed]))


def apart_candidates(
    instance: Instance, counts: Sequence[int], buffer_bytes: int, paths: Collection[int], most_rounds: int
) -> list[Candidate]:
    """Trees over `paths`, which keep apart (synth.routing.apart), for a large buffer: in at most so many rounds, in each of which a
    threadblock of a path has one message, and in a list, finer.
    """
    into: dict[int, list[float]] = defaultdict(list)
    for path in paths:
        into[instance.paths[path].dst].append(instance.paths[path].GBps)
    # All that a rank gets comes over these, and most over the widest.
    widest = max(max(rates) / sum(rates) for rates in into.values())
    most = most_rounds / (_ways(instance.collective) * max(1, instance.num_ranks - 1) * widest)
    paced = [count for count in counts if _own(instance, count) <= min(most, _FINEST_LARGE)] or counts[:1]
    readable = _readable(instance, counts, _MAX_FINE_TRANSFERS)
    listed = [count for count in readable if _own(instance, count) <= _FINEST_APART] or counts[:1]
    return [
        Candidate("trees", paced[-1], buffer_bytes, LARGE_VIEW, in_rounds=True, apart=True),
        Candidate("trees", listed[-1], buffer_bytes, LARGE_VIEW, apart=True),
    ]


def _most_read(instance: Instance, counts: Sequence[int], buffer_bytes: int) -> list[Candidate]:
    """Shares cut as finely as a runtime reads: trees over unequal links carry what these can only in many small parts. Not where
    these are too small to gain more by that than each costs.
    """
    fitting = _readable(instance, counts, _MAX_PACED_TRANSFERS)
    if instance.collective.name not in SHARED or not fitting:
        return []
    finest = max(fitting)
    if with_count(instance.collective, finest).chunk_bytes(buffer_bytes) < _LEAST_READ_BYTES:
        return []
    return [Candidate("trees", finest, buffer_bytes, LARGE_VIEW)]


def _in_pieces(
    instance: Instance,
    counts: Sequence[int],
    paced: Candidate,
    *,
    alone: bool = False,
    chunks: float = _CHUNKS_OF_A_PIECE,
) -> list[Candidate]:
    """What comes in rounds, in as many pieces as a runtime reads, of about so many `chunks` on average: where it does not read as
    many messages as there are chunks, and the smallest pieces are worth their steps. Of a machine `alone`, in no more than are
    worth it, and medium buffers at any rate.
    """
    most = _most_pieces(instance)
    medium = alone and paced.anchor_bytes <= _LARGEST_PIECED_ANYWAY and not is_crowded(instance.paths)
    if medium or (alone and not _is_read_whole(instance, counts)):
        share_bytes = paced.anchor_bytes / instance.num_ranks
        most = min(most, round(_PIECES * math.cbrt(share_bytes / _PIECED_BYTES)))
    finer = [count for count in counts if _own(instance, count) > most]
    if most < _FEWEST_PIECES or not finer:
        return []
    count = min(finer, key=lambda count: abs(math.log2(_own(instance, count) / (chunks * most))))
    cut = with_count(instance.collective, count)
    least_bytes = _LEAST_PIECE_ALONE_BYTES if alone else _LEAST_PIECE_BYTES
    if transfers_of(cut) > _MAX_PIECED_TRANSFERS or cut.chunk_bytes(paced.anchor_bytes) < least_bytes:
        return []
    return [replace(paced, count=count, pieces=most)]


def finer_sums(instance: Instance, counts: Sequence[int], planned: Sequence[Candidate]) -> list[Candidate]:
    """Of what is planned for one large allreduce the trees over all paths for links alone, as fine as is made in a second or two:
    where ways meet, as in PCIe, what the first and the last chunk wait for is what keeps a schedule from the limit.
    """
    packed = [each for each in planned if each.strategy == "trees" and each.view is None and not each.apart]
    if not packed or not is_crowded(instance.paths):
        return []
    usual = max(packed, key=lambda each: each.count)
    finest = max(_readable(instance, counts, _MAX_FINE_TRANSFERS), default=usual.count)
    return [replace(usual, count=finest)] if finest > usual.count else []


def finest_pieces(instance: Instance, strategy: str, counts: Sequence[int], buffer_bytes: int) -> list[Candidate]:
    """What comes in as many pieces as a runtime reads, and the smallest of these half as large as otherwise: for one size that is
    compared by schedule, over unequal links without boxes, where nothing coarser is near the limit.
    """
    packed = strategy in ("auto", "trees") and instance.collective.name in SHARED and not direct(instance.collective)
    halves = [count for count in counts if 2 * count in counts]
    if not packed or not is_uneven(instance.paths) or _is_read_whole(instance, halves):
        return []
    paced = Candidate("trees", counts[-1], buffer_bytes, LARGE_VIEW, in_rounds=True)
    most = int(_most_pieces(instance) * _PIECES_READ_SURELY)
    coarser = _in_pieces(instance, halves, paced, alone=True)
    return [replace(each, count=2 * each.count, pieces=most) for each in coarser]


def _most_pieces(instance: Instance) -> int:
    """How many messages a runtime reads for every rank's chunks."""
    return MOST_READ_TRANSFERS // (_ways(instance.collective) * max(1, instance.num_ranks - 1))


def _is_read_whole(instance: Instance, counts: Sequence[int]) -> bool:
    """Whether a runtime reads a message for every chunk of any of the cuts."""
    return all(_own(instance, count) <= _most_pieces(instance) for count in counts)


def _ways(collective: Collective) -> int:
    """How often a chunk goes to or comes from all: as a sum and as a copy, or as one of these."""
    return 2 if collective.name is CollectiveName.ALLREDUCE else 1


def _own(instance: Instance, count: int) -> int:
    """The chunks of each rank in a cut."""
    return with_count(instance.collective, count).chunks // instance.num_ranks


def _readable(instance: Instance, counts: Sequence[int], most: int) -> list[int]:
    """The counts, ascending, with no more transfers than `most` and than a runtime reads."""
    read = _most_readable(instance, most)
    return [count for count in counts if transfers_of(with_count(instance.collective, count)) <= read]


def _most_readable(instance: Instance, most: int) -> int:
    """The most transfers that a candidate may have of which a runtime reads all, and no more than `most`."""
    return min(MOST_READ_TRANSFERS * instance.num_ranks, most)


def _worth_reading(instance: Instance, counts: Sequence[int], buffer_bytes: int, most: int) -> list[int]:
    """The finest of the `_readable` counts that gains something where schedules are all that counts; none where none does."""
    fitting = _readable(instance, counts, most)
    return [count for count in fitting if _worth_cutting(instance, count, _FINER_STILL * buffer_bytes)][-1:]


def is_uneven(paths: Iterable[Path]) -> bool:
    """Whether some of the paths are wider than others."""
    return len({path.GBps for path in paths}) > 1


def is_crowded(paths: Iterable[Path]) -> bool:
    """Whether some link is on paths from several ranks to several: no port of one, but what others' ways meet in."""
    ends: dict[int, tuple[set[int], set[int]]] = defaultdict(lambda: (set(), set()))
    for path in paths:
        for link in path.links:
            sources, destinations = ends[link]
            sources.add(path.src)
            destinations.add(path.dst)
    return any(len(sources) > 1 and len(destinations) > 1 for sources, destinations in ends.values())


def _large_cuts(instance: Instance, counts: Sequence[int], buffer_bytes: int) -> list[int]:
    """The finest cut that is worth it, and the others of `_large_candidates`, the coarsest last."""
    cuts = {count: with_count(instance.collective, count) for count in counts}
    worthwhile = worthwhile_counts(instance, counts, buffer_bytes, len(counts))
    most = _FINEST_LARGE * instance.num_ranks
    finest = max((count for count in worthwhile if cuts[count].chunks <= most), default=worthwhile[0])
    # What one rank sends to all, or gets from all, gains little by cuts that take so many transfers.
    transfers = MAX_TRANSFERS if instance.collective.name in CHAINED else _MAX_FINE_TRANSFERS
    finer = [
        count
        for count, cut in cuts.items()
        if finest < count and 2 * cut.chunk_bytes(buffer_bytes) >= _TILE_BYTES and transfers_of(cut) <= transfers
    ]
    half = [count for count in counts if 2 * count <= finest]
    each = [count for count, cut in cuts.items() if cut.chunks >= instance.num_ranks]
    return list(dict.fromkeys((finest, *(finer or half)[-1:], *(each or [finest])[:1])))


def _paced_cuts(instance: Instance, counts: Sequence[int]) -> tuple[int, int]:
    """Cuts over equal boxes for rounds: a fine one that more instances can be had of, since rounds need some chunks of every rank
    and gain little by more; and the finest that a runtime reads, for sums, which are long in coming from many boxes, and for what is
    not near with the other.
    """
    ranks = instance.num_ranks
    cuts = {count: with_count(instance.collective, count) for count in counts}
    fitting = [count for count in counts if cuts[count].chunks <= _FINEST_LARGE * ranks]

    def most(count: int) -> int:
        return _MAX_PACED_TRANSFERS if cuts[count].chunks <= FINE * ranks else _MAX_FINE_TRANSFERS

    usual = max((count for count in fitting if transfers_of(cuts[count]) <= most(count)), default=counts[0])
    return usual, max(_readable(instance, fitting, _MAX_FINEST_PACED_TRANSFERS), default=usual)


def candidates(
    instance: Instance,
    strategy: str,
    counts: Sequence[int],
    buffer_bytes: int,
    *,
    single: bool,
    thorough: bool = False,
    latency_counts: bool = True,
    exchanged: bool = False,
) -> list[Candidate]:
    """What to solve at one buffer size: `single` where that size is all that is asked for, `thorough` where time is no matter,
    whether latency counts beside bandwidth at the size, and whether exchanges are tried: then many ranks need no pieces that are
    fewer than they are.
    """
    collective = instance.collective
    chosen = _packing_counts(instance, counts, buffer_bytes, single=single, thorough=thorough)
    if strategy != "auto":
        return [Candidate(strategy, count, buffer_bytes) for count in chosen]
    tried = [Candidate("flow" if direct(collective) else "trees", count, buffer_bytes) for count in chosen]
    if not thorough and (direct(collective) or not latency_counts):
        # Packings are the better there, and the greedy takes long on many chunks.
        return tried
    small = [count for count in counts if transfers_of(with_count(collective, count)) <= MAX_GREEDY_TRANSFERS]
    coarse = worthwhile = worthwhile_counts(instance, small or counts[:1], buffer_bytes, 2 if single else 1)
    if buffer_bytes <= LATENCY_BOUND_BYTES:
        # The coarsest cut, and for allreduce the coarsest that gives every rank a piece to reduce.
        each = [count for count in small if count >= instance.num_ranks][:1]
        coarse = [counts[0], *(each if collective.name is CollectiveName.ALLREDUCE else []), *coarse]
    if single:
        # Where only the schedule counts, a finer cut pays even if a chunk's time is far below its latency.
        coarse = [*coarse, *(count for count in small[:_FEWEST_CUTS] if count > worthwhile[0])]
    if exchanged and instance.num_ranks > _FEW_RANKS:
        coarse = [count for count in coarse if count >= instance.num_ranks]
        tried = [each for each in tried if each.count >= instance.num_ranks] or tried[-1:]
    tried += [Candidate("greedy", count, buffer_bytes) for count in dict.fromkeys(coarse)]
    return tried


def _packing_counts(
    instance: Instance, counts: Sequence[int], buffer_bytes: int, *, single: bool, thorough: bool
) -> list[int]:
    """Cuts for a packing: the finest; where there is one size alone, the finest few, or the coarsest, too, if chunks have one
    destination each, since then nothing is gained by a pipeline.
    """
    if not single:
        return worthwhile_counts(instance, counts, buffer_bytes, 1)
    if thorough:
        return worthwhile_counts(instance, counts, buffer_bytes, 6)
    if direct(instance.collective):
        return sorted({counts[0], *worthwhile_counts(instance, counts, buffer_bytes, 1)})
    fitting = [count for count in counts if _fits(instance, count, buffer_bytes)] or [counts[0]]
    return fitting[-(_FINEST_CUTS if instance.num_ranks <= _FEW_RANKS else _FINEST_CUTS - 1) :]


def is_large(collective: Collective) -> bool:
    """Whether even the coarsest cut that gives every rank a share has more transfers than one candidate may have, or one rank sends
    to so many, or gets from so many, that a flow takes minutes and more channels than there are.
    """
    if collective.name in _HIERARCHICAL | CHAINED:
        return collective.num_ranks * (collective.num_ranks - 1) > MAX_TRANSFERS
    if collective.name in _FANNED:
        return collective.num_ranks > _MOST_FLOWN_RANKS
    return transfers_of(collective) > MAX_TRANSFERS


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
    if name not in _HIERARCHICAL:
        return []
    if by_time and buffer_bytes > _PACED_BEYOND_BYTES and not is_large(instance.collective):
        finest, *others = _large_cuts(instance, counts, buffer_bytes)
        # Solved for one box, a finer cut is hardly more work, and sums gain by it.
        cuts = (*others[:1], finest, *others[1:]) if instance.collective.combining else (finest, *others)
        listed = [Candidate(RING, count, buffer_bytes, LARGE_VIEW) for count in cuts]
        usual, finest_read = _paced_cuts(instance, counts)
        in_turns = dict.fromkeys((usual, finest_read) if instance.collective.combining else (usual,))
        paced = [replace(listed[0], count=count, in_rounds=True) for count in in_turns]
        if single:
            paced += _boxed_pieces(instance, counts, paced[0])
        if single and buffer_bytes <= _LARGEST_MADE_FOR_MORE:
            more = [replace(each, anchor_bytes=_MADE_FOR_MORE * buffer_bytes) for each in listed]
            listed = [each for pair in zip(more, listed, strict=True) for each in pair]
        return [*paced, *listed, *(_few_hops(instance, counts, buffer_bytes) if single else [])]
    pieces: list[Candidate] = []
    if by_time and single:
        coarsest = Candidate(RING, counts[0], buffer_bytes, LARGE_VIEW, in_rounds=True)
        pieces = _boxed_pieces(instance, counts, coarsest)
    shares = 1 if name in SHARED else ranks
    few = [count for count in counts if shares <= count <= _FINEST_BOXED * shares]
    whole = [count for count in few if count % shares == 0] or few
    whole_cuts = {count: with_count(instance.collective, count) for count in whole}
    fitting = [
        count
        for count, cut in whole_cuts.items()
        if cut.chunks * (ranks - 1) <= MAX_BOXED_TRANSFERS and transfers_of(cut) <= MOST_READ_TRANSFERS * ranks
    ] or whole[:1]
    worth = [count for count in fitting if _worth_cutting(instance, count, buffer_bytes)] or fitting[:1]
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
    if buffer_bytes <= _PACED_BEYOND_BYTES:
        return []
    combining, large = instance.collective.combining, buffer_bytes > CONNECTION_BOUND_BYTES
    readable = _readable(instance, counts, _MAX_PACED_OVER_MANY)
    paced = max((count for count in readable if _worth_cutting(instance, count, buffer_bytes)), default=counts[0])
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
    if not paced or instance.num_ranks > _FEW_RANKS:
        return list(boxed)
    listed = [] if instance.collective.combining else [replace(paced[0], in_rounds=False)]
    readable = _readable(instance, finer, _MAX_FINEST_PACED_TRANSFERS)
    next_count = [count for count in readable if count > paced[-1].count][:1]
    finest = [replace(paced[-1], count=count) for count in next_count]
    rest = [each for each in boxed if each not in paced]
    return list(dict.fromkeys((*paced, *finest, *listed, *rest)))


def _boxed_pieces(instance: Instance, counts: Sequence[int], paced: Candidate) -> list[Candidate]:
    """Pieces over equal boxes of what is no allreduce, beside what is tried in rounds there: where a runtime reads no finer cut than
    that as it is.
    """
    most, collective = _most_pieces(instance), instance.collective
    coarse = _COARSE_COPIES * _own(instance, paced.count) <= most
    finer = any(_FINEST_LARGE < _own(instance, count) <= most for count in counts)
    if finer or collective.name not in SHARED or not (coarse or collective.combining):
        return []
    chunks = _CHUNKS_OF_A_PIECE if most < _FINEST_LARGE else _CHUNKS_OF_A_FINE_PIECE
    return _in_pieces(instance, counts, paced, chunks=chunks)


def pieced_sums(instance: Instance, counts: Sequence[int], boxed: Sequence[Candidate]) -> list[Candidate]:
    """Beside what is tried `boxed` for an allreduce of one large buffer over equal boxes, pieces of four chunks on average: a
    runtime reads half as many messages for each rank as of either half, so that the smallest have to be smaller still.
    """
    paced = [each for each in boxed if each.in_rounds and each.anchor_bytes > CONNECTION_BOUND_BYTES]
    if not paced or _most_pieces(instance) > _FINEST_LARGE:
        return []
    return _in_pieces(instance, counts, paced[0], chunks=_CHUNKS_OF_A_SUMMED_PIECE)


def _across_boxes(instance: Instance, counts: Sequence[int], buffer_bytes: int) -> list[Candidate]:
    """alltoall over equal boxes, solved for one."""
    cuts = _across_cuts(instance, counts, buffer_bytes)
    return [Candidate("hierarchy-direct", count, buffer_bytes) for count in cuts]


def _across_cuts(instance: Instance, counts: Sequence[int], buffer_bytes: int) -> list[int]:
    """For chunks with one destination whole shares, which many connections carry side by side, and finer ones that are worth it."""
    finer = [
        count
        for count in counts
        if transfers_of(with_count(instance.collective, count)) <= MAX_TRANSFERS
        and _worth_cutting(instance, count, buffer_bytes)
    ]
    return list(dict.fromkeys((counts[0], *[count for count in finer if count <= _FINEST_ACROSS][-1:])))


def chained_candidates(
    instance: Instance, boxes: Boxes, strategy: str, counts: Sequence[int], buffer_bytes: int, *, by_time: bool
) -> list[Candidate]:
    """What to solve through equal boxes at one buffer size, for broadcast and reduce: round the ring, and where boxes are many over
    trees, too; the finest cut that is worth it, from which whole ways can be made, and for large buffers coarse ones, whose tiles
    overlap without a schedule. For gather and scatter straight to the boxes, where a flow takes too long.
    """
    if strategy not in ("auto", "hierarchy"):
        return []
    if instance.collective.name in _FANNED and (strategy == "hierarchy" or is_large(instance.collective)):
        cuts = _across_cuts(instance, counts, buffer_bytes)
        return [Candidate("hierarchy-fan", count, buffer_bytes) for count in cuts]
    if instance.collective.name not in CHAINED:
        return []
    ways = WAYS_OF_A_PLACE * boxes.size
    worth = {
        count: transfers_of(with_count(instance.collective, count))
        for count in counts
        if _worth_cutting(instance, count, buffer_bytes)
    }

    def finest(most: int) -> int:
        fitting = [count for count, transfers in worth.items() if transfers <= most] or counts[:1]
        return max((count for count in fitting if count % ways == 0), default=fitting[-1])

    cuts = [finest(MAX_TRANSFERS)]
    large = by_time and buffer_bytes > CONNECTION_BOUND_BYTES
    if large:
        cuts += [finest(_MAX_SUMMED_TRANSFERS)] if instance.collective.combining else []
        cuts += [count for count in (ways, ways // 2) if count in worth]
    view = (LARGE_VIEW if large else VIEW) if by_time else None
    tried = [Candidate("hierarchy-chain", count, buffer_bytes, view) for count in cuts]
    if boxes.count >= _MANY_BOXES:
        tried += [replace(each, strategy="hierarchy-two-trees") for each in tried[:2]]
        # Where the way is long, small tiles are worth what their flags cost.
        coarse = max((count for count in cuts if count <= 2 * ways), default=0) if large else 0
        tried += [Candidate("hierarchy-chain", coarse, buffer_bytes, VIEW)] if coarse else []
    return list(dict.fromkeys(tried))


def finer_candidates(
    instance: Instance,
    strategy: str,
    counts: Sequence[int],
    buffer_bytes: int,
    *,
    boxes: bool,
    joint: bool,
    latency_counts: bool,
) -> list[Candidate]:
    """What to solve for one size that is compared by schedule where nothing coarser is near the limit: packings cut as finely as
    a runtime reads (an allreduce's with free roots, where these are `joint`), in a list and in rounds, and over equal `boxes` what
    is cut so for one of these; flows, but for those over boxes, as finely as they are made in seconds. Where latency counts, the
    greedy in the finest cuts, whose parts follow one another, since packings and flows know bandwidth alone: where chunks have one
    destination each in the coarsest, too, unless boxes are crossed.
    """
    collective = instance.collective
    tried: list[Candidate] = []
    if strategy == "auto" and latency_counts and not (direct(collective) and boxes):
        most = _MAX_DIRECT_GREEDY if direct(collective) else MAX_GREEDY_TRANSFERS
        worth = [count for count in counts if _worth_cutting(instance, count, _FINEST_LATE * buffer_bytes)] or counts[
            :1
        ]
        small = [count for count in worth if transfers_of(with_count(collective, count)) <= most]
        coarsest = small[:_FINEST_GREEDY] if direct(collective) else []
        finest = small[-_FINEST_GREEDY:] if direct(collective) or instance.num_ranks <= _FEW_RANKS else []
        tried = [Candidate("greedy", count, buffer_bytes) for count in dict.fromkeys((*coarsest, *finest))]
    if collective.name in CHAINED:
        return tried

    readable = partial(_worth_reading, instance, counts, buffer_bytes)
    if direct(collective):
        flown = strategy in ("auto", "flow") and not boxes
        return [*tried, *(Candidate("flow", count, buffer_bytes) for count in readable(_MAX_FINE_DIRECT) if flown)]
    if boxes and strategy in ("auto", "hierarchy") and collective.name in _HIERARCHICAL:
        tried += [Candidate(RING, count, buffer_bytes) for count in readable(_MAX_FINEST_PACED_TRANSFERS)]
    if strategy in ("auto", "trees"):
        packing, most = (JOINT, _MAX_FINE_TRANSFERS) if joint else ("trees", _MAX_PACED_TRANSFERS)
        packed = [Candidate(packing, count, buffer_bytes) for count in readable(most)]
        tried += [*packed, *(replace(each, view=LARGE_VIEW, in_rounds=True) for each in packed)]
    return tried


def gated_candidates(instance: Instance, strategy: str, counts: Sequence[int], buffer_bytes: int) -> list[Candidate]:
    """What to solve first for one size that is compared by schedule, over equal boxes in which many GPUs share a NIC: for one of
    these, half as finely as a runtime reads, since a GPU beside the NIC passes most on more than once, and half as finely again.
    """
    if strategy not in ("auto", "hierarchy") or instance.collective.name not in _HIERARCHICAL:
        return []
    most = _most_readable(instance, _MAX_FINEST_PACED_TRANSFERS)
    cuts = (_worth_reading(instance, counts, buffer_bytes, most // share) for share in (2, 4))
    return [Candidate(RING, count, buffer_bytes) for count in dict.fromkeys(itertools.chain(*cuts))]


def interpreted_candidates(
    instance: Instance, strategy: str, counts: Sequence[int], buffer_bytes: int, *, single: bool
) -> list[Candidate]:
    """What to solve at one buffer size for an interpreter's connections: a coarse cut, and for trees the finest."""
    if buffer_bytes > CONNECTION_BOUND_BYTES or strategy not in ("auto", "trees", "flow", "greedy"):
        return []
    finest = worthwhile_counts(instance, counts, buffer_bytes, 1)[0]
    coarse = _coarse(instance, counts, buffer_bytes)
    tried = []
    if strategy in ("auto", "trees", "flow"):
        packed = "flow" if direct(instance.collective) and strategy != "trees" else "trees"
        tried += [
            (packed, count) for count in ((finest // 4, finest // 2, coarse, finest) if single else (coarse, finest))
        ]
    if strategy in ("auto", "greedy"):
        tried.append(("greedy", coarse))
    admissible = [pair for pair in tried if pair[1] in counts and _small(instance, *pair)]
    return [Candidate(name, count, buffer_bytes, VIEW) for name, count in dict.fromkeys(admissible)]


def largest_candidates(
    strategy: str, instance: Instance, counts: Sequence[int], buffer_bytes: int, *, by_time: bool
) -> list[Candidate]:
    """For the largest buffers, where long messages last long enough for several to be in flight: the two finest cuts, and where
    times decide (`by_time`) one a good deal coarser, which leaves a threadblock few steps.
    """
    finest = worthwhile_counts(instance, counts, buffer_bytes, 2)
    coarse = [count for count in counts if 8 * count <= finest[-1]] if by_time else []
    return [Candidate(strategy, count, buffer_bytes) for count in (*coarse[-1:], *finest)]


def joint_candidates(instance: Instance, counts: Sequence[int], buffer_bytes: int) -> list[Candidate]:
    """allreduce with free roots: the finest cut, since its pipeline is as long as two trees. Large buffers also one half as fine, as
    their orders differ by chance and a rank at which many trees meet may have more steps than a runtime reads; and both in rounds,
    the finest of them cut as for large packings.
    """
    if instance.collective.name is not CollectiveName.ALLREDUCE or instance.num_ranks > _MOST_JOINT_RANKS:
        return []
    if buffer_bytes <= _PACED_BEYOND_BYTES:
        (finest,) = worthwhile_counts(instance, counts, buffer_bytes, 1)
        return [Candidate(JOINT, finest, buffer_bytes)]
    cuts = worthwhile_counts(instance, counts, buffer_bytes, 2)
    listed = [Candidate(JOINT, count, buffer_bytes) for count in reversed(cuts)]
    top = max(_large_cuts(instance, counts, buffer_bytes))
    paced = Candidate(JOINT, top, buffer_bytes, LARGE_VIEW, in_rounds=True)
    return list(dict.fromkeys((paced, *listed, replace(paced, count=cuts[0]))))


def _coarse(instance: Instance, counts: Sequence[int], buffer_bytes: int) -> int:
    """The finest of the cuts that leave every message worth its step."""
    shares = instance.num_ranks if instance.collective.name in SHARED else 1
    most = min(_COARSE_CHUNKS, buffer_bytes // _LEAST_CHUNK_BYTES)
    return max((count for count in counts if count * shares <= most), default=counts[0])


def _small(instance: Instance, strategy: str, count: int) -> bool:
    transfers = transfers_of(with_count(instance.collective, count))
    return transfers <= (MAX_GREEDY_TRANSFERS if strategy == "greedy" else MAX_TRANSFERS)


def _fits(instance: Instance, count: int, buffer_bytes: int) -> bool:
    collective = with_count(instance.collective, count)
    if transfers_of(collective) > (MAX_DIRECT_TRANSFERS if direct(collective) else MAX_TRANSFERS):
        return False
    return _worth_cutting(instance, count, buffer_bytes)


def _worth_cutting(instance: Instance, count: int, buffer_bytes: int) -> bool:
    """Whether a chunk's time on the slowest path is not small beside its latency there."""
    chunk_bytes = buffer_bytes / with_count(instance.collective, count).chunks
    busy_us, alpha_us = max((path.latency_us(chunk_bytes) - path.alpha_us, path.alpha_us) for path in instance.paths)
    return busy_us >= _FINEST_SHARE * alpha_us
