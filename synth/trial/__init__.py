"""Candidates on trial: they become programs, the programs are simulated, and the simulation decides."""

from synth.trial.contender import Contender
from synth.trial.trial import Trial

__all__ = ["Contender", "Trial"]
