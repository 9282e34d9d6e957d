"""The judge of use: would a runtime load a file and choose it, and if not, why not and what mends it; and what it costs.

Nothing is run and nothing is guessed from outside: the answers follow from the files, the call and the runtimes' rules.
Read explain.py first, then choice.py (the rules), config.py (registrations) and cost.py.
"""

from synth.explain.call import ELEMENT_BYTES, Call
from synth.explain.config import Config, Registration, read_config
from synth.explain.cost import Cost
from synth.explain.explain import Answer, FileReport, Load, Question, SizeRow, explain

__all__ = [
    "ELEMENT_BYTES",
    "Answer",
    "Call",
    "Config",
    "Cost",
    "FileReport",
    "Load",
    "Question",
    "Registration",
    "SizeRow",
    "explain",
    "read_config",
]
