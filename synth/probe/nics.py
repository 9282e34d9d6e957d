"""Network cards as the kernel lists them: RDMA devices (InfiniBand, RoCE, others) and Ethernet interfaces."""

from __future__ import annotations

import re
from pathlib import Path

from synth.probe.recording import Nic, Port
from synth.probe.redact import Redactor
from synth.probe.sysfs import address_of, names_in, read_number, read_text

_LAYERS = {"InfiniBand": "infiniband", "Ethernet": "roce"}


def read_nics(root: Path, redactor: Redactor) -> tuple[Nic, ...]:
    """All NICs on the PCI bus below `root`: RDMA devices first, then interfaces; virtual and wireless ones are left out."""
    return (*_rdma_devices(root, redactor), *_interfaces(root, redactor))


def _rdma_devices(root: Path, redactor: Redactor) -> list[Nic]:
    found: list[Nic] = []
    folder = root / "sys/class/infiniband"
    for name in names_in(folder):
        busid = address_of(folder / name / "device")
        ports: list[Port] = []
        layers: set[str] = set()
        for number in names_in(folder / name / "ports"):
            port = folder / name / "ports" / number
            layers.add(read_text(port / "link_layer"))
            if number.isdecimal() and len(number) < 4:
                ports.append(Port(int(number), _state(read_text(port / "state")), _rate(read_text(port / "rate"))))
        kind = _LAYERS.get(layers.pop(), "rdma") if len(layers) == 1 else "rdma"
        found.append(Nic(redactor.name(name, "rdma"), kind, busid, tuple(ports)))
    return found


def _interfaces(root: Path, redactor: Redactor) -> list[Nic]:
    found: list[Nic] = []
    folder = root / "sys/class/net"
    for name in names_in(folder):
        busid = address_of(folder / name / "device")
        if not busid or (folder / name / "wireless").exists() or (folder / name / "phy80211").exists():
            continue
        state = read_text(folder / name / "operstate")
        mbps = max(0, read_number(folder / name / "speed", 0))
        port = Port(1, "active" if state == "up" else "down", mbps / 1000)
        found.append(Nic(redactor.name(name, "net"), "ethernet", busid, (port,)))
    return found


def _state(text: str) -> str:
    """The word of "4: ACTIVE"."""
    match = re.search(r"[A-Z_]{2,20}", text)
    return match[0].lower() if match else ""


def _rate(text: str) -> float:
    """Gbit/s of "400 Gb/sec (4X NDR)"."""
    match = re.match(r"(\d{1,6}(?:\.\d{1,3})?) Gb/sec", text)
    return float(match[1]) if match else 0.0
