"""A run as a trace for Chrome's and Perfetto's viewers: one process a rank, one thread a threadblock, one slice an operation.

The format is the JSON of Google's "Trace Event Format" document: complete events (`ph` "X") with times in microseconds, metadata
events (`ph` "M") for the names of rows.
"""

from __future__ import annotations

import json

from msccl_xml.model import Algo, Step, Threadblock
from synth.simulate.simulate import Trace


def trace_json(algo: Algo, trace: Trace, buffer_bytes: int) -> str:
    """The trace of a run of `algo` at a size, as text; `otherData.cut` says whether operations at its end are missing."""
    events: list[dict[str, object]] = []
    steps: dict[tuple[int, int], tuple[Step, ...]] = {}
    for gpu in algo.gpus:
        events.append(_named("process_name", gpu.id, 0, f"gpu {gpu.id}"))
        for tb in gpu.threadblocks:
            events.append(_named("thread_name", gpu.id, tb.id, _role(tb)))
            steps[gpu.id, tb.id] = tb.steps
    for activity in trace.activities:
        step = steps[activity.rank, activity.tb][activity.step]
        events.append(
            {
                "name": _name(step),
                "cat": step.type.value,
                "ph": "X",
                "ts": round(activity.start_us, 6),
                "dur": round(activity.end_us - activity.start_us, 6),
                "pid": activity.rank,
                "tid": activity.tb,
                "args": {"step": activity.step, "tile": activity.tile, "count": step.count},
            }
        )
    told = {
        "algorithm": algo.name,
        "collective": algo.coll,
        "protocol": algo.proto,
        "bytes": buffer_bytes,
        "cut": trace.cut,
    }
    lines = ",\n".join(json.dumps(event) for event in events)
    return f'{{"displayTimeUnit": "ns",\n"otherData": {json.dumps(told)},\n"traceEvents": [\n{lines}\n]}}\n'


def _named(what: str, pid: int, tid: int, name: str) -> dict[str, object]:
    return {"name": what, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}


def _role(tb: Threadblock) -> str:
    """`tb 0 1->2 ch 0`: from whom, to whom, on which channel."""
    source = "" if tb.recv < 0 else str(tb.recv)
    target = "" if tb.send < 0 else str(tb.send)
    return f"tb {tb.id} {source}->{target} ch {tb.channel}" if source or target else f"tb {tb.id} local"


def _name(step: Step) -> str:
    """The step's type and the chunk that it is about: what it writes, or what it reads where it writes nothing here."""
    if step.type.writes_dst:
        return f"{step.type} {step.dst_buffer}[{step.dst_offset}]"
    return f"{step.type} {step.src_buffer}[{step.src_offset}]"
