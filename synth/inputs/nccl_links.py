"""How NCCL and RCCL turn the words of their topology XML into rates: one small function for each rule.

Figures are those of NCCL 2.30.7, the newest whose dumps are known, `src/graph/topo.h` and `topo.cc`, and of RCCL's develop branch
for AMD. NCCL 2.12, the base of microsoft/msccl, differs in two: a V100's NVLink has 22.0 GB/s there (20.0 here), and an
AMD socket link is unlimited there (16.0 here).
"""

from __future__ import annotations

import re
from decimal import Decimal
from enum import StrEnum

#: PCIe speeds that NCCL's dictionary knows, in its order: a text matches the first entry that it begins with. The figure is
#: 100 Mbit/s a lane, less the encoding.
_PCIE_SPEEDS = (
    ("2.5 GT/s", 15),
    ("5 GT/s", 30),
    ("8 GT/s", 60),
    ("16 GT/s", 120),
    ("32 GT/s", 240),
    ("5.0 GT/s PCIe", 30),
    ("8.0 GT/s PCIe", 60),
    ("16.0 GT/s PCIe", 120),
    ("32.0 GT/s PCIe", 240),
    ("64.0 GT/s PCIe", 480),
)
_GEN3 = 60
_MEANT = {2.5: 15, 5.0: 30, 8.0: 60, 16.0: 120, 32.0: 240, 64.0: 480}
_SPEED = re.compile(r"([0-9]{1,3}(?:\.[0-9])?) *GT/s")

#: GB/s of one NVLink by the least compute capability that has it, newest first (SM100_NVLINK_BW and so on). sm_86 is apart.
_NVLINK = ((100, 40.1), (90, 20.6), (80, 20.0), (70, 20.0), (60, 18.0))
_SM86_NVLINK = 12.0
#: What NCCL and RCCL take for a GPU that they do not know.
UNKNOWN_NVLINK_GBPS = 20.0
UNKNOWN_XGMI_GBPS = 24.0
#: GB/s of one xGMI link (RCCL topo.h: VEGA_XGMI_WIDTH, MI200_XGMI_WIDTH, GFX94X_XGMI_WIDTH, GFX95X_XGMI_WIDTH).
_XGMI = {"gfx90a": 36.0, "gfx94": 48.0, "gfx95": 48.0}
#: Most NVLinks that a GPU of that compute capability has (data sheets: P100 4, V100 6, A100 12, A6000 4, H100 and B200 18).
_MOST_NVLINKS = {60: 4, 70: 6, 72: 0, 75: 2, 80: 12, 86: 4, 87: 0, 89: 0, 90: 18, 100: 18, 103: 18, 120: 0, 121: 0}
MOST_LINKS = 18
#: An MI200 die and an MI300 package have eight xGMI ports.
_MOST_XGMI = 8

#: NCCL's rate for two things on one device (LOC_BW).
LOC_GBPS = 5000.0
#: Speed in Mbit/s that NCCL takes for a net without one.
DEFAULT_NET_MBPS = 10_000


class PciKind(StrEnum):
    """What a PCI class stands for (kvDictPciClass; RCCL adds 0x12, processing accelerators)."""

    BRIDGE = "bridge"
    NVSWITCH = "nvswitch"
    CPU = "cpu"
    GPU = "gpu"
    NIC = "nic"


_CLASSES = (
    ("0x060400", PciKind.BRIDGE),
    ("0x080100", PciKind.BRIDGE),
    ("0x068000", PciKind.NVSWITCH),
    ("0x068001", PciKind.CPU),
    ("0x03", PciKind.GPU),
    ("0x120000", PciKind.GPU),
    ("0x02", PciKind.NIC),
)


def pci_kind(pci_class: str) -> PciKind:
    """What a device of that class is to NCCL: the first entry that the class begins with; a bridge otherwise."""
    return next((kind for prefix, kind in _CLASSES if pci_class.lower().startswith(prefix)), PciKind.BRIDGE)


def pcie_GBps(width: int, speed: str) -> float:
    """GB/s of a PCIe connection as NCCL reads it: width x speed / 80, 16 lanes for width 0, generation 3 for unknown speeds."""
    lane = next((rate for known, rate in _PCIE_SPEEDS if speed.startswith(known)), _GEN3)
    return (width or 16) * lane / 80


def pcie_meant_GBps(width: int, speed: str) -> float | None:
    """GB/s that the text of a PCIe speed means to a person; None where it says nothing."""
    match = _SPEED.match(speed)
    lane = _MEANT.get(float(match[1])) if match else None
    return None if lane is None else (width or 16) * lane / 80


