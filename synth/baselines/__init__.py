"""Baselines: the algorithms that libraries use, on any machine and from the same lowering, to compare answers with.

`build` is all that most callers need; the search takes `schedule`, and lowers for itself. The package puts stages together as
the pipeline does (messages, exact times, lowering), so it is a part of the pipeline's layer: it may import values and lowering, and
no other stage, no judge and no input parser. Read plan.py first, then the algorithms, one a file.
"""

from synth.baselines.build import BASELINES, RIVALS, Baseline, build, schedule, transfers
from synth.baselines.machine import Machine
from synth.baselines.options import BaselineOptions, Built
from synth.baselines.plan import instance_of
from synth.baselines.ring_search import Ring, find_rings

__all__ = [
    "BASELINES",
    "RIVALS",
    "Baseline",
    "BaselineOptions",
    "Built",
    "Machine",
    "Ring",
    "build",
    "find_rings",
    "instance_of",
    "schedule",
    "transfers",
]
