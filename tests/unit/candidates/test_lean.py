"""What is tried where times decide: few candidates, of as many transfers as allowed, and never none."""

from __future__ import annotations

import pytest

from synth.candidates.lean import lean_candidates
from synth.candidates.sizes import CONNECTION_BOUND_BYTES, LATENCY_BOUND_BYTES
from synth.candidates.transfers import MAX_GREEDY_TRANSFERS, MAX_TRANSFERS, transfers_of, with_count
from synth.instance import Instance
from tests.graphs import instance_of, ring, star

POWERS = tuple(1 << k for k in range(9))
KB, MB, GB = 1 << 10, 1 << 20, 1 << 30


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


@pytest.mark.parametrize(("ranks", "coarser"), [(2, {1, 2, 4, 8}), (4, {1, 2, 4, 8}), (5, set())])
def test_of_very_few_ranks_every_coarser_cut_is_tried(ranks: int, coarser: set[int]) -> None:
    """Beside the half and the quarter of 64 chunks of 2 KB, which of many ranks are tried, too; of numbers that are no powers of two
    those that are half of the one before or less.
    """
    instance = instance_of(ring(ranks), "allreduce")
    tried = lean_candidates(instance, POWERS, 128 * KB, single=True)
    assert {each.count for each in tried if each.strategy == "greedy" and each.count < 16} - {ranks} == coarser - {
        ranks
    }
    odd = lean_candidates(instance, (1, 3, 5, 6, 7, 9, 60), 128 * KB, single=True)
    assert ({each.count for each in odd if each.strategy == "greedy"} >= {1, 3, 7}) is bool(coarser)


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


def test_over_boxes_that_exchange_no_greedy_cuts_a_piece_for_every_rank() -> None:
    """It takes longest there, and is what an exchange of parts does."""
    instance = instance_of(star(16), "allreduce")

    def pieces(*, boxes: bool, exchanged: bool) -> list[int]:
        found = lean_candidates(instance, POWERS, 4 * KB, single=True, boxes=boxes, exchanged=exchanged)
        return [each.count for each in found if each.strategy == "greedy" and each.count >= 16]

    assert pieces(boxes=True, exchanged=True) == []
    assert pieces(boxes=False, exchanged=True) == pieces(boxes=True, exchanged=False) == [16]
