"""Hints put into a topology: its NVLinks replaced by those of another machine or a matrix, its NICs by those that the user names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from synth.doubts import Doubt
from synth.errors import InputError
from synth.inputs.builder import default_alpha_us
from synth.inputs.defaults import link_default
from synth.inputs.fabric import FABRIC_KINDS, fabric_links, fabric_of
from synth.inputs.hints import NicEntry, NicHint, NvlinkHint
from synth.inputs.nccl_links import links_GBps
from synth.topology import Device, DeviceKind, Link, Topology

_JOINED = (DeviceKind.GPU, DeviceKind.NVSWITCH)
#: What the links of a table are rated by: it does not know the GPUs.
_UNKNOWN = {"nvlink": "", "xgmi": "gfx"}
_ATTACHABLE = (DeviceKind.PCIE_SWITCH, DeviceKind.CPU, DeviceKind.GPU)


def with_nvlinks(topology: Topology, hint: NvlinkHint) -> tuple[Topology, list[Doubt]]:
    """The topology with the hint's NVLinks and xGMI links in place of its own, box by box.

    Raises InputError (`--nvlink`) where the hint is for another number of GPUs.
    """
    bare, dropped = _without_nvlinks(topology)
    doubts = (
        [Doubt("NVLinks", f"those of the file ({dropped} links) are replaced by --nvlink {hint.given}")]
        if dropped
        else []
    )
    if hint.machine is None and hint.counts is None:
        return bare, doubts
    for gpus in _boxes(bare, hint):
        machine, counts = hint.machine, hint.counts or ()
        bare = _graft(bare, gpus, machine) if machine is not None else _add_matrix(bare, gpus, counts)
    if hint.machine is not None and not any(d.kind is DeviceKind.NVSWITCH for d in hint.machine.devices):
        what = f"GPU i of {hint.given} is taken to be GPU i of the file: their order is not in the file"
        cost = (
            "links between the wrong GPUs where the machine counts them otherwise; nvidia-smi topo -m shows its order"
        )
        doubts.append(Doubt("NVLinks", what, cost))
    return bare, doubts


def _without_nvlinks(topology: Topology) -> tuple[Topology, int]:
    """The topology without links between GPUs and switches of theirs; how many lanes went (each way counted once)."""
    kinds = {device.id: device.kind for device in topology.devices}
    gone = [
        link
        for link in topology.links
        if link.kind in FABRIC_KINDS and kinds[link.src] in _JOINED and kinds[link.dst] in _JOINED
    ]
    lost = set(gone)
    devices = tuple(device for device in topology.devices if device.kind is not DeviceKind.NVSWITCH)
    left = {device.id for device in devices}
    links = tuple(link for link in topology.links if link not in lost and link.src in left and link.dst in left)
    return replace(topology, devices=devices, links=links), sum(link.count for link in gone) // 2


def _boxes(topology: Topology, hint: NvlinkHint) -> list[list[Device]]:
    """The GPUs that the hint is for: all of them, or those of every box."""
    wanted = hint.machine.num_ranks if hint.machine is not None else len(hint.counts or ())
    if wanted == topology.num_ranks:
        return [list(topology.gpus)]
    boxes = [[gpu for gpu in topology.gpus if gpu.node == node] for node in sorted({gpu.node for gpu in topology.gpus})]
    wrong = next((box for box in boxes if len(box) != wanted), None)
    if wrong is not None:
        raise InputError("--nvlink", hint.given, f"{wanted} GPUs", f"{len(wrong)}, as many as {topology.name} has")
    return boxes


def _graft(topology: Topology, gpus: Sequence[Device], machine: Topology) -> Topology:
    """`machine`'s links between GPUs and switches put between `gpus`, position by position, and what it calls its GPUs.

    A table knows neither GPUs nor rates: its links have the rate of the GPUs that they are put between, where those are known.
    """
    taken = {device.id for device in topology.devices}
    name = {theirs.id: ours.id for theirs, ours in zip(machine.gpus, gpus, strict=True)}
    archs = {name[gpu.id]: gpu.arch for gpu in machine.gpus}
    switches = []
    for device in machine.devices:
        if device.kind is DeviceKind.NVSWITCH:
            name[device.id] = _free(device.id, gpus[0].node, taken)
            switches.append(Device(name[device.id], DeviceKind.NVSWITCH, gpus[0].node))
    own = {gpu.id: gpu.arch for gpu in gpus}
    links = []
    for link in machine.links:
        if link.kind in FABRIC_KINDS and link.src in name and link.dst in name:
            src, dst = name[link.src], name[link.dst]
            arch = own.get(src) or own.get(dst, "")
            unrated = not any(archs.values()) and link.GBps == links_GBps(_UNKNOWN[link.kind], link.count)
            rate = links_GBps(arch, link.count) if unrated and arch else link.GBps
            links.append(replace(link, src=src, dst=dst, GBps=rate))
    devices = tuple(
        replace(device, arch=device.arch or archs[device.id]) if device.id in archs else device
        for device in topology.devices
    )
    return replace(topology, devices=(*devices, *switches), links=(*links, *topology.links))


def _add_matrix(topology: Topology, gpus: Sequence[Device], counts: Sequence[Sequence[int]]) -> Topology:
    fabric = fabric_of(counts, [gpu.arch for gpu in gpus])
    kind = "xgmi" if any(gpu.arch.startswith("gfx") for gpu in gpus) else "nvlink"
    devices = topology.devices
    switch = _free("nvswitch", gpus[0].node, {device.id for device in devices})
    if fabric.switched:
        devices = (*devices, Device(switch, DeviceKind.NVSWITCH, gpus[0].node))
    alphas = (default_alpha_us(kind), default_alpha_us(kind, True))
    return replace(
        topology, devices=devices, links=(*fabric_links(fabric, gpus, kind, switch, alphas), *topology.links)
    )


def _free(name: str, node: int, taken: set[str]) -> str:
    """A name nobody has, of a device of box `node`; it is taken from then on."""
    base = f"{name}.{node}" if node else name
    free = base
    while free in taken:
        free += "_"
    taken.add(free)
    return free


def with_nics(topology: Topology, hint: NicHint) -> tuple[Topology, list[Doubt]]:
    """The topology with the NICs and rates of the hint.

    A number with a rate is for every NIC that the file has (in each box), or, where it has none, for as many new ones spread over
    its CPUs. Raises InputError (`--nics`) where number or names do not fit.
    """
    if hint.entries is not None:
        return _with_entries(topology, hint.entries, hint.given), []
    nodes = sorted({gpu.node for gpu in topology.gpus})
    nics = [device for device in topology.devices if device.kind is DeviceKind.NIC]
    if hint.count == 0:
        return _without(topology, {nic.id for nic in nics}), []
    if nics:
        each = {node: sum(nic.node == node for nic in nics) for node in nodes}
        wrong = next((number for number in each.values() if number != hint.count), None)
        if wrong is not None:
            expected = f"{wrong}, as many as {topology.name} has, 0 for none, or a file that names those to keep"
            raise InputError("--nics", hint.given, hint.count, expected)
        rate = hint.GBps
        return (topology if rate is None else _rated(topology, {nic.id: rate for nic in nics})), []
    return _spread(topology, hint, nodes)


def _without(topology: Topology, gone: set[str]) -> Topology:
    """Without some NICs, and without a network that nothing joins any more."""
    devices = [device for device in topology.devices if device.id not in gone]
    links = tuple(link for link in topology.links if link.src not in gone and link.dst not in gone)
    joined = {end for link in links for end in (link.src, link.dst)}
    kept = tuple(device for device in devices if device.kind is not DeviceKind.NETWORK or device.id in joined)
    return replace(topology, devices=kept, links=links)


def _rated(topology: Topology, rates: dict[str, float]) -> Topology:
    """NICs with these line rates in GB/s on the network, which is added where there is none."""
    network = next((device.id for device in topology.devices if device.kind is DeviceKind.NETWORK), None)
    devices = topology.devices
    if network is None:
        network = _free("network", 0, {device.id for device in devices})
        devices = (*devices, Device(network, DeviceKind.NETWORK, -1))
    kept = tuple(
        link for link in topology.links if network not in (link.src, link.dst) or not {link.src, link.dst} & set(rates)
    )
    alpha = default_alpha_us("network")
    wires = tuple(
        Link(src, dst, "network", rate, alpha)
        for nic, rate in rates.items()
        for src, dst in ((nic, network), (network, nic))
    )
    return replace(topology, devices=devices, links=(*kept, *wires))


def _spread(topology: Topology, hint: NicHint, nodes: list[int]) -> tuple[Topology, list[Doubt]]:
    """New NICs in a machine without any, over its CPUs in blocks."""
    default = link_default("network", None, False)
    assert default is not None
    rate = hint.GBps or default.GBps
    entries = []
    for node in nodes:
        cpus = [device.id for device in topology.devices if device.kind is DeviceKind.CPU and device.node == node]
        places = cpus or [gpu.id for gpu in topology.gpus if gpu.node == node]
        for number in range(hint.count):
            name = f"nic{number}.{node}" if node else f"nic{number}"
            entries.append(NicEntry(name, rate, places[number * len(places) // hint.count]))
    what = f"where the {hint.count} NICs of --nics hang is not said: they are spread over the CPUs"
    cost = 'data may cross sockets that it need not; a file with "beside" says it (docs/intake.md)'
    doubts = [Doubt("NICs", what, cost)]
    if hint.GBps is None:
        doubts.append(Doubt("NICs", f"no rate given: {rate:g} GB/s, 100 Gbit/s, is taken", "pass --nics NxGBps"))
    return _with_entries(topology, tuple(entries), hint.given), doubts


def _with_entries(topology: Topology, entries: Sequence[NicEntry], given: str) -> Topology:
    """These NICs and no others; new ones hang on the device named, or, beside a GPU, where the GPU hangs."""
    has = {device.id: device for device in topology.devices}
    wanted = {entry.id for entry in entries}
    result = _without(
        topology,
        {device.id for device in topology.devices if device.kind is DeviceKind.NIC and device.id not in wanted},
    )
    pcie = link_default("pcie", None, False)
    assert pcie is not None
    for position, entry in enumerate(entries):
        if entry.id in has and has[entry.id].kind is DeviceKind.NIC and not entry.beside:
            continue
        place = has.get(entry.beside)
        if entry.id in has or place is None or place.kind not in _ATTACHABLE:
            names = ", ".join(device.id for device in topology.devices if device.kind in (*_ATTACHABLE, DeviceKind.NIC))
            key, value = ("id", entry.id) if entry.id in has or not entry.beside else ("beside", entry.beside)
            expected = "a NIC of the file, or a new name with the device it is beside"
            raise InputError("--nics", f"{given} nics[{position}].{key}", value, f"{expected}: {names[:300]}")
        above, rate = _above(result, place)
        rate = rate if place.kind is DeviceKind.GPU else max(entry.GBps, pcie.GBps)
        nic = Device(entry.id, DeviceKind.NIC, place.node)
        ends = ((nic.id, above), (above, nic.id))
        links = tuple(Link(src, dst, "pcie", rate, pcie.alpha_us) for src, dst in ends)
        result = replace(result, devices=(*result.devices, nic), links=(*result.links, *links))
    return _rated(result, {entry.id: entry.GBps for entry in entries}) if entries else result


def _above(topology: Topology, place: Device) -> tuple[str, float]:
    """The switch or CPU that a device hangs on, with the rate of its connection; itself where it is no GPU."""
    if place.kind is not DeviceKind.GPU:
        return place.id, 0.0
    for link in topology.links:
        if link.src == place.id and topology.by_id[link.dst].kind in (DeviceKind.PCIE_SWITCH, DeviceKind.CPU):
            return link.dst, link.GBps
    raise InputError("--nics", "beside", place.id, "a GPU that hangs on a PCIe switch or a CPU, or such a device")
