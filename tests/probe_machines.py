"""Machines to probe where there are none: a stand-in for pynvml, and a small tree of the kernel's files."""

from __future__ import annotations

import os
from ctypes import CFUNCTYPE, c_int, c_void_p, memmove
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml

DATA = Path(__file__).parent / "data" / "probe"
SECRETS = ("GPU-5f3a", "1650921001234", "node-17-secret", "0x5c2573030012ab34", "enx001b21aa55cc", "roof-secret-3")


class FakeNvml:
    """As much of pynvml as the probe asks, about GPUs given as dicts: busid, name, cc, mig, pcie, links, fabric.

    `links` maps a port's number to None (inactive) or (version code, remote type, remote bus id). `deny` are functions that
    answer with that error code; a GPU that is an int cannot be opened and answers with it.
    """

    NVMLError = pynvml.NVMLError
    c_nvmlGpuFabricInfo_v3_t = pynvml.c_nvmlGpuFabricInfo_v3_t

    def __init__(
        self, gpus: list[Any], *, ancestor: int = 50, peer: int = 0, deny: dict[str, int] | None = None
    ) -> None:
        self.gpus = gpus
        self.ancestor = ancestor
        self.peer = peer
        self.deny = deny or {}
        self.shut = 0

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("NVML_"):
            return getattr(pynvml, name)
        if name.startswith("nvml") and name in self.deny:
            code = self.deny[name]

            def denied(*_args: object) -> None:
                raise pynvml.NVMLError(code)

            return denied
        return super().__getattribute__(name)

    def nvmlInit(self) -> None:
        self.shut = -1

    def nvmlShutdown(self) -> None:
        self.shut += 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return "550.54.15"

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        gpu = self.gpus[index]
        if isinstance(gpu, int):
            raise pynvml.NVMLError(gpu)
        return gpu

    def nvmlDeviceGetPciInfo(self, gpu: Any) -> Any:
        return SimpleNamespace(busId=gpu["busid"].encode(), busIdLegacy=b"", serial="1650921001234")

    def nvmlDeviceGetName(self, gpu: Any) -> str:
        return str(gpu.get("name", "NVIDIA H100 80GB HBM3"))

    def nvmlDeviceGetCudaComputeCapability(self, gpu: Any) -> tuple[int, int]:
        found: tuple[int, int] = gpu.get("cc", (9, 0))
        return found

    def nvmlDeviceGetMigMode(self, gpu: Any) -> list[int]:
        if "mig" not in gpu:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return [int(gpu["mig"]), int(gpu["mig"])]

    def nvmlDeviceGetCurrPcieLinkGeneration(self, gpu: Any) -> int:
        return int(gpu.get("pcie", (5, 5, 16, 16))[0])

    def nvmlDeviceGetMaxPcieLinkGeneration(self, gpu: Any) -> int:
        return int(gpu.get("pcie", (5, 5, 16, 16))[1])

    def nvmlDeviceGetCurrPcieLinkWidth(self, gpu: Any) -> int:
        return int(gpu.get("pcie", (5, 5, 16, 16))[2])

    def nvmlDeviceGetMaxPcieLinkWidth(self, gpu: Any) -> int:
        return int(gpu.get("pcie", (5, 5, 16, 16))[3])

    def nvmlDeviceGetNvLinkState(self, gpu: Any, link: int) -> int:
        if link not in gpu.get("links", {}):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return int(gpu["links"][link] is not None)

    def nvmlDeviceGetNvLinkVersion(self, gpu: Any, link: int) -> int:
        return int(gpu["links"][link][0])

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, gpu: Any, link: int) -> int:
        return int(gpu["links"][link][1])

    def nvmlDeviceGetNvLinkRemotePciInfo(self, gpu: Any, link: int) -> Any:
        return SimpleNamespace(busId=gpu["links"][link][2].encode(), busIdLegacy=b"")

    def nvmlDeviceGetFieldValues(self, gpu: Any, wanted: list[tuple[int, int]]) -> Any:
        fields = {
            pynvml.NVML_FI_DEV_C2C_LINK_COUNT: gpu.get("c2c", (0, 0))[0],
            pynvml.NVML_FI_DEV_C2C_LINK_GET_STATUS: 1,
            pynvml.NVML_FI_DEV_C2C_LINK_GET_MAX_BW: gpu.get("c2c", (0, 0))[1],
        }
        return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=fields[field])) for field, _ in wanted]

    def nvmlDeviceGetGpuFabricInfoV(self, gpu: Any, info: Any) -> int:
        if "fabric" not in gpu:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

        @CFUNCTYPE(c_int, c_void_p)
        def driver(address: int) -> int:
            told = self.c_nvmlGpuFabricInfo_v3_t.from_address(address)
            told.state, uuid, told.cliqueId, told.healthMask = gpu["fabric"]
            memmove(told.clusterUuid, uuid, len(uuid))
            return 0

        return int(driver(info))  # as pynvml does: what is no pointer would end the process there

    def nvmlDeviceGetTopologyCommonAncestor(self, _a: Any, _b: Any) -> int:
        return self.ancestor

    def nvmlDeviceGetP2PStatus(self, _a: Any, _b: Any, _index: int) -> int:
        return self.peer


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n", encoding="utf-8")


