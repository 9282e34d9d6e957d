"""Hand-made algorithms executed with real data in real processes: types, operations, sizes, both engines."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from synth.execute.arithmetic import OPERATIONS, TYPES
from tests.algos import RIGHT, collective_of, direct_gather, relayed_allreduce, ring_allreduce, with_step
from tests.pools import assert_right, job, run

#: Bytes: less than a tile, several tiles, and one that is a multiple of nothing.
SIZES = (192, 3000, 4 * 1021)


@pytest.mark.parametrize("rounds", [False, True], ids=["threads", "rounds"])
@pytest.mark.parametrize("name", RIGHT)
def test_every_element_is_right_in_every_layout(name: str, rounds: bool) -> None:
    algo, root = RIGHT[name]
    rows = run(job(algo, collective_of(algo, root), *SIZES, rounds=rounds))
    assert_right(rows)
    for row in rows:
        assert (row.in_place is not None) == algo.inplace
        assert (row.out_of_place is not None) == bool(algo.outofplace)


@pytest.mark.parametrize("op", OPERATIONS)
@pytest.mark.parametrize("dtype", TYPES)
def test_types_and_operations(dtype: str, op: str) -> None:
    algo = ring_allreduce(3)
    assert_right(run(job(algo, collective_of(algo), 1000, dtype=dtype, op=op)))


def test_a_gather_is_right() -> None:
    algo = direct_gather(3, root=1)
    assert_right(run(job(algo, collective_of(algo, 1), *SIZES)))


def test_what_a_group_gets_is_looked_at() -> None:
    wrong = with_step(relayed_allreduce(c=2), 1, 1, 0, count=1)
    wrong = with_step(with_step(wrong, 0, 0, 1, count=1), 2, 0, 0, count=1)
    short = with_step(with_step(wrong, 0, 0, 0, count=1), 1, 0, 0, count=1)
    [row] = run(job(short, collective_of(short), 4000))
    assert row.out_of_place is not None
    # Half of the vector never gets to ranks 0 and 2.
    assert row.out_of_place.wrong == 2 * 500


def test_a_size_that_the_chunks_do_not_divide_is_padded_and_said_so() -> None:
    algo = ring_allreduce(3)
    [whole, ragged] = run(job(algo, collective_of(algo), 1200, 1204))
    assert (whole.count, whole.padded) == (300, 0)
    assert (ragged.count, ragged.padded) == (301, 2)
    assert_right([whole, ragged])


def test_a_size_of_which_no_rank_gets_anything_is_not_run() -> None:
    algo, _ = RIGHT["ring-allgather-3"]
    [row] = run(job(algo, collective_of(algo), 8))
    assert (row.count, row.out_of_place, row.in_place) == (0, None, None)


def test_torch_is_timed_beside_it_and_agrees() -> None:
    algo = ring_allreduce(3)
    [row] = run(job(algo, collective_of(algo), 1200, rival=True))
    assert row.native_us is not None
    assert row.native_us > 0
    assert row.remarks == ()


def test_what_torch_lacks_is_said() -> None:
    """gloo has no average."""
    algo = ring_allreduce(3)
    [row] = run(job(algo, collective_of(algo), 1200, op="avg", rival=True))
    assert row.native_us is None
    assert "torch's own allreduce was not run" in row.remarks[0]
    assert_right([row])
