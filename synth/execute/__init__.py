"""The judge that really runs an algorithm: processes, threadblocks, messages and data, through torch.distributed.

It shares nothing with verify and simulate but the document. `Collective.from_xml` is the way in for programs, `Pool` and
`measure` for `synth run`. Read program.py first (what is run), then threads.py (how), api.py (on which tensors). torch is
imported late: importing this package does not need it.
"""

from synth.execute.api import Collective
from synth.execute.communicator import Communicator
from synth.execute.errors import HangError, LostError
from synth.execute.group import SynthGroup
from synth.execute.measure import Half, Job, Measured, measure
from synth.execute.pool import Pool
from synth.execute.session import Session

__all__ = [
    "Collective",
    "Communicator",
    "Half",
    "HangError",
    "Job",
    "LostError",
    "Measured",
    "Pool",
    "Session",
    "SynthGroup",
    "measure",
]
