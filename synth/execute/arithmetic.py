"""Data types and reductions: the names of nccl-tests, torch's tensors, and what is added in which order.

Every single addition is rounded to the type, as the interpreters do; integers wrap around.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from synth.errors import InputError

if TYPE_CHECKING:
    import torch

#: Our name -> torch's attribute; the order is that of nccl-tests.
TYPES = {
    "int8": "int8",
    "uint8": "uint8",
    "int16": "int16",
    "int32": "int32",
    "int64": "int64",
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "bfloat16": "bfloat16",
}
#: Other people's spellings of the same.
ALIASES = {
    "float16": "half",
    "float32": "float",
    "float64": "double",
    "bf16": "bfloat16",
    "fp16": "half",
    "fp32": "float",
}
OPERATIONS = ("sum", "prod", "min", "max", "avg")
_BYTES = {"int8": 1, "uint8": 1, "int16": 2, "half": 2, "bfloat16": 2, "int32": 4, "float": 4, "int64": 8, "double": 8}


def type_name(name: str) -> str:
    """The type as nccl-tests calls it; InputError for a type that there is not."""
    known = ALIASES.get(name, name)
    if known not in TYPES:
        raise InputError("--dtype", "", name, "one of " + " ".join((*TYPES, *ALIASES)))
    return known


def element_bytes(name: str) -> int:
    """Bytes of an element of a type by our name."""
    return _BYTES[name]


def torch_type(name: str) -> torch.dtype:
    """torch's type of our name."""
    import torch

    found: torch.dtype = getattr(torch, TYPES[name])
    return found


def name_of(dtype: torch.dtype) -> str:
    """Our name of torch's type; InputError for one that cannot be sent or reduced."""
    for name in TYPES:
        if torch_type(name) == dtype:
            return name
    raise InputError("tensor", "dtype", str(dtype), "one of " + " ".join(TYPES))


def check_operation(op: str) -> None:
    """Raise InputError for an operation that there is not."""
    if op not in OPERATIONS:
        raise InputError("op", "", op, "one of " + " ".join(OPERATIONS))


def combiner(op: str) -> Callable[..., Any]:
    """The function (a, b, out=c) of an operation; the average is a sum until `finish_average`."""
    import torch

    functions: dict[str, Callable[..., Any]] = {
        "sum": torch.add,
        "avg": torch.add,
        "prod": torch.mul,
        "min": torch.minimum,
        "max": torch.maximum,
    }
    return functions[op]


def finish_average(total: torch.Tensor, ranks: int) -> None:
    """Divide a sum in place. Integers are cut towards zero, as NCCL's ncclAvg does after its sum."""
    if total.is_floating_point():
        total.div_(ranks)
    else:
        total.copy_(total.div(ranks, rounding_mode="trunc"))


def fuse(
    combine: Callable[..., Any], target: torch.Tensor, sources: Sequence[torch.Tensor], *, target_first: bool
) -> None:
    """Add `sources` to `target` in one go, in the order of the interpreters: Simple takes its own value last, LL first."""
    if target_first or len(sources) == 1:
        for source in sources:
            combine(target, source, out=target)
        return
    total = sources[0].clone()
    for source in sources[1:]:
        combine(total, source, out=total)
    combine(target, total, out=target)
