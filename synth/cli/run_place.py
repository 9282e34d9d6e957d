"""Where `synth run` has the ranks: all in this process, in processes of its own, or in those of torchrun."""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING

from synth.errors import InputError, SynthError, UsageError

if TYPE_CHECKING:
    from synth.cli.run import Options
    from synth.execute import Job, Measured

#: Synth's own interpreter; the others run through torch.distributed.
_OWN = ("cuda", "host")


def check_options(options: Options) -> None:
    """Raise UsageError for options that the backend does not have."""
    if options.shake is not None and options.backend != "gloo":
        raise UsageError("--shake: only the threadblocks of --backend gloo dawdle")
    if options.placement == "virtual" and options.backend not in _OWN:
        raise UsageError("--placement: virtual ranks are those of --backend " + " and ".join(_OWN))
    if options.placement == "virtual" and _launched() > 1:
        raise UsageError("--placement: virtual ranks are all in one process, not in those of torchrun")
    if options.calibrate is not None and (
        options.backend not in _OWN or options.placement == "processes" or _launched() > 1
    ):
        raise UsageError("--calibrate: it measures the virtual ranks of --backend " + " and ".join(_OWN))


def placement_of(options: Options, job: Job) -> str:
    """Where the ranks run: as asked for, and unasked one process a rank wherever that can be."""
    if options.calibrate is not None:
        return "virtual"
    if options.placement is not None or options.backend not in _OWN:
        return options.placement or "processes"
    return "processes" if options.backend == "cuda" and 1 < job.algo.ngpus <= _gpus() else "virtual"


def _gpus() -> int:
    """How many GPUs torch sees; none where there is no torch."""
    if importlib.util.find_spec("torch") is None:
        return 0
    from synth.execute.communicator import gpus_seen

    return gpus_seen()


def start(options: Options, job: Job) -> list[Measured]:
    """Run on this machine: in processes of our own, or with virtual ranks in this one."""
    from synth.execute import Pool, measure
    from synth.execute.communicator import JOINED_BY, NEEDS_TORCH, ON_GPU

    if placement_of(options, job) == "virtual":
        return _run_virtual(options, job)
    if importlib.util.find_spec("torch") is None:
        raise SynthError(NEEDS_TORCH)
    if options.backend in ON_GPU and (seen := _gpus()) < job.algo.ngpus:
        instead = "--placement virtual takes one for all" if options.backend in _OWN else "gloo needs none"
        expected = f"{job.algo.ngpus}, one for each rank ({instead})"
        raise InputError("--backend", options.backend, f"{seen} GPUs", expected)
    if options.backend == "host":
        from synth.execute.cuda.build import build_host

        build_host()  # once, and not by every process
    with Pool(job.algo.ngpus, JOINED_BY[options.backend], options.patience) as pool:
        rows: list[Measured] = pool.run(measure, job)[0]
    return rows


def _run_virtual(options: Options, job: Job) -> list[Measured]:
    """All ranks in this process, on one GPU or on the host."""
    from synth.cli.run_calibrate import calibrate, check_folder
    from synth.execute.cuda import machine_of
    from synth.execute.cuda import run as run_virtual

    machine = machine_of(options.backend)
    if options.calibrate is None:
        return run_virtual(job, options.backend, machine, options.patience)
    check_folder(options.calibrate)
    return calibrate(options.calibrate, job, machine, run_virtual(job, options.backend, machine, options.patience))


def _launched() -> int:
    """How many processes torchrun has started with this one; 0 where it has not."""
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    if not all(name in os.environ for name in names):
        return 0
    world = os.environ["WORLD_SIZE"]
    return int(world) if world.isdigit() else 1


def under_torchrun(options: Options) -> bool:
    """Whether this process is one rank of many; alone, virtual ranks of synth's own interpreter need no company."""
    return _launched() > (options.backend in _OWN)
