"""Measured times as nccl-tests prints them, out of place and in place, and as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass

from synth.cli.simulate_text import UNKNOWN, table_line, time_text
from synth.collective import Collective
from synth.execute.measure import Half, Measured
from synth.units import bandwidth_GBps

_NONE = (UNKNOWN, UNKNOWN, UNKNOWN)


@dataclass(frozen=True, slots=True)
class Header:
    """What was run, for the JSON and the remarks; `dtype` and `op` as nccl-tests calls them."""

    file: str
    backend: str
    collective: Collective
    dtype: str
    op: str
    placement: str = "processes"

    @property
    def redop(self) -> str:
        return self.op if self.collective.combining else "none"


def run_text(header: Header, rows: Sequence[Measured], remarks: Sequence[str]) -> str:
    """The table of nccl-tests with both halves; torch's own collective behind them where it was timed; remarks as comments."""
    rival = any(row.native_us is not None for row in rows)
    names = ("time", "algbw", "busbw"), ("(us)", "(GB/s)", "(GB/s)")
    ends = ["torch", "torch"] if rival else [], ["(us)", "(speed-up)"] if rival else []
    lines = [
        _comment(table_line("", "", "", "", ("out-of-", "place", ""), ["", "in-place", "", "", ""])),
        _comment(table_line("size", "count", "type", "redop", names[0], ["#wrong", *names[0], "#wrong", *ends[0]])),
        _comment(table_line("(B)", "(elements)", "", "", names[1], ["", *names[1], "", *ends[1]])),
    ]
    for row in rows:
        apart, shared = _figures(header, row, row.out_of_place), _figures(header, row, row.in_place)
        others = [apart[3], *shared, *_rival(row)] if rival else [apart[3], *shared]
        lines.append(table_line(str(row.bytes), str(row.count), header.dtype, header.redop, apart[:3], others).rstrip())
    return "\n".join([*lines, *(f"# {remark}" for remark in remarks)])


def run_json(header: Header, rows: Sequence[Measured], remarks: Sequence[str]) -> str:
    """`{file, backend, placement, collective, ranks, type, redop, root, sizes: [{bytes, out_of_place, in_place, …}], remarks}`.

    `out_of_place` and `in_place` are `{time_us, algbw_GBps, busbw_GBps, wrong}` or null; `torch` likewise, without `wrong`.
    """
    document = {
        "file": header.file,
        "backend": header.backend,
        "placement": header.placement,
        "collective": header.collective.name.value,
        "ranks": header.collective.num_ranks,
        "type": header.dtype,
        "redop": header.redop,
        "root": header.collective.root,
        "sizes": [_entry(header, row) for row in rows],
        "remarks": list(remarks),
    }
    return json.dumps(document, indent=2)


def remarks_of(header: Header, rows: Sequence[Measured]) -> list[str]:
    """What has to be said about the figures, each once, and nccl-tests' last two lines."""
    said = [f"{row.bytes}: {remark}" for row in rows for remark in row.remarks]
    said += [
        f"{row.bytes}: padded by {row.padded} elements: {header.collective.per_rank} chunks do not divide {row.count}; "
        "the runtimes would leave the file out"
        for row in rows
        if row.padded
    ]
    said += [f"{row.bytes}: the ranks' results differ in their last bits" for row in rows if row.differing]
    halves = [(row, half) for row in rows for half in (row.out_of_place, row.in_place) if half is not None]
    factor = header.collective.busbw_factor()
    if halves:
        checked = any(half.wrong is not None for _, half in halves)
        wrong = sum(half.wrong or 0 for _, half in halves)
        said.append(f"Wrong values: {wrong} {'FAILED' if wrong else 'OK'}" if checked else "Wrong values: not checked")
        mean = sum(bandwidth_GBps(row.bytes, half.time_us) * factor for row, half in halves) / len(halves)
        said.append(f"Avg bus bandwidth: {mean:.4g}")
    return said


def _figures(header: Header, row: Measured, half: Half | None) -> tuple[str, str, str, str]:
    if half is None:
        return (*_NONE, UNKNOWN)
    algbw_GBps = bandwidth_GBps(row.bytes, half.time_us)
    busbw_GBps = algbw_GBps * header.collective.busbw_factor()
    wrong = UNKNOWN if half.wrong is None else str(half.wrong)
    return time_text(half.time_us), f"{algbw_GBps:.2f}", f"{busbw_GBps:.2f}", wrong


def _rival(row: Measured) -> list[str]:
    best = min((half.time_us for half in (row.out_of_place, row.in_place) if half is not None), default=0.0)
    if row.native_us is None or not best:
        return [UNKNOWN, UNKNOWN]
    return [time_text(row.native_us), f"{row.native_us / best:.2f}x"]


def _entry(header: Header, row: Measured) -> dict[str, object]:
    factor = header.collective.busbw_factor()

    def timed(time_us: float) -> dict[str, object]:
        algbw_GBps = bandwidth_GBps(row.bytes, time_us)
        return {"time_us": time_us, "algbw_GBps": algbw_GBps, "busbw_GBps": algbw_GBps * factor}

    def half(one: Half | None) -> dict[str, object] | None:
        return None if one is None else {**timed(one.time_us), "wrong": one.wrong}

    known = dataclasses.asdict(row)
    return {
        **{key: known[key] for key in ("bytes", "count", "padded", "differing", "remarks")},
        "out_of_place": half(row.out_of_place),
        "in_place": half(row.in_place),
        "torch": None if row.native_us is None else timed(row.native_us),
    }


def _comment(line: str) -> str:
    return "#" + line[1:].rstrip()
