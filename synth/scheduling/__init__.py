"""Scheduling: which chunks travel together, and exactly when."""

from synth.scheduling.contiguity import Contiguity
from synth.scheduling.justification import Justification
from synth.scheduling.milp import MilpScheduling
from synth.scheduling.stage import Scheduling

__all__ = ["Contiguity", "Justification", "MilpScheduling", "Scheduling"]
