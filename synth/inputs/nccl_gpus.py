"""Which GPUs of a dump are in the plan, on which host, and with which rank."""

from __future__ import annotations

from dataclasses import dataclass

from synth.errors import InputError
from synth.inputs.builder import Builder
from synth.inputs.nccl_links import PciKind
from synth.inputs.nccl_tree import Cpu, Pci

#: (host, bus id): what names a device; hosts of a fused file repeat bus ids.
Key = tuple[int, str]


@dataclass(frozen=True)
class Gpus:
    """`hosts` are the host hashes, that of the lowest rank first; `pci` and `rank` know the GPUs by key, in rank order.
    A skeleton has no <gpu>: its GPUs are told by PCI class."""

    hosts: tuple[str, ...]
    pci: dict[Key, Pci]
    rank: dict[Key, int]
    skeleton: bool

    def arch(self, key: Key) -> str:
        gpu = self.pci[key].gpu
        return gpu.arch if gpu is not None else ""


def find_gpus(cpus: list[Cpu], builder: Builder) -> Gpus:
    """The GPUs of the file; raises InputError where there is none, or one twice."""
    hosts = _hosts(cpus)
    found = [(hosts.index(cpu.host), pci) for cpu in cpus for pci in cpu.devices() if pci.kind is PciKind.GPU]
    named = [(host, pci) for host, pci in found if pci.gpu is not None]
    ranked = [(host, pci) for host, pci in named if pci.gpu is not None and pci.gpu.rank is not None]
    gpus: dict[Key, Pci] = {}
    for host, pci in ranked or named or found:
        if (host, pci.bus) in gpus:
            raise pci.node.error("busid", pci.bus, "a bus id that no other GPU of the host has")
        gpus[host, pci.bus] = pci
    if not gpus:
        first = cpus[0].node
        raise InputError(first.source, first.where, "no GPU", "at least one <gpu>, or a device of class 0x03 or 0x12")
    for _, pci in found if named else ():
        if pci.gpu is None or (ranked and pci.gpu.rank is None):
            what = "a GPU without <gpu>" if pci.gpu is None else "a GPU without rank"
            builder.doubt("<pci> " + pci.bus, f"{what}: left out, as NCCL does", line=pci.node.line)
    order = _order(gpus, builder)
    return Gpus(hosts, {key: gpus[key] for key in order}, {key: rank for rank, key in enumerate(order)}, not named)


def _hosts(cpus: list[Cpu]) -> tuple[str, ...]:
    def lowest(host: str) -> int:
        gpus = (pci.gpu for cpu in cpus if cpu.host == host for pci in cpu.devices())
        return min((gpu.rank for gpu in gpus if gpu is not None and gpu.rank is not None), default=1 << 30)

    return tuple(sorted(dict.fromkeys(cpu.host for cpu in cpus), key=lowest))


def _order(gpus: dict[Key, Pci], builder: Builder) -> list[Key]:
    """The GPUs in the order of the file's ranks; by host and bus id where those are missing or taken twice."""
    stated = {key: pci.gpu.rank if pci.gpu is not None else None for key, pci in gpus.items()}
    ranks = {rank for rank in stated.values() if rank is not None}
    line = next(iter(gpus.values())).node.line
    if len(ranks) < len(gpus):
        what = "without ranks" if not ranks else "with a rank taken twice"
        builder.doubt("<gpu>", f"{what}: numbered by bus id, as the driver counts GPUs", line=line)
        return sorted(gpus)
    if max(ranks) >= len(gpus):
        what = f"ranks up to {max(ranks)} for {len(gpus)} GPUs: numbered anew, in the same order"
        builder.doubt("<gpu>", what, "the file shows a part of the job's GPUs", line=line)
    return sorted(gpus, key=lambda key: stated[key] or 0)
