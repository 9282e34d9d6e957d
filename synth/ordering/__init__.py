"""Ordering: which transfer goes first on a link, by named sort keys; all are tried and the best is kept."""

from synth.ordering.keys import SORT_KEYS
from synth.ordering.loops import Loops
from synth.ordering.orderer import RULES, Ordering
from synth.ordering.pieces import in_pieces
from synth.ordering.rounds import JOINT_ROUNDS, Rounds
from synth.ordering.turns import Turns

__all__ = ["JOINT_ROUNDS", "RULES", "SORT_KEYS", "Loops", "Ordering", "Rounds", "Turns", "in_pieces"]
