"""Our topology to an NCCL topology file: what NCCL_TOPO_FILE takes (RCCL's dialect where links are xGMI).

NCCL's format is a tree of CPUs, PCI devices, GPUs and ports with counts and speeds; rates follow from the rules of its
`src/graph/topo.cc`. So it has no place for latencies, for rates that those rules do not give, or for connections beside the tree.
What is lost or made up on the way is told, each as a doubt.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from xml.sax.saxutils import quoteattr

from synth.doubts import Doubt
from synth.inputs.builder import told_once
from synth.inputs.nccl_links import nvlink_GBps
from synth.inputs.nccl_spell import affinity, arch_by_rate, cpu_words, gpu_words, pcie_words
from synth.topo_layout import Place, forest
from synth.topology import Device, DeviceKind, Link, Topology

#: Where NCCL's rates and ours agree to this share, nothing is said.
_SAME = 0.005
#: A connection this fast is none: NCCL's LOC_BW is 5000 GB/s.
_LOCAL_GBPS = 1000.0
_GPU_CLASS, _AMD_CLASS, _BRIDGE_CLASS, _SWITCH_CLASS = "0x030200", "0x038000", "0x060400", "0x068000"
_NIC_CLASS = "0x020700"
_FABRIC = ("nvlink", "xgmi")
#: NCCL's own reader knows no entities, and no text of more than 255 characters.
_CPU_NUMBER = re.compile(r"[A-Za-z_-]+([0-9]{1,3})(?:\.[0-9]+)?")
_UNSAFE = re.compile(r"[^A-Za-z0-9_.:+-]")


def to_nccl_xml(topology: Topology) -> tuple[str, tuple[Doubt, ...]]:
    """(the file, what it does not say as the topology does). Always the same bytes for the same topology.

    Bus ids are made up: NCCL finds its GPUs and NICs in the file by them, so before it is used on a machine they have to be
    replaced by the machine's own (`nvidia-smi -L`, `lspci`).
    """
    writer = _Writer(topology)
    amd = any(link.kind == "xgmi" for link in topology.links)
    lines = [f'<system version="{2 if amd else 1}">']
    for node in sorted({device.node for device in topology.devices} - {-1}):
        lines += writer.box(node)
    writer.say_rest()
    return "\n".join([*lines, "</system>", ""]), told_once(writer.doubts)


@dataclass
class _Writer:
    """Writes box by box; `told` are the links that the file holds, `bus` the bus id of each GPU, NIC and switch."""

    topology: Topology
    doubts: list[Doubt] = field(default_factory=list)
    bus: dict[str, str] = field(default_factory=dict)
    told: set[Link] = field(default_factory=set)
    ports: int = 0

    def __post_init__(self) -> None:
        devices = [device for device in self.topology.devices if device.kind is not DeviceKind.CPU]
        for number, device in enumerate(devices, 1):
            self.bus[device.id] = f"{number >> 8:04x}:{number & 255:02x}:00.0"
        self.say("bus ids", "made up: NCCL finds its devices by them", "replace them by the machine's own before use")
        self.say(
            "latencies", "NCCL's format has none", "left out: synth's defaults are used where the file is read back"
        )

    def say(self, where: str, what: str, cost: str = "") -> None:
        self.doubts.append(Doubt(where, what, cost))

    def box(self, node: int) -> list[str]:
        """The <cpu> elements of one box, in order; an invented one where it has none."""
        roots = forest(self.topology, node)
        cpus = [root for root in roots if root.kind is DeviceKind.CPU]
        loose = [root for root in roots if root.kind is not DeviceKind.CPU]
        if not cpus:
            self.say(f"node {node}", "no CPU, which NCCL's format cannot do without: one is made up")
            cpus = [Place("", DeviceKind.CPU)]
        if loose:
            names = ", ".join(place.id for place in loose[:8]) + (", ..." if len(loose) > 8 else "")
            self.say(names, "not connected to a CPU: written below the first, at NCCL's default of PCIe generation 3")
        what = self.processor(node)
        lines: list[str] = []
        for position, (cpu, number) in enumerate(zip(cpus, _numa_nodes(cpus), strict=True)):
            below = (*cpu.below, *(loose if position == 0 else ()))
            host = f' host_hash="0x{node + 1:x}"' if self.topology.num_nodes > 1 else ""
            lines.append(f'  <cpu{host} numaid="{number}" affinity="{affinity(number)}" {what}>')
            for child in below:
                lines += self.device(child, cpu.id, 2)
            lines.append("  </cpu>")
        return lines

    def processor(self, node: int) -> str:
        """The CPU whose connection to others NCCL takes for the box's; says what is not as in the topology."""
        cpus = [device.id for device in self.topology.devices if device.kind is DeviceKind.CPU and device.node == node]
        links = [link for link in self.topology.links if link.src in cpus and link.dst in cpus]
        self.told |= set(links)
        rates = sorted({link.GBps for link in links})
        words, rate = cpu_words(rates[0] if rates else None, any(link.kind == "c2c" for link in self.topology.links))
        if len(rates) > 1 or (rates and abs(rate - rates[0]) > _SAME * rates[0]):
            told = " and ".join(f"{value:g}" for value in rates)
            cost = f"NCCL takes {rate:g} for the CPU that is written"
            self.say("sockets", f"{told} GB/s between CPUs of node {node}", cost)
        if len(links) < len(cpus) * (len(cpus) - 1):
            self.say("sockets", f"not every two CPUs of node {node} are linked", "NCCL links all with all")
        return words

    def device(self, place: Place, parent: str, depth: int) -> list[str]:
        """The element of a device and of what hangs below it."""
        if place.kind is DeviceKind.GPU:
            return self.gpu(place, parent, depth)
        if place.kind is DeviceKind.NIC:
            return self.nic(place.id, parent, depth)
        if place.below and all(self.is_port_of_card(child, place.id) for child in place.below):
            return self.card(place, parent, depth)
        inner = [line for child in place.below for line in self.device(child, place.id, depth + 1)]
        return [self.pci(place.id, parent, _BRIDGE_CLASS, depth, ">"), *inner, f"{'  ' * depth}</pci>"]

    def pci(self, id_: str, parent: str, pci_class: str, depth: int, end: str) -> str:
        """The opening <pci> of a device, with the speed of its connection upwards."""
        up = [link for link in self.links(id_, parent) if link.kind != "c2c"]
        speed = ' link_speed="" link_width="0"'
        if not up and self.links(id_, parent):
            self.say(id_, "no PCIe connection, which NCCL's format cannot do without", "written as generation 3")
        if up:
            rate = sum(link.GBps for link in up)
            words, read = pcie_words(rate)
            speed = f" {words}"
            if abs(read - rate) > _SAME * rate:
                self.say(f"{id_}-{parent}", f"{rate:g} GB/s", f"written as {read:g}, the nearest that PCIe has")
            self.hold(id_, parent, "c2c")
        return f'{"  " * depth}<pci busid="{self.bus[id_]}" class="{pci_class}"{speed}{end}'

    def links(self, src: str, dst: str) -> list[Link]:
        return [link for link in self.topology.links if (link.src, link.dst) == (src, dst)]

    def hold(self, a: str, b: str, but: str) -> None:
        """Note that the file holds what lies between two devices, but links of one kind; say it where the directions differ."""
        there = [link for link in self.links(a, b) if link.kind != but]
        back = [link for link in self.links(b, a) if link.kind != but]
        self.told |= {*there, *back}
        rates = [sum(link.GBps for link in way) for way in (there, back)]
        if abs(rates[0] - rates[1]) > _SAME * max(rates):
            self.say(
                f"{a}-{b}", f"{rates[0]:g} GB/s one way, {rates[1]:g} the other", f"written as {rates[0]:g} both ways"
            )

    def gpu(self, place: Place, parent: str, depth: int) -> list[str]:
        device = self.topology.by_id[place.id]
        amd = self.arch(device).startswith("gfx")
        pad = "  " * (depth + 1)
        inner = [*self.nvlinks(device), *self.c2c(place.id, parent)]
        attributes = f'dev="{self.number(device)}" {self.model(device)} rank="{device.rank}" gdr="1"'
        lines = [self.pci(place.id, parent, _AMD_CLASS if amd else _GPU_CLASS, depth, ">")]
        lines += [f"{pad}<gpu {attributes}>", *(f"{pad}  {line}" for line in inner), f"{pad}</gpu>"]
        lines.append(f"{'  ' * depth}</pci>")
        for child in place.below:
            self.say(
                child.id,
                f"on {place.id} itself",
                "NCCL's format has NICs on PCIe or a CPU only: written beside the GPU",
            )
            lines += self.nic(child.id, "", depth)
        return lines

    def number(self, device: Device) -> int:
        mine = [gpu.id for gpu in self.topology.gpus if gpu.node == device.node]
        return mine.index(device.id)

    def model(self, device: Device) -> str:
        """`sm`, and `gcn` for AMD."""
        arch = self.arch(device)
        if not device.arch:
            self.say(device.id, "architecture unknown, which NCCL's format cannot do without", f"written as {arch}")
        words = gpu_words(arch)
        if words.startswith('sm="1" '):
            self.say(device.id, f"{arch}: its number of compute units is not known", 'written as sm="1"')
        return words

    def arch(self, device: Device) -> str:
        """A GPU's architecture; of one without, that whose links have its rate."""
        if device.arch:
            return device.arch
        own = [link for link in self.topology.links if link.src == device.id and link.kind in _FABRIC]
        rate = max((link.GBps / link.count for link in own), default=None)
        return arch_by_rate("xgmi" if any(link.kind == "xgmi" for link in own) else "nvlink", rate)

    def nvlinks(self, device: Device) -> list[str]:
        """Links to GPUs, switches and CPUs, one way each as NCCL has them."""
        lines = []
        for link in self.topology.links:
            other = self.topology.by_id[link.dst]
            if link.src != device.id or link.kind not in _FABRIC:
                continue
            if other.kind not in (DeviceKind.GPU, DeviceKind.NVSWITCH):
                continue
            if other.node != device.node and other.kind is DeviceKind.GPU:
                continue
            self.told.add(link)
            self.told |= {back for back in self.links(other.id, device.id) if other.kind is DeviceKind.NVSWITCH}
            self.say_rate(link, device)
            gpu_class = _AMD_CLASS if self.arch(device).startswith("gfx") else _GPU_CLASS
            target_class = gpu_class if other.kind is DeviceKind.GPU else _SWITCH_CLASS
            lines.append(f'<{link.kind} target="{self.bus[other.id]}" count="{link.count}" tclass="{target_class}"/>')
        return lines

    def say_rate(self, link: Link, device: Device) -> None:
        arch = self.arch(device)
        rate = nvlink_GBps(arch) * link.count
        if abs(rate - link.GBps) > _SAME * rate:
            self.say(
                link.kind, f"{link.GBps / link.count:g} GB/s a link", f"NCCL takes {rate / link.count:g} for {arch}"
            )

    def c2c(self, gpu: str, parent: str) -> list[str]:
        links = [link for link in self.links(gpu, parent) if link.kind == "c2c"]
        self.told |= {*links, *(back for back in self.links(parent, gpu) if back.kind == "c2c")}
        return [f'<c2c bw="{round(link.GBps * 1000 / link.count)}" count="{link.count}"/>' for link in links]

    def nic(self, id_: str, parent: str, depth: int) -> list[str]:
        """A NIC as a PCI device with its port, or as one of the CPU's where its connection limits nothing."""
        pad = "  " * depth
        port = self.port(id_)
        up = sum(link.GBps for link in self.links(id_, parent))
        if port and up >= _LOCAL_GBPS and self.topology.by_id[parent].kind is DeviceKind.CPU:
            self.hold(id_, parent, "c2c")
            return [f"{pad}<nic>", f"{pad}  {port}", f"{pad}</nic>"]
        if not port:
            return [self.pci(id_, parent, _NIC_CLASS, depth, "/>")]
        opening = self.pci(id_, parent, _NIC_CLASS, depth, ">")
        return [opening, f"{pad}  <nic>", f"{pad}    {port}", f"{pad}  </nic>", f"{pad}</pci>"]

    def is_port_of_card(self, place: Place, card: str) -> bool:
        """Whether a device is a NIC with nothing but the card itself between it and a switch."""
        width = sum(link.GBps for link in self.links(place.id, card))
        return place.kind is DeviceKind.NIC and width >= _LOCAL_GBPS and any(self.lines(place.id))

    def card(self, place: Place, parent: str, depth: int) -> list[str]:
        """A switch that is no more than a card of several ports: one PCI device for NCCL."""
        pad = "  " * depth
        ports = []
        for child in place.below:
            self.hold(child.id, place.id, "")
            ports.append(f"{pad}    {self.port(child.id)}")
        opening = self.pci(place.id, parent, _NIC_CLASS, depth, ">")
        return [opening, f"{pad}  <nic>", *ports, f"{pad}  </nic>", f"{pad}</pci>"]

    def lines(self, nic: str) -> list[Link]:
        """A NIC's links to networks."""
        nets = {device.id for device in self.topology.devices if device.kind is DeviceKind.NETWORK}
        return [link for link in self.topology.links if link.src == nic and link.dst in nets]

    def port(self, id_: str) -> str:
        """The <net> of a NIC, "" for one that leads to no network."""
        lines = self.lines(id_)
        if not lines:
            return ""
        for link in lines:
            self.hold(id_, link.dst, "")
        if len(lines) > 1:
            self.say(id_, f"on {len(lines)} networks", "NCCL's format has one line rate a port: their sum")
        node = self.topology.by_id[id_].node
        name = _UNSAFE.sub("_", id_.removesuffix(f".{node}"))[:100]
        mbps = round(sum(link.GBps for link in lines) * 8000)
        number = self.ports
        self.ports += 1
        attributes = f'dev="{number}" speed="{mbps}" port="1" guid="0x{number + 1:x}" maxconn="131072" gdr="1"'
        return f"<net name={quoteattr(name)} {attributes}/>"

    def say_rest(self) -> None:
        """Say which links the file does not hold, and which devices it cannot tell apart."""
        left = {
            frozenset((link.src, link.dst)): f"{link.src}-{link.dst}"
            for link in self.topology.links
            if link not in self.told
        }
        if left:
            names = list(left.values())
            more = f" and {len(names) - 8} more" if len(names) > 8 else ""
            self.say(
                ", ".join(names[:8]) + more,
                "beside the tree of CPUs and PCIe",
                "left out: NCCL's format has no such links",
            )
        if any(link.gap_us for link in self.topology.links):
            self.say("gap_us", "NCCL's format has none", "left out")
        for kind, fate in ((DeviceKind.NVSWITCH, "NVSwitches"), (DeviceKind.NETWORK, "networks")):
            count = sum(device.kind is kind for device in self.topology.devices)
            if count > 1:
                self.say(fate, f"{count} of them", "NCCL takes all for one")
        if self.topology.num_nodes > 1:
            self.say(
                "boxes",
                f"{self.topology.num_nodes} of them",
                "NCCL reads a file of several hosts for one NVLink domain only",
            )


def _numa_nodes(cpus: Sequence[Place]) -> list[int]:
    """Numbers for CPUs: those that end their names ("cpu3", "cpu3.1" of box 1), or else their places."""
    found = [_CPU_NUMBER.fullmatch(cpu.id) for cpu in cpus]
    numbers = [int(match[1]) for match in found if match]
    return numbers if len(set(numbers)) == len(cpus) else list(range(len(cpus)))
