"""Simulated times as nccl-tests prints them, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from msccl_xml.model import Algo
from synth.chunks import FP32_BYTES, element_count
from synth.collective import COMBINING, SHARED, Collective, CollectiveName
from synth.constants import DEFAULT_MAX_BYTES
from synth.units import bandwidth_GBps

#: What nccl-tests prints where there is no figure.
UNKNOWN = "N/A"


@dataclass(frozen=True, slots=True)
class SizeRow:
    """One line: `count` are elements as nccl-tests counts them; `note` says why a runtime would leave the file out at this size.

    `time_us` is None where the file hangs at a size at which it is left out. `against` are the times of other algorithms by name, in
    microseconds.
    """

    bytes: int
    count: int
    time_us: float | None
    factor: float
    note: str | None = None
    against: Mapping[str, float] = field(default_factory=dict)

    @property
    def algbw_GBps(self) -> float | None:
        return None if self.time_us is None else bandwidth_GBps(self.bytes, self.time_us)

    @property
    def busbw_GBps(self) -> float | None:
        return None if self.algbw_GBps is None else self.algbw_GBps * self.factor

    def speedup_over(self, name: str) -> float | None:
        """How many times as long as the file another algorithm takes."""
        return None if self.time_us is None else self.against[name] / self.time_us


def rows_text(rows: Sequence[SizeRow], collective: Collective | None, remarks: Sequence[str]) -> str:
    """The table of nccl-tests, one of its two halves, with a speed-up over every other algorithm; remarks as comments."""
    redop = "sum" if collective is not None and collective.name in COMBINING else "none"
    names = list(rows[0].against) if rows else []
    lines = [
        "#" + table_line("size", "count", "type", "redop", ("time", "algbw", "busbw"), names)[1:],
        "#" + table_line("(B)", "(elements)", "", "", ("(us)", "(GB/s)", "(GB/s)"), ["(speed-up)"] * len(names))[1:],
    ]
    for row in rows:
        figures = (time_text(row.time_us), _decimals(row.algbw_GBps), _decimals(row.busbw_GBps))
        others = [_decimals(row.speedup_over(name), "x") for name in names]
        line = table_line(str(row.bytes), str(row.count), "float", redop, figures, others)
        lines.append(line if row.note is None else f"{line}  # {row.note}")
    return "\n".join([*lines, *(f"# {remark}" for remark in remarks)])


def rows_json(rows: Sequence[SizeRow], file: str, topology: str, remarks: Sequence[str]) -> str:
    """`{file, topology, sizes: [{bytes, count, time_us, algbw_GBps, busbw_GBps, note, against}], remarks}`."""
    sizes = []
    for row in rows:
        entry: dict[str, object] = {
            "bytes": row.bytes,
            "count": row.count,
            "time_us": row.time_us,
            "algbw_GBps": row.algbw_GBps,
            "busbw_GBps": row.busbw_GBps,
            "note": row.note,
        }
        if row.against:
            entry["against"] = {
                name: {"time_us": time_us, "speedup": row.speedup_over(name)} for name, time_us in row.against.items()
            }
        sizes.append(entry)
    return json.dumps({"file": file, "topology": topology, "sizes": sizes, "remarks": list(remarks)}, indent=2)


def why_not_chosen(algo: Algo, collective: Collective | None, size_bytes: int) -> str | None:
    """Why a runtime leaves the file out at a size, None where it does not: by the range of sizes and by divisibility.

    `synth explain` knows more reasons, runtime by runtime.
    """
    shares = algo.ngpus if collective is not None and collective.name in SHARED else 1
    elements = count_of(collective, algo.ngpus, size_bytes) * shares
    low = algo.min_bytes or 0
    high = DEFAULT_MAX_BYTES if algo.max_bytes is None else algo.max_bytes
    moved = elements * FP32_BYTES
    if moved < low:
        return f"not chosen: below minBytes {low}"
    if 0 < high < moved:
        return f"not chosen: above maxBytes {high}"
    if elements == 0 or elements % algo.nchunksperloop:
        return f"not chosen: {algo.nchunksperloop} chunks do not divide {elements} elements"
    return "not chosen by msccl, to which maxBytes is no longer in the range" if moved == high else None


def count_of(collective: Collective | None, num_ranks: int, size_bytes: int) -> int:
    """Elements that nccl-tests prints for a buffer: fp32, a rank's share where there are shares."""
    return element_count(CollectiveName.ALLREDUCE if collective is None else collective.name, num_ranks, size_bytes)


def table_line(size: str, count: str, kind: str, redop: str, figures: Sequence[str], others: Sequence[str]) -> str:
    """One line of the table: the columns that nccl-tests has, and `others` behind them."""
    time, algbw, busbw = figures
    line = f"{size:>13}  {count:>12}  {kind:>8}  {redop:>6}  {time:>9}  {algbw:>7}  {busbw:>7}"
    return line + "".join(f"  {other:>12}" for other in others)


def time_text(time_us: float | None) -> str:
    """As many digits as nccl-tests prints."""
    if time_us is None:
        return UNKNOWN
    return f"{time_us:.{0 if time_us >= 10_000 else 1 if time_us >= 100 else 2}f}"


def _decimals(figure: float | None, unit: str = "") -> str:
    return UNKNOWN if figure is None else f"{figure:.2f}{unit}"
