"""Pieces of memory from torch's symmetric memory: torch maps every rank's allocation into all processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from synth.execute.cuda.machine import SharingMachine
from synth.execute.cuda.peers import Meet, Pieces, together

if TYPE_CHECKING:
    import torch

#: Lines of LL128 lie on their own size; torch may put the memory behind a pad of its own.
_BOUNDARY = 256


class SymmetricMemory:
    """torch.distributed._symmetric_memory over the ranks of `group`; `module` takes its place in tests."""

    def __init__(self, group: Any, module: Any = None) -> None:
        self.group, self._module = group, module

    def __call__(self, machine: SharingMachine, size_bytes: int, meet: Meet) -> Pieces:
        """A piece of every rank, of one size as torch wants it. RefusedError, on all ranks, where this torch has none to give."""
        memory = together(meet, self._load)
        held: dict[str, Any] = {"tensor": together(meet, lambda: self._empty(memory, machine, size_bytes))}
        held["handle"] = together(meet, lambda: memory.rendezvous(held["tensor"], self.group.group_name))
        starts = together(meet, lambda: _starts(held["handle"], held["tensor"]))
        # Behind the same number of bytes everywhere: pages and pads are alike, so that remainders are.
        addresses = tuple(start + -start % _BOUNDARY for start in starts)
        return Pieces(addresses, "torch's symmetric memory", held.clear)

    def _load(self) -> Any:
        if self._module is not None:
            return self._module
        import torch.distributed._symmetric_memory as memory

        return memory

    def _empty(self, memory: Any, machine: SharingMachine, size_bytes: int) -> torch.Tensor:
        import torch

        tensor: torch.Tensor = memory.empty(size_bytes + _BOUNDARY, dtype=torch.uint8, device=machine.torch_device)
        return tensor


def _starts(handle: Any, tensor: torch.Tensor) -> list[int]:
    """Where each rank's tensor begins in this process."""
    if handle is None:
        raise RuntimeError("torch has found no symmetric memory at the tensor's address")
    peers = range(handle.world_size)
    if hasattr(handle, "get_remote_tensor"):  # which counts in where torch's pool of memory has put the tensor
        return [int(handle.get_remote_tensor(peer, tensor.shape, tensor.dtype).data_ptr()) for peer in peers]
    return [int(handle.get_buffer(peer, tensor.shape, tensor.dtype).data_ptr()) for peer in peers]
