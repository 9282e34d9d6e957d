"""Figures for what a probe finds, as NCCL and RCCL have them (`synth.inputs.nccl_links`). Rates are GB/s per direction."""

from __future__ import annotations

from synth.inputs.nccl_links import DEFAULT_NET_MBPS, flattens, nvlink_GBps, pcie_meant_GBps, socket_GBps
from synth.probe.recording import Cpu, PciDevice

#: GT/s a lane of the PCIe generations that NVML counts.
_GENERATIONS = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
_GEN3 = 8.0
#: What NCCL takes for a port that does not tell its rate, and for two sockets of a CPU that it does not know, a Xeon of 2017's.
DEFAULT_NET_GBPS = DEFAULT_NET_MBPS / 8000
DEFAULT_SOCKET_GBPS = 10.0

SOURCES = {
    "nvlink": "GBps a link: NCCL 2.30 src/graph/topo.h by compute capability (V100: 22.0 in NCCL 2.12). alpha: TE-CCL, TACCL.",
    "xgmi": "GBps a link: RCCL src/graph/topo.h by architecture. alpha: RCCL src/graph/tuning.cc, tuning_model_0.",
    "c2c": "links and their rate: NVML. alpha: taken as one PCIe hop, there is no published figure.",
    "pcie": "GBps: width x speed / 80 (NCCL src/graph/topo.cc). alpha: NCCL src/graph/tuning.cc, hwLat PCI, over two hops.",
    "socket": "GBps by CPU: NCCL src/graph/topo.h. alpha: taken as one PCIe hop, there is no published figure.",
    "network": "GBps: the ports' own rate. alpha: TACCL and TE-CCL, two boxes 2.6 us apart, less four PCIe hops.",
}


def link_GBps(arch: str) -> float:
    """One NVLink or xGMI link of a GPU of that architecture ("sm_90", "gfx90a", "" for unknown)."""
    return nvlink_GBps(arch)


def pcie_GBps(width: int, speed: float) -> float:
    """`width` PCIe lanes of `speed` GT/s; 16 lanes and generation 3 for what is 0 or unheard of, as NCCL takes them."""
    found = pcie_meant_GBps(width, f"{speed:.1f} GT/s") or pcie_meant_GBps(width, f"{_GEN3:.1f} GT/s")
    assert found is not None, "generation 3 has a rate"
    return found


def generation_speed(generation: int) -> float:
    """GT/s a lane of a PCIe generation; 0 where it is not known."""
    return _GENERATIONS.get(generation, 0.0)


def socket_rate(cpu: Cpu) -> float | None:
    """Between two NUMA nodes with this CPU; None for a CPU that NCCL does not know."""
    arch = {"ARM": "arm64", "POWER9": "ppc64"}.get(cpu.vendor, "x86_64")
    vendor = "  Shanghai  " if cpu.vendor == "Shanghai" else cpu.vendor
    return socket_GBps(arch, vendor, cpu.family, cpu.model)


def one_switch(upper: PciDevice, lower: PciDevice) -> bool:
    """Whether NCCL sees two bridges, one below the other, as one switch."""
    return flattens(_identity(upper), _identity(lower))


def _identity(device: PciDevice) -> int:
    number = 0
    for text in (device.vendor, device.device, device.subsystem_vendor, device.subsystem_device):
        number = number << 16 | int(text or "0", 16) & 0xFFFF
    return number
