"""What `synth explain` says to a human: per file a head, who loads it, which calls it serves, its cost, what to know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from msccl_xml.limits import RUNTIMES
from synth.explain import Answer, FileReport, Load, SizeRow
from synth.explain.choice import NO_LIMIT
from synth.units import format_size

_INDENT = "  "
#: Two names fit; three are all.
_NAME_WIDTH = len("executor, rccl")


def report_text(reports: Sequence[FileReport]) -> str:
    """All reports, an empty line between them."""
    return "\n\n".join("\n".join(_file_lines(report)) for report in reports)


def _file_lines(report: FileReport) -> Iterator[str]:
    yield f"{report.path}: {_head(report)}"
    loads = {runtime: list(_load_lines(load)) for runtime, load in report.loads.items()}
    yield from _merged(loads)
    served = [runtime for runtime, load in report.loads.items() if load.ok]
    yield from _merged({runtime: list(_choice_lines(runtime, report)) for runtime in served})
    yield from _cost_lines(report)
    yield from _needs_lines(report)
    for note in _notes(report):
        yield f"{_INDENT}{'note':<{_NAME_WIDTH}} {note}"
    for difference in report.differences:
        yield f"{_INDENT}{'text':<{_NAME_WIDTH}} {difference}"


def _head(report: FileReport) -> str:
    header = report.header
    if header is None:
        return "no runtime that was asked loads it"
    low, high = header.min_bytes or 0, header.max_bytes
    upper = "without maxBytes" if high is None or high >= NO_LIMIT else f"maxBytes {format_size(high)}"
    group = "" if header.group is None else f" (of ranks {header.group} alone, which no runtime knows)"
    parts = f"{header.coll} on {header.ngpus} ranks{group}, {header.proto}, {header.nchunksperloop} chunks"
    return f"{parts}, minBytes {format_size(low)}, {upper}"


def _merged(lines: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """The lines of each runtime under its name; those that several have alike, once under all their names."""
    told: dict[tuple[str, ...], list[str]] = {}
    for runtime, own in lines.items():
        told.setdefault(tuple(own), []).append(runtime)
    for own, names in told.items():
        for line in own:
            yield f"{_INDENT}{', '.join(names) if len(names) < len(RUNTIMES) else 'all':<{_NAME_WIDTH}} {line}"


def _load_lines(load: Load) -> Iterator[str]:
    if load.ok:
        yield "loads it"
        return
    line = "" if load.line is None else f"line {load.line}: "
    yield f"{'crashes' if load.crash else 'does not load it'}: {line}{load.reason}"
    if load.mend is not None:
        yield f"  to mend: {load.mend}"


def _choice_lines(runtime: str, report: FileReport) -> Iterator[str]:
    rows = report.sizes
    for _, group in groupby(rows, key=lambda row: (row.in_place, row.answers[runtime].chosen, _why(row, runtime))):
        same = list(group)
        first = same[0]
        # The largest size says how far maxBytes has to go, the smallest how far minBytes.
        shown = same[-1] if first.answers[runtime].rule == "maxBytes" else first
        place = "in place" if first.in_place else "out of place"
        yield f"{place:<12}  {_range(same):<13} {_said(shown.answers[runtime])}"
        answer = shown.answers[runtime]
        if answer.mend is not None and (answer.file is None or answer.rule == "order"):
            yield f"  to mend: {answer.mend}"


def _why(row: SizeRow, runtime: str) -> tuple[str | None, str | None]:
    answer = row.answers[runtime]
    return answer.rule, answer.file


def _range(rows: Sequence[SizeRow]) -> str:
    first, last = format_size(rows[0].bytes), format_size(rows[-1].bytes)
    return first if first == last else f"{first}..{last}"


def _said(answer: Answer) -> str:
    if answer.chosen:
        return "chosen"
    if answer.rule == "order" and answer.file is not None:
        return f"not chosen: {answer.reason}"
    return f"{'not chosen' if answer.file is None else f'left to {answer.file}'}: {answer.reason}"


def _cost_lines(report: FileReport) -> Iterator[str]:
    cost = report.cost
    if cost is None:
        return
    parts = [
        f"{_many(cost.threadblocks, 'threadblock')} (SMs) a GPU",
        _many(cost.channels, "channel"),
        f"{_many(cost.steps, 'step')} in the longest threadblock",
        f"{_many(cost.connections_per_gpu, 'connection')} a GPU",
    ]
    if cost.connections_per_nic is not None:
        parts.append(f"{cost.connections_per_nic} over {cost.busiest_nic}, the busiest NIC")
    parts.append(f"{format_size(cost.scratch_bytes)} scratch at maxBytes" if cost.scratch_bytes else "no scratch")
    yield f"{_INDENT}{'cost':<{_NAME_WIDTH}} {', '.join(parts)}"


def _many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _needs_lines(report: FileReport) -> Iterator[str]:
    for runtime, load in report.loads.items():
        if load.needs:
            yield f"{_INDENT}{'set for':<{_NAME_WIDTH}} {runtime}: {'; '.join(load.needs)}"


def _notes(report: FileReport) -> list[str]:
    """The notes, each once, with the runtimes that it is about unless it is about all that load the file."""
    told: dict[str, list[str]] = {}
    loading = [runtime for runtime, load in report.loads.items() if load.ok]
    for runtime, load in report.loads.items():
        for note in load.caveats:
            told.setdefault(note, []).append(runtime)
    return [note if who == loading else f"{', '.join(who)}: {note}" for note, who in told.items()]
