"""From a recording to a topology with its doubts: a pure function, whether the machine is here or elsewhere."""

from __future__ import annotations

from collections import defaultdict

from synth.doubts import Imported
from synth.errors import NoAnswerError
from synth.inputs.builder import Builder
from synth.inputs.topology_json import ARCH
from synth.paths import find_paths
from synth.probe.ancestors import add_tree_of_ancestors, ancestors_known
from synth.probe.errors import INSTEAD, ProbeError
from synth.probe.networks import add_nics, usable_cards
from synth.probe.nvlinks import add_nvlinks
from synth.probe.pcie import Tree, add_sockets
from synth.probe.rates import SOURCES
from synth.probe.recording import Gpu, Recording
from synth.topology import DeviceKind, Topology


def build_topology(recording: Recording, name: str = "probed") -> Imported:
    """The machine that was recorded, named `name`, ranks in the order in which NVML or KFD names the GPUs.

    Raises ProbeError, saying what to give instead, where there is no GPU, MIG is on, or nothing tells how the GPUs are joined.
    """
    _refuse(recording)
    builder = Builder(name)
    for place, gpu in enumerate(recording.gpus):
        builder.add(DeviceKind.GPU, f"gpu{place}", rank=place, arch=gpu.arch if ARCH.fullmatch(gpu.arch) else "")
    _doubt_gpus(builder, recording)
    tree = Tree(builder, recording)
    if all(tree.knows(gpu.busid) for gpu in recording.gpus):
        cards = usable_cards(builder, recording)
        tree.plan([*(gpu.busid for gpu in recording.gpus), *(card.busid for card in cards)])
        cpu_of = {place: tree.cpu(tree.numa_of(gpu.busid)) for place, gpu in enumerate(recording.gpus)}
        add_nvlinks(builder, recording, cpu_of)
        for place, gpu in enumerate(recording.gpus):
            tree.attach(f"gpu{place}", gpu.busid)
        add_nics(builder, tree, cards)
        add_sockets(builder, recording.cpus, tree.cpus)
        _doubt_numa(builder, recording, tree)
    else:
        _hidden(builder, recording)
    _doubt_peer_access(builder, recording)
    imported = builder.imported("")
    topology = imported.topology
    _require_connected(topology)
    return Imported(_with_about(topology, recording), imported.doubts)


def _refuse(recording: Recording) -> None:
    """Raise ProbeError for what no topology can be made of."""
    if not recording.gpus:
        raise ProbeError(recording.problem or "no GPU")
    sliced = [f"gpu{gpu.index}" for gpu in recording.gpus if gpu.mig]
    if sliced:
        remedy = f"turn it off (`nvidia-smi -mig 0`) and probe again, or {INSTEAD}"
        raise ProbeError(f"MIG is on ({', '.join(sliced)}): its instances have no NVLink and no peer access", remedy)


def _hidden(builder: Builder, recording: Recording) -> None:
    """The machine without the kernel's PCIe tree: from common ancestors, or NVLinks alone."""
    cpu_of: dict[int, str] = {}
    if len(recording.gpus) == 1 or ancestors_known(recording):
        cpu_of = add_tree_of_ancestors(builder, recording)
        ids = dict(enumerate(dict.fromkeys(cpu_of.values())))
        add_sockets(builder, recording.cpus, ids)
    else:
        what = "the tree is hidden (a container?), and NVML does not tell the GPUs' common ancestors"
        builder.doubt("PCIe", what, "only NVLinks are planned for; run on the host, or pass a table of the machine")
    usable_cards(builder, recording)
    add_nvlinks(builder, recording, cpu_of)


def _require_connected(topology: Topology) -> None:
    try:
        find_paths(topology)
    except NoAnswerError as error:
        raise ProbeError(
            f"nothing tells how the {topology.num_ranks} GPUs are joined: no NVLink between all, and the PCIe tree is "
            "hidden (a container?)",
            f"probe on the host, or {INSTEAD}",
        ) from error


