"""Put the answers about files together: who loads each, who chooses it for which calls, what it needs and costs.

Files are judged together, in load order, as a runtime has them together: the first that fits a call wins,
microsoft/msccl keeps four, and in a directory that the executor or RCCL reads one bad file spoils all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from msccl_xml.differences import differences
from msccl_xml.errors import XmlError
from msccl_xml.header import Header
from msccl_xml.limits import LIMITS, RUNTIMES
from msccl_xml.model import Algo
from msccl_xml.read import read_algo
from msccl_xml.strict import LoadVerdict, load_as
from synth.constants import DEFAULT_MAX_BYTES
from synth.explain.call import Call, plain_coll
from synth.explain.choice import Refusal, refusal
from synth.explain.config import Config, Registration
from synth.explain.cost import Cost, cost_of
from synth.explain.environment import caveats, needs, refused_caveats
from synth.topology import Topology


@dataclass(frozen=True, slots=True)
class Question:
    """The calls that are asked about: `ranks` None means as many as each file says."""

    sizes: tuple[int, ...]
    element_bytes: int = 4
    places: tuple[bool, ...] = (True, False)
    """in place, or out of place, or both"""
    runtimes: tuple[str, ...] = RUNTIMES
    ranks: int | None = None
    topology: Topology | None = None
    config: Config | None = None
    """what registers the files with microsoft/msccl, one <load> each; other runtimes have no such thing"""


@dataclass(frozen=True, slots=True)
class Load:
    """Whether a runtime loads a file; else `reason`, the line, and what mends it."""

    ok: bool
    reason: str | None = None
    line: int | None = None
    crash: bool = False
    mend: str | None = None
    needs: tuple[str, ...] = ()
    """what must be set for the runtime to use files at all"""
    caveats: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """What a runtime does with one call: take this file, or (`file`) another one, or none.

    `rule` names in one word what decided against this file (`Refusal.rule`).
    """

    chosen: bool
    file: str | None = None
    rule: str | None = None
    reason: str | None = None
    mend: str | None = None


@dataclass(frozen=True, slots=True)
class SizeRow:
    """One call: the size as nccl-tests names it, the elements of the call, and the bytes that runtimes compare."""

    bytes: int
    in_place: bool
    count: int
    total_bytes: int
    answers: dict[str, Answer]


@dataclass(frozen=True, slots=True)
class FileReport:
    """All about one file; `header` is None where nobody loads it, `cost` where it cannot be read even leniently."""

    path: str
    loads: dict[str, Load]
    sizes: tuple[SizeRow, ...]
    cost: Cost | None
    differences: tuple[str, ...]
    header: Header | None


@dataclass(frozen=True, slots=True)
class _File:
    path: str
    algo: Algo | None
    differences: tuple[str, ...]
    verdicts: dict[str, LoadVerdict]
    registration: Registration | None = None

    @property
    def header(self) -> Header | None:
        return next((verdict.header for verdict in self.verdicts.values() if verdict.header is not None), None)


def explain(files: Sequence[tuple[str, bytes]], question: Question) -> list[FileReport]:
    """A report on each of `files` (path and content), in their order, which is the order that msccl loads them in.

    Pure; a file that is no XML at all gets a report too. Time is linear in the content, and in files times calls.
    """
    registrations = [None] * len(files) if question.config is None else question.config.registrations
    read = [
        _read(path, content, question, registration)
        for (path, content), registration in zip(files, registrations, strict=True)
    ]
    orders = {runtime: _load_order(read, runtime, question.ranks) for runtime in question.runtimes}
    return [_report(file, orders, question) for file in read]


def _read(path: str, content: bytes, question: Question, registration: Registration | None) -> _File:
    try:
        algo = read_algo(content)
    except XmlError:
        algo = None
    verdicts = {runtime: load_as(content, runtime, ranks=question.ranks) for runtime in question.runtimes}
    taken = verdicts.get("msccl")
    if registration is not None and taken is not None and taken.header is not None:
        verdicts["msccl"] = replace(taken, header=registration.applied(taken.header))
    return _File(path, algo, tuple(differences(content)), verdicts, registration)


def _load_order(files: Sequence[_File], runtime: str, ranks: int | None) -> list[_File]:
    """The files that the runtime has after loading, in the order in which it tries them."""
    loaded = [file for file in files if file.verdicts[runtime].ok]
    if runtime == "msccl":
        return loaded[: LIMITS[runtime].files]
    if any(_spoils(file.verdicts[runtime], ranks) for file in files):
        return []
    return sorted(loaded, key=lambda file: file.path) if runtime == "executor" else loaded


def _spoils(verdict: LoadVerdict, ranks: int | None) -> bool:
    """Whether the file makes a directory useless: refused, and not for another number of ranks, when nobody looks."""
    return not verdict.ok and (verdict.listed is None or ranks is None or verdict.listed.ngpus == ranks)


def _report(file: _File, orders: dict[str, list[_File]], question: Question) -> FileReport:
    header = file.header
    loads = {runtime: _load(file, runtime, orders[runtime], question.config) for runtime in question.runtimes}
    sizes = () if header is None else tuple(_rows(file, header, orders, question))
    cost = None if file.algo is None else cost_of(file.algo, _largest(file.algo, question), question.topology)
    return FileReport(file.path, loads, sizes, cost, file.differences, header)


def _largest(algo: Algo, question: Question) -> int:
    """The bytes that scratch is made for: maxBytes; without a limit, the largest size that is asked about."""
    if algo.max_bytes is None:
        return DEFAULT_MAX_BYTES
    return algo.max_bytes or max(question.sizes, default=0)


def _load(file: _File, runtime: str, order: Sequence[_File], config: Config | None) -> Load:
    verdict = file.verdicts[runtime]
    if verdict.header is None:
        mend = verdict.mend
        if mend is None and file.differences:
            mend = "take out of the file: " + "; ".join(file.differences)
        told = refused_caveats(runtime, verdict.listed is not None)
        return Load(False, verdict.reason, verdict.line, verdict.crash, mend, caveats=told)
    if runtime == "msccl" and file not in order:
        beyond = _crowded(file, runtime, order, None)
        return Load(False, beyond.reason, mend=beyond.mend)
    paths = [other.path for other in order] or [file.path]
    told = caveats(verdict.header, runtime, file.algo)
    if file.registration is not None:
        told += file.registration.caveats(file.algo)
    registered = None if config is None else config.path
    return Load(True, needs=needs(verdict.header, runtime, paths, registered), caveats=told)


def _rows(file: _File, header: Header, orders: dict[str, list[_File]], question: Question) -> list[SizeRow]:
    rows = []
    for in_place in question.places:
        for size in question.sizes:
            ranks = question.ranks or max(1, header.ngpus)
            call = Call(header.coll, ranks, question.element_bytes, in_place, size)
            answers = {runtime: _answer(file, runtime, orders[runtime], call) for runtime in question.runtimes}
            rows.append(SizeRow(size, in_place, call.count, call.total_bytes, answers))
    return rows


def _answer(file: _File, runtime: str, order: Sequence[_File], call: Call) -> Answer:
    """Who serves the call, and why it is not this file."""
    winner = next((other for other in order if _fits(other, runtime, call)), None)
    taken = None if winner is None else winner.path
    if winner is file:
        return Answer(True, taken)
    verdict = file.verdicts[runtime]
    if verdict.header is None:
        return Answer(False, taken, "load", f"{runtime} does not load the file")
    passed = refusal(verdict.header, runtime, call)
    if passed is None:
        passed = _crowded(file, runtime, order, taken)
    return Answer(False, taken, passed.rule, passed.reason, passed.mend)


def _fits(file: _File, runtime: str, call: Call) -> bool:
    header = file.verdicts[runtime].header
    same = header is not None and plain_coll(header.coll) == plain_coll(call.coll)
    return header is not None and same and refusal(header, runtime, call) is None


def _crowded(file: _File, runtime: str, order: Sequence[_File], taken: str | None) -> Refusal:
    """Why a file that fits is not taken: what stands beside it."""
    if file in order:
        return Refusal(
            "order", f"{taken} comes before it and takes this size", "load it first, or part the sizes of the two"
        )
    if runtime == "msccl":
        return Refusal(
            "order",
            f"msccl keeps {LIMITS[runtime].files} files, and as many come before it",
            "leave one out, or load it earlier",
        )
    return Refusal(
        "load",
        "another of the files is refused, and a directory with one such file is not usable",
        "take the refused file out of the directory",
    )
