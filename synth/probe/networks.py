"""NICs of a recording as devices of a topology: those that NCCL would use, a device for each card, and one network."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from synth.inputs.builder import Builder
from synth.inputs.nccl_links import net_speed_doubt
from synth.probe.pcie import Tree
from synth.probe.rates import DEFAULT_NET_GBPS
from synth.probe.recording import Nic, PciDevice, Port, Recording
from synth.topology import DeviceKind

#: A port of 100 Gbit/s on 16 lanes of generation 3 (12.5 and 12.0 GB/s) is a good match, not a fault.
_ROUNDING = 1.1


@dataclass(frozen=True)
class Card:
    """The NICs of one PCI slot that have a port in use: its functions share the slot's PCIe link (as NCCL merges them)."""

    busid: str
    nics: tuple[Nic, ...]

    @property
    def ports(self) -> tuple[Port, ...]:
        return tuple(port for nic in self.nics for port in nic.ports if port.state == "active")

    @property
    def names(self) -> str:
        return "+".join(nic.name for nic in self.nics)


def usable_cards(builder: Builder, recording: Recording) -> list[Card]:
    """The cards that data can leave the box by, in the order of their addresses; who is left out is said.

    NCCL uses Ethernet interfaces only where there is no RDMA device.
    """
    by_bus = {device.busid: device for device in recording.pci}
    rdma = [nic for nic in recording.nics if nic.kind != "ethernet"]
    wired = [nic for nic in recording.nics if nic.kind == "ethernet"]
    chosen = [nic for nic in rdma or wired if _usable(builder, nic, by_bus, {nic.busid for nic in rdma or wired})]
    slots: dict[str, list[Nic]] = defaultdict(list)
    for nic in chosen:
        slots[nic.busid.rpartition(".")[0]].append(nic)
    cards = [Card(min(nic.busid for nic in nics), tuple(nics)) for nics in slots.values()]
    return sorted(cards, key=lambda card: card.busid)


def _usable(builder: Builder, nic: Nic, by_bus: dict[str, PciDevice], others: set[str]) -> bool:
    rate = sum(port.Gbps for port in nic.ports) / 8
    cost = f"{rate:g} GB/s to other boxes" if rate else "what it carries to other boxes"
    if not any(port.state == "active" for port in nic.ports):
        states = ", ".join(dict.fromkeys(port.state or "unknown" for port in nic.ports)) or "no port"
        if nic.kind != "ethernet":
            builder.doubt(nic.name, f"no port is active ({states}): left out", cost)
        return False
    if nic.busid not in by_bus:
        builder.doubt(nic.name, "its place on the PCIe tree is hidden: left out", cost)
        return False
    device = by_bus[nic.busid]
    if device.physfn in others:
        builder.doubt(nic.name, f"a virtual function of {device.physfn}, which is here too: left out")
        return False
    if device.vfs:
        builder.doubt(
            nic.name,
            f"its ports are shared with {device.vfs} virtual functions",
            "less than its rate, if they are used",
        )
    return True


def add_nics(builder: Builder, tree: Tree, cards: Sequence[Card]) -> None:
    """Add a NIC for each card, its PCIe link, and one network that all reach at their ports' rate."""
    ids = {card.busid: builder.add(DeviceKind.NIC, f"nic{number}") for number, card in enumerate(cards)}
    network = builder.add(DeviceKind.NETWORK, "network") if cards else ""
    for card in cards:
        name = ids[card.busid]
        own = tree.attach(name, card.busid)
        rates = [_port_GBps(builder, f"{name} ({card.names})", port) for port in card.ports]
        total = sum(rates)
        count = len(rates) if len(set(rates)) == 1 else 1
        builder.between(name, network, "network", total, count=count)
        if total > _ROUNDING * own and name not in tree.untold:
            what = f"its ports carry {total:g} GB/s, its PCIe link {own:g}"
            builder.doubt(f"{name} ({card.names})", what, f"{total - own:g} GB/s of its ports cannot be used")
    if len(cards) > 1:
        cost = "on a network of rails, GPUs of different rails share no switch; join nodes by a cluster file then"
        builder.doubt(
            "network", f"{len(cards)} NICs: taken to reach one network; a machine cannot see its cables", cost
        )


def _port_GBps(builder: Builder, name: str, port: Port) -> float:
    mbps = round(port.Gbps * 1000)
    if mbps <= 0:
        builder.doubt(name, "a port does not tell its rate", f"{DEFAULT_NET_GBPS:g} GB/s are taken, as NCCL does")
        return DEFAULT_NET_GBPS
    if why := net_speed_doubt("", mbps):
        builder.doubt(name, why, f"the plan takes {port.Gbps / 8:g} GB/s")
    return port.Gbps / 8
