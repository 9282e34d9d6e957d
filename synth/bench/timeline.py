"""Who is busy when, as few bars: what a simulated run did, neighbours of one kind in one row merged."""

from __future__ import annotations

from msccl_xml.model import Algo
from synth.bench.values import Timeline
from synth.simulate import Simulator

#: Operations and rows that a timeline is made from at most: a page shows the beginning of a long run.
_MOST_ACTIVITIES = 20_000
_MOST_ROWS = 64
#: Bars nearer to each other than this share of the whole are one: the eye sees no gap there.
_MERGED = 1 / 800


def timeline_of(algo: Algo, xml_hash: str, simulator: Simulator, size_bytes: int) -> Timeline:
    """The timeline of a run at one size, its first rows."""
    trace = simulator.trace(size_bytes, _MOST_ACTIVITIES)
    kinds = {
        (gpu.id, tb.id, number): "send" if step.type.sends else "receive" if step.type.receives else "local"
        for gpu, tb, number, step in algo.steps()
    }
    rows = sorted({(activity.rank, activity.tb) for activity in trace.activities})[:_MOST_ROWS]
    place = {row: position for position, row in enumerate(rows)}
    span = max((activity.end_us for activity in trace.activities), default=0.0)
    bars: dict[int, list[tuple[int, float, float, str]]] = {position: [] for position in range(len(rows))}
    for rank, tb, step, _, start, end in trace.activities:
        row = place.get((rank, tb))
        if row is None:
            continue
        kind, drawn = kinds[rank, tb, step], bars[row]
        if drawn and drawn[-1][3] == kind and start - drawn[-1][2] <= span * _MERGED:
            drawn[-1] = (row, drawn[-1][1], max(end, drawn[-1][2]), kind)
        else:
            drawn.append((row, start, end, kind))
    merged = tuple(
        (row, round(start, 3), round(end, 3), kind) for drawn in bars.values() for row, start, end, kind in drawn
    )
    return Timeline(xml_hash, size_bytes, round(span, 3), tuple(rows), merged, trace.cut)
