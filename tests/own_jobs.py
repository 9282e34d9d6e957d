"""What tests of the interpreter with one rank a process let workers do; the first argument is always the rank's session."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from synth.execute import Collective, Communicator, Job, Measured, Session, SynthGroup, measure
from synth.execute.cuda import CudaMachine, HostMachine, cuda_machine
from synth.execute.cuda.peers import share
from synth.execute.cuda.symmetric import SymmetricMemory
from tests.execute_jobs import allreduced
from tests.fake_driver import FakeDriver


class FakeGpu(CudaMachine):
    """A GPU whose memory is this computer's, as torch's tensors without a GPU are."""

    def __init__(self, device: int, driver: FakeDriver) -> None:
        super().__init__(device, driver)
        self.torch_device = "cpu"


def on_fake_gpus(
    session: Session, library: str, job: Job, device: int | None, gpus: dict[str, Any]
) -> tuple[list[Measured], dict[str, int], int]:
    """The figures of a job with a GPU for each rank, whose driver is ours; what was called, and the pieces of memory left over."""
    driver = FakeDriver(Path(library), gpus=session.world, **gpus)
    machine = FakeGpu(session.rank if device is None else device, driver)
    communicator = Communicator(backend="cuda", watch=session, machine=machine)
    session.kept["cuda", None, False] = communicator
    with (
        mock.patch.object(cuda_machine, "compile_kernel", return_value=b"machine code"),
        mock.patch.object(cuda_machine, "_LOOK_S", 0.05),
    ):
        rows = measure(session, job)
    return rows, driver.calls, len(driver.host._held)


def what_it_costs(session: Session, job: Job) -> tuple[list[Measured], int]:
    """The figures of a job on the host, and how many more pieces of memory its machine holds afterwards."""
    machine = HostMachine()
    session.kept["host", None, False] = Communicator(backend="host", watch=session, machine=machine)
    return measure(session, job), len(machine._held)


def without_rank(session: Session, job: Job, gone: int) -> None:
    """One rank is killed once all are ready; the others run the job."""
    session.barrier()
    if session.rank == gone:
        os.kill(os.getpid(), signal.SIGKILL)
    measure(session, job)


def without_rank_in_a_launch(session: Session, job: Job, gone: int) -> None:
    """One rank is killed when its first launch begins; the others are in theirs."""
    communicator = Communicator(backend="host", watch=session)
    session.kept["host", None, False] = communicator

    class Gone(HostMachine):
        def execute(self, *_: Any) -> float | None:
            os.kill(os.getpid(), signal.SIGKILL)
            return None

    if session.rank == gone:
        communicator._machine = Gone()
    measure(session, job)


def call(session: Session, path: str, op: str, unit: int, times: int = 3) -> list[tuple[list[int], list[int]]]:
    """(input, output) of an allreduce out of a file, in place, on the same tensor again and again."""
    communicator = Communicator(backend="host", watch=session)
    collective = Collective.from_xml(path, communicator=communicator)
    tensor = torch.arange(unit, dtype=torch.int32) * (session.rank + 1) + session.rank
    told = []
    for _ in range(times):
        given = tensor.tolist()
        collective(tensor, op=op)
        told.append((given, tensor.tolist()))
    communicator.close()
    return told


def alone(session: Session, path: str, patience_s: float) -> list[str]:
    """What a rank says that calls without the others, and when it calls again."""
    from synth.errors import SynthError
    from synth.execute.watch import LocalWatch

    communicator = Communicator(backend="host", watch=LocalWatch(patience_s))
    collective = Collective.from_xml(path, communicator=communicator)
    told = []
    for _ in range(2 if session.rank == 0 else 0):
        try:
            collective(torch.zeros(64))
        except SynthError as error:
            told.append(str(error))
    session.barrier()
    return told


def through_group(session: Session, path: str, sizes: list[int]) -> tuple[list[float], dict[str, int]]:
    """Sums of one tensor of each size (elements) through a SynthGroup of the interpreter, and who did them."""
    group = SynthGroup([path], backend="host")
    sums = allreduced(group, session.rank, sizes)
    group.communicator.close()
    return sums, group.calls


def without_symmetric_memory(session: Session, library: str) -> tuple[str, list[int]]:
    """How memory is shared where this torch has no symmetric memory, and what rank 0 then reads in every rank's piece."""
    machine = CudaMachine(session.rank, FakeDriver(Path(library), gpus=session.world))
    group = dist.new_group(list(range(session.world)), backend="gloo")
    pieces = share(machine, 1000, session.rank, session.exchange, SymmetricMemory(group))
    import numpy as np

    machine.write(pieces.addresses[session.rank], np.array([7 * session.rank], dtype=np.int64))
    session.barrier()
    found = np.zeros(1, dtype=np.int64)
    read = []
    for address in pieces.addresses:
        machine.read(address, found)
        read.append(int(found[0]))
    session.barrier()
    pieces.let_go()
    assert not driver_of(machine).host._held
    return pieces.how, read


def driver_of(machine: CudaMachine) -> FakeDriver:
    """The driver that a machine was made with."""
    driver: FakeDriver = machine._driver
    return driver


def by_cuda_ipc(session: Session, job: Job) -> list[Measured]:
    """The figures of a job on GPUs whose memory the driver shares, as where torch has no symmetric memory."""
    with mock.patch("synth.execute.cuda.engine.SymmetricMemory", return_value=None):
        return measure(session, job)


def launches(session: Session, job: Job, times: int) -> tuple[float, list[int]]:
    """Microseconds of one of so many allreduces of zeros and ones, and what the last one gave."""
    communicator = Communicator(backend=job.backend, watch=session)
    collective = Collective(job.algo, job.promise, communicator)
    tensor = torch.ones(job.sizes[0] // 4, dtype=torch.int32, device=communicator.device)
    time_us = collective.repeat(tensor, None, "max", times=times)
    collective(tensor, op="sum")
    found = sorted(set(tensor.tolist()))
    communicator.close()
    return time_us, found
