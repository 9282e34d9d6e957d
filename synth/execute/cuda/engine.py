"""The engine of `--backend cuda` and `host` for one rank a process: synth's own interpreter on the tensors of `Collective`.

An engine is made for one algorithm, by all ranks together, and runs any number of calls of it. It takes the caller's tensors as they
are: of any size, on the GPU of this process or, on the host, in its memory.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import Any

from msccl_xml.model import Algo, Buffer
from synth.collective import Collective
from synth.execute.arithmetic import name_of
from synth.execute.call import BrokenError
from synth.execute.call import Call as Asked
from synth.execute.communicator import distributed
from synth.execute.cuda.abi import ReduceOp, data_type
from synth.execute.cuda.call import Call
from synth.execute.cuda.geometry import Geometry
from synth.execute.cuda.job import Bound, Places
from synth.execute.cuda.machine import SharingMachine
from synth.execute.cuda.peers import join
from synth.execute.cuda.plan import compile_plan
from synth.execute.cuda.symmetric import SymmetricMemory
from synth.execute.watch import Watch

#: Calls whose parameters are kept on the machine: the tensors of a training step come back in every step.
_KEPT = 64


def machine_for(backend: str) -> SharingMachine:
    """The machine of this process: torch's current GPU, or the host. InputError where it is not there."""
    from synth.execute.cuda.cuda_machine import CudaMachine
    from synth.execute.cuda.host_machine import HostMachine

    if backend == "host":
        return HostMachine()
    import torch

    return CudaMachine(torch.cuda.current_device() if torch.cuda.is_available() else 0)


class OwnEngine:
    """Runs this rank's part of one algorithm over `group`, whose messages carry what ranks tell each other beforehand.

    Raises InputError, on all ranks alike, where their machines cannot reach each other's memory.
    """

    most_tiles: int | None = None
    own = True

    def __init__(
        self, algo: Algo, promise: Collective, machine: SharingMachine, group: Any, tile_bytes: int | None = None
    ) -> None:
        self.promise, self.machine, self.group = promise, machine, group
        plan = compile_plan(algo, promise)
        geometry = Geometry.of(plan.protocol)
        if tile_bytes is not None:
            geometry = replace(geometry, tile_bytes=tile_bytes)
        symmetric = SymmetricMemory(group) if machine.torch_device.startswith("cuda") else None
        rank = distributed().get_rank(group)
        self.runner, sharing = join(algo, plan, machine, rank, self._meet, geometry=geometry, symmetric=symmetric)
        self.remark = f"a process for each rank; they reach each other through {sharing}"
        self._bound: OrderedDict[tuple[object, ...], Bound] = OrderedDict()
        self._broken = False

    def run(self, call: Asked, watch: Watch) -> None:
        """Run this rank's part of `call`; returns when it is done. Raises what `watch` raises."""
        self._run(call, watch, 1, graph=False)

    def repeat(self, call: Asked, watch: Watch, times: int) -> float:
        """Launch `call` so many times, back to back and, on a GPU, through a graph: microseconds of one."""
        return self._run(call, watch, times, graph=True)

    def close(self) -> None:
        """Give the memory back; all ranks together, as nobody may let go of what another still writes to."""
        if not self._broken:
            distributed().barrier(self.group)
        self._bound.clear()
        self.runner.close()

    def _run(self, call: Asked, watch: Watch, times: int, *, graph: bool) -> float:
        if self._broken:
            raise BrokenError("this communicator failed in an earlier call: make a new one")
        if call.like.is_cuda:
            import torch

            torch.cuda.current_stream(call.like.device).synchronize()  # the launch has a stream of its own
        bound = self._bind(call, graph=graph)
        watch.begin()
        try:
            return bound.run(times, watch=watch)
        except BaseException:
            self._broken = True
            raise
        finally:
            watch.end()

    def _bind(self, asked: Asked, *, graph: bool) -> Bound:
        call = Call(self.promise, asked.unit, data_type(name_of(asked.like.dtype)), ReduceOp(asked.op))
        places: Places = tuple(_address(asked, call, buffer) for buffer in Buffer)  # type: ignore[assignment]
        key = (places, call.share, call.dtype, call.op, graph)
        if key in self._bound:
            self._bound.move_to_end(key)
            return self._bound[key]
        if len(self._bound) >= _KEPT:
            self._bound.popitem(last=False)[1].close()
        self._bound[key] = self.runner.bind(call, lambda _: places, graph=graph)
        return self._bound[key]

    def _meet(self, value: Any) -> list[Any]:
        found: list[Any] = [None] * self.promise.num_ranks
        distributed().all_gather_object(found, value, group=self.group)
        return found


def _address(asked: Asked, call: Call, buffer: Buffer) -> int:
    """Where chunk 0 of a rank's buffer lies: perhaps outside of the memory, where the rank never touches it."""
    region = asked.regions[buffer]
    memory = asked.memories[region.name]
    start: int = memory.data_ptr()
    return start + region.shift // call.collective.per_rank * call.share * call.dtype.item_bytes
