"""Chunk counts: a runtime passes over a file whose count does not divide, so an admissible one always does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synth.chunks import (
    MAX_CHUNKS,
    chunk_counts,
    divides,
    element_count,
    even_counts,
    first_indivisible,
    moved_bytes,
    range_sizes,
)
from synth.collective import SHARED, CollectiveName

KB, GB = 1 << 10, 1 << 30


@pytest.mark.parametrize("name", sorted(SHARED))
@pytest.mark.parametrize(
    ("num_ranks", "expected"),
    [(3, (1, 2, 4)), (6, (1, 2, 4)), (2, (1, 2, 4, 8, 16, 32, 64, 128)), (8, (1, 2, 4, 8, 16, 32)), (64, (1, 2, 4))],
)
def test_shares_over_the_default_range(name: CollectiveName, num_ranks: int, expected: tuple[int, ...]) -> None:
    assert chunk_counts(name, num_ranks, KB, GB) == expected


@pytest.mark.parametrize("num_ranks", [2, 3, 7, 16])
def test_whole_vectors_do_not_care_for_the_ranks(num_ranks: int) -> None:
    assert chunk_counts(CollectiveName.ALLREDUCE, num_ranks, KB, GB) == (1, 2, 4, 8, 16, 32, 64, 128, 256)


def test_a_single_size_takes_every_divisor_up_to_the_cap() -> None:
    counts = chunk_counts(CollectiveName.BROADCAST, 5, 4 * 360, 4 * 360)
    assert counts == tuple(c for c in range(1, MAX_CHUNKS + 1) if 360 % c == 0)
    # 3 MB on 3 ranks: a share of exactly 1 MB.
    assert 256 in chunk_counts(CollectiveName.ALLGATHER, 3, 3 << 20, 3 << 20)


def test_shares_are_rounded_down_to_16_bytes() -> None:
    # 1024 bytes are 256 floats; a third of them is 85, rounded down to 84.
    assert element_count(CollectiveName.ALLGATHER, 3, KB) == 84
    assert element_count(CollectiveName.ALLGATHER, 3, KB, element_bytes=2) == 168
    assert element_count(CollectiveName.ALLREDUCE, 3, KB) == 256


def test_sizes_at_which_nothing_moves_forbid_nothing() -> None:
    assert element_count(CollectiveName.ALLTOALL, 512, KB) == 0
    assert chunk_counts(CollectiveName.ALLTOALL, 512, KB, KB) == (1,)
    assert chunk_counts(CollectiveName.ALLTOALL, 512, KB, GB) == (1, 2, 4)


def test_a_sweep_visits_powers_of_two_and_doublings_of_its_start() -> None:
    assert range_sizes(1000, 5000) == (1000, 1024, 2000, 2048, 4000, 4096)
    assert range_sizes(KB, 8 * KB) == (KB, 2 * KB, 4 * KB, 8 * KB)
    assert range_sizes(1000, 1000) == (1000,)


def test_the_warning_names_the_first_size_that_does_not_divide() -> None:
    sizes = range_sizes(KB, GB)
    assert first_indivisible(CollectiveName.ALLGATHER, 3, 4, sizes) is None
    assert first_indivisible(CollectiveName.ALLGATHER, 3, 8, sizes) == KB
    assert first_indivisible(CollectiveName.ALLGATHER, 4, 128, sizes) == KB
    assert not divides(CollectiveName.ALLREDUCE, 8, 3, KB)
    assert divides(CollectiveName.ALLREDUCE, 8, 3, 3 * KB)


@given(
    name=st.sampled_from(CollectiveName),
    num_ranks=st.integers(2, 40),
    low=st.integers(4, 1 << 20),
    factor=st.integers(1, 40),
)
def test_admissible_counts_divide_every_size(name: CollectiveName, num_ranks: int, low: int, factor: int) -> None:
    high = low * factor
    counts = chunk_counts(name, num_ranks, low, high)
    assert counts[0] == 1
    assert list(counts) == sorted(set(counts))
    assert all(first_indivisible(name, num_ranks, count, range_sizes(low, high)) is None for count in counts)


@pytest.mark.parametrize(
    ("num_ranks", "kept"),
    [
        (3, (1, 2, 4, 5, 8, 10, 16, 20, 25, 40, 50, 80, 100, 125, 200, 250)),
        (8, (1, 2, 4, 5, 8, 16, 40, 80, 200)),
        (16, (1, 2, 4, 5, 8, 10, 16, 40, 50, 80, 200, 250)),
    ],
)
def test_a_vector_is_cut_evenly_where_that_is_hardly_coarser(num_ranks: int, kept: tuple[int, ...]) -> None:
    """Ten chunks on eight ranks are two for some and one for others, where eight are one for each; 50 on 16 ranks are three
    times the 16 that are even.
    """
    admissible = (1, 2, 4, 5, 8, 10, 16, 20, 25, 40, 50, 80, 100, 125, 200, 250)
    assert even_counts(CollectiveName.ALLREDUCE, num_ranks, admissible) == kept
    assert even_counts(CollectiveName.BROADCAST, num_ranks, admissible) == admissible


def test_what_a_buffer_holds() -> None:
    """nccl-tests prints 1048560 for an allgather of 1 MB on 3 ranks: 3 shares of 21845 blocks of 16 bytes."""
    assert moved_bytes(CollectiveName.ALLGATHER, 3, 1 << 20) == 3 * 21845 * 16
    assert moved_bytes(CollectiveName.ALLGATHER, 8, 1 << 20) == 1 << 20
    assert moved_bytes(CollectiveName.ALLREDUCE, 3, 1 << 20) == 1 << 20
    assert moved_bytes(CollectiveName.ALLREDUCE, 3, 1003) == 1000
    assert moved_bytes(CollectiveName.ALLGATHER, 65, KB) == KB
