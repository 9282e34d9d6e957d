"""One rank a process: the processes of one machine open each other's pieces of memory, and run one algorithm together.

The same plan, offsets and kernel as with virtual ranks; only the addresses of the pieces come from elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from msccl_xml.model import Algo
from synth.execute.cuda.geometry import Geometry, lay_out
from synth.execute.cuda.machine import Machine
from synth.execute.cuda.plan import Plan
from synth.execute.cuda.runner import Runner


class SharingMachine(Machine, Protocol):
    """A machine whose memory other processes can open."""

    def export(self, address: int) -> bytes:
        """What another process needs to open memory that was allocated here."""

    def open(self, exported: bytes) -> int:
        """The address here of memory that another process exported."""


Exchange = Callable[[bytes], list[bytes]]
"""Gives one's own bytes to all ranks and returns everybody's, by rank (`torch.distributed.all_gather_object`, say)."""


def join(
    algo: Algo,
    plan: Plan,
    machine: SharingMachine,
    rank: int,
    exchange: Exchange,
    *,
    geometry: Geometry | None = None,
    threads: int = 0,
) -> Runner:
    """The runner of one rank; called by all ranks at once, each with its own machine.

    A rank may start a call while others are still at the one before: counts on connections go on. No rank may close its runner
    before all have ended their last call. Raises InputError as `Runner` does.
    """
    geometry = geometry or Geometry.of(plan.protocol)
    own = machine.allocate(lay_out(plan, geometry).size_bytes[rank])
    pieces = exchange(machine.export(own))
    arenas = [own if other == rank else machine.open(piece) for other, piece in enumerate(pieces)]
    return Runner(algo, plan, machine, geometry=geometry, threads=threads, rank=rank, arenas=arenas)
