"""How many chunks a transfer holds follows from the sizes that a file serves: what only larger buffers break is right there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from msccl_xml.model import Algo, Gpu, Threadblock
from synth.verify import VerifyError, verify_algo
from synth.verify.granularity import granularities
from tests.algos import I, O, algo_of, collective_of, ring_allgather, ring_allreduce, step
from tests.oracle import judge

KB = 1 << 10
#: A tile of LL holds 32 KB of data, of Simple 2 MB; RCCL's LL 16 KB.
LL_TILE, SIMPLE_TILE = 32 * KB, 2048 * KB


def swap(count: int, proto: str = "Simple") -> Algo:
    """Two ranks send `count` chunks each in one step before they receive: right while as many fit the connection."""
    gpus = []
    for rank in range(2):
        steps = (
            step("cpy", (I, 0), (O, rank * count), count),
            step("s", (I, 0), count=count),
            step("r", dst=(O, (1 - rank) * count), count=count),
        )
        gpus.append(Gpu(rank, count, 2 * count, 0, (Threadblock(0, 1 - rank, 1 - rank, 0, steps),)))
    return algo_of("allgather", 2 * count, gpus, proto, inplace=True, outofplace=True)


def sized(algo: Algo, low: int | None, high: int | None) -> Algo:
    return replace(algo, min_bytes=low, max_bytes=high)


@pytest.mark.parametrize(
    ("low", "high", "runtime", "expected"),
    [
        (0, 1 << 30, "msccl", [1, 2, 4, 5]),
        (0, 0, "executor", [1, 2, 4, 5]),
        (1 << 20, 1 << 30, "msccl", [1]),
        (0, 10 * 2 * KB, "executor", [5]),  # ten chunks of 2 KB: 16 of them fit
        (0, 10 * 8 * KB, "executor", [4, 5]),
        (0, 10 * 8 * KB + 1, "executor", [3, 4, 5]),
        (0, 10 * 8 * KB + 1, "msccl", [4, 5]),  # which leaves maxBytes itself out
        (0, 10 * 8 * KB, "rccl", [2, 3, 4, 5]),
        (10 * 16 * KB, 10 * 16 * KB, "executor", [2]),
        (None, None, "msccl", [1, 2, 4, 5]),  # up to 128 MB
        (10 * KB, KB, "msccl", [1, 2, 4, 5]),  # never chosen by itself
    ],
)
def test_the_numbers_asked_about(low: int | None, high: int | None, runtime: str, expected: list[int]) -> None:
    algo = sized(swap(5, "LL"), low, high)
    assert granularities(algo, runtime) == expected


def test_a_custom_file_is_called_at_any_size() -> None:
    assert granularities(replace(sized(swap(5, "LL"), 0, KB), coll="custom"), "msccl") == [1, 2, 4, 5]


def test_broadcast_and_reduce_are_counted_by_a_quarter_of_a_tile() -> None:
    """The host divides as if a transfer of Simple had one slot, the kernel gives it four."""
    algo = sized(swap(4), 0, 8 * SIMPLE_TILE // 4)
    assert granularities(algo, "executor") == [4]
    assert granularities(replace(algo, coll="broadcast"), "executor") == [1, 2, 4]


@pytest.mark.parametrize("count", [2, 3, 5, 8])
@pytest.mark.parametrize("chunks_in_a_tile", [1, 2, 3, 4, 8])
def test_what_deadlocks_only_beyond_the_largest_size_is_right(count: int, chunks_in_a_tile: int) -> None:
    """Simple holds two transfers: more than those before the first receive hang."""
    algo = sized(swap(count), 0, 2 * count * (SIMPLE_TILE // chunks_in_a_tile))
    transfers = -(-count // chunks_in_a_tile)
    groups = range(min(chunks_in_a_tile, count), count + 1)
    verdict = judge(algo, collective_of(algo), groups=groups)
    assert verdict == ("" if transfers <= 2 else "deadlock")
    if transfers <= 2:
        verify_algo(algo, collective_of(algo), runtime="executor")
    else:
        with pytest.raises(VerifyError, match="deadlock"):
            verify_algo(algo, collective_of(algo), runtime="executor")


def test_the_size_at_which_it_would_hang_is_the_first_that_is_refused() -> None:
    """Three chunks in transfers of two: two transfers. One chunk more than half a tile each, and there are three."""
    fits, beyond = 6 * (SIMPLE_TILE // 2), 6 * (SIMPLE_TILE // 2) + 1
    verify_algo(sized(swap(3), 0, fits), collective_of(swap(3)), runtime="executor")
    verify_algo(sized(swap(3), 0, beyond), collective_of(swap(3)), runtime="msccl")
    with pytest.raises(VerifyError, match=r"deadlock.* a transfer holds 1 chunk"):
        verify_algo(sized(swap(3), 0, beyond), collective_of(swap(3)), runtime="executor")


def test_counts_that_differ_hang_only_where_they_split_differently() -> None:
    """`s cnt=2` against two `r cnt=1`: the same transfers while one chunk fills a tile (msccl-xml notes, section 4)."""
    algo = ring_allgather(2, "LL", 2)
    tbs = []
    for gpu in algo.gpus:
        (tb,) = gpu.threadblocks
        *before, last = tb.steps
        halves = tuple(last._replace(count=1, dst_offset=last.dst_offset + k) for k in range(2))
        tbs.append(replace(gpu, threadblocks=(replace(tb, steps=(*before, *halves)),)))
    split = replace(algo, gpus=tuple(tbs))
    assert judge(split, collective_of(split), groups=[1]) == ""
    assert judge(split, collective_of(split), groups=[2]) != ""
    with pytest.raises(VerifyError):
        verify_algo(sized(split, 0, 1 << 30), collective_of(split))


def test_files_for_all_sizes_are_asked_about_all() -> None:
    assert granularities(ring_allreduce(3, "LL", 3), "msccl") == [1, 2, 3]
    assert granularities(ring_allreduce(3), "msccl") == [1]
