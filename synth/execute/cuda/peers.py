"""One rank a process: the processes of one machine open each other's pieces of memory, and run one algorithm together.

The same plan, offsets and kernel as with virtual ranks; only the addresses of the pieces come from elsewhere. On GPUs the pieces are
torch's symmetric memory where that can be had, else memory that the processes export and open (CUDA IPC); on the host memory files.
Everything that one rank finds wrong is told to all, which then raise the same.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from msccl_xml.model import Algo
from synth.errors import InputError, SynthError
from synth.execute.cuda.geometry import Geometry, lay_out
from synth.execute.cuda.machine import SharingMachine
from synth.execute.cuda.plan import Plan
from synth.execute.cuda.runner import Runner

_BOOT = Path("/proc/sys/kernel/random/boot_id")
T = TypeVar("T")

Meet = Callable[[Any], list[Any]]
"""Gives one's own value, which can be pickled, to all ranks and returns everybody's, by rank. All ranks call it."""


@dataclass(frozen=True)
class Pieces:
    """Memory of all ranks: its addresses in this process, by rank; how it is shared, in words; and what gives it back."""

    addresses: tuple[int, ...]
    how: str
    let_go: Callable[[], None]


Symmetric = Callable[[SharingMachine, int, Meet], Pieces]
"""Pieces of at least so many bytes from somewhere else; raises `RefusedError`, on all ranks, where there are none."""


class RefusedError(SynthError):
    """Some rank could not do its part; all ranks have heard so."""


def join(
    algo: Algo,
    plan: Plan,
    machine: SharingMachine,
    rank: int,
    meet: Meet,
    *,
    geometry: Geometry | None = None,
    threads: int = 0,
    symmetric: Symmetric | None = None,
) -> tuple[Runner, str]:
    """The runner of one rank, and how memory is shared; called by all ranks at once, each with its own machine.

    A rank may start a call while others are still at the one before: counts on connections go on. No rank may close its runner
    before all have ended their last call. Raises InputError, on all ranks alike, where the machines cannot reach each other.
    """
    geometry = geometry or Geometry.of(plan.protocol)
    check_places(plan, machine, rank, meet)
    pieces = share(machine, max(lay_out(plan, geometry).size_bytes), rank, meet, symmetric)
    runner = Runner(
        algo,
        plan,
        machine,
        geometry=geometry,
        threads=threads,
        rank=rank,
        arenas=pieces.addresses,
        let_go=pieces.let_go,
    )
    return runner, pieces.how


def check_places(plan: Plan, machine: SharingMachine, rank: int, meet: Meet) -> None:
    """Raise InputError where ranks sit on several computers or share a GPU, and where two cannot reach each other that have to."""
    seats: list[tuple[str, str]] = meet((_computer(), machine.place))
    if len({computer for computer, _ in seats}) > 1:
        computers = len({computer for computer, _ in seats})
        raise InputError("--backend", machine.name, f"ranks on {computers} computers", "all on one: memory is shared")
    for other, (_, place) in enumerate(seats):
        first = next(each for each, (_, there) in enumerate(seats) if there == place)
        if place and first != other:
            found = f"ranks {first} and {other} on GPU {place}"
            raise InputError("--placement", "processes", found, "a GPU for each rank (virtual takes one for all)")
    peers = {one.dst if one.src == rank else one.src for one in plan.connections if rank in (one.src, one.dst)}
    refusals = [(peer, machine.refusal(seats[peer][1], plan.protocol)) for peer in sorted(peers)]
    own = next(((rank, peer, why) for peer, why in refusals if why), None)
    for told in meet(own):
        if told is not None:
            expected = f"GPUs that reach each other: {told[2]}"
            raise InputError("--placement", "processes", f"ranks {told[0]} and {told[1]}", expected)


def share(
    machine: SharingMachine, size_bytes: int, rank: int, meet: Meet, symmetric: Symmetric | None = None
) -> Pieces:
    """A piece of memory of every rank, all 0, from `symmetric` where that can be, else exported and opened.

    InputError where neither can.
    """
    refused = ""
    if symmetric is not None:
        try:
            return _proved(symmetric(machine, size_bytes, meet), machine, size_bytes, rank, meet)
        except RefusedError as error:
            refused = f" (torch's symmetric memory was not to be had: {error})"
    try:
        pieces = _proved(_exported(machine, size_bytes, rank, meet), machine, size_bytes, rank, meet)
    except RefusedError as error:
        raise InputError("--placement", "processes", str(error), f"processes that can share memory{refused}") from None
    return Pieces(pieces.addresses, pieces.how + refused, pieces.let_go)


def together(meet: Meet, work: Callable[[], T]) -> T:
    """What `work` gives here, once it has succeeded on all ranks; RefusedError with the first one's words where it has not."""
    found: T | None = None
    problem = ""
    try:
        found = work()
    except Exception as error:  # whatever it is, the others must not wait for this rank
        problem = str(error).partition("\n")[0] or type(error).__name__
    for rank, told in enumerate(meet(problem)):
        if told:
            raise RefusedError(f"rank {rank}: {told}")
    return found  # type: ignore[return-value]


def _exported(machine: SharingMachine, size_bytes: int, rank: int, meet: Meet) -> Pieces:
    own = together(meet, partial(machine.share, size_bytes))
    exports: list[bytes] = meet(together(meet, lambda: machine.export(own)))

    def opened() -> list[int]:
        return [own if other == rank else machine.open(export) for other, export in enumerate(exports)]

    addresses = together(meet, opened)

    def let_go() -> None:
        for other, address in enumerate(addresses):
            if other != rank:
                machine.leave(address)
        machine.release(own)

    return Pieces(tuple(addresses), machine.sharing, let_go)


def _proved(pieces: Pieces, machine: SharingMachine, size_bytes: int, rank: int, meet: Meet) -> Pieces:
    """The same pieces, all 0, once every rank has read in each of them whose it is: first word and last."""
    ends = (0, (size_bytes - 8) // 8 * 8)

    def sign() -> None:
        machine.fill(pieces.addresses[rank], size_bytes)
        for end in ends:
            machine.write(pieces.addresses[rank] + end, np.array([rank + 1], dtype=np.int64))

    def read() -> None:
        for other, address in enumerate(pieces.addresses):
            for end in ends:
                if (found := _word(machine, address + end)) != other + 1:
                    raise RefusedError(f"the memory of rank {other} reads {found}, expected {other + 1}")

    together(meet, sign)
    together(meet, read)
    together(meet, partial(machine.fill, pieces.addresses[rank], size_bytes))
    return pieces


def _word(machine: SharingMachine, address: int) -> int:
    word: np.ndarray[Any, np.dtype[np.int64]] = np.zeros(1, dtype=np.int64)
    machine.read(address, word)
    return int(word[0])


def _computer() -> str:
    """What tells computers apart, and what containers of one have in common."""
    try:
        return _BOOT.read_text(encoding="ascii").strip()
    except OSError:
        return platform.node()
