"""What nccl-tests prints, in all its forms. The captured outputs in tests/data/nccl-tests were written for these tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from synth.bench.gpu.nccl_tests import Half, TestRow, parse_nccl_tests
from synth.errors import InputError

DATA = Path(__file__).resolve().parent.parent / "data" / "nccl-tests"


def parsed(name: str) -> tuple[tuple[TestRow, ...], int | None]:
    output = parse_nccl_tests((DATA / f"{name}.txt").read_text(encoding="utf-8"), name)
    return output.rows, output.out_of_bounds


def test_the_new_table() -> None:
    rows, bounds = parsed("new")
    assert [row.bytes for row in rows] == [1024, 2048, 4096]
    assert rows[0].out_of_place == Half(11.02, 0.09, 0.14, 0)
    assert rows[2].in_place == Half(12.00, 0.34, 0.51, 0)
    assert bounds == 0


def test_wrong_elements_are_counted_where_they_are() -> None:
    rows, bounds = parsed("wrong")
    wrong = [(row.out_of_place.wrong, row.in_place.wrong) for row in rows if row.out_of_place and row.in_place]
    assert (wrong, bounds) == ([(0, 12), (0, 0)], 1)


def test_the_old_table_judges_all_sizes_together() -> None:
    rows, bounds = parsed("old")
    assert rows == (
        TestRow(1024, Half(14.02, 0.07, 0.11, None), Half(13.5, 0.08, 0.11, None)),
        TestRow(2048, Half(14.48, 0.14, 0.21, None), Half(14.2, 0.14, 0.22, None)),
    )
    assert bounds == 0


def test_old_tables_without_redop_and_root() -> None:
    rows, bounds = parsed("old-gather")
    assert rows == (TestRow(1024, Half(14.02, 0.07, 0.05, None), Half(13.5, 0.08, 0.06, None)),)
    assert bounds == 2


def test_a_redop_that_is_left_blank_and_an_in_place_that_was_not_run() -> None:
    rows, bounds = parsed("blank-redop")
    nothing = Half(None, None, None, None)
    assert rows == (
        TestRow(1024, Half(14.02, 0.07, 0.05, None), nothing),
        TestRow(2048, Half(15.02, 0.14, 0.10, None), nothing),
    )
    assert bounds is None


def test_prefixes_of_launchers_times_of_the_cpu_and_unchecked_results() -> None:
    rows, bounds = parsed("iterations")
    assert rows[1] == TestRow(2048, Half(11.48, 0.18, 0.27, None), Half(11.2, 0.18, 0.27, None))
    assert (len(rows), bounds) == (2, 0)


def test_columns_of_single_iterations_and_times_of_day() -> None:
    rows, _ = parsed("per-iteration")
    assert rows == (TestRow(1024, Half(11.02, 0.09, 0.14, 0), Half(10.5, 0.10, 0.15, 3)),)


def test_the_oldest_table_has_milliseconds() -> None:
    """10 MB in 1.628 ms are 6.14 GB/s."""
    rows, bounds = parsed("oldest")
    assert rows[0] == TestRow(10_000_000, Half(1628.0, 6.14, 9.21, None), Half(1932.0, 5.18, 7.77, None))
    assert (len(rows), bounds) == (2, 0)
    for row in rows:
        half = row.out_of_place
        assert half is not None
        assert half.time_us is not None
        assert row.bytes / half.time_us / 1e3 == pytest.approx(half.algbw_GBps, abs=0.01)


@pytest.mark.parametrize(
    "prefix", ["0: ", "[0]:", "[0] ", "[default0]:", "[1,0]<stdout>:", "[prterun-host-7@1,0]<stdout>: "]
)
def test_every_prefix_is_taken_off(prefix: str) -> None:
    text = (DATA / "new.txt").read_text(encoding="utf-8")
    prefixed = "\n".join(prefix + line for line in text.splitlines())
    assert parse_nccl_tests(prefixed, "x") == parse_nccl_tests(text, "x")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "x: 'nothing', expected the table of an nccl-tests program"),
        ("some-host: Test NCCL failure common.cu:958 'unhandled cuda error'\n", "Test NCCL failure"),
        ("# size count type redop root time algbw busbw #wrong\n", "expected the table"),
        (
            "# size count type redop root time algbw busbw #wrong\n1024 256 float sum -1 11.0 0.1\n",
            "a row of 9 columns",
        ),
        ("# size count type redop root time algbw busbw #wrong\n1024 256 float sum -1 ?? 0.1 0.1 0\n", "a time in us"),
    ],
)
def test_what_is_no_table_is_told(text: str, told: str) -> None:
    with pytest.raises(InputError) as error:
        parse_nccl_tests(text, "x")
    assert told in str(error.value)
