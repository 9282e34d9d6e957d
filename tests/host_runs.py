"""Runs of the interpreter's host build, for the tests of it and for the programs that they start."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

from msccl_xml.model import Algo
from synth.execute.cuda import Call, Geometry, HostMachine
from synth.execute.cuda.expected import example_inputs, expected_outputs, wrong_elements
from synth.execute.cuda.peers import Meet
from synth.execute.cuda.runner import run

#: Small enough that short vectors make several transfers and several slices.
SMALL = {"Simple": 96, "LL": 48, "LL128": 240}


def small(protocol: str) -> Geometry:
    """The runtimes' slots, with transfers of a few elements."""
    return replace(Geometry.of(protocol), tile_bytes=SMALL[protocol], smallest_slice_bytes=16)


def wrong(machine: HostMachine, algo: Algo, call: Call, lanes: int = 1, geometry: Geometry | None = None) -> int:
    """Wrong elements of one run."""
    inputs = example_inputs(call)
    outputs = run(algo, call, inputs, machine, threads=lanes, geometry=geometry)
    return wrong_elements(call, outputs, expected_outputs(call, inputs))


class Meeting:
    """What threads tell each other, each in the place of a process with a rank of its own."""

    def __init__(self, parties: int) -> None:
        self.barrier, self.told = threading.Barrier(parties, timeout=60), [None] * parties

    def of(self, rank: int) -> Meet:
        """How a rank tells its value and hears everybody's."""

        def meet(value: Any) -> list[Any]:
            self.told[rank] = value
            self.barrier.wait()
            heard = list(self.told)
            self.barrier.wait()
            return heard

        return meet
