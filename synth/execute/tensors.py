"""The tensors of a call: do they fit, are they one memory, and where the engine works if not in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from synth.collective import Collective, CollectiveName
from synth.errors import InputError
from synth.execute.arithmetic import name_of
from synth.execute.layout import INPUT, OUTPUT, SHARED_MEMORY, Shape, shape_of

if TYPE_CHECKING:
    import torch

#: One tensor is both where a call is in place.
_ONE_TENSOR = frozenset({CollectiveName.ALLREDUCE, CollectiveName.BROADCAST, CollectiveName.REDUCE})


@dataclass(frozen=True)
class Staged:
    """Memories for the engine; `result` is where a rank's output will lie (None: it has none), `finish` carries it home."""

    memories: dict[str, torch.Tensor]
    result: torch.Tensor | None
    finish: Callable[[], None]


@dataclass(frozen=True)
class Operands:
    """Checked tensors, flat (None where the rank has none), with `unit` elements in a unit."""

    shape: Shape
    shift: int
    unit: int
    input: torch.Tensor | None
    output: torch.Tensor | None
    in_place: bool

    @property
    def like(self) -> torch.Tensor:
        """A tensor of the call's type and device."""
        found = self.output if self.output is not None else self.input
        assert found is not None
        return found

    def staged(self, unit: int, *, in_place: bool) -> Staged:
        """The memories of a call with `unit` elements a unit, the caller's own tensors where they serve."""
        return self._shared(unit) if in_place else self._apart(unit)

    def _apart(self, unit: int) -> Staged:
        like, fits = self.like, unit == self.unit
        given = like.new_empty(0) if self.input is None else self.input
        if self.input is not None and (not fits or self.in_place):
            given = like.new_zeros(self.shape.inputs * unit)
            _units(given, unit, self.unit).copy_(_units(self.input, self.unit, self.unit))
        if self.output is None:
            return Staged({INPUT: given, OUTPUT: like.new_empty(0)}, None, _nothing)
        result = self.output if fits else like.new_empty(self.shape.outputs * unit)
        return Staged({INPUT: given, OUTPUT: result}, result, self._home(result, unit))

    def _shared(self, unit: int) -> Staged:
        whole = max(self.shape)
        first_input = max(0, -self.shift) if self.output is not None else 0
        first_output = max(0, self.shift) if self.input is not None else 0
        both = [each for each in (self.output, self.input) if each is not None]
        largest = max(both, key=lambda tensor: tensor.numel())
        if unit == self.unit and (self.in_place or (largest is self.output and self.input is None)):
            memory = largest
        else:
            memory = self.like.new_zeros(whole * unit)
            if self.input is not None:
                place = memory[first_input * unit : (first_input + self.shape.inputs) * unit]
                _units(place, unit, self.unit).copy_(_units(self.input, self.unit, self.unit))
        if self.output is None:
            return Staged({SHARED_MEMORY: memory}, None, _nothing)
        result = memory[first_output * unit : (first_output + self.shape.outputs) * unit]
        finish = _nothing if memory is largest else self._home(result, unit)
        return Staged({SHARED_MEMORY: memory}, result, finish)

    def _home(self, result: torch.Tensor, unit: int) -> Callable[[], None]:
        output = self.output
        if output is None or result is output:
            return _nothing

        def copy() -> None:
            _units(output, self.unit, self.unit).copy_(_units(result, unit, self.unit))

        return copy


def operands_of(collective: Collective, rank: int, output: torch.Tensor | None, given: torch.Tensor | None) -> Operands:
    """The tensors of a rank's call, checked against each other and against what the collective has on this rank.

    Raises InputError that says which tensor is wrong, and what was expected.
    """
    shape, name = shape_of(collective, rank), collective.name
    shift = (collective.in_place_shift(rank) or 0) // collective.per_rank
    if given is None and output is not None and shape.inputs:
        given = _own_input(name, shape, shift, output)
    output = output if shape.outputs else None
    given = given if shape.inputs else None
    for what, tensor, units in (("output", output, shape.outputs), ("input", given, shape.inputs)):
        _check(what, tensor, units, name)
    both = [(tensor, units) for tensor, units in ((output, shape.outputs), (given, shape.inputs)) if tensor is not None]
    unit = both[0][0].numel() // both[0][1]
    if len(both) == 2:
        assert output is not None
        assert given is not None
        _check_pair(output, given, shape, name)
    in_place = len(both) == 2 and _in_place(both[0][0], both[1][0], shift * unit, name)
    flat = [None if tensor is None else tensor.detach().view(-1) for tensor in (given, output)]
    return Operands(shape, shift, unit, flat[0], flat[1], in_place)


def _own_input(name: CollectiveName, shape: Shape, shift: int, output: torch.Tensor) -> torch.Tensor:
    """The input of an in-place call that was given one tensor: that tensor, or this rank's share in it."""
    if name in _ONE_TENSOR:
        return output
    if name in (CollectiveName.ALLGATHER, CollectiveName.GATHER) and shape.outputs:
        unit = output.numel() // shape.outputs
        return output.view(-1)[-shift * unit : (-shift + 1) * unit]
    raise InputError("input", "", None, f"a tensor: {name} has two")


def _check(what: str, tensor: torch.Tensor | None, units: int, name: CollectiveName) -> None:
    if units == 0:
        return
    if tensor is None:
        raise InputError(what, "", None, f"a tensor: this rank has one in {name}")
    name_of(tensor.dtype)
    if not tensor.is_contiguous():
        raise InputError(what, "", tuple(tensor.stride()), "a contiguous tensor")
    if tensor.numel() % units:
        raise InputError(what, "elements", tensor.numel(), f"a multiple of {units}, the shares in it")


def _check_pair(output: torch.Tensor, given: torch.Tensor, shape: Shape, name: CollectiveName) -> None:
    if (given.dtype, given.device) != (output.dtype, output.device):
        raise InputError(
            "input", "", f"{given.dtype} on {given.device}", f"{output.dtype} on {output.device} as output"
        )
    if given.numel() * shape.outputs != output.numel() * shape.inputs:
        expected = given.numel() * shape.outputs // shape.inputs
        raise InputError("output", "elements", output.numel(), f"{expected} for {name} of {given.numel()} elements")


def _in_place(output: torch.Tensor, given: torch.Tensor, shift: int, name: CollectiveName) -> bool:
    """Whether the two are one memory, laid out as an in-place call; InputError where they overlap in any other way."""
    if not output.numel():
        return False
    bytes_each = output.element_size()
    apart = output.data_ptr() - given.data_ptr()
    if name is not CollectiveName.ALLTOALL and apart == shift * bytes_each:
        return True
    if -output.numel() * bytes_each < apart < given.numel() * bytes_each:
        raise InputError("output", "", "overlaps input", "one memory as in NCCL's in-place calls, or two")
    return False


def _units(flat: torch.Tensor, unit: int, used: int) -> torch.Tensor:
    """A flat tensor as units, of each the first `used` elements."""
    return flat.view(-1, unit)[:, :used]


def _nothing() -> None:
    pass
