"""Why a machine could not be probed, and what to give instead."""

from __future__ import annotations

from synth.errors import SynthError

INSTEAD = (
    "give a table made on the machine itself (`nvidia-smi topo -m > topo.txt` or `rocm-smi --showtopo > topo.txt`, "
    "then --topo topo.txt), or a name from `synth topo list`"
)


class ProbeError(SynthError):
    """The machine tells too little for a topology: mend what the message names, or describe the machine by a file."""

    def __init__(self, problem: str, remedy: str = INSTEAD) -> None:
        self.problem = problem
        super().__init__(f"probe: {problem}; {remedy}")