def link(path: Path, target: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(os.path.relpath(target, path.parent), target_is_directory=True)


def pci_device(root: Path, way: str, **files: str) -> Path:
    """A device at the end of `way` ("pci0000:00/0000:00:01.0/0000:01:00.0") with its files; also under /sys/bus/pci."""
    folder = root / "sys/devices" / way
    for name, text in files.items():
        write(folder / ("class" if name == "pci_class" else name), text)
    folder.mkdir(parents=True, exist_ok=True)
    link(root / "sys/bus/pci/devices" / folder.name, folder)
    return folder


GEN4 = {
    "current_link_speed": "16.0 GT/s PCIe",
    "max_link_speed": "16.0 GT/s PCIe",
    "current_link_width": "16",
    "max_link_width": "16",
}


def sysfs_tree(root: Path) -> None:
    """Two sockets; a switch with GPU 0000:03:00.0 and an InfiniBand NIC; a GPU 0000:81:00.0 below a root port; a RoCE card of
    two functions with a virtual one; Ethernet, wireless and virtual interfaces; secrets that must not get out."""
    bridge = {"pci_class": "0x060400", "vendor": "0x10b5", "device": "0x8764", "numa_node": "0", **GEN4}
    switch = "pci0000:00/0000:00:01.0/0000:01:00.0"
    pci_device(root, "pci0000:00/0000:00:01.0", **bridge)
    pci_device(root, switch, **bridge)
    pci_device(root, f"{switch}/0000:02:08.0", **bridge)
    pci_device(root, f"{switch}/0000:02:0c.0", **bridge)
    gpu = {"pci_class": "0x030200", "vendor": "0x10de", "device": "0x20b2", "serial": "1650921001234", **GEN4}
    pci_device(root, f"{switch}/0000:02:08.0/0000:03:00.0", numa_node="0", **gpu)
    nic = {"pci_class": "0x020700", "vendor": "0x15b3", "device": "0x101b", **GEN4}
    hca = pci_device(root, f"{switch}/0000:02:0c.0/0000:04:00.0", numa_node="0", **nic)
    pci_device(root, "pci0000:80/0000:80:01.0", **(bridge | {"numa_node": "1"}))
    pci_device(root, "pci0000:80/0000:80:01.0/0000:81:00.0", numa_node="1", **gpu)
    pci_device(root, "pci0000:80/0000:80:02.0", **(bridge | {"numa_node": "1"}))
    roce = [
        pci_device(root, f"pci0000:80/0000:80:02.0/0000:82:00.{function}", numa_node="1", sriov_numvfs="1", **nic)
        for function in (0, 1)
    ]
    virtual = pci_device(root, "pci0000:80/0000:80:02.0/0000:82:08.2", numa_node="1", **nic)
    link(virtual / "physfn", roce[0])
    rdma_device(root, "mlx5_0", hca, "InfiniBand", "4: ACTIVE", "200 Gb/sec (4X HDR)")
    rdma_device(root, "mlx5_1", roce[0], "Ethernet", "4: ACTIVE", "100 Gb/sec (4X EDR)")
    rdma_device(root, "roof-secret-3", roce[1], "Ethernet", "1: DOWN", "40 Gb/sec (4X QDR)")
    rdma_device(root, "mlx5_3", virtual, "Ethernet", "4: ACTIVE", "100 Gb/sec (4X EDR)")
    interface(root, "eno1", pci_device(root, "pci0000:00/0000:00:1c.0/0000:05:00.0", **nic), "up", "25000")
    interface(root, "enx001b21aa55cc", pci_device(root, "pci0000:00/0000:00:1d.0/0000:06:00.0", **nic), "down", "-1")
    wireless = pci_device(root, "pci0000:00/0000:00:1e.0/0000:07:00.0", **nic)
    interface(root, "wlp7s0", wireless, "up", "300")
    (root / "sys/class/net/wlp7s0/wireless").mkdir()
    write(root / "sys/class/net/docker0/operstate", "up")
    for numa, package, cpus in ((0, 0, "0-31,64-95"), (1, 1, "32-63,96-127")):
        write(root / f"sys/devices/system/node/node{numa}/cpulist", cpus)
        first = cpus.partition("-")[0]
        write(root / f"sys/devices/system/cpu/cpu{first}/topology/physical_package_id", str(package))
    write(root / "proc/cpuinfo", "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 23\nmodel\t\t: 49\n")
    write(root / "etc/hostname", "node-17-secret")


def rdma_device(root: Path, name: str, device: Path, layer: str, state: str, rate: str) -> None:
    folder = root / "sys/class/infiniband" / name
    link(folder / "device", device)
    write(folder / "node_guid", "0x5c2573030012ab34")
    for file, text in (("link_layer", layer), ("state", state), ("rate", rate)):
        write(folder / "ports/1" / file, text)


def interface(root: Path, name: str, device: Path, state: str, mbps: str) -> None:
    folder = root / "sys/class/net" / name
    link(folder / "device", device)
    write(folder / "operstate", state)
    write(folder / "speed", mbps)
    write(folder / "address", "00:1b:21:aa:55:cc")


def kfd_tree(root: Path) -> None:
    """One CPU and three GPUs in a row: two MI250 dies joined by four links, a third by one, and no direct way beyond."""
    nodes = root / "sys/class/kfd/kfd/topology/nodes"
    write(nodes / "0/properties", "cpu_cores_count 64\nsimd_count 0\nvendor_id 0")
    kfd_link(nodes / "0/io_links/0", 1, 2, 20, 0, 16000)
    ways = {1: {2: (15, 200_000), 3: (30, 0)}, 2: {1: (15, 200_000), 3: (15, 50_000)}, 3: {1: (30, 0), 2: (15, 50_000)}}
    for number, others in ways.items():
        text = (
            f"cpu_cores_count 0\nsimd_count 440\nvendor_id 4098\ndomain 0\nlocation_id {(0x20 + number) << 8}\n"
            "gfx_target_version 90010\nhive_id 987654321\nunique_id 1650921001234"
        )
        write(nodes / str(number) / "properties", text)
        write(nodes / str(number) / "name", "aldebaran")
        kfd_link(nodes / str(number) / "io_links/0", 0, 2, 20, 0, 16000)
        for position, (other, (weight, most)) in enumerate(others.items(), 1):
            kfd_link(nodes / str(number) / f"io_links/{position}", other, 11, weight, 50_000, most)


def kfd_link(folder: Path, to: int, kind: int, weight: int, low: int, high: int) -> None:
    text = f"type {kind}\nnode_to {to}\nweight {weight}\nmin_bandwidth {low}\nmax_bandwidth {high}"
    write(folder / "properties", text)
