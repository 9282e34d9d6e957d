"""Peak memory and CPU time by stage: a thread looks at what the process has used so far, and at which part of synth is at work.

The pipeline's own seconds count waiting for a core too, which falls on this stage or that one as it comes; CPU time does not.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

#: Seconds between two looks. A stage shorter than that may go unseen; of many such, as many are seen as their time is worth.
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


class Use:
    """What was used by stage: `peak_bytes`, empty on systems that do not tell, and `cpu_s`.

    Under "" stand the peak of the whole and the time that belongs to no stage.
    """

    def __init__(self) -> None:
        self.peak_bytes: dict[str, int] = {}
        self.cpu_s: dict[str, float] = {}
        self._thread = threading.get_ident()
        self._before_s = time.process_time()

    def look(self) -> None:
        """Note memory, and time since the last look, for the stage at work now in the thread that made this object."""
        now_s = time.process_time()
        stage = _stage_of(sys._current_frames().get(self._thread))
        self.cpu_s[stage] = self.cpu_s.get(stage, 0.0) + now_s - self._before_s
        self._before_s = now_s
        resident = _resident_bytes()
        if resident is not None:
            for name in {"", stage}:
                self.peak_bytes[name] = max(self.peak_bytes.get(name, 0), resident)


@contextmanager
def watch_use() -> Iterator[Use]:
    """Watch what this process uses while the block runs in this thread."""
    use = Use()
    over = threading.Event()

    def run() -> None:
        while not over.wait(_PERIOD_S):
            use.look()

    thread = threading.Thread(target=run, name="memory", daemon=True)
    use.look()
    thread.start()
    try:
        yield use
    finally:
        over.set()
        thread.join()
        use.look()


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
