"""The ranks that run algorithms together: a process group of our own, and the engine that suits its backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from synth.errors import InputError, SynthError
from synth.execute.threads import ThreadEngine
from synth.execute.watch import LocalWatch, Watch

if TYPE_CHECKING:
    from synth.execute.call import Engine

NEEDS_TORCH = "torch is not installed: pip install .[run] (or torch itself)"
BACKENDS = ("gloo", "nccl")


class Communicator:
    """What several algorithms over the same ranks share. Its calls run one after the other, in the same order on every rank.

    All ranks of `group` (torch.distributed's default group where None) have to make it together: it makes a process group of its
    own, so that its messages meet no others. `backend` is gloo or nccl, the group's own where None. `rounds` runs gloo as nccl
    is run; `shake`: see ThreadEngine.
    """

    def __init__(
        self,
        group: Any = None,
        backend: str | None = None,
        watch: Watch | None = None,
        shake: int | None = None,
        rounds: bool = False,
    ) -> None:
        dist = distributed()
        if not dist.is_initialized():
            raise SynthError("torch.distributed is not initialised: call torch.distributed.init_process_group first")
        self.backend = backend or ("nccl" if "nccl" in str(dist.get_backend(group)) else "gloo")
        if self.backend not in BACKENDS:
            raise InputError("backend", "", self.backend, " or ".join(BACKENDS))
        ranks = dist.get_process_group_ranks(dist.group.WORLD if group is None else group)
        self.original = group
        self.group = dist.new_group(ranks, backend=self.backend)
        self.rank: int = dist.get_rank(self.group)
        self.world = len(ranks)
        self.watch: Watch = watch or LocalWatch()
        self.engine: Engine = _engine(self.group, shake, rounds or self.backend == "nccl")

    def close(self) -> None:
        """Let go of the threads; the process group stays until torch.distributed's own end."""
        self.engine.close()


def _engine(group: Any, shake: int | None, rounds: bool) -> Engine:
    if rounds:
        from synth.execute.batches import BatchEngine

        return BatchEngine(group)
    return ThreadEngine(group, shake)


def gpus_seen() -> int:
    """How many GPUs torch can use on this machine."""
    import torch

    return int(torch.cuda.device_count())


def distributed() -> Any:
    """torch.distributed; SynthError that says how to get it where there is none."""
    try:
        import torch.distributed as dist
    except ImportError:
        raise SynthError(NEEDS_TORCH) from None
    if not dist.is_available():
        raise SynthError("this build of torch has no torch.distributed")
    return dist
