"""What tests of execute let worker processes do; the first argument is always the rank's session."""

from __future__ import annotations

import os
import runpy
import signal
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from synth.errors import InputError
from synth.execute import Collective, Communicator, Session, SynthGroup

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "ddp_hook.py"


def die(session: Session, rank: int) -> None:
    """One rank is killed, the others wait for it."""
    if session.rank == rank:
        os.kill(os.getpid(), signal.SIGKILL)
    session.barrier()


def refuse(_session: Session) -> None:
    """What every rank finds wrong by itself."""
    raise InputError("file.xml", "field", 1, "2")


def stumble(session: Session, rank: int) -> None:
    """An error of ours on one rank, which the others wait for."""
    if session.rank == rank:
        raise KeyError("slip")
    session.barrier()


def freeze(session: Session, rank: int) -> None:
    """One rank says nothing for a minute."""
    if session.rank == rank:
        time.sleep(60)
    session.barrier()


def ranks(session: Session) -> list[int]:
    """Everybody's rank, as everybody hears it."""
    return session.exchange(session.rank)


def call(session: Session, path: str, op: str, unit: int, root: int | None = None) -> tuple[list[int], list[int]]:
    """(input, output) of a collective of one tensor out of a file, in place."""
    collective = Collective.from_xml(path, communicator=_communicator(session), root=root)
    tensor = torch.arange(unit, dtype=torch.int64) * (session.rank + 1) + session.rank
    given = tensor.clone()
    collective(tensor, op=op)
    return given.tolist(), tensor.tolist()


def gather_shares(session: Session, path: str, unit: int) -> list[int]:
    """An allgather out of a file, out of place."""
    collective = Collective.from_xml(path, communicator=_communicator(session))
    output = torch.zeros(unit * session.world, dtype=torch.int32)
    collective(output, torch.full((unit,), session.rank, dtype=torch.int32))
    return output.tolist()


def misuse(session: Session, path: str) -> list[str]:
    """What is said about tensors that do not fit a reduce-scatter."""
    collective = Collective.from_xml(path, communicator=_communicator(session))
    share, whole = torch.zeros(4), torch.zeros(4 * session.world)
    told = []
    for output, given in (
        (share, None),
        (torch.zeros(5), whole),
        (share.double(), whole),
        (share, torch.zeros(4 * session.world, 2)[:, 0]),
        (whole[1:5], whole),
        (torch.zeros(4, dtype=torch.complex64), whole.to(torch.complex64)),
    ):
        try:
            collective(output, given)
        except InputError as error:
            told.append(str(error))
    return told


def allreduced(group: SynthGroup, rank: int, sizes: list[int]) -> list[float]:
    """Sums of one tensor of each size (elements) that holds the rank's number, from 1 on."""
    sums = []
    for size in sizes:
        tensor = torch.full((size,), float(rank + 1))
        group.all_reduce(tensor)
        assert len(set(tensor.tolist())) == 1
        sums.append(float(tensor[0]))
    return sums


def through_group(session: Session, files: list[str], sizes: list[int]) -> tuple[list[float], dict[str, int]]:
    """Sums of one tensor of each size (elements) through a SynthGroup, and who did them."""
    group = SynthGroup(files)
    sums = allreduced(group, session.rank, sizes)
    output = torch.zeros(2 * session.world)
    group.all_gather_into_tensor(output, torch.full((2,), float(session.rank)))
    sums.append(float(output.sum()))
    group.communicator.close()
    return sums, group.calls


def losses(_session: Session, path: str) -> tuple[list[float], list[float], dict[str, int]]:
    """examples/ddp_hook.py: losses with the hook and without, and who did the allreduces."""
    train: Any = runpy.run_path(str(EXAMPLE))["train"]
    group = SynthGroup([path])
    answer = train(group), train(None), group.calls
    group.communicator.close()
    return answer


def is_alone(_session: Session) -> bool:
    """Whether autograd's own settings are as they were after a call."""
    return torch.is_grad_enabled() and dist.is_initialized()


def _communicator(session: Session) -> Communicator:
    key = "tests"
    if key not in session.kept:
        session.kept[key] = Communicator(watch=session)
    return session.kept[key]
