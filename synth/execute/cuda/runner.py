"""Running a plan on a machine: memory, parameters, launches, and what is found out where a run does not end.

A `Runner` holds what lasts (tables, connections and their counts), a `Job` what one call needs (buffers and parameters; job.py). All
ranks may run here as groups of threadblocks with buffers of their own (virtual ranks); or one, where other processes run the others
and the pieces of memory through which they reach each other have been exchanged (peers.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msccl_xml.model import Algo
from synth.errors import InputError
from synth.execute.cuda.abi import (
    FLAG_BYTES,
    PARAMS,
    PROTOCOLS,
    STUCK_COLUMNS,
    DataType,
    ReduceOp,
)
from synth.execute.cuda.call import Call, check_places
from synth.execute.cuda.geometry import Arenas, Geometry, lay_out
from synth.execute.cuda.hang import HungError, Stuck, read_stuck
from synth.execute.cuda.job import LIMIT_S, Bound, Job, Places, Vectors, scratch_stride
from synth.execute.cuda.machine import Launch, Machine
from synth.execute.cuda.plan import Plan, compile_plan


class Runner:
    """An algorithm on a machine. Use it as a context, or `close` it.

    `geometry` and `threads` (of a threadblock) are the runtimes' and the machine's where not given. `rank` runs that rank alone;
    `arenas` are then the addresses of all ranks' pieces (`lay_out` says how large), as this process sees them; `let_go` gives them
    back in the end.

    Raises InputError for an algorithm that cannot be laid out, and where the machine has too little memory.
    """

    def __init__(
        self,
        algo: Algo,
        plan: Plan,
        machine: Machine,
        *,
        geometry: Geometry | None = None,
        threads: int = 0,
        rank: int | None = None,
        arenas: Sequence[int] | None = None,
        let_go: Callable[[], None] | None = None,
    ) -> None:
        self._let_go = let_go
        self.algo, self.plan, self.machine = algo, plan, machine
        self.geometry = geometry or Geometry.of(plan.protocol)
        self.threads = threads
        self.ranks = range(plan.num_ranks) if rank is None else range(rank, rank + 1)
        self._held: list[int] = []
        self._layout: Arenas = lay_out(plan, self.geometry)
        self._arenas = list(arenas) if arenas else [self.allocate(size) for size in self._layout.size_bytes]
        self._tables = {name: self.put(getattr(plan, name)) for name in ("blocks", "steps", "waits", "sources")}
        rows = [
            (self._arenas[one.dst] + slots, self._arenas[one.dst] + tail, self._arenas[one.src] + head)
            for one, slots, tail, head in zip(
                plan.connections, self._layout.slots, self._layout.tails, self._layout.heads, strict=True
            )
        ]
        self._tables["connections"] = self.put(np.array(rows or [(0, 0, 0)], dtype=np.int64))
        self._flags = {
            "progress": (len(plan.blocks) * FLAG_BYTES),
            "launches": (len(plan.blocks) * 8),
            "stuck": (len(plan.blocks) * len(STUCK_COLUMNS) * 8),
        }
        self._tables |= {name: self.allocate(size) for name, size in self._flags.items()}
        self._abort = machine.allocate_flag()
        self._held.append(self._abort)

    def __enter__(self) -> Runner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give all memory back, that of unclosed jobs too."""
        while self._held:
            self.machine.release(self._held.pop())
        if self._let_go is not None:
            self._let_go()
            self._let_go = None

    def allocate(self, size_bytes: int) -> int:
        """Memory that `close` gives back."""
        address = self.machine.allocate(size_bytes)
        self._held.append(address)
        return address

    def put(self, data: NDArray[Any]) -> int:
        """Memory that holds an array."""
        address = self.allocate(max(data.nbytes, 1))
        self.machine.write(address, data)
        return address

    def release(self, address: int) -> None:
        """Give one piece back early."""
        self._held.remove(address)
        self.machine.release(address)

    def job(self, call: Call, *, graph: bool = False) -> Job:
        """Buffers and parameters for a call. InputError where a step reaches beyond the call's buffers."""
        if call.collective.num_ranks != self.plan.num_ranks:
            raise InputError("call", "ranks", call.collective.num_ranks, f"{self.plan.num_ranks}, those of the file")
        check_places(self.algo, call)
        return Job(self, call, graph=graph)

    def bind(self, call: Call, place: Callable[[int], Places], *, graph: bool = False) -> Bound:
        """Parameters for a call on memory that is there; nothing is checked of it."""
        return Bound(self, call, place, graph=graph)

    def launch_of(self, call: Call, params: int, *, graph: bool) -> Launch:
        """How the machine is to launch this rank's or all ranks' threadblocks."""
        blocks = self.blocks
        return Launch(
            protocol=self.plan.protocol,
            dtype=call.dtype,
            op=call.op if call.collective.combining else ReduceOp.SUM,
            params=params,
            num_blocks=len(blocks),
            threads=self.threads,
            ranks=self.ranks,
            abort=self._abort,
            watched=self._watched(),
            alone=self.whole,
            graph=graph,
        )

    @property
    def blocks(self) -> range:
        """The rows of the threadblocks that run here."""
        rows = [self.plan.blocks_of(rank) for rank in self.ranks]
        filled = [row for row in rows if row]
        return range(filled[0].start, filled[-1].stop) if filled else range(0)

    def parameters(self, call: Call, buffers: int, outputs: int) -> NDArray[np.int64]:
        """The parameters of a call, in the order of the interpreter's `Params`."""
        item, geometry = call.dtype.item_bytes, self.geometry
        tile = geometry.tile_bytes // item
        values: dict[str, int] = {
            **self._tables,
            "buffers": buffers,
            "outputs": outputs,
            "abort": self._abort,
            "num_ranks": self.plan.num_ranks,
            "first_block": self.blocks.start,
            "num_blocks": len(self.blocks),
            "protocol": PROTOCOLS.index(self.plan.protocol),
            "dtype": list(DataType).index(call.dtype),
            "op": list(ReduceOp).index(call.op if call.collective.combining else ReduceOp.SUM),
            "share": call.share,
            "per_share": call.collective.per_rank,
            "chunk": call.chunk,
            "scratch_stride": scratch_stride(call),
            "tile": tile,
            "tiles": -(-call.chunk // tile),
            "most": geometry.most_chunks(call.chunk * item),
            "slot_bytes": geometry.slot_bytes,
            "slices": geometry.slices,
            "slots": geometry.slots,
            "smallest_slice": geometry.smallest_slice,
        }
        return np.array([values[name] for name in PARAMS], dtype=np.int64)

    @property
    def whole(self) -> bool:
        """Whether all ranks run here."""
        return len(self.ranks) == self.plan.num_ranks

    def stuck(self) -> tuple[Stuck, ...]:
        """What the threadblocks waited for when the last launch was ended."""
        records = np.zeros(len(self.plan.blocks) * len(STUCK_COLUMNS), dtype=np.int64)
        self.machine.read(self._tables["stuck"], records)
        return read_stuck(self.plan, records)

    def stop_for(self, found: str = "") -> HungError:
        """The error of a run that was ended, with what everybody waited for; and everything is set back to the beginning.

        Where other processes have a part, nothing is set back: they may still be running.
        """
        error = HungError(self.stuck(), found)
        if self.whole:
            for name, size in self._flags.items():
                self.machine.fill(self._tables[name], size)
            for rank in self.ranks:
                self.machine.fill(self._arenas[rank], self._layout.size_bytes[rank])
            self.machine.write(self._abort, np.zeros(1, dtype=np.int64))
        return error

    def unreceived(self) -> str:
        """A connection to a rank here on which something was sent and never received, in words; "" where there is none.

        Where other processes have a part, it means something only while all of them rest.
        """
        for number, connection in enumerate(self.plan.connections):
            if connection.dst not in self.ranks:
                continue
            tail, head = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
            self.machine.read(self._arenas[connection.dst] + self._layout.tails[number], tail)
            self.machine.read(self._arenas[connection.src] + self._layout.heads[number], head)
            if tail[0] != head[0]:
                where = f"gpu {connection.src} to gpu {connection.dst} on channel {connection.channel}"
                return f"it sends from {where} what is never received"
        return ""

    def _watched(self) -> tuple[tuple[int, int], ...]:
        own = [(self._arenas[rank], self._layout.flag_bytes[rank]) for rank in self.ranks]
        tables = [(self._tables[name], self._flags[name]) for name in ("progress", "launches")]
        return tuple(region for region in (*tables, *own) if region[1])


def run(
    algo: Algo,
    call: Call,
    inputs: Vectors,
    machine: Machine,
    *,
    geometry: Geometry | None = None,
    threads: int = 0,
    limit_s: float = LIMIT_S,
) -> list[NDArray[Any] | None]:
    """One call with all ranks on one machine: the output vectors by rank, None where a rank has none.

    Raises InputError for what cannot be run, HungError for a run that does not end.
    """
    plan = compile_plan(algo, call.collective)
    with Runner(algo, plan, machine, geometry=geometry, threads=threads) as runner:
        job = runner.job(call)
        job.write(inputs)
        job.run(limit_s=limit_s)
        return job.read()
