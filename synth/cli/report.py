"""The `--report` file: a result as JSON (docs/design.md lists its fields)."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence

from synth import __version__
from synth.request import FilePlan, Result


def report_text(result: Result, paths: Sequence[str]) -> str:
    """The report of `result`, whose files were written to `paths`; numbers that JSON cannot hold become null.

    `verified` is always true: a result with a file that does not pass the verifier is never made (see `Result`).
    """
    report = {
        "collective": result.collective.value,
        "topology": result.topology,
        "ranks": result.ranks,
        "group": result.group,
        "strategy": result.strategy,
        "files": [{"path": path, **_fields(plan)} for path, plan in zip(paths, result.files, strict=True)],
        "sizes": [{**_fields(row), "file": paths[row.file]} for row in result.sizes],
        "stages": [_fields(row) for row in result.stages],
        "search": [{**_fields(row), "file": None if row.file is None else paths[row.file]} for row in result.tried],
        "notes": list(result.notes),
        "verified": True,
        "synth_version": __version__,
    }
    return json.dumps(report, indent=2, allow_nan=False) + "\n"


def _fields(row: object) -> dict[str, object]:
    """The row's fields by name, without the algorithm itself."""
    if not dataclasses.is_dataclass(row):
        raise TypeError(f"{row!r} is no row of a result")
    names = [field.name for field in dataclasses.fields(row)]
    if isinstance(row, FilePlan):
        names.remove("algo")
    return {name: _finite(getattr(row, name)) for name in names}


def _finite(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value
