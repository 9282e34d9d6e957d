"""How figures are spelled in NCCL's topology XML, so that NCCL's rules (`synth.inputs.nccl_links`) read them back: one small
function for each. Where no spelling has the figure, the nearest is given, with the figure that it stands for.
"""

from __future__ import annotations

from synth.inputs.nccl_links import nvlink_GBps, pcie_GBps, socket_GBps

#: (lanes, speed) of PCIe connections: the usual width first, then the oldest generation that has the rate.
_PCIE = (
    *((lanes, f"{speed} GT/s PCIe") for lanes in (16, 8, 4, 2, 1) for speed in ("8.0", "16.0", "32.0", "64.0", "5.0")),
    *((lanes, "2.5 GT/s PCIe") for lanes in (16, 8, 4, 2, 1)),
)
#: CPUs that NCCL tells apart by what it assumes between two of them: (arch, vendor, family, model).
_CPUS = (
    ("x86_64", "GenuineIntel", 6, 0x55),
    ("x86_64", "AuthenticAMD", 23, 49),
    ("x86_64", "GenuineIntel", 6, 0x8F),
    ("x86_64", "GenuineIntel", 6, 0xCF),
    ("x86_64", "GenuineIntel", 6, 0x4F),
    ("ppc64", "IBM", 0, 0),
)
_ARM = ("arm64", "", 0, 0)
#: Compute units of AMD's GPUs, which RCCL's `sm` counts, as its dumps have them.
_COMPUTE_UNITS = {"gfx906": 64, "gfx908": 120, "gfx90a": 104, "gfx942": 304, "gfx950": 256}
#: One architecture for each rate of a link.
_NVLINK_ARCHS = ("sm_80", "sm_60", "sm_86", "sm_90", "sm_100")
_XGMI_ARCHS = ("gfx906", "gfx90a", "gfx942")


def pcie_words(GBps: float) -> tuple[str, float]:
    """(attributes of a <pci> for its connection upwards, the GB/s that they stand for)."""
    lanes, speed = min(_PCIE, key=lambda entry: abs(pcie_GBps(*entry) - GBps))
    return f'link_speed="{speed}" link_width="{lanes}"', pcie_GBps(lanes, speed)


def cpu_words(GBps: float | None, arm: bool) -> tuple[str, float]:
    """(attributes of a <cpu>, the GB/s that NCCL assumes between two of them); `arm` where c2c tells that it is one."""
    known = {cpu: socket_GBps(*cpu) or 0.0 for cpu in ((_ARM, *_CPUS) if arm else _CPUS)}
    cpu = next(iter(known)) if GBps is None else min(known, key=lambda name: abs(known[name] - GBps))
    arch, vendor, family, model = cpu
    words = f' vendor="{vendor}" familyid="{family}" modelid="{model}"' if vendor else ""
    return f'arch="{arch}"{words}', known[cpu]


def arch_by_rate(kind: str, lane_GBps: float | None) -> str:
    """The architecture whose links of a kind come nearest to a rate; that of the commonest GPU where there is none."""
    archs = _XGMI_ARCHS if kind == "xgmi" else _NVLINK_ARCHS
    return archs[0] if lane_GBps is None else min(archs, key=lambda arch: abs(nvlink_GBps(arch) - lane_GBps))


def gpu_words(arch: str) -> str:
    """The attributes of a <gpu> that name its architecture. AMD's `sm` is the number of compute units, 1 where unknown."""
    if arch.startswith("sm_"):
        return f'sm="{arch.removeprefix("sm_")}"'
    return f'sm="{_COMPUTE_UNITS.get(arch, 1)}" gcn="{arch}" arch="38911"'


def affinity(number: int) -> str:
    """A mask for the n-th CPU, its cores 16 n to 16 n + 15: NCCL binds its threads by it, and the machine's own are not known."""
    words = [0] * (number // 2 + 1)
    words[number // 2] = 0xFFFF << (16 * (number % 2))
    return ",".join(f"{word:08x}" for word in reversed(words))
