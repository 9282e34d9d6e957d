"""What is worth trying: as many candidates as asked for, of as many transfers as allowed, and never none."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.boxes import Boxes
from synth.candidates import (
    CONNECTION_BOUND_BYTES,
    LARGE_VIEW,
    LATENCY_BOUND_BYTES,
    MAX_GREEDY_TRANSFERS,
    MAX_TRANSFERS,
    STAR,
    Candidate,
    anchors,
    candidates,
    chained_candidates,
    finer_candidates,
    finest_pieces,
    hierarchy_candidates,
    is_crowded,
    is_large,
    joint_candidates,
    lean_candidates,
    pieced_sums,
    transfers_of,
    with_count,
    worthwhile_counts,
)
from synth.collective import ROOTED, Collective, CollectiveName
from synth.instance import Instance, Symmetry
from synth.routing.trees import TreesRouting
from synth.topology import Topology
from tests.graphs import dgx1, full, instance_of, mesh, ring, star, two_switches

POWERS = tuple(1 << k for k in range(9))
KB, MB, GB = 1 << 10, 1 << 20, 1 << 30


@pytest.mark.parametrize("name", list(CollectiveName))
def test_a_routing_has_at_least_so_many_transfers(name: CollectiveName) -> None:
    # On a fully joined machine every strategy that makes no detour has exactly as many, an allreduce's twice.
    instance = instance_of(full(4), name, 2, 1e6, root=0 if name in ROOTED else None)
    halves = 2 if name is CollectiveName.ALLREDUCE else 1
    at_home = sum(len(d.dests) == 0 for d in instance.demands) + instance.collective.num_chunk_ids
    at_home -= len(instance.demands)
    least = halves * sum(len(demand.dests) for demand in instance.demands)
    assert least <= transfers_of(instance.collective) <= least + at_home
    routing, _ = TreesRouting()(instance)
    assert halves * len(routing.transfers) >= least


def test_a_count_is_of_a_ranks_share_where_ranks_have_shares() -> None:
    assert with_count(Collective(CollectiveName.ALLGATHER, 8, 8), 4).chunks == 32
    assert with_count(Collective(CollectiveName.ALLREDUCE, 8, 8), 4).chunks == 4


@given(low=st.integers(1, GB), high=st.integers(1, GB), count=st.integers(1, 6))
def test_anchors_rise_to_the_largest_size(low: int, high: int, count: int) -> None:
    low, high = sorted((low, high))
    sizes = anchors(low, high, count)
    assert list(sizes) == sorted(set(sizes))
    assert sizes[-1] == high
    assert sizes[0] >= low
    assert len(sizes) <= count


def test_anchors_of_the_default_range() -> None:
    assert anchors(KB, GB) == (32 * KB, MB, 32 * MB, GB)
    assert anchors(MB, MB) == (MB,)


@settings(max_examples=60)
@given(
    name=st.sampled_from(list(CollectiveName)),
    size=st.sampled_from([KB, 64 * KB, MB, 64 * MB, GB]),
    most=st.integers(1, 6),
    counts=st.sampled_from([POWERS, (1,), (1, 2, 4), (7,), (1, 5, 25, 125), (3000,)]),
)
def test_worthwhile_counts(name: CollectiveName, size: int, most: int, counts: tuple[int, ...]) -> None:
    instance = instance_of(ring(6), name, root=0 if name in ROOTED else None)
    chosen = worthwhile_counts(instance, counts, size, most)
    assert 1 <= len(chosen) <= most
    assert chosen == sorted(set(chosen))
    assert set(chosen) <= set(counts)
    if chosen != [counts[0]]:
        assert all(transfers_of(with_count(instance.collective, count)) <= MAX_TRANSFERS for count in chosen)


def test_large_buffers_are_cut_finer_than_small_ones() -> None:
    instance = instance_of(ring(4), "allgather")
    assert worthwhile_counts(instance, POWERS, KB, 3) == [1]
    assert max(worthwhile_counts(instance, POWERS, MB, 3)) < max(worthwhile_counts(instance, POWERS, GB, 3))


@pytest.mark.parametrize("strategy", ["greedy", "trees"])
@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize("thorough", [True, False])
def test_a_strategy_asked_for_is_the_only_one(strategy: str, single: bool, thorough: bool) -> None:
    instance = instance_of(ring(4), "allgather")
    tried = candidates(instance, strategy, POWERS, MB, single=single, thorough=thorough)
    assert {candidate.strategy for candidate in tried} == {strategy}
    assert {candidate.anchor_bytes for candidate in tried} == {MB}
    assert len(tried) <= ((6 if thorough else 3) if single else 1)


@pytest.mark.parametrize("name", ["allgather", "allreduce", "alltoall"])
@pytest.mark.parametrize("size", [KB, 64 * KB, GB])
@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize("thorough", [True, False])
def test_auto_tries_packings_and_a_greedy_that_is_not_too_large(
    name: str, size: int, single: bool, thorough: bool
) -> None:
    instance = instance_of(ring(8), name)
    tried = candidates(instance, "auto", POWERS, size, single=single, thorough=thorough)
    packed = "flow" if name == "alltoall" else "trees"
    both = thorough or name != "alltoall"
    assert {packed, *(["greedy"] if both else [])} == {candidate.strategy for candidate in tried}
    assert len(set(tried)) == len(tried)
    for candidate in tried:
        limit = MAX_GREEDY_TRANSFERS if candidate.strategy == "greedy" else MAX_TRANSFERS
        assert transfers_of(with_count(instance.collective, candidate.count)) <= limit


def test_where_bandwidth_alone_counts_the_greedy_is_left_out() -> None:
    instance = instance_of(ring(8), "allgather")
    tried = candidates(instance, "auto", POWERS, GB, single=True, latency_counts=False)
    assert {candidate.strategy for candidate in tried} == {"trees"}
    assert [candidate.count for candidate in tried] == [32, 64, 128]


@pytest.mark.parametrize("name", ["allgather", "allreduce", "alltoall"])
@pytest.mark.parametrize("size", [KB, MB, 32 * MB, GB])
@pytest.mark.parametrize("single", [True, False])
def test_lean_candidates_are_few_and_made_for_connections(name: str, size: int, single: bool) -> None:
    instance = instance_of(ring(8), name)
    tried = lean_candidates(instance, POWERS, size, single=single)
    assert 1 <= len(tried) <= 9
    assert len(set(tried)) == len(tried)
    assert any(candidate.view is not None for candidate in tried) or size > CONNECTION_BOUND_BYTES
    assert (("greedy", 1) in {(candidate.strategy, candidate.count) for candidate in tried}) == (
        size <= LATENCY_BOUND_BYTES
    )
    for candidate in tried:
        limit = MAX_GREEDY_TRANSFERS if candidate.strategy == "greedy" else MAX_TRANSFERS
        assert transfers_of(with_count(instance.collective, candidate.count)) <= limit


@pytest.mark.parametrize(
    ("name", "size", "single", "coarser"),
    [
        ("allreduce", 32 * KB, True, [(16, 128 * KB), (8, 32 * KB)]),
        ("allreduce", 128 * KB, True, [(32, 512 * KB), (16, 128 * KB)]),
        ("allreduce", MB, True, []),
        ("allreduce", MB, False, [(32, 256 * KB), (16, 64 * KB)]),
        ("allreduce", 64 * KB, False, []),
        ("allreduce", 2 * MB, False, []),
        ("allgather", 128 * KB, True, [(4, 512 * KB), (2, 128 * KB)]),
        ("allgather", MB, False, []),
    ],
)
def test_small_buffers_are_cut_coarsely_too(name: str, size: int, single: bool, coarser: list[tuple[int, int]]) -> None:
    """At one size for LL on many threadblocks, and of a range for the sizes that are far from the next one to solve at."""
    tried = lean_candidates(instance_of(ring(8), name), POWERS, size, single=single)
    greedy = {(each.count, each.anchor_bytes) for each in tried if each.strategy == "greedy" and each.view}
    worth_its_step = min(64, size // KB) // (8 if name == "allgather" else 1)
    a_piece_for_each = {(8, size)}
    assert set(coarser) <= greedy
    assert {pair for pair in greedy if pair[0] < worth_its_step} - a_piece_for_each == set(coarser) - a_piece_for_each


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


@pytest.mark.parametrize(("name", "finest"), [("allgather", 64), ("reduce-scatter", 64), ("allreduce", 256)])
def test_lists_of_one_size_have_64_chunks_of_a_rank_at_most(name: str, finest: int) -> None:
    """Of more a list hardly ever gains; a range shares what is tried, and goes further."""
    instance = instance_of(ring(8), name)
    tried, shared = (lean_candidates(instance, POWERS, 64 * MB, single=single) for single in (True, False))
    assert max(each.count for each in tried) == finest
    assert max(each.count for each in shared) == (256 if name == "allreduce" else 128)


@pytest.mark.parametrize("name", ["allgather", "allreduce", "alltoall"])
def test_the_greedy_is_left_out_where_it_is_never_the_best(name: str) -> None:
    """Between what it is coarser and what it is made for more bytes for, and of large buffers for many ranks."""
    few, many = (instance_of(ring(ranks), name) for ranks in (8, 16))

    def own(instance: Instance, size: int, *, single: bool = True) -> bool:
        tried = lean_candidates(instance, POWERS, size, single=single)
        cut = max(each.count for each in tried if each.strategy == "greedy")
        return any((each.strategy, each.count, each.anchor_bytes) == ("greedy", cut, size) for each in tried)

    everywhere = name == "alltoall"
    assert [own(few, size) for size in (16 * KB, 128 * KB, MB, 32 * MB)] == [True, everywhere, True, True]
    assert own(few, 128 * KB, single=False)
    greedy = {each.strategy for each in lean_candidates(many, POWERS, 32 * MB, single=True)} & {"greedy"}
    assert bool(greedy) == everywhere


@pytest.mark.parametrize("name", ["allgather", "allreduce", "broadcast", "alltoall"])
@pytest.mark.parametrize("size", [KB, GB])
def test_one_cut_is_enough_where_no_other_is_asked_for(name: str, size: int) -> None:
    """As where --chunks names it."""
    tried = lean_candidates(
        instance_of(star(8), name, root=0 if name == "broadcast" else None), [16], size, single=True
    )
    assert {candidate.count for candidate in tried} == {16}


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
    if name == "allreduce":
        assert (inside[0].count, inside[0].pieces) == (listed.count, None)
    else:
        # In pieces, of which there are as many as a runtime reads; smaller buffers of a range would suffer by them.
        assert (inside[0].count, inside[0].pieces) == (128, 64)
    shared = lean_candidates(instance, counts, GB, single=False, inside=True)
    assert [(each.in_rounds, each.count, each.pieces) for each in shared] == [
        (True, listed.count, None),
        (False, listed.count, None),
    ]


def _unequal_ring() -> Topology:
    """16 GPUs, every second link between them twice as wide."""
    equal = ring(16)
    links = [replace(link, GBps=link.GBps * (1 + place // 2 % 2)) for place, link in enumerate(equal.links)]
    return replace(equal, links=tuple(links))


@pytest.mark.parametrize(("size", "opening"), [(GB, 512), (128 * MB, 256)])
def test_an_allreduce_of_many_ranks_over_unequal_links_begins_with_its_finest_cut(size: int, opening: int) -> None:
    """The usual one leaves a share 16 chunks, which are never near the limit there."""
    counts = (*POWERS, 512)
    tried, even = (
        lean_candidates(instance_of(machine, "allreduce"), counts, size, single=True)
        for machine in (_unequal_ring(), ring(16))
    )
    assert [(each.count, each.in_rounds) for each in tried[:2]] == [(opening, True), (opening, False)]
    assert {each.count for each in tried} == {256, opening}
    assert even[0].count == 256


@pytest.mark.parametrize("name", ["allgather", "reduce-scatter", "allreduce"])
def test_shares_over_unequal_links_come_in_pieces_first_of_all(name: str) -> None:
    unequal = instance_of(_unequal_ring(), name)
    tried = lean_candidates(unequal, POWERS, GB, single=True)
    pieces = [place for place, each in enumerate(tried) if each.pieces]
    if name == "allreduce":
        assert not pieces
        return
    assert pieces == [0]
    assert (tried[0].count, tried[0].pieces, tried[0].in_rounds) == (256, 128, True)
    # A range of sizes, equal links, and a smaller buffer, whose parts were too small, have none.
    assert not any(each.pieces for each in lean_candidates(unequal, POWERS, GB, single=False))
    assert not any(each.pieces for each in lean_candidates(instance_of(star(16), name), POWERS, GB, single=True))
    assert not any(each.pieces for each in lean_candidates(unequal, POWERS, 64 * MB, single=True))


@pytest.mark.parametrize(("size", "count", "pieces"), [(128 * MB, 128, 64), (256 * MB, 256, 81), (512 * MB, 256, 102)])
def test_smaller_shares_come_in_fewer_pieces(size: int, count: int, pieces: int) -> None:
    """A runtime reads 133 of 16 ranks."""
    tried = lean_candidates(instance_of(_unequal_ring(), "allgather"), POWERS, size, single=True)
    assert [(each.count, each.pieces) for each in tried if each.pieces] == [(count, pieces)]


def test_where_a_runtime_reads_all_chunks_of_a_share_large_buffers_do_not_come_in_pieces() -> None:
    crowded = two_switches(8)
    for machine, size, pieced in ((dgx1(), 256 * MB, True), (dgx1(), 512 * MB, False), (crowded, 128 * MB, False)):
        tried = lean_candidates(instance_of(machine, "allgather"), POWERS, size, single=True)
        assert any(each.pieces for each in tried) == pieced


def test_by_schedule_the_finest_pieces_are_half_as_large() -> None:
    """With a few messages less than a runtime reads, since waits may need steps of their own."""
    unequal, counts = instance_of(_unequal_ring(), "allgather"), (*POWERS, 512)
    (finest,) = finest_pieces(unequal, "auto", counts, GB)
    assert (finest.strategy, finest.count, finest.pieces, finest.in_rounds) == ("trees", 512, 126, True)
    for instance in (
        instance_of(_unequal_ring(), "allreduce"),
        instance_of(_unequal_ring(), "alltoall"),
        instance_of(star(16), "allgather"),
        instance_of(dgx1(), "allgather"),
    ):
        assert finest_pieces(instance, "auto", counts, GB) == []
    assert finest_pieces(unequal, "flow", counts, GB) == []


@pytest.mark.parametrize(
    ("ranks", "name", "pieces"),
    [
        # Of 16 ranks a runtime reads a finer cut as it is than what is tried.
        (16, "reduce-scatter", None),
        (32, "allgather", None),
        (32, "reduce-scatter", (128, 64)),
        (64, "allgather", (64, 31)),
        (64, "reduce-scatter", (64, 31)),
        # Its halves have messages for half as many, in pieces that are cut finer.
        (64, "allreduce", None),
        # More ranks than are looked at beside the boxes; and more transfers than are worth it.
        (128, "reduce-scatter", (32, 15)),
        (256, "reduce-scatter", None),
    ],
)
def test_over_many_equal_boxes_messages_come_in_pieces(ranks: int, name: str, pieces: tuple[int, int] | None) -> None:
    instance, counts = instance_of(star(ranks), name), (*POWERS, 512, 1024, 2048)
    tried = hierarchy_candidates(instance, "auto", counts, GB, by_time=True, single=True)
    made = [(each.count, each.pieces) for each in tried if each.pieces]
    assert made == ([pieces] if pieces else [])
    assert all(each.in_rounds and each.strategy == "hierarchy-ring" for each in tried if each.pieces)
    shared = hierarchy_candidates(instance, "auto", counts, GB, by_time=True, single=False)
    scheduled = hierarchy_candidates(instance, "auto", counts, GB, by_time=False, single=True)
    smaller = hierarchy_candidates(instance, "auto", counts, 128 * MB, by_time=True, single=True)
    assert not any(each.pieces for each in (*shared, *scheduled, *smaller))


@pytest.mark.parametrize(
    ("name", "size", "made"),
    [
        ("allgather", 256 * MB, [("ring", 8, True), ("doubling", 8, False), ("doubling", 8, True)]),
        (
            "reduce-scatter",
            256 * MB,
            [("doubling", 8, False), ("ring", 8, True), ("doubling", 8, True), ("ring", 8, False)],
        ),
        (
            "allreduce",
            GB,
            [("ring", 512, False), ("doubling", 512, False), ("doubling", 512, True), ("ring", 512, True)],
        ),
        ("allgather", 64 * MB, [("doubling", 8, True), ("ring", 8, True), ("doubling", 1, False)]),
        ("reduce-scatter", 64 * MB, [("doubling", 8, True), ("ring", 8, True), ("doubling", 8, False)]),
        ("allgather", 8 * MB, []),
    ],
)
def test_over_boxes_of_very_many_ranks_what_is_made_for_an_interpreter_comes_first(
    name: str, size: int, made: list[tuple[str, int, bool]]
) -> None:
    instance, counts = instance_of(star(128, alpha_us=0.01), name), (*POWERS, 512, 1024)

    def viewed(*, by_time: bool = True, single: bool = True) -> list[Candidate]:
        tried = hierarchy_candidates(instance, "auto", counts, size, by_time=by_time, single=single)
        known = [each for each in tried if each.view is not None]
        assert tried[: len(known)] == known
        assert len(tried) > len(known)
        return known

    alone = viewed()
    assert [(each.strategy.removeprefix("hierarchy-"), each.count, each.in_rounds) for each in alone] == made
    assert viewed(single=False) == alone[:1]
    assert viewed(by_time=False) == []


def test_of_still_more_ranks_rounds_are_cut_finer_than_lists() -> None:
    """Messages are what rounds have in each of them; a list is as good with fewer."""
    instance, counts = instance_of(star(256, alpha_us=0.01), "allgather"), (*POWERS, 512, 1024)
    tried = hierarchy_candidates(instance, "auto", counts, GB, by_time=True, single=True)
    assert [(each.count, each.in_rounds) for each in tried[:3]] == [(4, True), (2, False), (4, True)]


@pytest.mark.parametrize("name", ["allgather", "reduce-scatter"])
def test_where_shares_come_in_pieces_over_very_many_ranks_nothing_else_is_in_rounds(name: str) -> None:
    instance, counts = instance_of(star(128), name), (*POWERS, 512, 1024, 2048)
    tried = hierarchy_candidates(instance, "auto", counts, GB, by_time=True, single=True)
    assert [each.pieces for each in tried if each.in_rounds] == [15]
    assert not tried[1].in_rounds
    assert tried[1].view == LARGE_VIEW


@pytest.mark.parametrize(
    ("name", "size", "made"),
    [
        ("allgather", 256 * MB, [("doubling", 8, False), ("ring", 16, True), ("doubling", 16, True)]),
        ("reduce-scatter", 64 * MB, [("doubling", 8, False), ("doubling", 16, True)]),
        ("allreduce", GB, [("doubling", 512, False), ("doubling", 512, True)]),
        ("allreduce", 8 * MB, None),
    ],
)
def test_over_boxes_of_many_ranks_some_pass_few_boxes_last(
    name: str, size: int, made: list[tuple[str, int, bool]] | None
) -> None:
    def tried(ranks: int, *, single: bool = True) -> list[Candidate]:
        instance = instance_of(star(ranks, alpha_us=0.01), name)
        planned = hierarchy_candidates(instance, "auto", (*POWERS, 512, 1024), size, by_time=True, single=single)
        return [each for each in planned if each.view is not None]

    assert {each.strategy for each in (*tried(32), *tried(64, single=False))} <= {"hierarchy-ring"}
    many = [(each.strategy.removeprefix("hierarchy-"), each.count, each.in_rounds) for each in tried(64)]
    assert many[len(many) - len(made or []) :] == (made or [])
    assert sum(strategy == "doubling" for strategy, *_ in many) == (2 if made else 0)


@pytest.mark.parametrize(
    ("ranks", "counts", "pieces"),
    [
        (16, (8, 16, 32, 64, 128, 256), None),
        (24, (8, 23, 46, 92, 178), (92, 86)),
        (24, (8, 23, 46, 80, 92, 178), None),
        (32, (8, 16, 32, 64, 128, 256), (128, 64)),
        (64, (8, 16, 32, 64, 128, 256), (64, 31)),
    ],
)
def test_sums_over_boxes_come_in_pieces_where_no_finer_rounds_are_read(
    ranks: int, counts: tuple[int, ...], pieces: tuple[int, int] | None
) -> None:
    tried = hierarchy_candidates(
        instance_of(star(ranks), "reduce-scatter"), "auto", counts, GB, by_time=True, single=True
    )
    assert [(each.count, each.pieces) for each in tried if each.pieces] == ([pieces] if pieces else [])


@pytest.mark.parametrize(
    ("ranks", "size", "pieces"),
    [
        (16, GB, None),
        (24, GB, (4096, 43)),
        (32, GB, (4096, 32)),
        (32, 512 * MB, (4096, 32)),
        (32, 256 * MB, None),
        (64, GB, (4096, 15)),
        (128, GB, None),
    ],
)
def test_an_allreduce_over_boxes_comes_in_pieces_of_four_chunks(
    ranks: int, size: int, pieces: tuple[int, int] | None
) -> None:
    """Of 16 ranks a runtime reads a finer cut as it is, of 128 hardly any; and chunks of 64 KB are too small."""
    instance, counts = instance_of(star(ranks), "allreduce"), tuple(1 << k for k in range(14))
    boxed = hierarchy_candidates(instance, "auto", counts[:12], size, by_time=True, single=True)
    made = pieced_sums(instance, counts, boxed)
    assert [(each.count, each.pieces) for each in made] == ([pieces] if pieces else [])
    assert all(each.in_rounds and each.strategy == "hierarchy-ring" for each in made)
    assert not pieced_sums(instance, counts, [each for each in boxed if not each.in_rounds])


@pytest.mark.parametrize("name", ["allgather", "reduce-scatter", "allreduce"])
def test_where_schedules_decide_finer_cuts_are_as_fine_as_a_runtime_reads(name: str) -> None:
    instance = instance_of(star(16), name)
    counts = (*POWERS, 512, 1024, 2048)
    finest = max(
        count for count in counts if transfers_of(with_count(instance.collective, count)) <= 2_000 * instance.num_ranks
    )
    tried = finer_candidates(instance, "auto", counts, GB, boxes=False, joint=False, latency_counts=False)
    assert [(each.strategy, each.view, each.in_rounds) for each in tried] == [
        ("trees", None, False),
        ("trees", LARGE_VIEW, True),
    ]
    assert {each.count for each in tried} == {finest}
    assert finest > max(each.count for each in candidates(instance, "auto", counts, GB, single=True))
    joint = finer_candidates(instance, "auto", counts, GB, boxes=False, joint=True, latency_counts=False)
    assert {(each.strategy, each.in_rounds) for each in joint} == {("joint", False), ("joint", True)}
    # Chunks that are nothing beside their latency are not cut.
    assert finer_candidates(instance, "auto", counts, KB, boxes=False, joint=False, latency_counts=False) == []


def test_finer_cuts_follow_the_strategy_and_the_boxes() -> None:
    instance = instance_of(star(16), "allgather")
    made = {
        strategy: [
            each.strategy
            for each in finer_candidates(instance, strategy, POWERS, GB, boxes=True, joint=False, latency_counts=False)
        ]
        for strategy in ("auto", "trees", "hierarchy", "greedy")
    }
    assert made == {
        "auto": ["hierarchy-ring", "trees", "trees"],
        "trees": ["trees", "trees"],
        "hierarchy": ["hierarchy-ring"],
        "greedy": [],
    }
    broadcast = instance_of(star(4), "broadcast", root=0)
    assert finer_candidates(broadcast, "auto", POWERS, GB, boxes=False, joint=False, latency_counts=False) == []


@pytest.mark.parametrize("name", ["alltoall", "gather"])
def test_where_schedules_decide_a_flow_is_cut_once_more(name: str) -> None:
    """As finely as is made in seconds; boxes have flows of their own."""
    instance = instance_of(star(16), name, root=0 if name in ROOTED else None)

    def tried(strategy: str, boxes: bool) -> list[tuple[str, int]]:
        found = finer_candidates(instance, strategy, POWERS, GB, boxes=boxes, joint=False, latency_counts=False)
        return [(each.strategy, each.count) for each in found]

    finest = {"alltoall": 16, "gather": 256}[name]
    assert tried("auto", False) == tried("flow", False) == [("flow", finest)]
    assert tried("auto", True) == tried("greedy", False) == []


@pytest.mark.parametrize(("ranks", "size", "alone", "in_range"), [
    (64, MB, False, False),
    (128, MB, True, True),
    (128, 16 * MB, True, True),
    (128, 32 * MB, False, False),
    (256, MB, True, False),
])  # fmt: skip
def test_many_boxes_send_to_each_other_directly_up_to_medium_sizes(
    ranks: int, size: int, alone: bool, in_range: bool
) -> None:
    instance = instance_of(star(ranks), "allgather")
    for single, starred in ((True, alone), (False, in_range)):
        tried = hierarchy_candidates(instance, "auto", POWERS, size, by_time=True, single=single)
        assert any(each.strategy == STAR for each in tried) is starred


@pytest.mark.parametrize(("ranks", "finest"), [(8, 64), (16, 64), (32, 32), (64, 4)])
def test_equal_boxes_are_cut_as_packings_are_for_large_buffers(ranks: int, finest: int) -> None:
    """In a list; in rounds as finely as transfers allow, which is finer where each rank would have few chunks."""
    instance = instance_of(star(ranks), "allgather")
    tried = hierarchy_candidates(instance, "auto", POWERS, GB, by_time=True)
    assert [each.in_rounds for each in tried] == [True, *[False] * (len(tried) - 1)]
    assert tried[0].count == finest
    listed = tried[1:]
    packed = lean_candidates(instance, POWERS, GB, single=True)
    assert {each.count for each in listed} == {each.count for each in packed}
    assert {(each.strategy, each.view) for each in tried} == {("hierarchy-ring", LARGE_VIEW)}
    for size, by_time in ((MB, True), (GB, False)):
        others = hierarchy_candidates(instance, "auto", POWERS, size, by_time=by_time)
        assert {each.view for each in others} == {None}
    assert hierarchy_candidates(instance, "trees", POWERS, GB, by_time=True) == []


def test_over_equal_boxes_one_medium_size_is_tried_with_what_is_made_for_more() -> None:
    instance = instance_of(star(16), "allgather")
    usual = hierarchy_candidates(instance, "auto", POWERS, 32 * MB, by_time=True)
    tried = hierarchy_candidates(instance, "auto", POWERS, 32 * MB, by_time=True, single=True)
    assert [each for each in tried if each.anchor_bytes == 32 * MB] == usual
    beyond = [each for each in tried if each.anchor_bytes > 32 * MB]
    assert {each.anchor_bytes for each in beyond} == {256 * MB}
    assert [each.count for each in beyond] == [each.count for each in usual if not each.in_rounds]
    large = hierarchy_candidates(instance, "auto", POWERS, GB, by_time=True)
    assert hierarchy_candidates(instance, "auto", POWERS, GB, by_time=True, single=True) == large


def test_alltoall_over_equal_boxes_is_cut_little() -> None:
    counts = [
        each.count for each in hierarchy_candidates(instance_of(star(16), "alltoall"), "auto", POWERS, GB, by_time=True)
    ]
    assert counts == [1, 4]
    many = hierarchy_candidates(instance_of(star(128), "alltoall"), "hierarchy", POWERS, GB, by_time=True)
    assert [(each.strategy, each.count) for each in many] == [("hierarchy-direct", 1)]
    assert hierarchy_candidates(instance_of(star(16), "gather", root=0), "auto", POWERS, GB, by_time=True) == []


@pytest.mark.parametrize("name", ["allgather", "reduce-scatter", "allreduce"])
def test_large_clusters_are_cut_as_finely_as_a_runtime_reads(name: str) -> None:
    instance = instance_of(star(128), name)
    tried = hierarchy_candidates(instance, "auto", tuple(1 << k for k in range(12)), GB, by_time=True)
    assert tried
    for each in tried:
        assert 2 * transfers_of(with_count(instance.collective, each.count)) < 4_095 * 128


@pytest.mark.parametrize(("name", "ranks", "cuts"), [
    ("reduce-scatter", 8, [64]),
    ("reduce-scatter", 16, [64]),
    ("reduce-scatter", 32, [32, 64]),
    ("reduce-scatter", 64, [4, 16]),
    ("allreduce", 8, [512]),
    ("allreduce", 16, [512, 1024]),
    ("allreduce", 32, [512, 1024]),
])  # fmt: skip
def test_sums_over_many_boxes_are_cut_as_finely_as_a_runtime_reads(name: str, ranks: int, cuts: list[int]) -> None:
    instance = instance_of(star(ranks), name)
    tried = hierarchy_candidates(instance, "auto", tuple(1 << k for k in range(12)), GB, by_time=True)
    assert [each.count for each in tried if each.in_rounds] == cuts
    for count in cuts:
        # A send and a receive of every transfer, and the elements around them.
        assert 2 * transfers_of(with_count(instance.collective, count)) < 4_095 * ranks


def test_free_roots_come_in_rounds_for_large_buffers() -> None:
    instance = instance_of(mesh(3, 3), "allreduce")
    assert [each.in_rounds for each in joint_candidates(instance, POWERS, MB)] == [False]
    tried = joint_candidates(instance, (*POWERS, 512), GB)
    assert {each.strategy for each in tried} == {"joint"}
    assert [(each.count, each.in_rounds, each.view) for each in tried] == [
        (512, True, LARGE_VIEW),
        (512, False, None),
        (256, False, None),
        (256, True, LARGE_VIEW),
    ]
    assert [(each.count, each.in_rounds) for each in joint_candidates(instance, [16], GB)] == [(16, True), (16, False)]
    assert joint_candidates(instance_of(mesh(3, 3), "allgather"), POWERS, GB) == []


def boxes_of(size: int, count: int) -> Boxes:
    """So many boxes, whose paths and links do not matter here."""
    ranks = range(size * count)
    rotation = Symmetry(tuple((rank + size) % len(ranks) for rank in ranks), (), ())
    return Boxes(tuple(tuple(ranks[first : first + size]) for first in ranks[::size]), rotation)


@pytest.mark.parametrize(("size", "paced"), [(8 * MB, False), (16 * MB, True), (64 * MB, True)])
def test_what_has_a_long_way_to_go_comes_in_rounds_from_medium_sizes_on(size: int, paced: bool) -> None:
    instance = instance_of(star(16), "allreduce")
    boxed = hierarchy_candidates(instance, "auto", POWERS, size, by_time=True)
    assert boxed
    for tried in (boxed, joint_candidates(instance, POWERS, size)):
        assert any(each.in_rounds for each in tried) == paced


@pytest.mark.parametrize(("ranks", "cuts"), [(48, [64, 128, 256]), (64, [64, 128, 256]), (24, [32, 64, 128])])
def test_a_vector_without_whole_shares_is_cut_for_boxes_as_well(ranks: int, cuts: list[int]) -> None:
    tried = hierarchy_candidates(instance_of(star(ranks), "allreduce"), "hierarchy", POWERS, GB, by_time=False)
    assert {each.count for each in tried} <= set(cuts)
    assert max(each.count for each in tried) == cuts[-1]


@pytest.mark.parametrize("name", ["broadcast", "reduce"])
@pytest.mark.parametrize("count", [2, 8, 32])
def test_what_goes_through_boxes_is_cut_into_whole_ways(name: str, count: int) -> None:
    instance, boxes = instance_of(star(8 * count), name, root=0), boxes_of(8, count)
    counts = tuple(1 << k for k in range(12))
    tried = chained_candidates(instance, boxes, "auto", counts, GB, by_time=True)
    assert tried
    assert all(each.chained and not each.boxed for each in tried)
    assert {each.count % 16 for each in tried} == {0}
    most = 10_000 if name == "broadcast" else 20_000
    assert max(transfers_of(with_count(instance.collective, each.count)) for each in tried) <= most
    # A tree of boxes is worth its connections where the ring is long, and so are small tiles.
    assert {each.strategy for each in tried} == (
        {"hierarchy-chain", "hierarchy-two-trees"} if count >= 8 else {"hierarchy-chain"}
    )
    assert {each.view for each in tried} == ({"Simple", "LL128"} if count >= 8 else {"Simple"})
    assert chained_candidates(instance, boxes, "trees", counts, GB, by_time=True) == []
    assert hierarchy_candidates(instance, "auto", counts, GB, by_time=True) == []


@pytest.mark.parametrize("name", ["gather", "scatter"])
def test_what_one_rank_sends_or_gets_fans_out_where_a_flow_takes_long(name: str) -> None:
    few, many = instance_of(star(128), name, root=0), instance_of(star(136), name, root=0)
    assert not is_large(few.collective)
    assert chained_candidates(few, boxes_of(8, 16), "auto", POWERS, GB, by_time=True) == []
    assert is_large(many.collective)
    tried = chained_candidates(many, boxes_of(8, 17), "auto", POWERS, GB, by_time=True)
    assert [(each.strategy, each.count) for each in tried] == [("hierarchy-fan", 1), ("hierarchy-fan", 4)]
    assert chained_candidates(many, boxes_of(8, 17), "flow", POWERS, GB, by_time=True) == []
    asked = chained_candidates(few, boxes_of(8, 16), "hierarchy", POWERS, 1 << 10, by_time=True)
    assert [(each.strategy, each.count) for each in asked] == [("hierarchy-fan", 1)]


def test_what_goes_through_boxes_is_cut_less_for_small_buffers() -> None:
    instance, boxes = instance_of(star(16), "broadcast", root=0), boxes_of(8, 2)
    sizes = (1 << 10, 1 << 20, 1 << 24, GB)
    finest = [
        max(each.count for each in chained_candidates(instance, boxes, "auto", POWERS, size, by_time=True))
        for size in sizes
    ]
    assert finest == sorted(finest)
    assert finest[0] == 1
    (alone,) = chained_candidates(instance, boxes, "hierarchy", POWERS, GB, by_time=False)
    assert alone.view is None
    assert chained_candidates(instance_of(star(16), "allgather"), boxes, "auto", POWERS, GB, by_time=True) == []


def test_where_latency_counts_the_greedy_is_tried_on_what_flows_leave_far_from_the_limit() -> None:
    """On a 3x3 torus, 32 KB: the flow's paths are even, but not in step. Boxes, and what bandwidth decides, are left to flows."""
    instance = instance_of(mesh(3, 3), "alltoall")

    def tried(strategy: str, *, boxes: bool, latency_counts: bool) -> list[tuple[str, int]]:
        found = finer_candidates(
            instance, strategy, POWERS, 32 * KB, boxes=boxes, joint=False, latency_counts=latency_counts
        )
        return [(each.strategy, each.count) for each in found]

    assert tried("auto", boxes=False, latency_counts=True) == [
        ("greedy", 1),
        ("greedy", 2),
        ("greedy", 8),
        ("greedy", 16),
        ("flow", 4),
    ]
    assert tried("auto", boxes=True, latency_counts=True) == []
    assert tried("auto", boxes=False, latency_counts=False) == [("flow", 4)]
    assert tried("flow", boxes=False, latency_counts=True) == [("flow", 4)]


