"""AMD's KFD topology: /sys/class/kfd/kfd/topology/nodes, GPUs and CPUs as nodes with their connections.

Facts: properties are "key value" lines; `location_id` is bus << 8 | device << 3 | function, beside `domain`;
`gfx_target_version` 90010 is gfx90a (two decimal digits each for the hexadecimal minor and step); connection type 2 is PCIe,
11 xGMI. From MI200 on, an xGMI connection's `min_bandwidth` is one link's and `max_bandwidth` that of all links (the amdgpu
driver; RCCL's rocm_smi_wrap.cc divides the two).
"""

from __future__ import annotations

from pathlib import Path

from synth.probe.nvml import clean
from synth.probe.recording import Gpu, KfdLink, KfdNode
from synth.probe.redact import Redactor
from synth.probe.sysfs import names_in, read_text

_NODES = "sys/class/kfd/kfd/topology/nodes"
_KINDS = {2: "pcie", 11: "xgmi"}
_AMD = 0x1002


def read_kfd(root: Path, redactor: Redactor) -> tuple[tuple[Gpu, ...], tuple[KfdNode, ...]]:
    """(the GPUs in KFD's order, all nodes) of the KFD topology below `root`; nothing where there is none."""
    gpus: list[Gpu] = []
    nodes: list[KfdNode] = []
    for name in names_in(root / _NODES):
        if not name.isdecimal() or len(name) > 4:
            continue
        folder = root / _NODES / name
        table = _properties(folder / "properties")
        if table.get("vendor_id", _AMD) not in (0, _AMD):
            continue
        hive = table.get("hive_id", 0)
        node = KfdNode(
            number=int(name),
            cpu_cores=table.get("cpu_cores_count", 0),
            simds=table.get("simd_count", 0),
            hive=redactor.place("hive", str(hive)) if hive else "",
            links=tuple(_links(folder / "io_links")),
        )
        nodes.append(node)
        if node.simds > 0:
            gpus.append(_gpu(len(gpus), node.number, table, clean(read_text(folder / "name"))))
    return tuple(gpus), tuple(nodes)


def _properties(path: Path) -> dict[str, int]:
    table: dict[str, int] = {}
    for line in read_text(path).splitlines():
        key, _, value = line.strip().partition(" ")
        if value.isdecimal() and len(value) < 24:
            table[key] = int(value)
    return table


def _links(folder: Path) -> list[KfdLink]:
    found: list[KfdLink] = []
    for name in names_in(folder):
        table = _properties(folder / name / "properties")
        if "node_to" in table:
            kind = table.get("type", 0)
            rates = (table.get("min_bandwidth", 0), table.get("max_bandwidth", 0))
            found.append(KfdLink(table["node_to"], _KINDS.get(kind, f"type {kind}"), table.get("weight", 0), *rates))
    return found


def _gpu(index: int, node: int, table: dict[str, int], name: str) -> Gpu:
    location = table.get("location_id", 0)
    bus, slot, function = location >> 8 & 0xFF, location >> 3 & 0x1F, location & 7
    busid = f"{table.get('domain', 0):04x}:{bus:02x}:{slot:02x}.{function}" if location else f"unknown-{index}"
    version = table.get("gfx_target_version", 0)
    major, minor, step = version // 10_000, version // 100 % 100, version % 100
    # An APU has processors and SIMDs in one node; a part with CPU cores only is no GPU and does not come here.
    arch = f"gfx{major}{minor:x}{step:x}" if version else ""
    return Gpu(index, busid, name, arch, node=node)
