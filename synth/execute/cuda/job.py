"""One call on a runner: where its buffers lie, its parameters, launches, and who looks on while they run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from synth.errors import InputError
from synth.execute.cuda.call import Call

if TYPE_CHECKING:
    from synth.execute.cuda.runner import Runner
    from synth.execute.watch import Watch

#: A run in which no flag has changed for so long is ended.
LIMIT_S = 30.0
_ALIGNED = 16
_POISON = 77
Vectors = Sequence[NDArray[Any] | None]
Places = tuple[int, int, int]
"""The addresses of a rank's input, output and scratch."""


class Bound:
    """A call on buffers that somebody has: `place` gives the addresses of those of each rank that runs here."""

    def __init__(self, runner: Runner, call: Call, place: Callable[[int], Places], *, graph: bool) -> None:
        self.runner, self.call = runner, call
        self._memory: list[int] = []
        ranks = range(runner.plan.num_ranks)
        rows = np.array([place(rank) if rank in runner.ranks else (0, 0, 0) for rank in ranks], dtype=np.int64)
        outputs = np.array([call.output_elements(rank) for rank in ranks], dtype=np.int64)
        params = runner.parameters(call, self._put(rows), self._put(outputs))
        self._launch = runner.launch_of(call, self._put(params), graph=graph)

    def run(self, times: int = 1, limit_s: float = LIMIT_S, watch: Watch | None = None) -> float:
        """Launch so many times; microseconds of one. Where all ranks run here, the run is judged here too.

        Raises HungError where a launch cannot end, or leaves something unreceived; with a `watch` what that raises, which looks at
        `limit_s` no more. InputError where the machine has no room for all threadblocks at a time.
        """
        if not self._launch.num_blocks:
            return 0.0
        machine, tick = self.runner.machine, None if watch is None else _Onlooker(self.runner, watch)
        launch = replace(self._launch, threads=machine.threads_for(self._launch))
        try:
            time_us = machine.execute(launch, times, limit_s, tick)
        except InputError:
            self.runner.stop_for()
            raise
        if time_us is None:
            raise self.runner.stop_for()
        if launch.alone and (left := self.runner.unreceived()):
            raise self.runner.stop_for(left)
        return time_us

    def close(self) -> None:
        """Give the call's memory back."""
        while self._memory:
            self.runner.release(self._memory.pop())

    def _put(self, data: NDArray[Any]) -> int:
        address = self.runner.put(data)
        self._memory.append(address)
        return address


class _Onlooker:
    """Tells a watch how far a launch is: every look at flags that have changed counts."""

    def __init__(self, runner: Runner, watch: Watch) -> None:
        self.runner, self.watch = runner, watch
        self.moves, self.seen = 0, b""

    def __call__(self, state: bytes, stop: Callable[[], None]) -> None:
        self.moves += state != self.seen
        self.seen = state
        self.watch.tick(self.moves, partial(self._waits, stop))

    def _waits(self, stop: Callable[[], None]) -> list[str]:
        """What every threadblock waits for, which only an ended launch tells."""
        stop()
        return [str(one) for one in self.runner.stuck()]


class Job(Bound):
    """A call on buffers of its own, made by `Runner.job`."""

    def __init__(self, runner: Runner, call: Call, *, graph: bool) -> None:
        self._vectors: list[tuple[int, int]] = []
        self._inputs: dict[int, int] = {}
        self._outputs: dict[int, int] = {}
        super().__init__(runner, call, self._place, graph=graph)

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

    def _place(self, rank: int) -> Places:
        """New memory for a rank."""
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


def scratch_stride(call: Call) -> int:
    """Elements from one chunk of scratch to the next: a chunk, rounded up so that each begins on 16 bytes."""
    unit = _ALIGNED // call.dtype.item_bytes
    return -(-call.chunk // unit) * unit
