"""Answers kept by content: the same request to the same code gets the same files without the search.

An entry is one JSON file: the rows of the result, and its files as XML. Its name is a hash of everything that the answer depends on:
the request, the machine included, and synth's own code. A file that was read back is verified like a new one. An answer that was
cut short by a clock is not kept. Nothing depends on the cache: where it cannot be read or written, the search runs.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from msccl_xml.errors import AlgoError
from msccl_xml.read import read_algo
from msccl_xml.write import write_algo
from synth.collective import SHARED, Collective, CollectiveName
from synth.request import FilePlan, Progress, Request, Result, SizeRow, StageRow, TriedRow
from synth.verify import VerifyError, verify_algo

#: What the answer does not depend on.
_NOT_ASKED = frozenset({"jobs", "time_limit_s"})
#: Entries that are kept: of a megabyte at most each; the oldest go first.
_MOST_ENTRIES = 200
_ENDING = ".json"

Row = TypeVar("Row")


def cache_directory(environment: Mapping[str, str]) -> Path:
    """Where entries lie: $SYNTH_CACHE, else `synth` in the user's cache directory."""
    if given := environment.get("SYNTH_CACHE"):
        return Path(given)
    base = environment.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "synth"


def synthesize_cached(
    request: Request, directory: Path, progress: Callable[[Progress], None] = lambda _: None
) -> Result:
    """`synth.pipeline.synthesize`, or what it answered before."""
    path = directory / (key_of(request) + _ENDING)
    known = _read(path, request)
    if known is not None:
        return known
    from synth import pipeline

    result = pipeline.synthesize(request, progress)
    if not result.cut_short:
        _keep(path, result)
    return result


def key_of(request: Request) -> str:
    """The hash of a request, and of the code that answers it."""
    asked = {
        field.name: _plain(getattr(request, field.name))
        for field in dataclasses.fields(request)
        if field.name not in _NOT_ASKED
    }
    text = json.dumps([code_hash(), asked], sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()


@functools.cache
def code_hash() -> str:
    """A hash of synth's own source files."""
    digest = hashlib.sha256()
    root = Path(__file__).resolve().parent.parent
    for package in ("synth", "msccl_xml"):
        for path in sorted((root / package).rglob("*.py")):
            digest.update(str(path.relative_to(root)).encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _plain(value: Any) -> Any:
    """The value as JSON has it, the same in every process."""
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, frozenset | set):
        return sorted(_plain(item) for item in value)
    if isinstance(value, Mapping):
        return sorted([_plain(key), _plain(item)] for key, item in value.items())
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value


def _keep(path: Path, result: Result) -> None:
    """Write the entry, whole or not at all, and remove the oldest where there are too many."""
    entry = {
        "sizes": [dataclasses.asdict(row) for row in result.sizes],
        "stages": [dataclasses.asdict(row) for row in result.stages],
        "tried": [dataclasses.asdict(row) for row in result.tried],
        "notes": list(result.notes),
        "strategy": result.strategy,
        "files": [_file(plan) for plan in result.files],
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".part", delete=False, encoding="utf-8") as file:
            json.dump(entry, file)
        os.replace(file.name, path)
        entries = sorted(path.parent.glob(f"*{_ENDING}"), key=lambda other: other.stat().st_mtime)
        for old in entries[:-_MOST_ENTRIES]:
            old.unlink(missing_ok=True)
    except OSError:
        return


def _file(plan: FilePlan) -> dict[str, Any]:
    fields = {field.name: getattr(plan, field.name) for field in dataclasses.fields(plan) if field.name != "algo"}
    return {**fields, "xml": write_algo(plan.algo)}


def _read(path: Path, request: Request) -> Result | None:
    """The answer in an entry; None where there is none that reads and verifies."""
    try:
        entry = json.loads(path.read_text(encoding="utf-8"))
        files = tuple(_file_plan(fields, request) for fields in entry["files"])
        return Result(
            collective=request.collective,
            topology=request.topology.name,
            ranks=request.topology.num_ranks,
            group=request.group,
            strategy=entry["strategy"],
            files=files,
            sizes=tuple(_row(SizeRow, fields) for fields in entry["sizes"]),
            stages=tuple(_row(StageRow, fields) for fields in entry["stages"]),
            notes=tuple(entry["notes"]),
            tried=tuple(_tried(fields) for fields in entry["tried"]),
            cached=True,
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, AlgoError, VerifyError):
        return None


def _file_plan(fields: dict[str, Any], request: Request) -> FilePlan:
    fields = dict(fields)
    algo = read_algo(fields.pop("xml"))
    ranks = request.topology.num_ranks
    shares = ranks if request.collective in SHARED else 1
    chunks = fields["chunks_per_rank"] * fields["instances"] * shares
    collective = Collective(CollectiveName(request.collective), ranks, chunks, request.actual_root, request.group)
    verify_algo(algo, collective, runtime=request.runtime, jobs=request.jobs)
    return FilePlan(algo=algo, **fields)


def _row(kind: Callable[..., Row], fields: dict[str, Any]) -> Row:
    return kind(**fields)


def _tried(fields: dict[str, Any]) -> TriedRow:
    """JSON has no numbers as keys."""
    by_size = {name: {int(size): us for size, us in fields[name].items()} for name in ("schedules_us", "simulated_us")}
    return TriedRow(**{**fields, **by_size})
