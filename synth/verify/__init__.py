"""The judge of an algorithm: a symbolic run over every order of events that the interpreters allow.

`verify_algo` takes only the `Algo` and what it is meant to compute; hand-written, foreign and our own files are
judged alike. Read verify.py first, then graph.py (what happens before what), races.py and values.py.
"""

from synth.verify.errors import VerifyError
from synth.verify.infer import infer_collective
from synth.verify.verify import verify_algo

__all__ = ["VerifyError", "infer_collective", "verify_algo"]
