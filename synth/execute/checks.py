"""Inputs that tell chunks and ranks apart, and what has to come out: exact for integers, and for floats of small whole numbers.

Integers fill their type and wrap around; the expected result is worked out in 64 bits and cut to the type, which is exact.
Floats are checked twice: with numbers whose results no rounding touches, and, where they are combined, with real numbers against a
result in double precision and for the same bits on all ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from synth.collective import Collective, CollectiveName
from synth.execute.arithmetic import finish_average, torch_type
from synth.execute.layout import due_units, shape_of

if TYPE_CHECKING:
    import torch

EXACT, REAL = "exact", "real"
#: Every addition rounds by half a unit in the last place at most; this leaves room for the order of the additions.
_ROUNDINGS = 2.0


def make_input(collective: Collective, rank: int, unit: int, dtype: str, op: str, kind: str) -> torch.Tensor:
    """What a rank gives, flat, on the CPU: the same on every machine for the same arguments."""
    import torch

    elements = shape_of(collective, rank).inputs * unit
    random = torch.Generator().manual_seed(1_000_003 * (rank + 1) + unit)
    kept = torch_type(dtype)
    if not kept.is_floating_point:
        info = torch.iinfo(kept)
        drawn = torch.randint(info.min, info.max, (elements,), generator=random, dtype=torch.int64)
        return (drawn | 1 if op == "prod" else drawn).to(kept)  # odd: a product that never becomes 0
    if kind == REAL:
        drawn_real = torch.rand(elements, generator=random, dtype=torch.float64)
        return (drawn_real + 0.5 if op == "prod" else drawn_real * 2 - 1).to(kept)
    if op == "prod":  # powers of two, up on even ranks and down on odd ones, so that 16 of them stay within 16 bits
        powers = torch.randint(0, 2, (elements,), generator=random)
        return (2.0 ** (powers if rank % 2 == 0 else -powers).double()).to(kept)
    return torch.randint(0, 16, (elements,), generator=random).to(kept)


def expected_output(collective: Collective, rank: int, unit: int, dtype: str, op: str, kind: str) -> torch.Tensor:
    """What the rank has to end with, flat; in double precision and not rounded where `kind` is REAL. Of a group's collective, only
    what `due` picks.
    """
    import torch

    kept = torch_type(dtype)
    wide = torch.float64 if kept.is_floating_point else torch.int64
    sources = range(collective.num_ranks)
    if collective.combining:
        total: torch.Tensor | None = None
        for source in sorted(collective.members):
            each = make_input(collective, source, unit, dtype, op, kind).to(wide)
            total = each if total is None else _combine(total, each, op)
        assert total is not None
        if op == "avg":
            total = total if kind == REAL else total.to(kept)
            finish_average(total, collective.num_ranks)
        share = collective.name is CollectiveName.REDUCE_SCATTER
        result = total[rank * unit : (rank + 1) * unit] if share else total
        return result if kind == REAL else result.to(kept)
    result = torch.empty(shape_of(collective, rank).outputs * unit, dtype=kept)
    root = collective.root or 0
    match collective.name:
        case CollectiveName.BROADCAST:
            result.copy_(make_input(collective, root, unit, dtype, op, kind))
        case CollectiveName.SCATTER:
            result.copy_(make_input(collective, root, unit, dtype, op, kind)[rank * unit : (rank + 1) * unit])
        case _:
            for source in sources:
                given = make_input(collective, source, unit, dtype, op, kind)
                first = rank * unit if collective.name is CollectiveName.ALLTOALL else 0
                result[source * unit : (source + 1) * unit] = given[first : first + unit]
    return result


def due(collective: Collective, rank: int, unit: int, output: torch.Tensor) -> torch.Tensor:
    """What the collective fills of a rank's flat output."""
    import torch

    units = due_units(collective, rank)
    if len(units) * unit == len(output):
        return output
    return torch.cat([output[:0], *(output[each * unit : (each + 1) * unit] for each in units)])


def _combine(total: torch.Tensor, each: torch.Tensor, op: str) -> torch.Tensor:
    import torch

    match op:
        case "prod":
            return total * each
        case "min":
            return torch.minimum(total, each)
        case "max":
            return torch.maximum(total, each)
        case _:
            return total + each


def count_wrong(found: torch.Tensor, expected: torch.Tensor, ranks: int, op: str, kind: str) -> int:
    """Elements that differ; for real numbers, by more than the roundings of `ranks` operations explain."""
    import torch

    found = found.cpu()
    if kind == EXACT or not found.is_floating_point():
        return int((found != expected).sum())
    if op in ("min", "max"):
        return int((found.double() != expected.to(found.dtype).double()).sum())
    # |x| <= 1, so that partial sums are at most `ranks`; factors lie in 0.5 to 1.5, so that rounding is relative to the product.
    scale = expected.abs() if op == "prod" else torch.full_like(expected, float(ranks if op != "avg" else 1))
    allowed = _ROUNDINGS * ranks * torch.finfo(found.dtype).eps * scale + torch.finfo(found.dtype).tiny
    return int((~((found.double() - expected).abs() <= allowed)).sum())


def poison(tensor: torch.Tensor) -> None:
    """Fill with what nobody expects, so that what is never written shows."""
    tensor.fill_(float("nan") if tensor.is_floating_point() else 77)
