"""Suite files: TOML or JSON that says which machines, collectives, sizes, strategies and seeds a benchmark runs, and for how long.

docs/bench.md lists the fields. A machine may override what the suite says of collectives, sizes, strategies, seeds and budget.
"""

from __future__ import annotations

import hashlib
import json
import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msccl_xml.limits import RUNTIMES
from synth.bench.fingerprint import instance_hash
from synth.bench.values import Job, Machine, Suite, Tolerances
from synth.choices import STRATEGIES
from synth.chunks import range_sizes
from synth.collective import CollectiveName
from synth.errors import InputError, SynthError
from synth.inputs.load import load_topology
from synth.topology import replicate
from synth.units import parse_size

BASELINES = ("ring", "tree")
#: What a machine may say differently from its suite.
_OVERRIDES = ("collectives", "sizes", "strategies", "seeds", "budget_s")
_DEFAULTS: dict[str, Any] = {
    "collectives": ["allreduce"],
    "strategies": ["auto"],
    "seeds": [0],
    "budget_s": 300.0,
    "each": False,
    "runtime": "msccl",
    "baselines": list(BASELINES),
    "total_s": None,
    "tolerances": {},
}
_FIELDS = ("name", "sizes", "topologies", *_DEFAULTS)
_SUITES = Path(__file__).resolve().parent.parent.parent / "benchmarks" / "suites"


def find_suite(name_or_path: str) -> Path:
    """The path of a suite file, or of one that comes along ("quick", "nightly"); InputError where there is none."""
    path = Path(name_or_path)
    if path.is_file():
        return path
    shipped = _SUITES / f"{name_or_path}.toml"
    if name_or_path.isidentifier() and shipped.is_file():
        return shipped
    names = ", ".join(sorted(entry.stem for entry in _SUITES.glob("*.toml"))) or "none: they come with a checkout"
    raise InputError("--suite", "", name_or_path, f"a TOML or JSON file, or a suite that comes along ({names})")


