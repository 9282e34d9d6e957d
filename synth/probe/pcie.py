"""The PCIe tree of a recording as switches, CPUs and links of a topology.

As NCCL does (src/graph/xml.cc), a switch is its upstream port: the ports between a device and the next switch, and root ports,
are wires. A link's rate is the lanes in use now times the fastest speed that both ends can run: idle GPUs lower their speed, not
their width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from synth.inputs.builder import Builder
from synth.probe.rates import DEFAULT_SOCKET_GBPS, generation_speed, one_switch, pcie_GBps, socket_rate
from synth.probe.recording import Cpu, PciDevice, Recording
from synth.topology import DeviceKind

_AMD = "0x1002"
#: Bridges above a device: real machines have fewer than ten.
_DEEPEST = 64


class Tree:
    """What stands on the PCIe tree so far: ids of switches by the address of their upstream port, of CPUs by NUMA node."""

    def __init__(self, builder: Builder, recording: Recording) -> None:
        self.builder = builder
        self.by_bus = {device.busid: device for device in recording.pci}
        self.gpus = {gpu.busid: gpu for gpu in recording.gpus}
        self.switches: dict[str, str] = {}
        self.cpus: dict[int, str] = {}
        self.untold: set[str] = set()
        self._joined: set[tuple[str, str]] = set()

    def knows(self, busid: str) -> bool:
        return busid in self.by_bus

    def plan(self, busids: Sequence[str]) -> None:
        """Add all switches above some devices, then all CPUs; whoever comes first has the lower number."""
        for busid in busids:
            for switch in self.above(busid):
                if switch.busid not in self.switches:
                    self.switches[switch.busid] = self.builder.add(DeviceKind.PCIE_SWITCH, f"plx{len(self.switches)}")
        for numa in sorted({self.numa_of(busid) for busid in busids}):
            self.cpu(numa)

    def cpu(self, numa: int) -> str:
        """The id of the CPU of a NUMA node, added where it is new."""
        if numa not in self.cpus:
            self.cpus[numa] = self.builder.add(DeviceKind.CPU, f"cpu{len(self.cpus)}")
        return self.cpus[numa]

    def numa_of(self, busid: str) -> int:
        """The NUMA node of a device; node 0, as NCCL takes it, where the kernel does not say."""
        return max(0, self.by_bus[busid].numa)

    def above(self, busid: str) -> list[PciDevice]:
        """The switches between a device and its CPU, the nearest first; those inside a GPU are part of it."""
        chain = self._chain(busid)
        switches = chain[4::2] if _has_own_switch(chain) else chain[2::2]
        merged = {low.busid for low, high in pairwise(switches) if one_switch(high, low)}
        return [switch for switch in switches if switch.busid not in merged]

    def _chain(self, busid: str) -> list[PciDevice]:
        """The device and all bridges above it."""
        chain = [self.by_bus[busid]]
        while chain[-1].parent in self.by_bus and len(chain) < _DEEPEST:
            chain.append(self.by_bus[chain[-1].parent])
        return chain

    def attach(self, device: str, busid: str) -> float:
        """Join a device to its nearest switch or its CPU, and the switches above it to theirs; the device's own GB/s."""
        chain = self._chain(busid)
        own = self.rate(chain[0], device)
        if _has_own_switch(chain):
            own = min(own, self.rate(chain[2], device))
        lower, rate = device, own
        for switch in self.above(busid):
            upper = self.switches[switch.busid]
            self._join(lower, upper, rate)
            lower, rate = upper, self.rate(switch, upper)
        self._join(lower, self.cpu(self.numa_of(busid)), rate)
        return own

    def _join(self, lower: str, upper: str, rate: float) -> None:
        if (lower, upper) not in self._joined:
            self._joined.add((lower, upper))
            self.builder.between(lower, upper, "pcie", rate)

    def rate(self, device: PciDevice, name: str) -> float:
        """GB/s of the link above a device, with what is suspicious about it said of `name`."""
        port = self.by_bus.get(device.parent)
        gpu = self.gpus.get(device.busid)
        speed = device.speed or generation_speed(gpu.pcie_gen if gpu else 0)
        width = device.width or (gpu.pcie_width if gpu else 0)
        fastest = device.max_speed or generation_speed(gpu.pcie_gen_max if gpu else 0) or speed
        widest = device.max_width or (gpu.pcie_width_max if gpu else 0) or width
        if port is not None and (0 < port.max_speed < speed or 0 < port.max_width < width):
            what = "the bridge above it tells a slower link than it runs: a virtual bridge, passed over"
            self.builder.doubt(name, what)
        elif port is not None:
            fastest = min(fastest, port.max_speed or fastest)
            widest = min(widest, port.max_width or widest)
        if not fastest or not widest:
            self.untold.add(name)
            self.builder.doubt(name, "its PCIe link is not told", "generation 3, 16 lanes are taken, as NCCL does")
        self._degraded(name, (width or widest, widest), (speed or fastest, fastest))
        return pcie_GBps(width or widest, fastest)

    def _degraded(self, name: str, lanes: tuple[int, int], speeds: tuple[float, float]) -> None:
        """Say where a link runs below what both of its ends can."""
        (width, widest), (speed, fastest) = lanes, speeds
        full = pcie_GBps(widest, fastest)
        if 0 < width < widest:
            loss = f"{full - pcie_GBps(width, fastest):g} of {full:g} GB/s"
            what = f"PCIe runs on {width} of {widest} lanes (planned so): a badly seated card, riser or slot"
            self.builder.doubt(name, what, loss)
        if 0 < speed < fastest:
            loss = f"{full - pcie_GBps(widest, speed):g} of {full:g} GB/s if it stays so"
            what = (
                f"PCIe runs at {speed:g} of {fastest:g} GT/s (planned with {fastest:g}); idle GPUs do: look under load"
            )
            self.builder.doubt(name, what, loss)


def _has_own_switch(chain: Sequence[PciDevice]) -> bool:
    """Whether a GPU hangs below a switch of its own maker's, which is part of its card (AMD's have one)."""
    return len(chain) > 3 and chain[2].vendor == chain[0].vendor == _AMD


def add_sockets(builder: Builder, cpus: Sequence[Cpu], ids: Mapping[int, str]) -> None:
    """Join the CPUs that hold something, each to each, at NCCL's figure for their model."""
    if len(ids) < 2:
        return
    cpu = cpus[0] if cpus else Cpu(0)
    rate = socket_rate(cpu)
    if rate is None:
        said = f"CPU {cpu.vendor!r}: NCCL has no figure for its sockets" if cpu.vendor else "the CPU is not told"
        builder.doubt("sockets", said, f"{DEFAULT_SOCKET_GBPS:g} GB/s are taken, those of a Xeon of 2017")
    order = [ids[numa] for numa in sorted(ids)]
    for position, one in enumerate(order):
        for other in order[position + 1 :]:
            builder.between(one, other, "socket", DEFAULT_SOCKET_GBPS if rate is None else rate)
