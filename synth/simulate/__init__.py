"""The judge of time: a discrete-event simulation of the MSCCL interpreter. Read engine.py first."""

from synth.simulate.constants import Constants, read_calibration
from synth.simulate.simulate import Simulator

__all__ = ["Constants", "Simulator", "read_calibration"]
