"""What to try at one size where times decide: few combinations, which decide in practice. Above 64 MB it is large.py that says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from synth.candidates.candidate import HIERARCHICAL, VIEW, Candidate
from synth.candidates.cuts import coarse_cut, worthwhile_counts
from synth.candidates.large import large_candidates
from synth.candidates.links import is_crowded
from synth.candidates.sizes import CONNECTION_BOUND_BYTES, LATENCY_BOUND_BYTES, PACED_BEYOND_BYTES
from synth.candidates.transfers import FEW_RANKS, direct, is_small, transfers_of, with_count
from synth.collective import SHARED, CollectiveName
from synth.instance import Instance

#: Chunks of a rank's share in a list for an interpreter at most.
_FINEST_LISTED = 64
#: Transfers that are solved in a tenth of a second.
_FEW_TRANSFERS = 1_000
#: Up to this size candidates are made for so many times as much, too, and above for as many times less.
_LARGEST_LOOKED_BEYOND = 256 << 10
_BEYOND = 16
#: Up to this size coarser cuts are tried, too, of which one is made for so many times as much.
_LARGEST_COARSER = 512 << 10
_SOMEWHAT_MORE = 4
#: All coarser cuts are tried for so many ranks.
_VERY_FEW_RANKS = 4


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
    crossed once then. Above: `large_candidates`.
    """
    if buffer_bytes > CONNECTION_BOUND_BYTES:
        return large_candidates(instance, counts, buffer_bytes, single=single, boxes=boxes and single, inside=inside)
    packed = "flow" if direct(instance.collective) else "trees"
    coarse = coarse_cut(instance, counts, buffer_bytes)
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
    fitting = [each for each in tried if is_small(instance, *each[:2])] or tried[:1]
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
    coarse = coarse_cut(instance, counts, buffer_bytes)
    beyond: list[Candidate] = []
    if buffer_bytes <= _LARGEST_LOOKED_BEYOND:
        # What is made for more bytes keeps links busier, which LL, with less latency than what candidates are made for, can use.
        beyond = [
            replace(each, anchor_bytes=_BEYOND * buffer_bytes) for each in chosen if each.count == coarse and each.view
        ]
    few = _coarser(instance, counts, buffer_bytes) if buffer_bytes <= _LARGEST_COARSER else []
    if instance.num_ranks <= _VERY_FEW_RANKS:
        few += _coarser_still(instance, counts, buffer_bytes)
    between = bool(few) and _is_cut_coarser(instance, buffer_bytes)
    late = buffer_bytes > PACED_BEYOND_BYTES and instance.num_ranks >= FEW_RANKS
    if (between or late) and instance.collective.name in HIERARCHICAL:
        # Of sums and copies coarser cuts, and what is made for more bytes, take less in between; of large buffers packings.
        chosen = [each for each in chosen if each != Candidate("greedy", coarse, buffer_bytes, VIEW)]
    return [*chosen, *beyond, *few]


def _is_cut_coarser(instance: Instance, buffer_bytes: int) -> bool:
    """Whether coarser cuts of the greedy, and what it makes for more bytes, leave nothing to messages just worth their step."""
    many = instance.num_ranks >= FEW_RANKS
    return LATENCY_BOUND_BYTES <= buffer_bytes <= (LATENCY_BOUND_BYTES if many else _LARGEST_LOOKED_BEYOND)


def _for_lists(instance: Instance, counts: Sequence[int], finest: int, coarse: int) -> list[int]:
    """Where one size is asked for, the `finest` cut that is worth it, and if that is finer than the `coarse` one, one half as fine.
    In a list for an interpreter ranks' shares of more chunks than some hardly ever gain by them.
    """
    if instance.collective.name in SHARED & HIERARCHICAL and finest > _FINEST_LISTED:
        return [max((count for count in counts if count <= _FINEST_LISTED), default=finest)]
    return [finest, *(count for count in counts if 2 * count == finest and count > coarse)]


def _made_for_less(instance: Instance, finest: int, buffer_bytes: int, *, single: bool) -> list[Candidate]:
    """The `finest` packing that is worth it made for fewer bytes, which takes latency for as important as it is to Simple, whose
    hops take several times the links'. Trees for one size that is no small one only where ways of few ranks meet in a link, or where
    that is little work: over links of their own, and for many ranks, others are the faster, unless all is one rank's.
    """
    packed = "flow" if direct(instance.collective) else "trees"
    quick = transfers_of(with_count(instance.collective, finest)) <= _FEW_TRANSFERS
    crowded = instance.num_ranks < FEW_RANKS and is_crowded(instance.paths)
    symmetric = instance.collective.name in HIERARCHICAL
    if single and buffer_bytes > _LARGEST_COARSER and symmetric and not (quick or crowded):
        return []
    if not is_small(instance, packed, finest):
        return []
    return [Candidate(packed, finest, max(1, buffer_bytes // _BEYOND))]


def few_long_messages(instance: Instance, counts: Sequence[int], buffer_bytes: int) -> list[Candidate]:
    """The greedy for an interpreter: messages that are worth their step, unless coarser cuts are better, and these."""
    coarse = Candidate("greedy", coarse_cut(instance, counts, buffer_bytes), buffer_bytes, VIEW)
    coarser = _coarser(instance, counts, buffer_bytes)
    between = bool(coarser) and _is_cut_coarser(instance, buffer_bytes)
    return coarser if between or not is_small(instance, coarse.strategy, coarse.count) else [coarse, *coarser]


def _coarser_still(instance: Instance, counts: Sequence[int], buffer_bytes: int) -> list[Candidate]:
    """Of very few ranks every cut that is half as fine as the one before, from an eighth of a message that is worth its step: which
    one is best on how many threadblocks is found by trying them, in next to no time.
    """
    coarser: list[Candidate] = []
    least = coarse_cut(instance, counts, buffer_bytes) // 8
    while cut := max((count for count in counts if count <= least), default=0):
        coarser.append(Candidate("greedy", cut, buffer_bytes, VIEW))
        least = cut // 2
    return coarser


def _coarser(instance: Instance, counts: Sequence[int], buffer_bytes: int) -> list[Candidate]:
    """Few long messages, which LL on many threadblocks sends soonest: what is half as fine as a message that is worth its step, made
    for somewhat more bytes, and a quarter.
    """
    coarse = coarse_cut(instance, counts, buffer_bytes)
    half = [count for count in counts if 2 * count <= coarse][-1:]
    quarter = [count for count in counts if 4 * count <= coarse][-1:]
    tried = [
        *(Candidate("greedy", count, _SOMEWHAT_MORE * buffer_bytes, VIEW) for count in half),
        *(Candidate("greedy", count, buffer_bytes, VIEW) for count in quarter),
    ]
    return [each for each in tried if is_small(instance, each.strategy, each.count)]
