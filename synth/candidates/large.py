"""What to try at one large size, where bandwidth is all that counts and times decide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from synth.candidates.candidate import LARGE_VIEW, Candidate
from synth.candidates.cuts import large_cuts, worthwhile_counts
from synth.candidates.links import is_crowded, is_uneven
from synth.candidates.pieces import in_pieces
from synth.candidates.transfers import (
    FINE,
    MAX_FINEST_PACED_TRANSFERS,
    MAX_PACED_TRANSFERS,
    direct,
    own_chunks,
    readable_counts,
    with_count,
)
from synth.collective import ROOTED, SHARED, CollectiveName
from synth.instance import Instance

#: A chunk of a large buffer that is cut as finely as a runtime reads has at least so many bytes.
_LEAST_READ_BYTES = 512 << 10


def large_candidates(
    instance: Instance, counts: Sequence[int], buffer_bytes: int, *, single: bool, boxes: bool, inside: bool
) -> list[Candidate]:
    """What to solve where bandwidth is all that counts: packings cut as finely as is worth it, in rounds (for one size) and in a
    list, and for links alone (for one size where ways of several ranks meet in one, or all is one rank's); a cut finer still where
    chunks are long, since sums are made tile after tile, else one half as fine, whose threadblocks have fewer steps; and the
    coarsest that gives every rank a piece, whose tiles overlap without a schedule. For one size the coarser ones over equal links
    alone, and over unequal ones ranks' shares in pieces, and first of all what is finer still if these have few chunks.

    Over `boxes`, beside what is made for these, only the finest cut is worth it: in rounds, for connections where something is added
    up, and else for links alone, since nothing holds copies up. Where unequal links `inside` boxes are what limits, it is all that
    is worth it, cut as finely as it is made in seconds, in rounds (sums in pieces) and for connections.
    """
    if direct(instance.collective):
        finest = worthwhile_counts(instance, counts, buffer_bytes, 1)[0]
        return [Candidate("flow", finest, buffer_bytes, view) for view in (None, LARGE_VIEW)]
    finest, *others = large_cuts(instance, counts, buffer_bytes)
    top = max((finest, *others))
    listed = [Candidate("trees", count, buffer_bytes, LARGE_VIEW) for count in (finest, *others)]
    alone = Candidate("trees", finest, buffer_bytes)
    fine = Candidate("trees", top, buffer_bytes, LARGE_VIEW, in_rounds=True)
    pieces: list[Candidate] = []
    pieced = instance.collective.combining if inside else not boxes and is_uneven(instance.paths)
    if single and pieced and instance.collective.name in SHARED:
        pieces = in_pieces(instance, counts, fine, alone=not inside)
    if inside:
        return _inside(instance, counts, fine, pieces, single=single)
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
    opening = top if is_uneven(instance.paths) and own_chunks(instance, finest) < FINE else finest
    first = [replace(fine, count=opening), replace(listed[0], count=opening)]
    if instance.collective.name in ROOTED or is_crowded(instance.paths):
        first.append(alone)
    return list(dict.fromkeys([*pieces, *first, *most, fine, *listed]))


def _inside(
    instance: Instance, counts: Sequence[int], fine: Candidate, pieces: Sequence[Candidate], *, single: bool
) -> list[Candidate]:
    """What is worth it where unequal links inside equal boxes limit: sums in pieces, copies in rounds of equal messages, which all
    boxes send at the same time, for a `single` size as finely as a runtime reads; and either in a list.
    """
    paced, finest = (
        max((*readable_counts(instance, counts, most), fine.count))
        for most in (MAX_PACED_TRANSFERS, MAX_FINEST_PACED_TRANSFERS)
    )
    rounds = replace(fine, count=paced)
    if single and instance.collective.name is CollectiveName.ALLREDUCE:
        # Chunks whose ways take turns end sooner, even where none travel together.
        rounds = replace(fine, count=finest, pieces=own_chunks(instance, finest))
    elif single and not instance.collective.combining:
        rounds = replace(fine, count=finest)
    return [*(pieces or [rounds]), replace(fine, count=paced, in_rounds=False)]


def _most_read(instance: Instance, counts: Sequence[int], buffer_bytes: int) -> list[Candidate]:
    """Shares cut as finely as a runtime reads: trees over unequal links carry what these can only in many small parts. Not where
    these are too small to gain more by that than each costs.
    """
    fitting = readable_counts(instance, counts, MAX_PACED_TRANSFERS)
    if instance.collective.name not in SHARED or not fitting:
        return []
    finest = max(fitting)
    if with_count(instance.collective, finest).chunk_bytes(buffer_bytes) < _LEAST_READ_BYTES:
        return []
    return [Candidate("trees", finest, buffer_bytes, LARGE_VIEW)]