def nvlink_GBps(arch: str) -> float:
    """GB/s of one NVLink or xGMI link of a GPU; NCCL's answer for an unknown one where `arch` is "" or new to us."""
    if arch.startswith("gfx"):
        return next((rate for prefix, rate in _XGMI.items() if arch.startswith(prefix)), UNKNOWN_XGMI_GBPS)
    capability = _capability(arch)
    if capability == 86:
        return _SM86_NVLINK
    return next((rate for least, rate in _NVLINK if capability >= least), UNKNOWN_NVLINK_GBPS)


def links_GBps(arch: str, count: int) -> float:
    """GB/s of `count` links of a GPU together, exact before it is rounded to a float."""
    return float(Decimal(repr(nvlink_GBps(arch))) * count)


def most_links(arch: str) -> int:
    """The most NVLinks or xGMI links that such a GPU has in hardware; that of the largest where the GPU is unknown."""
    return _MOST_XGMI if arch.startswith("gfx") else _MOST_NVLINKS.get(_capability(arch), MOST_LINKS)


def _capability(arch: str) -> int:
    return int(arch.removeprefix("sm_")) if arch.startswith("sm_") else 0


def amd_arch(gcn: str) -> str:
    """ "gfx90a" for the `gcn` of a dump ("910", "gfx90a:sramecc+", "942"); "" for one that is no architecture known."""
    word = gcn.strip().split(":")[0].lower().removeprefix("gfx")
    word = "90a" if word == "910" else word
    return f"gfx{word}" if re.fullmatch(r"[0-9]{3}|[0-9]{2}[a-f]", word) and word[0] in "789" else ""


def socket_GBps(arch: str, vendor: str, family: int, model: int) -> float | None:
    """GB/s between two CPUs of a box (ncclTopoGetInterCpuBw); None for a CPU that NCCL does not know."""
    if arch == "arm64":
        return 6.0
    if arch == "ppc64":
        return 32.0
    if arch != "x86_64":
        return None
    if vendor == "GenuineIntel":
        newest_first = ((0xCF, 40.0), (0x8F, 22.0), (0x55, 10.0))
        return next((rate for least, rate in newest_first if family == 6 and model >= least), 6.0)
    if vendor == "AuthenticAMD":
        return 16.0
    if vendor in ("CentaurHauls", "  Shanghai  "):
        return 9.0 if (family, model) == (7, 0x5B) else 6.0
    return None


def flattens(upper: int, lower: int) -> bool:
    """Whether NCCL sees two bridges, one below the other, as one Broadcom switch. The ids are vendor, device, subsystem
    vendor and subsystem device, 16 bits each (ncclTopoFlattenBcmSwitches).
    """
    generation = _broadcom(upper, 0)
    return generation != 0 and generation == _broadcom(lower, 1)


def _broadcom(device: int, level: int) -> int:
    family = device >> 12
    if family == 0x1000C0101000A:
        return 4
    return 5 if family == 0x1000C03010000 + level else 0


#: Interfaces that no cable ends in: bridges and pairs of containers and virtual machines, tunnels.
_VIRTUAL_NET = re.compile(
    r"(lo$|br-|br[0-9]+$|virbr|docker|veth|cali|tunl|tun[0-9]|tap|vnet|flannel|cni|cilium|lxc|lxd|kube|ovs|vxlan|geneve|"
    r"gre|sit[0-9]|ip6tnl|dummy|ifb|wg[0-9]|zt|podman|nodelocaldns|macvlan|ipvlan)"
)
_WIRELESS_NET = re.compile(r"wl[a-z0-9]|wifi|ath[0-9]")
_RDMA_NET = re.compile(r"mlx[45]_|bnxt_re|irdma|efa|rdma|ib[0-9]|hfi|cxi|rocep|ibp|ionic|erdma")
#: Rates in Mbit/s that ports have been sold with.
_PORT_MBPS = (
    10,
    100,
    1000,
    2500,
    5000,
    10_000,
    20_000,
    25_000,
    40_000,
    50_000,
    56_000,
    100_000,
    200_000,
    400_000,
    800_000,
)
_MOST_MBPS = 1_600_000


def net_is_virtual(name: str) -> bool:
    """Whether a net's name is that of an interface without a port of its own (docker0, cali..., veth...)."""
    return bool(_VIRTUAL_NET.match(name))


def net_is_wireless(name: str) -> bool:
    return bool(_WIRELESS_NET.match(name))


def net_speed_doubt(name: str, mbps: int) -> str:
    """What is hard to believe about a net of that name and speed; "" where nothing is."""
    if mbps > _MOST_MBPS:
        return f"{mbps} Mbit/s, more than any NIC has"
    if _RDMA_NET.match(name) and mbps < 10_000:
        return f"{mbps} Mbit/s, less than RDMA NICs have"
    if not any(mbps == rate * ports for rate in _PORT_MBPS for ports in (1, 2, 3, 4)):
        return f"{mbps} Mbit/s, a rate that no port has"
    return ""
