"""What `synth run --json` prints, read into the same values as the table of nccl-tests."""

from __future__ import annotations

import json
from typing import Any

from synth.bench.gpu.nccl_tests import Half, TestOutput, TestRow
from synth.errors import InputError

_EXPECTED = "the figures of `synth run --json`"


def parse_synth_run(text: str, source: str) -> tuple[TestOutput, TestOutput | None]:
    """The run of the file, and that of torch's own collective where it was timed (`--compare`). InputError for anything else."""
    try:
        rows = json.loads(text)["sizes"]
        ours = tuple(TestRow(row["bytes"], _half(row["out_of_place"]), _half(row["in_place"])) for row in rows)
        torch = [(row["bytes"], _half(row.get("torch"))) for row in rows]
    except (ValueError, KeyError, TypeError) as error:
        first = text.strip().partition("\n")[0] or "nothing"
        raise InputError(source, "", first, _EXPECTED) from error
    theirs = tuple(TestRow(size, half, half) for size, half in torch if half is not None)
    return TestOutput(ours, None), TestOutput(theirs, None) if theirs else None


def _half(told: dict[str, Any] | None) -> Half | None:
    if told is None:
        return None
    return Half(told["time_us"], told.get("algbw_GBps"), told.get("busbw_GBps"), told.get("wrong"))
