"""Algorithms in the place of torch.distributed's collectives: each call goes to the file that covers it, or to torch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msccl_xml.model import Algo
from synth.collective import COMBINING, ROOTED, SHARED, CollectiveName
from synth.collective import Collective as Promise
from synth.constants import last_byte
from synth.errors import InputError
from synth.execute.api import Collective, promise_of, read_file
from synth.execute.arithmetic import OPERATIONS, TYPES, torch_type
from synth.execute.communicator import Communicator
from synth.execute.native import native
from synth.group import group_text

if TYPE_CHECKING:
    import torch


class SynthGroup:
    """A set of files over the ranks of a process group; its methods are named, and behave, as torch.distributed's functions.

    A file covers a call if it is for that collective, that many ranks, that root, a size within its minBytes and maxBytes, and the
    tensor is on the communicator's device and of a type that we reduce. Of several files the first that covers it runs; where none
    does, torch's own collective runs on `group`. All ranks have to make it, and to call it, together.
    """

    def __init__(
        self,
        files: Sequence[str | os.PathLike[str]],
        group: Any = None,
        *,
        root: int | None = None,
        runtime: str = "msccl",
        backend: str | None = None,
    ) -> None:
        """`root` is that of the files that have one; `runtime` tells how their maxBytes is read; `backend`: see Communicator.

        SynthError for a bad file.
        """
        self.communicator = Communicator(group, backend)
        self.group = group
        self.runtime = runtime
        self.calls = {"synth": 0, "torch": 0}
        """how many calls went where"""
        self.collectives = [self._load(os.fspath(path), root) for path in files]

    def all_reduce(self, tensor: torch.Tensor, op: str = "sum") -> None:
        """`tensor` of all ranks becomes their sum (product, least, greatest, average) on every rank."""
        self._run(CollectiveName.ALLREDUCE, tensor, tensor, op)

    def all_gather_into_tensor(self, output: torch.Tensor, input: torch.Tensor) -> None:  # noqa: A002
        """`output` becomes the `input` of all ranks, in order."""
        self._run(CollectiveName.ALLGATHER, output, input)

    def reduce_scatter_tensor(self, output: torch.Tensor, input: torch.Tensor, op: str = "sum") -> None:  # noqa: A002
        """`output` becomes this rank's share of the sum of all `input`."""
        self._run(CollectiveName.REDUCE_SCATTER, output, input, op)

    def all_to_all_single(self, output: torch.Tensor, input: torch.Tensor) -> None:  # noqa: A002
        """Share s of `output` becomes this rank's share of rank s's `input`."""
        self._run(CollectiveName.ALLTOALL, output, input)

    def broadcast(self, tensor: torch.Tensor, src: int) -> None:
        """`tensor` becomes that of rank `src` of the group."""
        self._run(CollectiveName.BROADCAST, tensor, tensor, root=src)

    def reduce(self, tensor: torch.Tensor, dst: int, op: str = "sum") -> None:
        """`tensor` of rank `dst` of the group becomes the sum; what the other ranks hold afterwards is undefined."""
        self._run(CollectiveName.REDUCE, tensor, tensor, op, root=dst)

    def ddp_hook(self, _state: Any, bucket: Any) -> Any:
        """A communication hook for DistributedDataParallel: gradients are averaged over the ranks by `all_reduce`.

        Use: `model.register_comm_hook(None, group.ddp_hook)`. The answer is a finished torch.futures.Future.
        """
        import torch

        gradients = bucket.buffer()
        gradients.div_(self.communicator.world)
        self.all_reduce(gradients)
        future: Any = torch.futures.Future()
        future.set_result(gradients)
        return future

    # torch compares a hook's annotations with classes of its own, which are not there before torch is; it takes none as well.
    ddp_hook.__annotations__.clear()

    def _load(self, path: str, root: int | None) -> Collective:
        algo = read_file(path)
        promise = promise_of(algo, path, None, root)
        if promise.group is not None:
            raise InputError(path, "group", group_text(promise.group), "a file of all ranks, as these calls are")
        return Collective(algo, promise, self.communicator)

    def _run(
        self, name: CollectiveName, output: torch.Tensor, given: torch.Tensor, op: str = "sum", root: int | None = None
    ) -> None:
        world = self.communicator.world
        larger = max(output, given, key=lambda tensor: tensor.numel())
        for collective in self.collectives:
            if self._covers(collective, name, larger, op, root):
                self.calls["synth"] += 1
                collective(output, given, op)
                return
        self.calls["torch"] += 1
        promise = Promise(name, world, world if name in SHARED else 1, root if name in ROOTED else None)
        native(promise, self.group, output, given, op)

    def _covers(
        self, collective: Collective, name: CollectiveName, whole: torch.Tensor, op: str, root: int | None
    ) -> bool:
        promise, algo = collective.promise, collective.algo
        return (
            promise.name is name
            and promise.root == root
            and op in (OPERATIONS if name in COMBINING else ("sum",))
            and whole.device.type == self.communicator.device
            and any(whole.dtype == torch_type(known) for known in TYPES)
            and whole.is_contiguous()
            and _in_range(algo, whole.numel() * whole.element_size(), self.runtime)
        )


def _in_range(algo: Algo, size_bytes: int, runtime: str) -> bool:
    most = last_byte(algo.max_bytes, runtime)
    return size_bytes > 0 and (algo.min_bytes or 0) <= size_bytes and (most is None or size_bytes <= most)
