"""synth's own interpreter: one source that runs an algorithm on a GPU, a CTA for each threadblock, and on the host, in threads.

`run` is what `synth run --backend cuda|host` calls for virtual ranks; with a process for each rank, engine.py is what stands behind
`synth.execute.Collective`. Read abi.py and plan.py first (what the interpreter is given), then
source/interpreter.h (what it does), runner.py (how it is started), and host_machine.py or cuda_machine.py (on what). NVIDIA's
bindings are imported late: importing this package, and the host build, do not need them.
"""

from synth.execute.cuda.call import Call
from synth.execute.cuda.cuda_machine import CudaMachine
from synth.execute.cuda.figures import machine_of, run
from synth.execute.cuda.geometry import Geometry
from synth.execute.cuda.hang import HungError, Stuck
from synth.execute.cuda.host_machine import HostMachine
from synth.execute.cuda.plan import Plan, compile_plan
from synth.execute.cuda.runner import Runner

__all__ = [
    "Call",
    "CudaMachine",
    "Geometry",
    "HostMachine",
    "HungError",
    "Plan",
    "Runner",
    "Stuck",
    "compile_plan",
    "machine_of",
    "run",
]