def load_suite(name_or_path: str) -> Suite:
    """The suite of a file or name, its machines loaded. Raises InputError naming file, field and value."""
    path = find_suite(name_or_path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise SynthError(f"{name_or_path}: cannot be read: {reason}") from error
    return parse_suite(text, str(name_or_path), is_json=path.suffix == ".json", stem=path.stem)


def parse_suite(text: str, source: str, *, is_json: bool = False, stem: str = "suite") -> Suite:
    """The suite that `text` describes; `source` names it in errors, `stem` it where it has no name itself."""
    fields = {**_DEFAULTS, **_document(text, source, is_json)}
    for name in fields:
        if name not in _FIELDS:
            raise InputError(source, name, fields[name], f"no such field, but {', '.join(_FIELDS)}")
    reader = _Reader(source)
    if "topologies" not in fields or "sizes" not in fields:
        missing = "topologies" if "topologies" not in fields else "sizes"
        raise InputError(source, missing, None, "a list with at least one entry")
    jobs = tuple(job for entry in reader.items(fields, "topologies") for job in _jobs_of(reader, fields, entry))
    repeated = next((job.key for position, job in enumerate(jobs) if job.key in {j.key for j in jobs[:position]}), None)
    if repeated is not None:
        raise InputError(source, "topologies", repeated, "every synthesis once")
    total = fields["total_s"]
    return Suite(
        name=reader.text("name", fields.get("name", stem)),
        jobs=jobs,
        total_s=None if total is None else reader.seconds("total_s", total),
        tolerances=_tolerances(reader, fields["tolerances"]),
        digest=_digest(jobs),
    )


def _document(text: str, source: str, is_json: bool) -> dict[str, Any]:
    try:
        document = json.loads(text) if is_json else tomllib.loads(text)
    except (json.JSONDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        kind = "JSON" if is_json else "TOML"
        raise InputError(source, "", str(error).partition("\n")[0], f"{kind} that can be read") from error
    if not isinstance(document, dict):
        raise InputError(source, "", type(document).__name__, "a table of fields")
    return document


def _jobs_of(reader: _Reader, suite: Mapping[str, Any], entry: object) -> Iterator[Job]:
    """The syntheses of one machine."""
    own = entry if isinstance(entry, dict) else {}
    for name in own:
        if name not in ("topology", "nodes", *_OVERRIDES):
            raise InputError(
                reader.source, f"topologies.{name}", own[name], f"topology, nodes, {', '.join(_OVERRIDES)}"
            )
    fields = {**suite, **{name: value for name, value in own.items() if name in _OVERRIDES}}
    machine = _machine(reader, entry)
    sizes = tuple(sorted({reader.size(text) for text in reader.items(fields, "sizes")}))
    ranges = [(size,) for size in sizes] if reader.truth("each", fields["each"]) else [sizes]
    for collective in reader.items(fields, "collectives"):
        name = CollectiveName(reader.one_of("collectives", collective, [*CollectiveName]))
        for strategy in reader.items(fields, "strategies"):
            for seed in reader.items(fields, "seeds"):
                for served in ranges:
                    yield Job(
                        machine=machine,
                        collective=name,
                        sizes=_in_range(reader, served),
                        strategy=reader.one_of("strategies", strategy, STRATEGIES),
                        seed=reader.whole("seeds", seed),
                        runtime=reader.one_of("runtime", fields["runtime"], RUNTIMES),
                        budget_s=reader.seconds("budget_s", fields["budget_s"]),
                        baselines=tuple(
                            reader.one_of("baselines", item, BASELINES)
                            for item in reader.items(fields, "baselines", least=0)
                        ),
                    )


def _machine(reader: _Reader, entry: object) -> Machine:
    """Of `dgx1`, `ndv2*2`, or a table with `topology` and `nodes`."""
    if isinstance(entry, dict):
        source, nodes = reader.text("topologies.topology", entry.get("topology")), entry.get("nodes", 1)
    else:
        source, _, count = reader.text("topologies", entry).partition("*")
        nodes = int(count) if count.isascii() and count.isdecimal() else count or 1
    if not isinstance(nodes, int) or isinstance(nodes, bool) or not 1 <= nodes <= 64:
        raise InputError(reader.source, "topologies.nodes", nodes, "a whole number from 1 to 64")
    return Machine(source, nodes, replicate(load_topology(source), nodes))


def _in_range(reader: _Reader, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The sizes, each of which a sweep from the smallest to the largest has to visit."""
    visited = set(range_sizes(sizes[0], sizes[-1]))
    for size in sizes:
        if size not in visited:
            raise InputError(
                reader.source, "sizes", size, "powers of two, or doublings of the smallest; or each = true"
            )
    return sizes


def _tolerances(reader: _Reader, fields: object) -> Tolerances:
    known = Tolerances.__dataclass_fields__
    if not isinstance(fields, dict):
        raise InputError(reader.source, "tolerances", fields, "a table")
    for name, value in fields.items():
        if name not in known:
            raise InputError(reader.source, f"tolerances.{name}", value, f"one of {', '.join(known)}")
        reader.number(f"tolerances.{name}", value)
    return Tolerances(**fields)


def _digest(jobs: Sequence[Job]) -> str:
    """Tells suites apart by what they run: the same syntheses of the same machines give the same digest."""
    told = "\n".join(f"{job.key} {job.budget_s:g} {job.baselines} {job.sizes} {instance_hash(job)}" for job in jobs)
    return hashlib.sha256(told.encode()).hexdigest()[:16]


class _Reader:
    """Values of a suite file, checked; errors name the file and the field."""

    def __init__(self, source: str) -> None:
        self.source = source

    def items(self, fields: Mapping[str, Any], name: str, least: int = 1) -> list[Any]:
        value = fields[name]
        if not isinstance(value, list) or len(value) < least:
            raise InputError(self.source, name, value, "a list" if least == 0 else "a list with at least one entry")
        return value

    def text(self, field: str, value: object) -> str:
        if not isinstance(value, str) or not value:
            raise InputError(self.source, field, value, "a text")
        return value

    def one_of(self, field: str, value: object, known: Sequence[str]) -> str:
        if value not in [str(name) for name in known]:
            raise InputError(self.source, field, value, f"one of {', '.join(known)}")
        return str(value)

    def truth(self, field: str, value: object) -> bool:
        if not isinstance(value, bool):
            raise InputError(self.source, field, value, "true or false")
        return value

    def whole(self, field: str, value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise InputError(self.source, field, value, "a whole number from 0")
        return value

    def number(self, field: str, value: object) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value) or value < 0:
            raise InputError(self.source, field, value, "a number from 0")
        return float(value)

    def seconds(self, field: str, value: object) -> float:
        if self.number(field, value) == 0:
            raise InputError(self.source, field, value, "a positive number of seconds")
        return self.number(field, value)

    def size(self, text: object) -> int:
        try:
            return parse_size(str(text), "sizes")
        except InputError as error:
            raise InputError(self.source, "sizes", text, error.expected) from error
