"""NCCL topology XML (what NCCL_TOPO_DUMP_FILE writes and NCCL_TOPO_FILE takes) to a topology. docs/intake.md states the rules.

Hosts of a fused file, told apart by `host_hash`, become nodes. Bridges become PCIe switches; CPUs of a host are joined all with
all; a card with several ports is a switch with a NIC for each, as they share one connection.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from synth.inputs.builder import Builder, printable
from synth.inputs.defaults import link_default
from synth.inputs.hints import Draft
from synth.inputs.nccl_gpus import Gpus, Key, find_gpus
from synth.inputs.nccl_links import LOC_GBPS, PciKind
from synth.inputs.nccl_nvlinks import add_nvlinks
from synth.inputs.nccl_pcie import prune
from synth.inputs.nccl_tree import Cpu, Net, Pci, read_cpus
from synth.inputs.nccl_xml import read_system
from synth.topology import DeviceKind

_ABOUT = (
    "NCCL topology XML, version {version}. NVLink, xGMI: links x the rate of one in NCCL 2.30.7 and RCCL (src/graph/topo.h). "
    "PCIe: link_width x link_speed / 80; sockets: by CPU vendor and model, all with all; nets: their speed (src/graph/topo.cc). "
    "Latencies: synth's defaults (synth/inputs/defaults.py)."
)

_SLOW_GBPS = 1.2
#: More NUMA nodes than any box has.
_MOST_CPUS = 128


def draft_of_nccl_xml(text: str, source: str, arch: str = "") -> Draft:
    """What NCCL topology XML says, before what only the user knows; `arch` is `--arch`, for GPUs that the file leaves open.

    Raises InputError with line and element for what is no such file, or shows no GPU.
    """
    system = read_system(text, source)
    builder = Builder(source)
    cpus = read_cpus(system, builder)
    gpus = find_gpus(cpus, builder)
    for key, rank in gpus.rank.items():
        builder.add(DeviceKind.GPU, f"gpu{rank}", key[0], rank, gpus.arch(key) or arch)
    parts = _Parts(builder, gpus, any(cpu.nets or any(pci.nets for pci in cpu.devices()) for cpu in cpus))
    names = [parts.add_cpu(cpu) for cpu in cpus]
    _join_cpus(builder, cpus, names)
    add_nvlinks(builder, gpus, parts.cpu_of, arch)
    parts.say_what_is_missing()
    unsaid = "a skeleton of devices by PCI class, without <gpu> and <nvlink>" if gpus.skeleton else ""
    return Draft(builder.imported(_ABOUT.format(version=printable(system.text("version", "unknown"))[:8])), unsaid)


@dataclass
class _Parts:
    """Adds CPUs and what hangs below them; `has_nets` says whether the file knows ports, or NICs by class alone."""

    builder: Builder
    gpus: Gpus
    has_nets: bool
    nics: int = 0
    ports: int = 0
    rdma: int = 0
    fastest_GBps: float = 0.0
    cpu_of: dict[Key, str] = field(default_factory=dict)

    def add_cpu(self, cpu: Cpu) -> str:
        host = self.gpus.hosts.index(cpu.host)
        name = self.builder.add(DeviceKind.CPU, f"cpu{max(cpu.numa, 0)}{_suffix(host)}", host)
        for top in cpu.pcis:
            pci = prune(top, lambda device: self.keeps(device, host), self.builder)
            if pci is not None:
                self.add_pci(pci, name, name, host)
        for net in cpu.nets:
            self.add_port(net, name, host, LOC_GBPS, "pcie")
        return name

    def keeps(self, pci: Pci, host: int) -> bool:
        """Whether a GPU is one of the plan, or a NIC has ports (in a file without ports: is one by class)."""
        if pci.kind is PciKind.GPU:
            return (host, pci.bus) in self.gpus.rank
        return pci.kind is PciKind.NIC and (bool(pci.nets) or not self.has_nets)

    def add_pci(self, pci: Pci, parent: str, cpu: str, host: int) -> None:
        if pci.kind is PciKind.GPU:
            gpu = self.gpus.pci[host, pci.bus].gpu
            name = f"gpu{self.gpus.rank[host, pci.bus]}"
            self.cpu_of[host, pci.bus] = cpu
            self.builder.between(name, parent, "pcie", pci.GBps)
            if gpu is not None and gpu.c2c_GBps > 0:
                self.builder.between(name, cpu, "c2c", gpu.c2c_GBps)
        elif pci.kind is PciKind.NIC:
            self.add_nic(pci, parent, host)
        else:
            name = self.builder.add_numbered(DeviceKind.PCIE_SWITCH, "plx", host, _suffix(host))
            self.builder.between(name, parent, "pcie", pci.GBps)
            for child in pci.children:
                self.add_pci(child, name, cpu, host)

    def add_nic(self, pci: Pci, parent: str, host: int) -> None:
        if len(pci.nets) == 1:
            self.add_port(pci.nets[0], parent, host, pci.GBps, "pcie")
        elif pci.nets:
            card = self.builder.add_numbered(DeviceKind.PCIE_SWITCH, "card", host, _suffix(host))
            self.builder.between(card, parent, "pcie", pci.GBps)
            for net in pci.nets:
                self.add_port(net, card, host, LOC_GBPS, "local")
            self.say_crowded(pci)
        else:
            self.nics += 1
            nic = self.builder.add_numbered(DeviceKind.NIC, "nic", host, _suffix(host))
            self.builder.between(nic, parent, "pcie", pci.GBps)

    def add_port(self, net: Net, parent: str, host: int, GBps: float, kind: str) -> None:
        if not self.ports:
            self.builder.add(DeviceKind.NETWORK, "network")
        self.ports += 1
        self.rdma += net.rdma
        self.fastest_GBps = max(self.fastest_GBps, net.GBps)
        port = self.builder.add(DeviceKind.NIC, net.name + _suffix(host), host)
        self.builder.between(port, parent, kind, GBps, alpha_us=0.0 if kind == "local" else None)
        alpha_us = net.latency_us / 2 if net.latency_us else None
        self.builder.between(port, "network", "network", net.GBps, alpha_us=alpha_us)

    def say_crowded(self, pci: Pci) -> None:
        total = sum(net.GBps for net in pci.nets)
        if total > 2 * pci.GBps:
            what = f"{len(pci.nets)} ports of {total:g} GB/s together on one PCIe connection of {pci.GBps:g}"
            cost = "the ports share that connection, for NCCL and in the plan"
            self.builder.doubt("<pci> " + pci.bus, what, cost, line=pci.node.line)

    def say_what_is_missing(self) -> None:
        if not self.ports and self.nics:
            cost = "between boxes their PCIe rate would count; pass --nics NxGBps"
            self.builder.doubt("NICs", "no <net>: the line rate of the NICs is not said", cost)
        elif not self.ports:
            self.builder.doubt("NICs", "there is none", "good for one box; pass --nics NxGBps to plan for several")
        if self.ports and self.fastest_GBps < _SLOW_GBPS:
            what = f"the fastest has {self.fastest_GBps * 8:g} Gbit/s, as ports for management have"
            self.builder.doubt("NICs", what, "between boxes nothing is faster; pass --nics where others are missing")
        elif self.ports and not self.rdma:
            cost = "data for other boxes passes through the memory of the CPU, which the plan does not count"
            self.builder.doubt("NICs", 'none can reach a GPU\'s memory (gdr="0")', cost)


def _suffix(host: int) -> str:
    return f".{host}" if host else ""


def _join_cpus(builder: Builder, cpus: list[Cpu], names: list[str]) -> None:
    """Every two CPUs of a host, each way at the figure of the CPU that it starts from (ncclTopoConnectCpus)."""
    default = link_default("socket", None, False)
    assert default is not None
    for host in dict.fromkeys(cpu.host for cpu in cpus):
        mine = [cpu for cpu in cpus if cpu.host == host]
        if len(mine) > _MOST_CPUS:
            raise mine[_MOST_CPUS].node.error("numaid", f"CPU {_MOST_CPUS + 1}", f"at most {_MOST_CPUS} CPUs on a host")
    for position, (cpu, name) in enumerate(zip(cpus, names, strict=True)):
        for other, its_name in zip(cpus[position + 1 :], names[position + 1 :], strict=True):
            if cpu.host == other.host:
                builder.link(name, its_name, "socket", cpu.socket_GBps or default.GBps)
                builder.link(its_name, name, "socket", other.socket_GBps or default.GBps)
