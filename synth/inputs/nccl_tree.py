"""The parts that NCCL topology XML names, as values: CPUs with their PCI trees, GPUs, nets. What is hard to believe about a single
element is said here; what it adds up to is the business of `synth.inputs.nccl_build`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from synth.inputs.builder import Builder
from synth.inputs.nccl_links import (
    DEFAULT_NET_MBPS,
    PciKind,
    amd_arch,
    net_is_virtual,
    net_is_wireless,
    net_speed_doubt,
    pci_kind,
    pcie_GBps,
    pcie_meant_GBps,
    socket_GBps,
)
from synth.inputs.nccl_xml import Node

_MOST_LANES = 64
_MOST_RANKS = 1_000_000
_MOST_LATENCY_US = 1e6
#: Bounds that no unit explains: 8 Pbit/s of a net, 10 TB/s of a link to the CPU.
_MOST_MBPS = 8_000_000_000
_MOST_C2C_MBPS = 10_000_000
_SAME_RATE = 1e-6
_LEFT_OUT = "NCCL may count it all the same; NCCL_IB_HCA and NCCL_SOCKET_IFNAME tell it which to use"
_CLASS_EXPECTED = (
    'a class that tells GPUs ("0x030200") from NICs ("0x020000") and bridges ("0x060400"); pass the file that '
    "NCCL_TOPO_DUMP_FILE writes on the running machine, or add the classes"
)


@dataclass(frozen=True)
class NvLink:
    """`count` links (xGMI where `xgmi`) to the device `target` of class `kind`."""

    node: Node
    target: str
    count: int
    kind: PciKind
    xgmi: bool


@dataclass(frozen=True)
class Gpu:
    """What <gpu> says; rank is None where it does not. `c2c_GBps` is that of its link to the CPU, 0 for none."""

    rank: int | None
    arch: str
    nvlinks: tuple[NvLink, ...] = ()
    c2c_GBps: float = 0.0


@dataclass(frozen=True)
class Net:
    """A port: its line rate in GB/s, and its latency in us where the file knows one (else 0)."""

    node: Node
    name: str
    GBps: float
    latency_us: float
    rdma: bool


@dataclass(frozen=True)
class Pci:
    """A PCI device with its connection upwards: the rate NCCL reads and the number of lanes.

    `gpu` is None for what is no GPU, or one by its class alone. `nets` are the ports of a NIC, all functions of a card together.
    """

    node: Node
    bus: str
    kind: PciKind
    GBps: float
    lanes: int
    device: int
    gpu: Gpu | None
    nets: tuple[Net, ...]
    children: tuple[Pci, ...]

    def below(self) -> Iterator[Pci]:
        """Itself and everything under it, in the order of the file."""
        yield self
        for child in self.children:
            yield from child.below()


@dataclass(frozen=True)
class Cpu:
    """A NUMA node of a host; `socket_GBps` None for a CPU that NCCL does not know."""

    node: Node
    host: str
    numa: int
    socket_GBps: float | None
    pcis: tuple[Pci, ...]
    nets: tuple[Net, ...]

    def devices(self) -> Iterator[Pci]:
        """All PCI devices of the tree, in the order of the file."""
        for pci in self.pcis:
            yield from pci.below()


def read_cpus(system: Node, builder: Builder) -> list[Cpu]:
    """All CPUs of the file in order; raises InputError for what NCCL could not read either."""
    reader = _Reader(builder)
    reader.pass_over(system, ("cpu",))
    return [reader.cpu(node) for node in system.children("cpu")]


@dataclass
class _Reader:
    """Where doubts go, and the nets met so far: NCCL lists those that it finds on no device under every CPU."""

    builder: Builder
    met: set[tuple[str, ...]] = field(default_factory=set)

    def pass_over(self, node: Node, known: tuple[str, ...]) -> None:
        """Say which children have no meaning here."""
        for child in node.children():
            if child.tag not in known:
                self.builder.doubt(
                    f"<{child.tag[:40]}>", "an element without a meaning here, passed over", line=child.line
                )

    def cpu(self, node: Node) -> Cpu:
        numa = node.integer("numaid", -1, 4095)
        host = node.text("host_hash")
        if numa < 0:
            cost = "whether its devices are on one socket cannot be told"
            self.builder.doubt(node.where, "numaid -1: the NUMA node is unknown", cost, line=node.line)
        if host and _hex(host) is None:
            cost = "NCCL takes all such hosts for one; they are told apart by the text here"
            self.builder.doubt("<cpu>", "host_hash is no hexadecimal number", cost, line=node.line)
        self.pass_over(node, ("pci", "nic"))
        rate = self.socket(node)
        pcis = _cards(self.pci(child, host) for child in node.children("pci"))
        nets = tuple(net for nic in node.children("nic") for net in self.nets(nic, host))
        return Cpu(node, host, numa, rate, pcis, nets)

    def socket(self, node: Node) -> float | None:
        if not node.text("affinity"):
            self.builder.doubt("<cpu>", "no affinity: NCCL cannot bind its threads near the GPU", line=node.line)
        arch, vendor = node.text("arch"), node.text("vendor")
        family, model = node.integer("familyid", -1, default=0), node.integer("modelid", -1, default=0)
        rate = socket_GBps(arch, vendor, family, model)
        if rate is None:
            said = ", ".join(f"{key} {node.text(key)[:24]!r}" for key in ("arch", "vendor") if node.has(key))
            cost = "NCCL takes its link to another CPU for unlimited; 10.0 GB/s, those of a Skylake Xeon, are used here"
            self.builder.doubt("<cpu>", f"{said or 'no arch'}: a CPU that NCCL does not know", cost, line=node.line)
        return rate

    def pci(self, node: Node, host: str) -> Pci:
        gpu, nics = next(node.children("gpu"), None), list(node.children("nic"))
        if not node.text("busid"):
            raise node.error("busid", "missing", "the device's PCI bus id, such as 0000:3b:00.0")
        if not node.has("class") and gpu is None and not nics and next(node.children("pci"), None) is None:
            raise node.error("class", "missing", _CLASS_EXPECTED)
        kind = PciKind.GPU if gpu is not None else PciKind.NIC if nics else pci_kind(node.text("class"))
        width, speed = node.integer("link_width", 0, _MOST_LANES, default=0), node.text("link_speed")
        self.speed(node, width, speed)
        self.pass_over(node, ("pci", "gpu", "nic"))
        children = node.children("pci") if kind is PciKind.BRIDGE else ()
        return Pci(
            node,
            node.text("busid").lower(),
            kind,
            pcie_GBps(width, speed),
            width or 16,
            _device_id(node),
            None if gpu is None else self.gpu(gpu),
            tuple(net for nic in nics for net in self.nets(nic, host)),
            _cards(self.pci(child, host) for child in children),
        )

    def speed(self, node: Node, width: int, speed: str) -> None:
        read, meant = pcie_GBps(width, speed), pcie_meant_GBps(width, speed)
        if meant is None:
            said = f"link_speed {speed[:24]!r}" if speed else "no link_speed"
            cost = "NCCL takes generation 3, 12.0 GB/s for 16 lanes, and so does the plan"
            self.builder.doubt("<pci> " + node.text("busid"), f"{said}: the PCIe rate is unknown", cost, line=node.line)
        elif abs(meant - read) > _SAME_RATE:
            cost = f"NCCL reads {read:g} GB/s, and so does the plan, where {meant:g} are meant"
            what = f"link_speed {speed[:24]!r} is spelled as NCCL does not know it"
            self.builder.doubt("<pci> " + node.text("busid"), what, cost, line=node.line)

    def gpu(self, node: Node) -> Gpu:
        nvlinks = tuple(_nvlink(child) for child in node.children("nvlink", "xgmi"))
        amd = node.has("gcn") or any(link.xgmi for link in nvlinks)
        if amd:
            arch, said = amd_arch(node.text("gcn")), f"gcn {node.text('gcn')[:24]!r} is no architecture known"
        else:
            arch, said = f"sm_{node.integer('sm', 10, 999)}" if node.has("sm") else "", "no sm"
        if not arch:
            cost = "a link of it counts as one of a GPU that NCCL does not know; pass --arch, such as sm_90 or gfx942"
            self.builder.doubt("<gpu>", said if node.has("gcn") or not amd else "no gcn", cost, line=node.line)
        c2c = sum(
            child.integer("bw", 0, _MOST_C2C_MBPS) * child.integer("count", 0, 100) / 1000
            for child in node.children("c2c")
        )
        self.pass_over(node, ("nvlink", "xgmi", "c2c"))
        rank = node.integer("rank", 0, _MOST_RANKS) if node.has("rank") else None
        return Gpu(rank, arch, nvlinks, c2c)

    def nets(self, nic: Node, host: str) -> Iterator[Net]:
        """The nets of a <nic> that data can leave the box by; what is left out is said."""
        self.pass_over(nic, ("net",))
        for node in nic.children("net"):
            name, known = node.text("name") or "nic", tuple(node.text(key) for key in ("name", "guid", "port", "dev"))
            if not node.has("dev"):
                self.builder.doubt(node.where, "no dev: left out, as NCCL does", line=node.line)
            elif net_is_virtual(name):
                self.builder.doubt("<net> " + name, "a virtual interface, left out", _LEFT_OUT, line=node.line)
            elif net_is_wireless(name):
                self.builder.doubt("<net> " + name, "a wireless interface, left out", _LEFT_OUT, line=node.line)
            elif (host, *known) in self.met:
                cost = "taken once, where it stands first"
                self.builder.doubt("<net> " + name, "the same net under several devices", cost, line=node.line)
            else:
                self.met.add((host, *known))
                yield self.net(node, name)

    def net(self, node: Node, name: str) -> Net:
        mbps = node.integer("speed", -1, _MOST_MBPS, default=0)
        if mbps <= 0:
            mbps = DEFAULT_NET_MBPS
            cost = "NCCL takes 10 Gbit/s, and so does the plan; pass --nics"
            self.builder.doubt("<net> " + name, "no speed", cost, line=node.line)
        elif why := net_speed_doubt(name, mbps):
            cost = f"the plan takes {mbps / 8000:g} GB/s for it, as NCCL does; pass --nics to say otherwise"
            self.builder.doubt("<net> " + name, why, cost, line=node.line)
        try:
            latency_us = float(node.text("latency") or 0)
        except ValueError:
            raise node.error("latency", node.text("latency"), "a number of us") from None
        known = 0 < latency_us < _MOST_LATENCY_US
        return Net(node, name, mbps / 8000, latency_us if known else 0.0, node.text("gdr").strip() == "1")


def _nvlink(node: Node) -> NvLink:
    kind = pci_kind(node.text("tclass")) if node.text("tclass") else PciKind.GPU
    return NvLink(node, node.text("target").lower(), node.integer("count", 0, 10_000), kind, node.tag == "xgmi")


def _cards(pcis: Iterable[Pci]) -> tuple[Pci, ...]:
    """Functions of one card (bus ids that differ after the dot) as one device: they share its connection."""
    cards: dict[str, Pci] = {}
    for pci in pcis:
        key = pci.bus.rpartition(".")[0] if pci.kind is PciKind.NIC else f"{pci.bus} {len(cards)}"
        card = cards.get(key)
        cards[key] = pci if card is None else replace(card, nets=card.nets + pci.nets)
    return tuple(cards.values())


def _device_id(node: Node) -> int:
    identity = 0
    for key in ("vendor", "device", "subsystem_vendor", "subsystem_device"):
        identity = identity << 16 | (_hex(node.text(key)) or 0) & 0xFFFF
    return identity


def _hex(text: str) -> int | None:
    try:
        return int(text, 16) if len(text) <= 40 else None
    except ValueError:
        return None
