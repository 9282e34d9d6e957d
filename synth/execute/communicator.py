"""The ranks that run algorithms together: a process group of our own, and the engine that suits its backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from synth.errors import InputError, SynthError
from synth.execute.threads import ThreadEngine
from synth.execute.watch import LocalWatch, Watch

if TYPE_CHECKING:
    from msccl_xml.model import Algo
    from synth.collective import Collective
    from synth.execute.call import Engine
    from synth.execute.cuda.machine import SharingMachine

NEEDS_TORCH = "torch is not installed: pip install .[run] (or torch itself)"
#: What each backend's processes are joined by: synth's own interpreter moves data itself, and needs torch to begin with.
JOINED_BY = {"gloo": "gloo", "nccl": "nccl", "cuda": "nccl", "host": "gloo"}
BACKENDS = tuple(JOINED_BY)
#: Synth's own interpreter, on GPUs and on the CPU.
OWN = frozenset({"cuda", "host"})
#: Those whose tensors lie on GPUs.
ON_GPU = frozenset({"nccl", "cuda"})


class Communicator:
    """What several algorithms over the same ranks share. Its calls run one after the other, in the same order on every rank.

    All ranks of `group` (torch.distributed's default group where None) have to make it together: it makes a process group of its
    own, so that its messages meet no others. `backend` is the group's own (gloo or nccl) where None; cuda and host are synth's own
    interpreter, with all ranks on one computer and one rank for each GPU. `rounds` runs gloo as nccl is run; `shake`: see
    ThreadEngine; `machine` takes the place of this process's GPU or CPU for the interpreter.
    """

    def __init__(
        self,
        group: Any = None,
        backend: str | None = None,
        watch: Watch | None = None,
        shake: int | None = None,
        rounds: bool = False,
        machine: SharingMachine | None = None,
    ) -> None:
        dist = distributed()
        if not dist.is_initialized():
            raise SynthError("torch.distributed is not initialised: call torch.distributed.init_process_group first")
        self.backend = backend or ("nccl" if "nccl" in str(dist.get_backend(group)) else "gloo")
        if self.backend not in BACKENDS:
            raise InputError("backend", "", self.backend, " or ".join(BACKENDS))
        ranks = dist.get_process_group_ranks(dist.group.WORLD if group is None else group)
        self.original = group
        own = self.backend in OWN
        self.group = dist.new_group(ranks, backend="gloo" if own else self.backend)
        self.rank: int = dist.get_rank(self.group)
        self.world = len(ranks)
        self.watch: Watch = watch or LocalWatch()
        self._machine = machine
        self._engines: list[Engine] = []
        if not own:
            self._engines.append(_engine(self.group, shake, rounds or self.backend == "nccl"))

    @property
    def device(self) -> str:
        """The type of torch device that its tensors lie on."""
        if self._machine is not None:
            return self._machine.torch_device.partition(":")[0]
        return "cuda" if self.backend in ON_GPU else "cpu"

    def engine_for(self, algo: Algo, promise: Collective, tile_bytes: int | None) -> Engine:
        """What runs `algo`: one engine for all algorithms where torch carries the messages, else one for each, made together.

        `tile_bytes` is what one transfer moves, the protocol's own where None.
        """
        if self.backend not in OWN:
            return self._engines[0]
        from synth.execute.cuda.engine import OwnEngine, machine_for

        if self._machine is None:
            self._machine = machine_for(self.backend)
        self._engines.append(OwnEngine(algo, promise, self._machine, self.group, tile_bytes))
        return self._engines[-1]

    def drop(self, engine: Engine) -> None:
        """Close an engine that one algorithm had for itself, all ranks together; one that others use is left alone."""
        if engine.own and engine in self._engines:
            self._engines.remove(engine)
            engine.close()

    def close(self) -> None:
        """Let go of threads and memory, all ranks together; the process group stays until torch.distributed's own end."""
        while self._engines:
            self._engines.pop().close()


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
