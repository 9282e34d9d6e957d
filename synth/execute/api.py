"""`Collective`: an MSCCL XML file as a function on tensors."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

from msccl_xml.errors import XmlError
from msccl_xml.model import Algo, Buffer
from msccl_xml.read import read_algo
from synth.collective import COMBINING, ROOTED, CollectiveName
from synth.collective import Collective as Promise
from synth.constants import Constants
from synth.errors import InputError, SynthError
from synth.execute.arithmetic import check_operation, finish_average
from synth.execute.call import Call
from synth.execute.communicator import Communicator
from synth.execute.layout import (
    SCRATCH,
    Cut,
    Regions,
    check_bounds,
    cut_chunk,
    layouts_of,
    padded_unit,
    regions_of,
)
from synth.execute.program import Program, check_algo, compile_program
from synth.execute.tensors import Operands, operands_of
from synth.group import group_of

if TYPE_CHECKING:
    import torch

_SPELLINGS = {name.replace("-", ""): name for name in CollectiveName}


class Collective:
    """One algorithm over the ranks of a communicator. Call it as `collective(output, input, op)` on all ranks alike."""

    def __init__(
        self,
        algo: Algo,
        promise: Promise,
        communicator: Communicator,
        tile_bytes: int | None = None,
    ) -> None:
        """`promise` is what the file computes; `tile_bytes` is what one transfer moves, the protocol's own where None.

        Raises InputError where the file is not well-formed, is for other ranks, or reaches beyond the buffers of a call; and with
        synth's own interpreter, for which all ranks make it together, where their GPUs cannot reach each other.
        """
        check_algo(algo)
        if algo.ngpus != communicator.world:
            raise InputError(algo.name or "algo", "ngpus", algo.ngpus, f"{communicator.world}, the number of processes")
        self.algo, self.promise, self.communicator = algo, promise, communicator
        self.rank = communicator.rank
        self.tile_bytes = Constants().of(algo.proto).tile_bytes if tile_bytes is None else max(1, tile_bytes)
        self.layouts = layouts_of(algo, promise)
        self._regions = {in_place: regions_of(algo, promise, self.rank, in_place=in_place) for in_place in self.layouts}
        self._program = lru_cache(maxsize=None)(lambda most: compile_program(algo, most))
        for regions in self._regions.values():
            check_bounds(self._program(1), self.rank, regions, algo.name or "algo")
        self.scratch: dict[tuple[torch.dtype, torch.device], torch.Tensor] = {}
        """of each type on each device: grown on demand and never cleared, as the runtimes' is"""
        self.engine = communicator.engine_for(algo, promise, tile_bytes)

    @classmethod
    def from_xml(
        cls,
        path: str | os.PathLike[str],
        *,
        communicator: Communicator | None = None,
        collective: str | None = None,
        root: int | None = None,
        tile_bytes: int | None = None,
    ) -> Collective:
        """The algorithm of a file. All ranks have to call it together; torch.distributed has to be initialised.

        `collective` is needed where the file's `coll` names none (custom), `root` for collectives that have one. Raises
        SynthError, in one line, where the file cannot be read or is not for these ranks.
        """
        source = os.fspath(path)
        algo = read_file(source)
        promise = promise_of(algo, source, collective, root)
        return cls(algo, promise, communicator or Communicator(), tile_bytes)

    def __call__(self, output: torch.Tensor | None, input: torch.Tensor | None = None, op: str = "sum") -> None:  # noqa: A002
        """Run it: `input` of every rank becomes `output`, as torch.distributed's collectives on single tensors do.

        Tensors are contiguous, of one type, on the backend's device. Where shares exist, `input` or `output` holds all ranks'
        shares in order. A call is in place where the tensors are one (allreduce, broadcast, reduce; `input` may be left out) or
        where the share lies at its place in the whole (allgather, reduce-scatter, gather, scatter). Any size does: a size that
        the chunk count does not divide is padded, as is told by `pads`. A layout that the file is not made for takes a copy.

        Raises InputError for tensors that do not fit, HangError where nothing moves any more.
        """
        operands = self._operands(output, input, op)
        if operands.unit:
            self._run(operands, op, lambda call: self.engine.run(call, self.communicator.watch))

    def repeat(
        self, output: torch.Tensor | None, given: torch.Tensor | None = None, op: str = "sum", times: int = 1
    ) -> float:
        """So many calls back to back, as fast as the engine has them: microseconds of one, as this rank has measured it."""
        told = [0.0]
        operands = self._operands(output, given, op)
        if operands.unit:
            watch = self.communicator.watch
            self._run(operands, op, lambda call: told.append(self.engine.repeat(call, watch, times)))
        return told[-1]

    def close(self) -> None:
        """Give back what this algorithm alone holds, all ranks together; it is of no use afterwards. The communicator stays."""
        self.communicator.drop(self.engine)

    def pads(self, unit: int) -> int:
        """Elements that are added to a unit of so many (the vector, or a rank's share): 0 where the engine takes any size."""
        return 0 if self.engine.own else padded_unit(self.promise, unit) - unit

    def _operands(self, output: torch.Tensor | None, given: torch.Tensor | None, op: str) -> Operands:
        check_operation(op)
        if op != "sum" and self.promise.name not in COMBINING:
            raise InputError("op", "", op, f"sum, as {self.promise.name} combines nothing")
        if op == "avg" and self.promise.group is not None:
            raise InputError("op", "", op, "sum, as runtimes divide by all ranks, and a group of them takes part")
        return operands_of(self.promise, self.rank, output, given)

    def _run(self, operands: Operands, op: str, run: Callable[[Call], None]) -> None:
        in_place = operands.in_place if operands.in_place in self.layouts else self.layouts[0]
        unit = operands.unit + self.pads(operands.unit)
        staged = operands.staged(unit, in_place=in_place)
        chunk = -(-unit // self.promise.per_rank)
        cut = cut_chunk(chunk, operands.like.element_size(), self.tile_bytes, self.engine.most_tiles)
        regions = self._regions[in_place]
        memories = {**staged.memories, SCRATCH: self._scratch_for(operands.like, regions, cut)}
        program: Program = self._program(cut.most)
        run(Call(program, self.rank, cut, regions, memories, op, self.algo.proto != "Simple", unit))
        if op == "avg" and staged.result is not None and not self.engine.own:
            finish_average(staged.result, self.promise.num_ranks)
        staged.finish()

    def _scratch_for(self, like: torch.Tensor, regions: Regions, cut: Cut) -> torch.Tensor:
        # Room for every chunk to begin on 16 bytes, as the interpreter of our own has it.
        need = regions[Buffer.SCRATCH].chunks * (cut.chunk + 16 // like.element_size())
        key = (like.dtype, like.device)
        if key not in self.scratch or self.scratch[key].numel() < need:
            self.scratch[key] = like.new_empty(need)
        return self.scratch[key]


def read_file(path: str) -> Algo:
    """The algorithm in the file at `path`; SynthError in one line where there is none."""
    try:
        with open(path, "rb") as file:
            return parse_file(path, file.read())
    except OSError as error:
        raise SynthError(f"{path}: cannot be read: {error.strerror or error}") from None


def parse_file(path: str, text: bytes) -> Algo:
    """The algorithm that `text`, the content of `path`, spells; SynthError in one line where it spells none."""
    try:
        return read_algo(text)
    except XmlError as error:
        raise SynthError(" ".join(f"{path}: {error}".split())) from None


def promise_of(algo: Algo, source: str, collective: str | None, root: int | None) -> Promise:
    """What the file is to compute: its `coll`, or `collective` where given. InputError where that does not tell it."""
    spelled = collective or algo.coll
    name = _SPELLINGS.get(spelled.replace("-", "").replace("_", "").lower())
    if name is None:
        raise InputError(source, "coll", spelled, "a collective (or say which): " + " ".join(CollectiveName))
    if name in ROOTED and root is None:
        raise InputError(source, "root", None, f"the rank that is the root of this {name}")
    return Promise(name, algo.ngpus, algo.nchunksperloop, root if name in ROOTED else None, group_of(algo))
