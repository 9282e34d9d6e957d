"""What is tried of large buffers: fine cuts, in rounds and in lists."""

from __future__ import annotations

from dataclasses import replace

import pytest

from synth.candidates import Candidate
from synth.candidates.candidate import LARGE_VIEW
from synth.candidates.cuts import worthwhile_counts
from synth.candidates.lean import lean_candidates
from synth.candidates.links import is_crowded
from synth.candidates.transfers import MAX_TRANSFERS, transfers_of, with_count
from tests.graphs import dgx1, instance_of, ring, star, two_switches, unequal_ring

POWERS = tuple(1 << k for k in range(9))
KB, MB, GB = 1 << 10, 1 << 20, 1 << 30


@pytest.mark.parametrize("ranks", [4, 8, 16, 32])
@pytest.mark.parametrize("name", ["allgather", "reduce-scatter", "allreduce"])
def test_large_buffers_are_cut_for_tiles(name: str, ranks: int) -> None:
    """The finest that is worth it in rounds and in a list, the finest of all in rounds, one piece for each."""
    instance = instance_of(star(ranks), name)
    tried = lean_candidates(instance, POWERS, GB, single=True)
    assert [(each.view, each.in_rounds) for each in tried[:2]] == [(LARGE_VIEW, True), (LARGE_VIEW, False)]
    assert all(each.view for each in tried)
    shares = 1 if name == "allreduce" else ranks
    worthwhile = worthwhile_counts(instance, POWERS, GB, len(POWERS))
    finest = max(count for count in worthwhile if count * shares <= 64 * ranks)
    assert [each.count for each in tried[:2]] == [finest] * 2
    paced = [each.count for each in tried if each.in_rounds]
    assert paced == sorted({finest, max(each.count for each in tried)})
    assert tried[-1].count * shares == ranks
    for each in tried:
        assert transfers_of(with_count(instance.collective, each.count)) <= 16_000
        # Finer than what is worth it anyway only while two chunks fill a tile.
        assert each.count <= finest or GB / (each.count * shares) >= MB


@pytest.mark.parametrize("name", ["allgather", "reduce-scatter", "allreduce", "broadcast"])
def test_for_links_alone_where_ways_meet_or_one_rank_sends_all(name: str) -> None:
    """Between two switches ways from several ranks to several share a link; the ports of one are one rank's, whoever it sends to."""
    root = 0 if name == "broadcast" else None
    crowded, apart, own = (instance_of(graph, name, root=root) for graph in (two_switches(8), star(8), ring(8)))
    assert (is_crowded(crowded.paths), is_crowded(apart.paths), is_crowded(own.paths)) == (True, False, False)
    large = [lean_candidates(each, POWERS, GB, single=True) for each in (crowded, apart, own)]
    assert [any(each.view is None for each in tried) for tried in large] == [True, root == 0, root == 0]
    # The same for what is made for less, where it is much work; many small messages of little work are tried anywhere.
    medium = [lean_candidates(each, POWERS, 16 * MB, single=True) for each in (crowded, apart, own)]
    assert [Candidate("trees", max(each.count for each in tried), MB) in tried for tried in medium] == [
        True,
        root == 0,
        root == 0,
    ]
    small = [lean_candidates(each, POWERS, 512 * KB, single=True) for each in (crowded, apart, own)]
    assert all(any((each.view, each.anchor_bytes) == (None, 32 * KB) for each in tried) for tried in small)


@pytest.mark.parametrize("name", ["broadcast", "reduce"])
def test_what_one_rank_sends_or_gets_is_cut_no_finer_than_is_routed_in_seconds(name: str) -> None:
    instance = instance_of(star(8), name, root=0)
    finest = max(each.count for each in lean_candidates(instance, (*POWERS, 512, 1024, 2048, 4096), GB, single=True))
    assert finest == 1024
    assert transfers_of(with_count(instance.collective, finest)) <= MAX_TRANSFERS