def test_where_latency_counts_copies_and_sums_are_cut_finely_for_the_greedy() -> None:
    """Parts follow each other from hop to hop, the sooner the smaller they are; of many ranks that takes too long."""

    def tried(topology: Topology, name: str, *, latency_counts: bool = True) -> list[int]:
        instance = instance_of(topology, name)
        found = finer_candidates(
            instance, "auto", POWERS, 64 * KB, boxes=False, joint=False, latency_counts=latency_counts
        )
        return [each.count for each in found if each.strategy == "greedy"]

    assert tried(mesh(3, 3), "allgather") == [16, 32]
    assert tried(mesh(4, 4), "allreduce") == [64, 128]
    assert tried(mesh(3, 3), "allgather", latency_counts=False) == []
    assert tried(star(17), "allgather") == []


def test_over_boxes_that_exchange_no_greedy_cuts_a_piece_for_every_rank() -> None:
    """It takes longest there, and is what an exchange of parts does."""
    instance = instance_of(star(16), "allreduce")

    def pieces(*, boxes: bool, exchanged: bool) -> list[int]:
        found = lean_candidates(instance, POWERS, 4 * KB, single=True, boxes=boxes, exchanged=exchanged)
        return [each.count for each in found if each.strategy == "greedy" and each.count >= 16]

    assert pieces(boxes=True, exchanged=True) == []
    assert pieces(boxes=False, exchanged=True) == pieces(boxes=True, exchanged=False) == [16]
