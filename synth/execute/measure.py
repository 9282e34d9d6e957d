"""What `synth run` does on every rank: check a file's results and time it, size by size, as nccl-tests does."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from msccl_xml.model import Algo
from synth.chunks import element_count
from synth.collective import Collective as Promise
from synth.collective import CollectiveName
from synth.execute.api import Collective
from synth.execute.arithmetic import element_bytes, torch_type
from synth.execute.checks import EXACT, REAL, count_wrong, due, expected_output, make_input, poison
from synth.execute.communicator import Communicator
from synth.execute.layout import shape_of
from synth.execute.native import native
from synth.execute.session import Session

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Job:
    """What to run. `sizes` are bytes of the buffer as nccl-tests counts them; `rival`: time torch's own collective too.

    `check`: look at every element; without it only times are told. The last three: see Collective and Communicator.
    """

    algo: Algo
    promise: Promise
    sizes: tuple[int, ...]
    dtype: str = "float"
    op: str = "sum"
    backend: str = "gloo"
    iterations: int = 20
    warmup: int = 5
    check: bool = True
    rival: bool = False
    tile_bytes: int | None = None
    shake: int | None = None
    rounds: bool = False


@dataclass(frozen=True, slots=True)
class Half:
    """One layout at one size: microseconds of a call (mean over ranks and iterations), and wrong elements (None: not checked)."""

    time_us: float
    wrong: int | None


@dataclass(frozen=True, slots=True)
class Measured:
    """One size. `count` is nccl-tests' (elements of a share where there are shares); a layout that the file lacks is None.

    `differing`: the ranks' results have different bits (allreduce of floats). `padded`: elements added to each unit, as the
    chunk count does not divide it. `native_us` is torch's own collective, `native_wrong` its differences from ours.
    """

    bytes: int
    count: int
    out_of_place: Half | None = None
    in_place: Half | None = None
    differing: bool = False
    padded: int = 0
    native_us: float | None = None
    remarks: tuple[str, ...] = field(default=())


def measure(session: Session, job: Job) -> list[Measured]:
    """Run `job` on this rank; the figures are the same on every rank. Raises SynthError as `Collective` does."""
    key = (job.backend, job.shake, job.rounds)
    if key not in session.kept:
        session.kept[key] = Communicator(backend=job.backend, watch=session, shake=job.shake, rounds=job.rounds)
    collective = Collective(job.algo, job.promise, session.kept[key], job.tile_bytes)
    rows = [_Size(session, job, collective, size).run() for size in job.sizes]
    if rows and collective.engine.remark:
        rows[0] = replace(rows[0], remarks=(collective.engine.remark, *rows[0].remarks))
    collective.close()
    return rows


@dataclass(frozen=True)
class _Tensors:
    """The buffers of a rank in one layout; None where it has none."""

    input: torch.Tensor | None
    output: torch.Tensor | None


class _Size:
    """One size on one rank."""

    def __init__(self, session: Session, job: Job, collective: Collective, size: int) -> None:
        self.session, self.job, self.collective, self.size = session, job, collective, size
        self.promise, self.rank = job.promise, session.rank
        self.unit = element_count(self.promise.name, self.promise.num_ranks, size, element_bytes(job.dtype))
        self.remarks: list[str] = []
        self.differing = False

    def run(self) -> Measured:
        if not self.unit:
            return Measured(self.size, 0, remarks=("too small: not one element for each rank",))
        halves = {in_place: self._half(in_place) for in_place in self.collective.layouts}
        like = self.promise.group is None and (self.job.check or self.job.rival)
        native_us = self._native() if like else None
        return Measured(
            self.size,
            self.unit,
            halves.get(False),
            halves.get(True),
            self.differing,
            self.collective.pads(self.unit),
            native_us if self.job.rival else None,
            tuple(self.remarks),
        )

    def _half(self, in_place: bool) -> Half:
        wrong = self._check(in_place) if self.job.check else None
        tensors = self._tensors(in_place)
        self._fill(tensors, EXACT)
        ours, given = self.collective, (tensors.output, tensors.input, self.job.op)
        if ours.engine.own:
            return Half(self._mean(lambda times: ours.repeat(*given, times=times)), wrong)
        return Half(self._time(lambda: ours(*given)), wrong)

    def _check(self, in_place: bool) -> int:
        """Elements that are wrong on all ranks together."""
        wrong = 0
        real = torch_type(self.job.dtype).is_floating_point and self.promise.combining
        for kind in (EXACT, REAL) if real else (EXACT,):
            tensors = self._tensors(in_place)
            self._fill(tensors, kind)
            for scratch in self.collective.scratch.values():
                poison(scratch)
            self.collective(tensors.output, tensors.input, self.job.op)
            if tensors.output is not None:
                arguments = (self.promise, self.rank, self.unit, self.job.dtype, self.job.op, kind)
                found, expected = (due(*arguments[:3], each) for each in (tensors.output, expected_output(*arguments)))
                wrong += count_wrong(found, expected, self.promise.num_ranks, self.job.op, kind)
            if kind == REAL and self.promise.name is CollectiveName.ALLREDUCE and tensors.output is not None:
                digest = _digest(tensors.output) if self.rank in self.promise.members else None
                self.differing |= len(set(self.session.exchange(digest)) - {None}) > 1
        return sum(self.session.exchange(wrong))

    def _tensors(self, in_place: bool) -> _Tensors:
        import torch

        kept = torch_type(self.job.dtype)
        device = self.collective.communicator.device
        shape, unit = shape_of(self.promise, self.rank), self.unit
        whole = torch.empty((max(shape) if in_place else sum(shape)) * unit, dtype=kept, device=device)
        poison(whole)
        inputs, outputs = shape.inputs * unit, shape.outputs * unit
        shift = ((self.promise.in_place_shift(self.rank) or 0) // self.promise.per_rank) * unit if in_place else inputs
        if in_place and inputs and outputs:
            given, output = whole[max(0, -shift) :][:inputs], whole[max(0, shift) :][:outputs]
        else:
            given, output = whole[:inputs], whole[len(whole) - outputs :]
        return _Tensors(given if inputs else None, output if outputs else None)

    def _fill(self, tensors: _Tensors, kind: str) -> None:
        if tensors.input is not None:
            given = make_input(self.promise, self.rank, self.unit, self.job.dtype, self.job.op, kind)
            tensors.input.copy_(given)

    def _native(self) -> float | None:
        """Microseconds of torch's own collective; None, with a remark, where the backend has none for this type."""
        tensors = self._tensors(False)
        self._fill(tensors, EXACT)
        told = None
        try:
            native(self.promise, None, tensors.output, tensors.input, self.job.op)
        except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
            told = str(error).partition("\n")[0]
        told = next((each for each in self.session.exchange(told) if each is not None), None)
        if told is not None:
            self.remarks.append(f"torch's own {self.promise.name} was not run: {told}")
            return None
        if self.job.check:
            self._agree(tensors)
        if not self.job.rival:
            return None
        return self._time(lambda: native(self.promise, None, tensors.output, tensors.input, self.job.op))

    def _agree(self, tensors: _Tensors) -> None:
        """Does torch's own collective give what we expect? Where not, the expectation is at fault, or torch is."""
        wrong = 0
        if tensors.output is not None:
            expected = expected_output(self.promise, self.rank, self.unit, self.job.dtype, self.job.op, EXACT)
            wrong = count_wrong(tensors.output, expected, self.promise.num_ranks, self.job.op, EXACT)
        total = sum(self.session.exchange(wrong))
        if total:
            self.remarks.append(f"torch's own {self.promise.name} differs from what is expected in {total} elements")

    def _time(self, call: Callable[[], None]) -> float:
        """Microseconds of a call: warmed up, then back to back, the mean over the ranks."""

        def looped(times: int) -> float:
            started = time.perf_counter()
            for _ in range(times):
                call()
            self._synchronize()
            return (time.perf_counter() - started) * 1e6 / times

        return self._mean(looped)

    def _mean(self, repeat: Callable[[int], float]) -> float:
        """Microseconds of a call that `repeat` has so many times: warmed up, and the mean over the ranks."""
        if self.job.warmup:
            repeat(self.job.warmup)
        self.session.barrier()
        everybody: list[float] = self.session.exchange(repeat(max(1, self.job.iterations)))
        return sum(everybody) / len(everybody)

    def _synchronize(self) -> None:
        if self.collective.communicator.device == "cuda":
            import torch

            torch.cuda.synchronize()


def _digest(tensor: torch.Tensor) -> str:
    """The bits of a tensor, in short."""
    import torch

    return hashlib.sha256(tensor.cpu().view(torch.uint8).numpy().tobytes()).hexdigest()
