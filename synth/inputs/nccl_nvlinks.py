"""The NVLinks and xGMI links of a dump, at NCCL's rates: links between GPUs one way each, NVSwitches as one."""

from __future__ import annotations

from collections import defaultdict

from synth.inputs.builder import Builder
from synth.inputs.nccl_gpus import Gpus, Key
from synth.inputs.nccl_links import PciKind, links_GBps, most_links
from synth.inputs.nccl_tree import NvLink
from synth.topology import DeviceKind

_HIDDEN = "fffffff:ff:ff"
#: What a link of a GPU without architecture is rated by.
_UNKNOWN = {"nvlink": "", "xgmi": "gfx"}


def add_nvlinks(builder: Builder, gpus: Gpus, cpus: dict[Key, str], arch: str) -> None:
    """Add what the <nvlink> and <xgmi> of every GPU say. `cpus` is the CPU above each GPU, `arch` that of GPUs without one.

    Two GPUs have a link in the direction that the file lists; a target that the file does not have is left out, as NCCL does. The
    switches of a host are one. So are those of all hosts where they are hidden: they are then no devices of a host, and NCCL
    fuses the files of hosts only where these share an NVLink domain.
    """
    archs = {rank: gpus.arch(key) or arch for key, rank in gpus.rank.items()}
    kinds = {rank: _kind(gpus, key) for key, rank in gpus.rank.items()}
    pairs: dict[tuple[int, int], int] = {}
    for key, rank in gpus.rank.items():
        for peer, count in _direct(builder, gpus, key).items():
            pairs[rank, peer] = count
        if to_cpu := sum(link.count for link in _links(gpus, key) if link.kind is PciKind.CPU):
            builder.between(f"gpu{rank}", cpus[key], "nvlink", links_GBps(archs[rank], to_cpu), count=to_cpu)
    for low, high in sorted({(min(pair), max(pair)) for pair in pairs}):
        for src, dst in ((low, high), (high, low)):
            if count := pairs.get((src, dst), 0):
                rate = links_GBps(archs[src] or _UNKNOWN[kinds[src]], count)
                builder.link(f"gpu{src}", f"gpu{dst}", kinds[src], rate, count=count)
    switches: dict[int, str] = {}
    for key, rank in gpus.rank.items():
        if count := _to_switch(builder, gpus, key):
            home = 0 if _is_hidden(gpus, key) else key[0]
            if home not in switches:
                switches[home] = builder.add(DeviceKind.NVSWITCH, f"nvswitch.{home}" if home else "nvswitch", home)
            rate = links_GBps(archs[rank] or _UNKNOWN[kinds[rank]], count)
            builder.between(f"gpu{rank}", switches[home], kinds[rank], rate, count=count)
    _say_shared(builder, gpus)


def _links(gpus: Gpus, key: Key) -> tuple[NvLink, ...]:
    gpu = gpus.pci[key].gpu
    return gpu.nvlinks if gpu is not None else ()


def _kind(gpus: Gpus, key: Key) -> str:
    return "xgmi" if any(link.xgmi for link in _links(gpus, key)) else "nvlink"


def _is_hidden(gpus: Gpus, key: Key) -> bool:
    """Whether the GPU's switches have the bus id that NCCL makes up for switches which the host does not see."""
    return any(link.kind is not PciKind.GPU and link.target.startswith(_HIDDEN) for link in _links(gpus, key))


def _direct(builder: Builder, gpus: Gpus, key: Key) -> dict[int, int]:
    """Links to other GPUs, by their rank."""
    counts: dict[int, int] = defaultdict(int)
    for link in _links(gpus, key):
        peer = gpus.rank.get((key[0], link.target))
        if link.kind is not PciKind.GPU or link.count == 0:
            continue
        name = f"gpu{gpus.rank[key]}"
        if peer is None:
            what = f"{link.count} links to {link.target[:24]!r}, which is no GPU of the file"
            builder.doubt(name, what, "left out, as NCCL does: the file shows a part of the GPUs", line=link.node.line)
        elif peer == gpus.rank[key]:
            what = f"{link.count} links to itself"
            builder.doubt(name, what, "left out: no data needs them", line=link.node.line)
        else:
            counts[peer] += link.count
    return counts


def _to_switch(builder: Builder, gpus: Gpus, key: Key) -> int:
    """Links to NVSwitches; entries for GPUs of the file are the same links, listed once for each peer that they reach."""
    mine = [link for link in _links(gpus, key) if link.kind not in (PciKind.GPU, PciKind.CPU)]
    peers = [link.count for link in mine if (key[0], link.target) in gpus.rank]
    others = [link.count for link in mine if (key[0], link.target) not in gpus.rank]
    count = sum(others) + max(peers, default=0)
    if len(peers) > 1:
        builder.doubt(
            f"gpu{gpus.rank[key]}",
            f"{sum(peers)} links to switches that are the file's GPUs: {max(peers)}, listed once for each peer",
            f"NCCL counts all {sum(peers)}, where the GPU has {most_links(gpus.arch(key))} at most",
            line=mine[0].node.line,
        )
    return count


def _say_shared(builder: Builder, gpus: Gpus) -> None:
    hosts = {key[0] for key in gpus.rank if _is_hidden(gpus, key)}
    if len(hosts) > 1:
        what = f"GPUs of {len(hosts)} hosts on one switch: NCCL fuses files of hosts that share an NVLink domain"
        builder.doubt(
            "nvswitch", what, "if these do not, data between them takes the NICs: give one host's file and --nodes"
        )
