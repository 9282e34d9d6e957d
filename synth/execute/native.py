"""torch.distributed's own collectives on the tensors of ours: the rival of `--compare`, one of the checks, and the fallback."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from synth.collective import Collective, CollectiveName
from synth.execute.communicator import distributed

if TYPE_CHECKING:
    import torch


def native(
    collective: Collective, group: Any, output: torch.Tensor | None, given: torch.Tensor | None, op: str
) -> None:
    """Run torch's own `collective` on `group` (the default where None): `given` of every rank becomes `output`.

    Raises RuntimeError or ValueError, as torch does, where the backend lacks the type, the operation or the collective.
    """
    dist = distributed()
    rank = dist.get_rank(group)
    root = None if collective.root is None else dist.get_global_rank(_group(dist, group), collective.root)
    operation = _operation(dist, op)
    match collective.name:
        case CollectiveName.ALLREDUCE | CollectiveName.REDUCE | CollectiveName.BROADCAST:
            _on_one(dist, collective.name, group, _one(output, given), root, operation)
        case CollectiveName.ALLGATHER:
            _newest(dist, "all_gather_single", "all_gather_into_tensor")(output, given, group=group)
        case CollectiveName.REDUCE_SCATTER:
            newest = _newest(dist, "reduce_scatter_single", "reduce_scatter_tensor")
            newest(output, given, op=operation, group=group)
        case CollectiveName.ALLTOALL:
            dist.all_to_all_single(output, given, group=group)
        case CollectiveName.GATHER:
            parts = list(output.chunk(collective.num_ranks)) if rank == collective.root and output is not None else None
            dist.gather(given, parts, dst=root, group=group)
        case CollectiveName.SCATTER:
            parts = list(given.chunk(collective.num_ranks)) if rank == collective.root and given is not None else None
            dist.scatter(output, parts, src=root, group=group)


def _on_one(
    dist: Any, name: CollectiveName, group: Any, tensor: torch.Tensor, root: int | None, operation: Any
) -> None:
    """The collectives that torch runs in place."""
    if name is CollectiveName.ALLREDUCE:
        dist.all_reduce(tensor, op=operation, group=group)
    elif name is CollectiveName.REDUCE:
        dist.reduce(tensor, root, op=operation, group=group)
    else:
        dist.broadcast(tensor, root, group=group)


def _one(output: torch.Tensor | None, given: torch.Tensor | None) -> torch.Tensor:
    """The tensor of an in-place call: the output with the input in it; an input without an output is left as it is."""
    if output is None:
        assert given is not None
        return given.clone()
    if given is not None and given.data_ptr() != output.data_ptr():
        output.copy_(given)
    return output


def _newest(dist: Any, name: str, before: str) -> Any:
    """torch has renamed these functions, and warns where the old name is used."""
    return getattr(dist, name, None) or getattr(dist, before)


def _operation(dist: Any, op: str) -> Any:
    names = {"sum": "SUM", "prod": "PRODUCT", "min": "MIN", "max": "MAX", "avg": "AVG"}
    return getattr(dist.ReduceOp, names[op])


def _group(dist: Any, group: Any) -> Any:
    return dist.group.WORLD if group is None else group
