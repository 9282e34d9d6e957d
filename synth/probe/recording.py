"""What a machine told, as values: everything that a topology is built from, and nothing that names the machine.

No serial number, UUID, GUID, MAC address or host name has a field here (`synth.probe.redact` replaces the few that tell
devices apart). PCI addresses are kept, in the spelling of sysfs ("0000:07:00.0"). Words and numbers that were not told are "",
0 or -1.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NvLink:
    """One NVLink port of a GPU: `state` is "active", "inactive" or "unknown", `remote` "gpu", "switch", "cpu" or "hidden"."""

    number: int
    state: str
    version: str = ""
    remote: str = ""
    busid: str = ""


@dataclass(frozen=True, slots=True)
class Fabric:
    """A GPU's place in an NVLink fabric; `state` is "completed", "in progress", "not started" or "not supported"."""

    state: str
    cluster: str = ""
    clique: int = 0
    degraded: bool = False


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as NVML or KFD sees it. PCIe figures are those of NVML: generations, and widths in lanes.

    `c2c_links` of `c2c_MBps` each (MB/s) go to the CPU of a Grace superchip; `node` is the number of the KFD node, -1 for NVIDIA.
    """

    index: int
    busid: str
    name: str = ""
    arch: str = ""
    mig: bool = False
    pcie_gen: int = 0
    pcie_gen_max: int = 0
    pcie_width: int = 0
    pcie_width_max: int = 0
    nvlinks: tuple[NvLink, ...] = ()
    c2c_links: int = 0
    c2c_MBps: int = 0
    fabric: Fabric | None = None
    node: int = -1


@dataclass(frozen=True, slots=True)
class Pair:
    """Two GPUs by index: the level of their common ancestor, and whether each kind of peer access is "ok" or why it is not."""

    a: int
    b: int
    ancestor: str = ""
    read: str = ""
    write: str = ""
    nvlink: str = ""
    atomics: str = ""
    pci: str = ""


@dataclass(frozen=True, slots=True)
class PciDevice:
    """A PCI device or bridge. `speed` is in GT/s a lane, widths in lanes; `parent` is "" under a root complex (`root`)."""

    busid: str
    parent: str = ""
    root: str = ""
    pci_class: str = ""
    vendor: str = ""
    device: str = ""
    subsystem_vendor: str = ""
    subsystem_device: str = ""
    speed: float = 0.0
    max_speed: float = 0.0
    width: int = 0
    max_width: int = 0
    numa: int = -1
    vfs: int = 0
    physfn: str = ""


@dataclass(frozen=True, slots=True)
class Port:
    """A port of a NIC: `state` is "active" or what else sysfs says, `Gbps` its rate in Gbit/s."""

    number: int
    state: str = ""
    Gbps: float = 0.0


@dataclass(frozen=True, slots=True)
class Nic:
    """A NIC on PCI address `busid`; `kind` is "infiniband", "roce", "rdma" (neither says it is) or "ethernet"."""

    name: str
    kind: str
    busid: str = ""
    ports: tuple[Port, ...] = ()


@dataclass(frozen=True, slots=True)
class Cpu:
    """One NUMA node with its CPU: vendor as /proc/cpuinfo spells it, or "ARM" or "POWER9"; `package` is its socket."""

    numa: int
    vendor: str = ""
    family: int = -1
    model: int = -1
    package: int = -1


@dataclass(frozen=True, slots=True)
class KfdLink:
    """A connection of a KFD node: `kind` is "xgmi", "pcie" or "type N"; bandwidths are in MB/s, of one link and of all."""

    to: int
    kind: str
    weight: int = 0
    min_MBps: int = 0
    max_MBps: int = 0


@dataclass(frozen=True, slots=True)
class KfdNode:
    """A node of AMD's KFD topology: a GPU where `simds` is above 0, a NUMA node of the CPUs where `cpu_cores` is."""

    number: int
    cpu_cores: int = 0
    simds: int = 0
    hive: str = ""
    links: tuple[KfdLink, ...] = ()


@dataclass(frozen=True, slots=True)
class Recording:
    """A whole machine. `source` says who named the GPUs ("nvml" or "kfd"), `problem` why nobody did.

    `lost` are GPUs that NVML counts and cannot open, `unread` the questions that were not answered, a sentence each.
    """

    source: str = ""
    problem: str = ""
    driver: str = ""
    gpus: tuple[Gpu, ...] = ()
    lost: tuple[str, ...] = ()
    pairs: tuple[Pair, ...] = ()
    pci: tuple[PciDevice, ...] = ()
    nics: tuple[Nic, ...] = ()
    cpus: tuple[Cpu, ...] = ()
    kfd: tuple[KfdNode, ...] = ()
    unread: tuple[str, ...] = ()
