"""The judge of time: a discrete-event simulation of the MSCCL interpreter. Read engine.py first."""

from synth.constants import Constants
from synth.simulate.calibration import read_calibration
from synth.simulate.routes import by_pair, paths_by_pair
from synth.simulate.simulate import Simulator, Trace

__all__ = ["Constants", "Simulator", "Trace", "by_pair", "paths_by_pair", "read_calibration"]
