"""Peak memory by stage: a thread looks at the process' resident memory, and at which part of synth is at work."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

#: Seconds between two looks. A stage shorter than that may go unseen.
_PERIOD_S = 0.01
_STATM = "/proc/self/statm"
#: The stage that code belongs to, by the first part of its module's name below `synth`, as the pipeline names stages.
_STAGES = {
    "paths": "topology",
    "build": "topology",
    "instance": "topology",
    "routing": "routing",
    "ordering": "ordering",
    "scheduling": "scheduling",
    "lowering": "lowering",
    "simulate": "simulation",
    "verify": "verify",
    "bounds": "bound",
    "baselines": "baselines",
    "known": "baselines",
    "interpreted": "scoring",
    "timing": "scoring",
}


class Peaks:
    """Bytes by stage, and under "" of all that was seen; empty on systems that do not tell."""

    def __init__(self) -> None:
        self.by_stage: dict[str, int] = {}
        self._thread = threading.get_ident()

    def look(self) -> None:
        """Note the memory of this moment for the stage at work in the thread that made this object."""
        resident = _resident_bytes()
        if resident is None:
            return
        frame = sys._current_frames().get(self._thread)
        for stage in {"", _stage_of(frame)}:
            self.by_stage[stage] = max(self.by_stage.get(stage, 0), resident)


@contextmanager
def watch_memory() -> Iterator[Peaks]:
    """Watch this process' memory while the block runs in this thread."""
    peaks = Peaks()
    over = threading.Event()

    def run() -> None:
        while not over.wait(_PERIOD_S):
            peaks.look()

    thread = threading.Thread(target=run, name="memory", daemon=True)
    peaks.look()
    thread.start()
    try:
        yield peaks
    finally:
        over.set()
        thread.join()
        peaks.look()


def _stage_of(frame: FrameType | None) -> str:
    """The stage of the outermost frame that belongs to one: a stage's helpers count as the stage."""
    found = ""
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name.startswith("synth."):
            found = _STAGES.get(name.split(".")[1], found)
        frame = frame.f_back
    return found


def _resident_bytes() -> int | None:
    try:
        with open(_STATM, encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