@pytest.mark.parametrize("name", ["allgather", "reduce-scatter", "allreduce"])
def test_over_unequal_links_shares_are_cut_as_finely_as_a_runtime_reads(name: str) -> None:
    """Some GPUs of a DGX-1 share two NVLinks, some one: a rank has 256 chunks, of 512 there would be 28,672 transfers."""
    uneven, even = (
        max(each.count for each in lean_candidates(instance_of(machine, name), POWERS, GB, single=True))
        for machine in (dgx1(), star(8))
    )
    assert (uneven, uneven > even) == (256, name != "allreduce")


def test_over_unequal_links_medium_shares_are_cut_for_pieces_rounds_and_lists_alone() -> None:
    """Coarser trees share the links out worse, and parts of 64 KB cost more than they gain, but at either end, in pieces."""
    pieces, *tried = lean_candidates(instance_of(dgx1(), "allgather"), POWERS, 128 * MB, single=True)
    (count,) = {each.count for each in tried}
    assert 128 * MB / (8 * count) >= 256 * KB
    assert [(each.view, each.in_rounds) for each in tried] == [(LARGE_VIEW, True), (LARGE_VIEW, False)]
    assert (pieces.in_rounds, pieces.count, pieces.pieces) == (True, 256, 81)


@pytest.mark.parametrize("name", ["allgather", "reduce-scatter", "allreduce"])
def test_beside_equal_boxes_the_finest_comes_in_rounds_and_copies_for_links_alone(name: str) -> None:
    instance = instance_of(star(16), name)
    alone = lean_candidates(instance, POWERS, GB, single=True)
    tried = lean_candidates(instance, POWERS, GB, single=True, boxes=True)
    finest = max(each.count for each in alone)
    assert (tried[0].in_rounds, tried[0].count, tried[0].boxed) == (True, finest, False)
    view = None if name == "allgather" else LARGE_VIEW
    assert [(each.view, each.in_rounds, each.count) for each in tried[1:]] == [(view, False, finest)]
    # A range of sizes shares what is tried.
    first, *others = [each for each in alone if not each.in_rounds]
    shared = lean_candidates(instance, POWERS, GB, single=False, boxes=True)
    assert shared == [first, replace(first, view=None), *others]


@pytest.mark.parametrize("name", ["allgather", "reduce-scatter", "allreduce"])
def test_where_links_inside_boxes_limit_all_ranks_trees_are_cut_finer(name: str) -> None:
    instance = instance_of(star(32), name)
    counts = (*POWERS, 512, 1024)
    usual = lean_candidates(instance, counts, GB, single=True, boxes=True)
    inside = lean_candidates(instance, counts, GB, single=True, inside=True)
    assert [(each.strategy, each.view, each.in_rounds) for each in inside] == [
        ("trees", LARGE_VIEW, True),
        ("trees", LARGE_VIEW, False),
    ]
    listed = inside[1]
    assert {listed.count} == {2 * each.count for each in usual}
    assert transfers_of(with_count(instance.collective, listed.count)) <= 32_000
    # Sums in pieces, of which there are as many as a runtime reads; smaller buffers of a range would suffer by them. Copies as
    # finely in equal messages, and so an allreduce, whose ways take turns.
    opening = {"allreduce": (1024, 32), "reduce-scatter": (128, 64), "allgather": (64, None)}
    assert (inside[0].count, inside[0].pieces) == opening[name]
    shared = lean_candidates(instance, counts, GB, single=False, inside=True)
    assert [(each.in_rounds, each.count, each.pieces) for each in shared] == [
        (True, listed.count, None),
        (False, listed.count, None),
    ]


@pytest.mark.parametrize(("size", "opening"), [(GB, 512), (128 * MB, 256)])
def test_an_allreduce_of_many_ranks_over_unequal_links_begins_with_its_finest_cut(size: int, opening: int) -> None:
    """The usual one leaves a share 16 chunks, which are never near the limit there."""
    counts = (*POWERS, 512)
    tried, even = (
        lean_candidates(instance_of(machine, "allreduce"), counts, size, single=True)
        for machine in (unequal_ring(), ring(16))
    )
    assert [(each.count, each.in_rounds) for each in tried[:2]] == [(opening, True), (opening, False)]
    assert {each.count for each in tried} == {256, opening}
    assert even[0].count == 256
