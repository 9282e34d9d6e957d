"""What nccl-tests prints, read: the tables of all its versions, with whatever launchers put before the lines.

Since 2.13 the last column of each half is `#wrong` (elements that are not as they should be); before, it is `error` (the largest
difference, which only the line `Out of bounds values` judges). Before 2.0.0 the first columns are `bytes` and `N`, and times are in
milliseconds with three places, which is told nowhere but in the bandwidths. Gather-like tests have no redop or root in old versions,
new ones print further columns at the end. Source: the header lines of common.cu and of each test, nccl-tests 1.x to 2.17.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from synth.errors import InputError

#: What launchers put before a line: `[1,0]<stdout>:` (Open MPI's --tag-output), `[default0]:` (torchrun), `[0] ` (Hydra's -l),
#: `0: ` (srun --label).
_PREFIX = re.compile(r"^\s*(?:\[[^\]\s]*\](?:<stdout>)?(?::\s?|\s)|[0-9]{1,5}:\s)")
_NAMES = {"bytes": "size", "N": "count", "op": "redop", "cputime": "time", "error": "error", "res": "error"}
_BOUNDS = re.compile(r"Out of bounds values\s*:\s*([0-9]+)\s+(OK|FAILED)")
_HALVES: tuple[str, ...] = ("out-of-place", "in-place")
_EXPECTED = "the table of an nccl-tests program, with its header"


@dataclass(frozen=True, slots=True)
class Half:
    """One half of a row. `wrong` counts wrong elements; None where this version or run does not say."""

    time_us: float | None
    algbw_GBps: float | None
    busbw_GBps: float | None
    wrong: int | None


@dataclass(frozen=True, slots=True)
class TestRow:
    """One size of a table, `bytes` as nccl-tests counts it."""

    __test__ = False

    bytes: int
    out_of_place: Half | None
    in_place: Half | None

    def half(self, in_place: bool) -> Half | None:
        """The half of a kind, or the other where there is only that."""
        kinds = (self.in_place, self.out_of_place) if in_place else (self.out_of_place, self.in_place)
        return next((half for half in kinds if half is not None and half.time_us is not None), None)


@dataclass(frozen=True, slots=True)
class TestOutput:
    """A whole run: its rows, and `out_of_bounds`: how many checks failed in all, None where the run does not say."""

    __test__ = False

    rows: tuple[TestRow, ...]
    out_of_bounds: int | None


def parse_nccl_tests(text: str, source: str) -> TestOutput:
    """The table in the output of a run; `source` names it in errors. Raises InputError where there is none, or it has no rows."""
    lines = [_PREFIX.sub("", line) for line in text.splitlines()]
    table = _Table(())
    halves = _HALVES
    rows: list[TestRow] = []
    bounds: int | None = None
    for line in lines:
        words = line.split()
        if "out-of-place" in words or "in-place" in words:
            halves = tuple(word for word in words if word in _HALVES)
        elif _is_header(words):
            unit_us = 1000.0 if "bytes" in words else 1.0
            table = _Table(tuple(_NAMES.get(word, word) for word in words if word != "#"), halves, unit_us)
        elif (found := _BOUNDS.search(line)) is not None:
            bounds = int(found[1])
        elif table.columns and len(words) > 3 and words[0].isdecimal() and words[1].isdecimal():
            rows.append(table.row(words, line, source))
    if not rows:
        last = next((line.strip() for line in reversed(lines) if line.strip()), "nothing")
        raise InputError(source, "", last, _EXPECTED)
    return TestOutput(tuple(rows), bounds)


def _is_header(words: Sequence[str]) -> bool:
    named = {_NAMES.get(word.lstrip("#"), word.lstrip("#")) for word in words}
    return bool(words) and words[0].startswith("#") and {"size", "time", "busbw"} <= named


@dataclass(frozen=True, slots=True)
class _Table:
    """A table by its header: `columns` as named there (the newer names), `halves` in their order."""

    columns: tuple[str, ...]
    halves: tuple[str, ...] = ()
    time_unit_us: float = 1.0

    def row(self, words: Sequence[str], line: str, source: str) -> TestRow:
        at = self._first_time(words)
        found: dict[str, Half] = {}
        for half, names in zip(self._names(), self._groups(), strict=False):
            values = dict(zip(names, words[at:], strict=False))
            if len(values) < len(names):
                break
            found[half] = _half(values, line, source, self.time_unit_us)
            at += len(names)
        if not found:
            raise InputError(source, "", line.strip(), f"a row of {len(self.columns)} columns")
        return TestRow(int(words[0]), found.get("out-of-place"), found.get("in-place"))

    def _first_time(self, words: Sequence[str]) -> int:
        """Where the figures begin: redop is left blank by tests that reduce nothing, in some versions."""
        at = 2
        for name in self.columns[2 : self.columns.index("time")]:
            is_text = name in ("type", "redop")
            if at < len(words) and (not is_text or _number(words[at]) is None):
                at += 1
        return at

    def _times(self) -> list[int]:
        return [place for place, name in enumerate(self.columns) if name == "time"]

    def _names(self) -> tuple[str, ...]:
        """The halves, out of place first where the line that names them is none of nccl-tests' own."""
        return self.halves if len(self.halves) == len(self._times()) else _HALVES

    def _groups(self) -> Iterator[tuple[str, ...]]:
        """The names of each half's columns. What follows the last half's check belongs to no half."""
        starts = self._times()
        width = starts[1] - starts[0] if len(starts) > 1 else len(self.columns) - starts[0]
        for start in starts:
            yield self.columns[start : start + width]


def _half(values: dict[str, str], line: str, source: str, time_unit_us: float) -> Half:
    wrong = _number(values.get("#wrong", "N/A"))
    time_us = _number(values["time"])
    if time_us is None and values["time"] != "N/A":
        raise InputError(source, "", line.strip(), "a row with a time in us")
    return Half(
        time_us=None if time_us is None else time_us * time_unit_us,
        algbw_GBps=_number(values.get("algbw", "")),
        busbw_GBps=_number(values.get("busbw", "")),
        wrong=None if wrong is None else int(wrong),
    )


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None