def _doubt_gpus(builder: Builder, recording: Recording) -> None:
    for lost in recording.lost:
        where, _, why = lost.partition(": ")
        builder.doubt(where, f"NVML cannot open it ({why}): left out, ranks count on without it", "a whole GPU")
    models = sorted({gpu.name or gpu.arch for gpu in recording.gpus})
    if len(models) > 1:
        what = f"different models ({', '.join(models)}): CUDA numbers the fastest first"
        builder.doubt("gpus", what, "ranks mean other GPUs, unless CUDA_DEVICE_ORDER=PCI_BUS_ID is set")
    shared: dict[str, list[str]] = defaultdict(list)
    for place, gpu in enumerate(recording.gpus):
        shared[gpu.busid].append(f"gpu{place}")
    for names in shared.values():
        if len(names) > 1:
            what = f"one card with {', '.join(names[1:])} (compute partitions): they share its links"
            builder.doubt(names[0], what, "each has only a part of what is planned")
    for place, gpu in enumerate(recording.gpus):
        _doubt_fabric(builder, f"gpu{place}", gpu)


def _doubt_fabric(builder: Builder, name: str, gpu: Gpu) -> None:
    fabric = gpu.fabric
    if fabric is None:
        return
    if fabric.state in ("not started", "in progress"):
        what = f"registering with the NVLink fabric is {fabric.state}: is the fabric manager running?"
        builder.doubt(name, what, "no NVLink until it is done")
    if fabric.degraded:
        builder.doubt(
            name, "the NVLink fabric reports degraded bandwidth", "part of its NVLink rate; `nvidia-smi -q` tells more"
        )
    if fabric.cluster and fabric.state == "completed":
        what = f"part of NVLink {fabric.cluster}, clique {fabric.clique}: GPUs of other boxes may be on the same NVSwitches"
        builder.doubt(name, what, "probe each box and join them into one cluster to plan across")


def _doubt_numa(builder: Builder, recording: Recording, tree: Tree) -> None:
    unknown = [f"gpu{place}" for place, gpu in enumerate(recording.gpus) if tree.by_bus[gpu.busid].numa < 0]
    if unknown and len(recording.cpus) > 1:
        what = f"NUMA node not told, of {len(recording.cpus)}: taken as node 0, as NCCL does"
        for name in unknown:
            builder.doubt(name, what, "the link between sockets may be on its way, unseen")


def _doubt_peer_access(builder: Builder, recording: Recording) -> None:
    """Say which pairs have no peer access, and why, a doubt for each reason."""
    place_of = {gpu.index: place for place, gpu in enumerate(recording.gpus)}
    refused: dict[str, list[str]] = defaultdict(list)
    for pair in recording.pairs:
        reasons = [word for word in (pair.read, pair.write) if word not in ("", "ok")]
        if reasons and pair.nvlink != "ok" and pair.a in place_of and pair.b in place_of:
            refused[reasons[0]].append(f"gpu{place_of[pair.a]}-gpu{place_of[pair.b]}")
    for reason, pairs in refused.items():
        shown = ", ".join(pairs[:4]) + (f" and {len(pairs) - 4} more" if len(pairs) > 4 else "")
        cost = "NCCL copies through host memory there: slower than their PCIe path is planned"
        builder.doubt(shown, f"no peer access: {reason}", cost)


def _with_about(topology: Topology, recording: Recording) -> Topology:
    """The topology with a line on what was seen, and one on each kind of figure."""
    count = len(recording.gpus)
    model = next((gpu.name for gpu in recording.gpus if gpu.name), "GPU")
    who = {"nvml": "NVML", "kfd": "AMD's KFD topology"}.get(recording.source, recording.source)
    driver = f", driver {recording.driver}" if recording.driver else ""
    kinds = {link.kind for link in topology.links}
    lines = [
        f"Probed: {count} x {model}. GPUs and their links: {who}{driver}. PCIe, NUMA, CPUs and NICs: sysfs.",
        *(f"{kind}: {source}" for kind, source in SOURCES.items() if kind in kinds),
    ]
    return Topology(topology.name, topology.devices, topology.links, "\n".join(lines))
