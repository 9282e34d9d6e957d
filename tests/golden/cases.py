"""The answers whose bytes are kept: small, and between them every kind of step, protocol and buffer.

Run as a module, `python -m tests.golden.cases NAME` prints the file of one case.
"""

from __future__ import annotations

import sys

from msccl_xml.write import write_algo
from synth.inputs.load import load_topology
from synth.pipeline import synthesize
from synth.request import Request
from tests.jobs import request

#: By name of the file in `data/`: machine of the catalogue, collective, bytes, and what else is asked for.
CASES: dict[str, tuple[str, str, int, dict[str, object]]] = {
    "ring4-allreduce-64KB": ("ring4", "allreduce", 64 << 10, {"chunks": 8}),
    "ring4-allgather-1MB-rccl": ("ring4", "allgather", 1 << 20, {"runtime": "rccl", "chunks": 2}),
    "line4-broadcast-1KB": ("line4", "broadcast", 1 << 10, {"root": 1}),
    "line4-reduce-scatter-64KB-executor": ("line4", "reduce-scatter", 64 << 10, {"runtime": "executor", "chunks": 1}),
    "mesh-3x3-alltoall-9KB": ("mesh-3x3", "alltoall", 9 << 10, {"chunks": 1, "protocol": "LL"}),
    "line4-gather-4KB": ("line4", "gather", 4 << 10, {"chunks": 2, "strategy": "trees", "instances": 2}),
}


def job(name: str) -> Request:
    """The request of a case."""
    machine, collective, size, changes = CASES[name]
    return request(load_topology(machine), collective, size, **changes)


def text_of(name: str) -> str:
    """The MSCCL XML that the pipeline makes for a case."""
    (file,) = synthesize(job(name)).files
    return write_algo(file.algo)


if __name__ == "__main__":
    sys.stdout.write(text_of(sys.argv[1]))
