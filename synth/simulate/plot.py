"""A picture of simulated times, as a self-contained SVG: size against bus bandwidth with the bound, and who is busy when."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from msccl_xml.model import Algo
from synth.simulate.simulate import Trace
from synth.units import format_size

_WIDTH, _LEFT, _RIGHT, _TOP = 900, 90, 20, 50
_CURVE_HEIGHT, _GAP, _ROW, _MOST_ROWS = 260, 80, 8, 96
_INNER = _WIDTH - _LEFT - _RIGHT
#: Bars nearer to each other than this share of the picture are drawn as one: the eye sees no gap there.
_MERGED = 1 / 1500
_KINDS = {"sends": ("#4878a8", "sends"), "receives": ("#6aa84f", "receives"), "local": ("#b8860b", "local")}


@dataclass(frozen=True, slots=True)
class Curve:
    """The upper part: `points` are (bytes, busbw in GB/s, busbw at the bound or None), ascending in bytes."""

    title: str
    points: Sequence[tuple[int, float, float | None]]


@dataclass(frozen=True, slots=True)
class Busy:
    """The lower part: what every threadblock did at one size; `kinds` tells (rank, tb, step) to be one of sends, receives, local."""

    buffer_bytes: int
    trace: Trace
    kinds: dict[tuple[int, int, int], str]

    @classmethod
    def of(cls, algo: Algo, buffer_bytes: int, trace: Trace) -> Busy:
        """The trace of a run of `algo` with the kinds of its steps."""
        kinds = {
            (gpu.id, tb.id, number): "sends" if step.type.sends else "receives" if step.type.receives else "local"
            for gpu, tb, number, step in algo.steps()
        }
        return cls(buffer_bytes, trace, kinds)


def plot_svg(curve: Curve, busy: Busy) -> str:
    """The picture as text."""
    rows = sorted({(activity.rank, activity.tb) for activity in busy.trace.activities})
    shown = rows[:_MOST_ROWS]
    below = _TOP + _CURVE_HEIGHT + _GAP
    height = below + len(shown) * _ROW + 50
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        _text(_LEFT, 24, curve.title, size=14),
        *_curve(curve),
        *_busy(busy, shown, len(rows), below),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _curve(curve: Curve) -> list[str]:
    sizes = [point[0] for point in curve.points]
    low, high = math.log2(sizes[0]), math.log2(sizes[-1])
    top = max(max(value, bound or 0.0) for _, value, bound in curve.points) * 1.05 or 1.0
    bottom = _TOP + _CURVE_HEIGHT

    def x(size: int) -> float:
        return _LEFT + _INNER * ((math.log2(size) - low) / (high - low) if high > low else 0.5)

    def y(value: float) -> float:
        return bottom - _CURVE_HEIGHT * value / top

    parts = []
    for tick in _ticks(top):
        parts.append(_line(_LEFT, y(tick), _WIDTH - _RIGHT, y(tick), "#dddddd"))
        parts.append(_text(_LEFT - 6, y(tick) + 4, f"{tick:g}", anchor="end"))
    for size in sizes[:: max(1, len(sizes) // 11)]:
        parts.append(_text(x(size), bottom + 16, format_size(size), anchor="middle"))
    parts.append(_text(_LEFT, _TOP - 8, "busbw GB/s against size; dashed: the bound"))
    bounds = [(x(size), y(bound)) for size, _, bound in curve.points if bound is not None]
    parts.append(_polyline(bounds, "#a03030", dashed=True))
    values = [(x(size), y(value)) for size, value, _ in curve.points]
    parts.append(_polyline(values, "#204080", dashed=False))
    parts += [f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3" fill="#204080"/>' for px, py in values]
    return parts


def _busy(busy: Busy, shown: list[tuple[int, int]], rows: int, top: float) -> list[str]:
    span = max((activity.end_us for activity in busy.trace.activities), default=0.0) or 1.0
    told = f"who is busy when at {format_size(busy.buffer_bytes)}: {span:.1f} us"
    told += " (the beginning)" if busy.trace.cut else ""
    told += f" (the first {len(shown)} of {rows} threadblocks)" if rows > len(shown) else ""
    parts = [_text(_LEFT, top - 26, told)]
    for position, (colour, name) in enumerate(_KINDS.values()):
        parts.append(_rect(_LEFT + 90 * position, top - 17, 9, 9, colour))
        parts.append(_text(_LEFT + 13 + 90 * position, top - 9, name))
    bars = _bars(busy, span)
    ranks_told: set[int] = set()
    for number, (rank, tb) in enumerate(shown):
        y = top + number * _ROW
        if rank not in ranks_told:
            ranks_told.add(rank)
            parts.append(_text(_LEFT - 6, y + _ROW, f"gpu {rank}", anchor="end"))
            parts.append(_line(_LEFT, y, _WIDTH - _RIGHT, y, "#dddddd"))
        for start, end, kind in bars[rank, tb]:
            width = max(0.3, _INNER * (end - start) / span)
            parts.append(_rect(_LEFT + _INNER * start / span, y + 1, width, _ROW - 2, _KINDS[kind][0]))
    return parts


def _bars(busy: Busy, span: float) -> dict[tuple[int, int], list[tuple[float, float, str]]]:
    """The (start, end, kind) bars of each row, neighbours of one kind merged."""
    bars: dict[tuple[int, int], list[tuple[float, float, str]]] = defaultdict(list)
    for rank, tb, step, _, start, end in busy.trace.activities:
        row = bars[rank, tb]
        kind = busy.kinds[rank, tb, step]
        if row and row[-1][2] == kind and start - row[-1][1] <= span * _MERGED:
            row[-1] = (row[-1][0], end, kind)
        else:
            row.append((start, end, kind))
    return bars


def _ticks(top: float) -> list[float]:
    """Round numbers from 0 to `top`, about five of them."""
    unit = 10 ** math.floor(math.log10(top / 5))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= top / 5)
    return [step * number for number in range(int(top / step) + 1)]


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 11) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(_printable(text))}</text>'


def _printable(text: str) -> str:
    """XML has no place for control characters, and a name from a file may hold some."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _rect(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:.2f}" y="{y:.1f}" width="{width:.2f}" height="{height:.1f}" fill="{colour}"/>'


def _polyline(points: list[tuple[float, float]], colour: str, *, dashed: bool) -> str:
    told = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dash = ' stroke-dasharray="6 4"' if dashed else ""
    return f'<polyline points="{told}" fill="none" stroke="{colour}" stroke-width="1.5"{dash}/>'
