"""What a link of a topology file costs where the file does not say, and where each figure comes from.

GB/s are per lane and direction; a PCIe "lane" is a whole x16 connection. They are the usable rates that NCCL and RCCL
assume (`src/graph/topo.h` of each), not the raw rates of a data sheet, so that a file without figures plans as the
runtime does.

Latencies are published fits of whole connections, dealt to the links that such a connection crosses: two GPUs on one
PCIe switch are 1.0 us apart (2 x 0.5), two GPUs on an NVSwitch 0.7 us (2 x 0.35), and two GPUs of different boxes
2.6 us (PCIe to the NIC and from it, 4 x 0.5, and the network, 2 x 0.3).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class LinkDefault(NamedTuple):
    """Default figures of a kind of link: GB/s of a lane, latency in us of one traversal, and their `source`."""

    GBps: float
    alpha_us: float
    source: str


_NVLINK = "alpha: TE-CCL ndv2.py, after TACCL, 0.7 us between two GPUs"
_XGMI = "alpha: RCCL tuning.cc, tuning_model_0, hwLat of the GPU-GPU links, 0.8 us"
_PCIE = "link width x speed / 80 (NCCL topo.cc); alpha: NCCL tuning.cc hwLat PCI, 1.0 us over one switch"
_SOCKET = "alpha: as one PCIe hop (NCCL has no figure of its own)"

#: (kind, generation) to figures; generation None where the file names none.
LINK_DEFAULTS: Mapping[tuple[str, int | None], LinkDefault] = MappingProxyType(
    {
        ("nvlink", None): LinkDefault(20.0, 0.7, f"NCCL SM80_NVLINK_BW, its answer for an unknown GPU; {_NVLINK}"),
        ("nvlink", 1): LinkDefault(18.0, 0.7, f"NCCL SM60_NVLINK_BW (P100); {_NVLINK}"),
        ("nvlink", 2): LinkDefault(
            22.0, 0.7, f"NCCL 2.12 SM70_NVLINK_BW (V100), the base of microsoft/msccl; TACCL measured 21.7; {_NVLINK}"
        ),
        ("nvlink", 3): LinkDefault(20.0, 0.7, f"NCCL SM80_NVLINK_BW (A100); {_NVLINK}"),
        ("nvlink", 4): LinkDefault(20.6, 0.7, f"NCCL SM90_NVLINK_BW (H100); {_NVLINK}"),
        ("nvlink", 5): LinkDefault(40.1, 0.7, f"NCCL SM100_NVLINK_BW (B200); {_NVLINK}"),
        ("xgmi", None): LinkDefault(24.0, 0.8, f"RCCL VEGA_XGMI_WIDTH, its answer for an unknown GPU; {_XGMI}"),
        ("xgmi", 2): LinkDefault(24.0, 0.8, f"RCCL VEGA_XGMI_WIDTH (MI50 to MI100); {_XGMI}"),
        ("xgmi", 3): LinkDefault(36.0, 0.8, f"RCCL MI200_XGMI_WIDTH; {_XGMI}"),
        ("xgmi", 4): LinkDefault(48.0, 0.8, f"RCCL GFX94X_XGMI_WIDTH (MI300); {_XGMI}"),
        ("pcie", None): LinkDefault(12.0, 0.5, f"generation 3 x16, as NCCL reads an unknown speed; {_PCIE}"),
        ("pcie", 3): LinkDefault(12.0, 0.5, _PCIE),
        ("pcie", 4): LinkDefault(24.0, 0.5, _PCIE),
        ("pcie", 5): LinkDefault(48.0, 0.5, _PCIE),
        ("pcie", 6): LinkDefault(96.0, 0.5, _PCIE),
        ("socket", None): LinkDefault(10.0, 0.5, f"NCCL SKL_QPI_BW (Intel, Skylake); {_SOCKET}"),
        ("network", None): LinkDefault(
            12.5, 0.3, "100 Gbit/s; alpha: TACCL and TE-CCL dgx2.py, 2.6 us between two boxes, less four PCIe hops"
        ),
    }
)
LINK_KINDS = tuple(sorted({kind for kind, _ in LINK_DEFAULTS}))


def generations(kind: str) -> tuple[int, ...]:
    """The generations of a kind of link that have figures of their own, ascending."""
    return tuple(sorted(gen for known, gen in LINK_DEFAULTS if known == kind and gen is not None))


def link_default(kind: str, gen: int | None, touches_nvswitch: bool) -> LinkDefault | None:
    """Figures for a link; None for an unknown kind or generation. To an NVSwitch is half of GPU to GPU."""
    default = LINK_DEFAULTS.get((kind, gen))
    if default is not None and kind == "nvlink" and touches_nvswitch:
        return default._replace(alpha_us=default.alpha_us / 2)
    return default
