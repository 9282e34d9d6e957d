"""How ranks come to each other's memory: torch's symmetric memory, what takes its place, and what is refused; ranks are threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("torch")
import torch

from synth.errors import InputError, SynthError
from synth.execute.cuda import HostMachine, compile_plan, peers
from synth.execute.cuda.build import build_host, find_host_compiler
from synth.execute.cuda.peers import Pieces, RefusedError, check_places, share, together
from synth.execute.cuda.symmetric import SymmetricMemory
from tests.algos import collective_of, ring_allreduce
from tests.host_runs import Meeting

if TYPE_CHECKING:
    from synth.execute.cuda.machine import SharingMachine

pytestmark = pytest.mark.skipif(find_host_compiler() is None, reason="no C++ compiler for the host build")
RANKS, SIZE = 3, 5000


@pytest.fixture(scope="module")
def library(pytestconfig: pytest.Config) -> Path:
    assert pytestconfig.cache is not None
    return build_host(folder=pytestconfig.cache.mkdir("interpreter"))


class Group:
    group_name = "three"


class FakeMemory:
    """torch.distributed._symmetric_memory for one of several threads: memory behind a pad of `pad` bytes, as torch may have it."""

    def __init__(self, rank: int, told: dict[int, Any], pad: int = 48, fault: str = "") -> None:
        self.rank, self.told, self.pad, self.fault = rank, told, pad, fault

    def empty(self, size: int, dtype: torch.dtype, device: str) -> torch.Tensor:
        assert device == "cpu"
        if self.fault == "empty":
            raise RuntimeError("no fabric\nand more")
        whole = torch.full((size + 4096,), 255, dtype=dtype)
        start = -whole.data_ptr() % 4096 + self.pad
        self.told[self.rank] = whole[start:][:size]
        tensor: torch.Tensor = self.told[self.rank]
        return tensor

    def rendezvous(self, tensor: torch.Tensor, group: str) -> Any:
        assert group == "three"
        assert tensor is self.told[self.rank]
        if self.fault == "none":
            return None
        return _Handle(self.told, turned=self.fault == "turned", old=self.fault == "old")


class _Handle:
    world_size = RANKS

    def __init__(self, told: dict[int, Any], *, turned: bool, old: bool) -> None:
        self.told, self.turned = told, turned
        if old:
            self.get_buffer = self._of
        else:
            self.get_remote_tensor = self._of

    def _of(self, peer: int, sizes: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        found: torch.Tensor = self.told[RANKS - peer if self.turned and peer else peer]
        assert (found.shape, found.dtype) == (sizes, dtype)
        return found


def on_all(work: Callable[[int, peers.Meet], Any]) -> list[Any]:
    """What `work` gives on every rank, each a thread."""
    meeting = Meeting(RANKS)
    with ThreadPoolExecutor(RANKS) as pool:
        return list(pool.map(lambda rank: work(rank, meeting.of(rank)), range(RANKS)))


def shared(library: Path, faults: dict[int, str]) -> list[str]:
    """How every rank says that memory is shared, once each has written into its own piece and read in all."""
    told: dict[int, Any] = {}

    def work(rank: int, meet: peers.Meet) -> str:
        machine: SharingMachine = HostMachine(library)
        symmetric = SymmetricMemory(Group(), FakeMemory(rank, told, fault=faults.get(rank, "")))
        pieces = share(machine, SIZE, rank, meet, symmetric)
        _exchanged(machine, pieces, rank, meet)
        return pieces.how

    return on_all(work)


def _exchanged(machine: SharingMachine, pieces: Pieces, rank: int, meet: peers.Meet) -> None:
    mine = np.ones(SIZE, dtype=np.uint8)
    machine.read(pieces.addresses[rank], mine)
    assert not mine.any(), "memory is 0 to begin with"
    assert all(address % 256 == 0 for address in pieces.addresses)
    meet(None)
    machine.write(pieces.addresses[rank], np.full(SIZE, rank + 1, dtype=np.uint8))
    meet(None)
    for other, address in enumerate(pieces.addresses):
        machine.read(address, mine)
        assert set(mine) == {other + 1}
    meet(None)
    pieces.let_go()


@pytest.mark.parametrize("faults", [{}, dict.fromkeys(range(RANKS), "old")], ids=["new", "before get_remote_tensor"])
def test_torchs_symmetric_memory_is_taken_where_it_is(library: Path, faults: dict[int, str]) -> None:
    assert shared(library, faults) == ["torch's symmetric memory"] * RANKS


@pytest.mark.parametrize(
    ("faults", "told"),
    [
        ({1: "empty"}, "rank 1: no fabric"),
        ({2: "none"}, "rank 2: torch has found no symmetric memory at the tensor's address"),
        ({0: "turned"}, "rank 0: the memory of rank 1 reads 3, expected 2"),
    ],
)
def test_a_rank_without_it_takes_all_to_the_other_way(library: Path, faults: dict[int, str], told: str) -> None:
    """And memory that is not the rank's that it is said to be counts as none."""
    assert shared(library, faults) == [f"shared memory (torch's symmetric memory was not to be had: {told})"] * RANKS


def test_where_neither_way_works_all_ranks_say_why(library: Path) -> None:
    class Closed(HostMachine):
        def open(self, exported: bytes) -> int:
            raise PermissionError("Operation not permitted")

    def work(rank: int, meet: peers.Meet) -> str:
        with pytest.raises(InputError) as caught:
            share((Closed if rank == 1 else HostMachine)(library), SIZE, rank, meet)
        return str(caught.value)

    told = "--placement: processes: 'rank 1: Operation not permitted', expected processes that can share memory"
    assert on_all(work) == [told] * RANKS


def test_ranks_on_several_computers_are_refused(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    algo = ring_allreduce(RANKS)
    plan = compile_plan(algo, collective_of(algo))
    names = iter(["one", "other", "one"])
    monkeypatch.setattr(peers, "_computer", lambda: next(names))

    def work(rank: int, meet: peers.Meet) -> str:
        with pytest.raises(InputError) as caught:
            check_places(plan, HostMachine(library), rank, meet)
        return str(caught.value)

    assert on_all(work) == ["--backend: host: 'ranks on 2 computers', expected all on one: memory is shared"] * RANKS


def test_what_fails_on_one_rank_fails_on_all() -> None:
    def work(rank: int, meet: peers.Meet) -> str:
        assert together(meet, lambda: rank) == rank
        with pytest.raises(RefusedError) as caught:
            together(meet, lambda: [][rank // 2 :][0] if rank else rank)
        assert isinstance(caught.value, SynthError)
        return str(caught.value)

    assert on_all(work) == ["rank 1: list index out of range"] * RANKS
