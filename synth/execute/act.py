"""What a step does to a rank's memory once it may: the one place where data are moved and combined."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msccl_xml.model import StepType
from synth.execute.arithmetic import fuse
from synth.execute.call import Call
from synth.execute.program import Operation, Part

if TYPE_CHECKING:
    import torch


def compute(
    call: Call, operation: Operation, part: Part, tile: int, message: torch.Tensor | None, combine: Callable[..., Any]
) -> None:
    """Everything but receiving and sending. A reducing receive is added up in its message, from where it is sent on.

    The source of a reducing receive is the rank's own (docs/xml.md, section 4).
    """
    kind = operation.type
    if message is not None:
        if kind.reads_src:
            combine(call.view(operation.sources[0], part, tile), message, out=message)
        if kind.writes_dst:
            call.view(operation.target, part, tile).copy_(message)
    elif kind is StepType.REDUCE:
        sources = [call.view(source, part, tile) for source in operation.sources]
        fuse(combine, call.view(operation.target, part, tile), sources, target_first=call.target_first)
    elif kind is StepType.COPY:
        call.view(operation.target, part, tile).copy_(call.view(operation.sources[0], part, tile))


def outgoing(call: Call, operation: Operation, part: Part, tile: int, message: torch.Tensor | None) -> torch.Tensor:
    """What a sending step sends: its message where it received one, its source else."""
    return call.view(operation.sources[0], part, tile) if message is None else message
