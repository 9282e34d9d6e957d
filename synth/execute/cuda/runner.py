"""Running a plan on a machine: memory, parameters, launches, and what is found out where a run does not end.

A `Runner` holds what lasts (tables, connections and their counts), a `Job` what one call needs (buffers and parameters). All ranks
may run here as groups of threadblocks with buffers of their own (virtual ranks); or one, where other processes run the others and
the pieces of memory through which they reach each other have been exchanged (peers.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
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
from synth.execute.cuda.hang import HungError, read_stuck
from synth.execute.cuda.machine import Launch, Machine
from synth.execute.cuda.plan import Plan, compile_plan

#: A run in which no flag has changed for so long is ended.
LIMIT_S = 30.0
_ALIGNED = 16
_POISON = 77
Vectors = Sequence[NDArray[Any] | None]


class Runner:
    """An algorithm on a machine. Use it as a context, or `close` it.

    `geometry` and `threads` (of a threadblock) are the runtimes' and the machine's where not given. `rank` runs that rank alone;
    `arenas` are then the addresses of all ranks' pieces (`lay_out` says how large), as this process sees them.

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
    ) -> None:
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
            alone=len(self.ranks) == self.plan.num_ranks,
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

    def stop_for(self, found: str = "") -> HungError:
        """The error of a run that was ended, with what everybody waited for; and everything is set back to the beginning."""
        records = np.zeros(len(self.plan.blocks) * len(STUCK_COLUMNS), dtype=np.int64)
        self.machine.read(self._tables["stuck"], records)
        error = HungError(read_stuck(self.plan, records), found)
        for name, size in self._flags.items():
            self.machine.fill(self._tables[name], size)
        for rank in self.ranks:
            self.machine.fill(self._arenas[rank], self._layout.size_bytes[rank])
        self.machine.write(self._abort, np.zeros(1, dtype=np.int64))
        return error

    def unreceived(self) -> str:
        """A connection on which something was sent and never received, in words; "" where there is none.

        Only where all ranks run here: of other processes nobody knows how far they are.
        """
        if len(self.ranks) < self.plan.num_ranks:
            return ""
        for number, connection in enumerate(self.plan.connections):
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


class Job:
    """One call's buffers and parameters, made by `Runner.job`."""

    def __init__(self, runner: Runner, call: Call, *, graph: bool) -> None:
        self.runner, self.call = runner, call
        self._memory: list[int] = []
        self._vectors: list[tuple[int, int]] = []
        self._inputs: dict[int, int] = {}
        self._outputs: dict[int, int] = {}
        rows = np.zeros((runner.plan.num_ranks, 3), dtype=np.int64)
        for rank in runner.ranks:
            rows[rank] = self._place(rank)
        outputs = np.array([call.output_elements(rank) for rank in range(runner.plan.num_ranks)], dtype=np.int64)
        params = runner.parameters(call, self._put(rows), self._put(outputs))
        self._launch = runner.launch_of(call, self._put(params), graph=graph)

    def poison(self) -> None:
        """Fill inputs, outputs and scratch with what nobody expects, so that what is never written shows."""
        for address, size_bytes in self._vectors:
            self.runner.machine.fill(address, size_bytes, _POISON)

    def write(self, inputs: Vectors) -> None:
        """Fill the input buffers; outputs and scratch are not touched. InputError for a vector of another length or type."""
        for rank in self.runner.ranks:
            wanted = self.call.input_elements(rank)
            given = inputs[rank]
            if given is None or wanted == 0:
                if wanted:
                    raise InputError("inputs", f"rank {rank}", None, f"{wanted} elements")
                continue
            if given.shape != (wanted,) or given.dtype != self.call.dtype.numpy:
                shown = f"{given.shape} {given.dtype}"
                raise InputError("inputs", f"rank {rank}", shown, f"({wanted},) {self.call.dtype.numpy}")
            self.runner.machine.write(self._inputs[rank], given)

    def run(self, times: int = 1, limit_s: float = LIMIT_S) -> float:
        """Launch so many times; microseconds of one. Raises HungError where a launch cannot end, or leaves something unreceived."""
        machine = self.runner.machine
        launch = self._launch
        threads = machine.threads_for(launch)
        try:
            time_us = machine.execute(replace(launch, threads=threads), times, limit_s)
        except InputError:
            self.runner.stop_for()
            raise
        if time_us is None:
            raise self.runner.stop_for()
        if left := self.runner.unreceived():
            raise self.runner.stop_for(left)
        return time_us

    def read(self) -> list[NDArray[Any] | None]:
        """The output vectors by rank; None where a rank has none, or is not here."""
        found: list[NDArray[Any] | None] = []
        for rank in range(self.runner.plan.num_ranks):
            elements = self.call.output_elements(rank)
            if rank not in self._outputs or not elements:
                found.append(None)
                continue
            vector = np.empty(elements, dtype=self.call.dtype.numpy)
            self.runner.machine.read(self._outputs[rank], vector)
            found.append(vector)
        return found

    def close(self) -> None:
        """Give the call's memory back."""
        while self._memory:
            self.runner.release(self._memory.pop())

    def _place(self, rank: int) -> tuple[int, int, int]:
        """The addresses of a rank's input, output and scratch."""
        call, item = self.call, self.call.dtype.item_bytes
        first_in, first_out, whole = call.offsets(rank)
        if call.in_place:
            base = self._take(whole * item)
            self._inputs[rank], self._outputs[rank] = base + first_in * item, base + first_out * item
        else:
            self._inputs[rank] = self._take(call.input_elements(rank) * item)
            self._outputs[rank] = self._take(call.output_elements(rank) * item)
        scratch = self._take(self.runner.plan.scratch_chunks[rank] * scratch_stride(call) * item)
        return self._inputs[rank], self._outputs[rank], scratch

    def _take(self, size_bytes: int) -> int:
        address = self.runner.allocate(max(size_bytes, _ALIGNED))
        self._memory.append(address)
        self._vectors.append((address, size_bytes))
        return address

    def _put(self, data: NDArray[Any]) -> int:
        address = self.runner.put(data)
        self._memory.append(address)
        return address


def scratch_stride(call: Call) -> int:
    """Elements from one chunk of scratch to the next: a chunk, rounded up so that each begins on 16 bytes."""
    unit = _ALIGNED // call.dtype.item_bytes
    return -(-call.chunk // unit) * unit


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
