"""NVLinks and xGMI links of a recording as links of a topology, and what is suspicious about them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from synth.inputs.builder import Builder
from synth.probe.rates import link_GBps
from synth.probe.recording import Gpu, NvLink, Recording
from synth.topology import DeviceKind

#: RCCL counts an xGMI connection as direct only at this weight, that of one hop (rocm_smi_wrap.cc).
_ONE_HOP = 15
_NVSWITCH_CLASS, _BRIDGE_CLASS = "0x068000", "0x068001"
#: Where a port leads: a GPU by its place in the recording, or one of these.
_SWITCH, _CPU, _STRANGER = -1, -2, -3


def add_nvlinks(builder: Builder, recording: Recording, cpu_of: Mapping[int, str]) -> None:
    """Add the links of all GPUs; device ids are "gpu0" and so on, `cpu_of` gives the CPU beside a GPU by its place.

    A link between two GPUs exists where both ends say so; all NVSwitches are one device, as NCCL has them.
    """
    counts = {place: _ends(builder, recording, place) for place in range(len(recording.gpus))}
    switch = ""
    for place, gpu in enumerate(recording.gpus):
        rate = link_GBps(gpu.arch)
        for end, count in sorted(counts[place].items()):
            if end == _SWITCH:
                switch = switch or builder.add(DeviceKind.NVSWITCH, "nvswitch0")
                builder.between(f"gpu{place}", switch, "nvlink", count * rate, count=count)
            elif end == _CPU and place in cpu_of:
                builder.between(f"gpu{place}", cpu_of[place], "nvlink", count * rate, count=count)
            elif end >= 0:
                _add_direct(builder, recording.gpus, counts, place, end)
    _add_xgmi(builder, recording, cpu_of)
    for place, gpu in enumerate(recording.gpus):
        if gpu.c2c_links and gpu.c2c_MBps and place in cpu_of:
            total = gpu.c2c_links * gpu.c2c_MBps / 1000
            builder.between(f"gpu{place}", cpu_of[place], "c2c", total, count=gpu.c2c_links)
    _doubt_unequal(builder, recording.gpus)


def _ends(builder: Builder, recording: Recording, place: int) -> Counter[int]:
    """How many active links a GPU has to each end."""
    places = {gpu.busid: other for other, gpu in enumerate(recording.gpus)}
    classes = {device.busid: device.pci_class for device in recording.pci}
    found: Counter[int] = Counter()
    for link in recording.gpus[place].nvlinks:
        if link.state == "active":
            found[_end_of(link, places, classes)] += 1
    rate = link_GBps(recording.gpus[place].arch)
    for end, why in ((place, "lead to itself"), (_STRANGER, "lead to a GPU that NVML does not name here")):
        if count := found.pop(end, 0):
            builder.doubt(f"gpu{place}", f"{count} NVLinks {why}: left out", f"{count * rate:g} GB/s")
    if any(link.state == "active" and link.remote == "hidden" for link in recording.gpus[place].nvlinks):
        cost = "wrong if GPUs are joined directly: pass a matrix of the machine then"
        builder.doubt(
            f"gpu{place}", "NVLinks lead to what this machine cannot see: an NVSwitch, as NCCL takes it", cost
        )
    return found


def _end_of(link: NvLink, places: Mapping[str, int], classes: Mapping[str, str]) -> int:
    """Where a port leads. NVML's word goes first, then the class of the PCI device there; what is hidden is an NVSwitch."""
    if link.remote in ("switch", "hidden"):
        return _SWITCH
    if link.remote == "cpu":
        return _CPU
    if link.busid in places:
        return places[link.busid]
    pci_class = classes.get(link.busid, "")
    if link.remote == "" and pci_class.startswith((_NVSWITCH_CLASS, _BRIDGE_CLASS)):
        return _SWITCH if pci_class.startswith(_NVSWITCH_CLASS) else _CPU
    return _STRANGER


def _add_direct(
    builder: Builder, gpus: Sequence[Gpu], counts: Mapping[int, Counter[int]], place: int, other: int
) -> None:
    """Add place -> other: as many links as both ends know; the difference is said once, at the end that knows more."""
    here, there = counts[place][other], counts[other][place]
    rate = link_GBps(gpus[place].arch)
    if here > there:
        what = f"{here} active NVLinks to gpu{other}, which knows of {there}"
        builder.doubt(f"gpu{place}", f"{what}: planned with {there}", f"{(here - there) * rate:g} GB/s")
    if count := min(here, there):
        builder.link(f"gpu{place}", f"gpu{other}", "nvlink", count * rate, count=count)


def _add_xgmi(builder: Builder, recording: Recording, cpu_of: Mapping[int, str]) -> None:
    """The xGMI connections of KFD's nodes: between GPUs where they are one hop, and to CPUs."""
    places = {gpu.node: place for place, gpu in enumerate(recording.gpus) if gpu.node >= 0}
    unknown: list[str] = []
    for node in recording.kfd:
        place = places.get(node.number)
        if place is None:
            continue
        rate = link_GBps(recording.gpus[place].arch)
        for link in node.links:
            direct = link.to in places and link.weight <= _ONE_HOP
            if (
                link.kind != "xgmi"
                or not (direct or (link.to not in places and place in cpu_of))
                or link.to == node.number
            ):
                continue
            told = link.min_MBps > 0 and link.max_MBps >= link.min_MBps
            count = min(64, link.max_MBps // link.min_MBps) if told else 1
            if direct:
                builder.link(f"gpu{place}", f"gpu{places[link.to]}", "xgmi", count * rate, count=count)
                unknown += [] if told else [f"gpu{place}"]
            else:
                builder.between(f"gpu{place}", cpu_of[place], "xgmi", count * rate, count=count)
    for gpu in dict.fromkeys(unknown):
        builder.doubt(
            gpu, "KFD does not tell how many xGMI links a connection has: one is taken", "too slow a plan if more"
        )


def _doubt_unequal(builder: Builder, gpus: Sequence[Gpu]) -> None:
    """Say which GPUs have fewer active links than others of their model, and where all are down."""
    twins: dict[tuple[str, str], list[int]] = defaultdict(list)
    for place, gpu in enumerate(gpus):
        twins[gpu.name, gpu.arch].append(place)
    for places in twins.values():
        up = {place: sum(link.state == "active" for link in gpus[place].nvlinks) for place in places}
        most = max(up.values())
        rate = link_GBps(gpus[places[0]].arch)
        short = [place for place in places if up[place] < most]
        down = [place for place in places if gpus[place].nvlinks]
        if most == 0 and down:
            ports = max(len(gpus[place].nvlinks) for place in down)
            what = f"none of {ports} NVLinks is active: no bridge, or NVSwitches without their fabric manager"
            for place in down:
                builder.doubt(f"gpu{place}", what, f"up to {ports * rate:g} GB/s a GPU")
        for place in short:
            what = f"{up[place]} active NVLinks, others of its model have {most}{_suspect(place, short, up, gpus)}"
            builder.doubt(f"gpu{place}", what, f"{(most - up[place]) * rate:g} of {most * rate:g} GB/s")


def _suspect(place: int, short: Sequence[int], up: Mapping[int, int], gpus: Sequence[Gpu]) -> str:
    """The link that is probably broken, where just two GPUs of a mesh lack equally many."""
    if len(short) != 2 or up[short[0]] != up[short[1]]:
        return ""
    if any(link.remote not in ("gpu", "") for link in gpus[place].nvlinks if link.state == "active"):
        return ""
    return f"; probably the link gpu{short[0]}-gpu{short[1]} is down"
