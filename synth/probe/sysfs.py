"""What the kernel's files tell: the PCIe tree above some devices, NUMA nodes and CPUs.

Everything is read below a root directory ("/" on a real machine). A file that is not there, or that may not be read, tells
nothing; it is never an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from synth.probe.nvml import clean
from synth.probe.recording import Cpu, PciDevice

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_HEX = re.compile(r"0x[0-9a-f]{1,8}")
_NUMBER = re.compile(r"-?\d{1,12}")
#: Bytes of a file that are looked at; /proc/cpuinfo repeats itself for every processor.
_MAX_BYTES = 65_536


def read_text(path: Path) -> str:
    """The beginning of a small file, "" where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(_MAX_BYTES).decode("utf-8", "replace").strip()
    except OSError:
        return ""


def read_number(path: Path, default: int) -> int:
    """The whole number that a file begins with."""
    match = _NUMBER.match(read_text(path))
    return int(match[0]) if match else default


def names_in(path: Path) -> list[str]:
    """The names in a directory, numbers in them in the order of numbers; none where it cannot be read."""
    try:
        names = [entry.name for entry in path.iterdir()]
    except OSError:
        return []
    return sorted(names, key=_by_numbers)


def _by_numbers(name: str) -> list[tuple[bool, int, str]]:
    parts = re.findall(r"[0-9]{1,18}|[^0-9]+", name)
    return [(False, int(part), "") if part[0] in "0123456789" else (True, 0, part) for part in parts]


def address_of(path: Path) -> str:
    """The PCI address of the device that a link `.../device` stands for: the last one on its way; "" if none."""
    try:
        resolved = path.resolve(strict=True)
    except (OSError, RuntimeError):
        return ""
    return next((part for part in reversed(resolved.parts) if _ADDRESS.fullmatch(part)), "")


def read_pci(root: Path, busids: Iterable[str]) -> tuple[PciDevice, ...]:
    """The devices of some PCI addresses with all bridges above them, each once, in the order of their addresses."""
    found: dict[str, PciDevice] = {}
    for busid in busids:
        try:
            path = (root / "sys/bus/pci/devices" / busid).resolve(strict=True) if _ADDRESS.fullmatch(busid) else None
        except (OSError, RuntimeError):
            path = None
        while path is not None and _ADDRESS.fullmatch(path.name) and path.name not in found:
            device = _pci_device(path)
            found[device.busid] = device
            path = path.parent if device.parent else None
    return tuple(sorted(found.values(), key=lambda device: device.busid))


def _pci_device(path: Path) -> PciDevice:
    above = path.parent.name
    physfn = path / "physfn"
    return PciDevice(
        busid=path.name,
        parent=above if _ADDRESS.fullmatch(above) else "",
        root="" if _ADDRESS.fullmatch(above) else clean(above),
        pci_class=_hex(path / "class"),
        vendor=_hex(path / "vendor"),
        device=_hex(path / "device"),
        subsystem_vendor=_hex(path / "subsystem_vendor"),
        subsystem_device=_hex(path / "subsystem_device"),
        speed=_speed(path / "current_link_speed"),
        max_speed=_speed(path / "max_link_speed"),
        width=_width(path / "current_link_width"),
        max_width=_width(path / "max_link_width"),
        numa=max(-1, read_number(path / "numa_node", -1)),
        vfs=max(0, read_number(path / "sriov_numvfs", 0)),
        physfn=address_of(physfn) if physfn.is_symlink() else "",
    )


def _hex(path: Path) -> str:
    match = _HEX.match(read_text(path))
    return match[0] if match else ""


def _speed(path: Path) -> float:
    """GT/s of "16.0 GT/s PCIe"; 0 for "Unknown" and for nothing."""
    match = re.match(r"(\d{1,4}(?:\.\d{1,3})?) GT/s", read_text(path))
    return float(match[1]) if match else 0.0


def _width(path: Path) -> int:
    width = read_number(path, 0)
    return width if 0 < width <= 32 else 0  # 255 and 63 stand for "unknown"


def read_cpus(root: Path) -> tuple[Cpu, ...]:
    """A CPU for each NUMA node that has processors; one, of node 0, where the kernel tells of no nodes."""
    vendor, family, model = _cpu_model(read_text(root / "proc/cpuinfo"))
    nodes = root / "sys/devices/system/node"
    found: list[Cpu] = []
    for name in names_in(nodes):
        if re.fullmatch(r"node\d{1,4}", name):
            first = _NUMBER.match(read_text(nodes / name / "cpulist"))
            if first is not None:
                topology = root / f"sys/devices/system/cpu/cpu{first[0]}/topology"
                package = max(-1, read_number(topology / "physical_package_id", -1))
                found.append(Cpu(int(name[4:]), vendor, family, model, package))
    return tuple(found) or (Cpu(0, vendor, family, model),)


def _cpu_model(cpuinfo: str) -> tuple[str, int, int]:
    """(vendor, family, model) of the first processor of /proc/cpuinfo; Arm and POWER have no family that NCCL asks for."""
    table: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        table.setdefault(key.strip(), value.strip())
    if "vendor_id" in table:
        vendor = re.sub(r"[^A-Za-z]", "", table["vendor_id"])[:40]
        return vendor, _whole(table.get("cpu family", "")), _whole(table.get("model", ""))
    if "CPU implementer" in table:
        return "ARM", -1, -1
    return ("POWER9" if table.get("cpu", "").startswith("POWER9") else ""), -1, -1


def _whole(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 6 else -1
