"""What tests of the importers share: the data of our own, the files from the wild, and what is asked of a topology."""

from __future__ import annotations

from pathlib import Path

from synth.doubts import Hints, Imported
from synth.errors import InputError
from synth.inputs.load import parse_imported
from synth.inputs.topology_json import parse_topology, to_json
from synth.topology import DeviceKind, Topology

DATA = Path(__file__).parent / "data" / "intake"
REAL = Path(__file__).resolve().parents[2] / "shared" / "real"
FABRIC = ("nvlink", "xgmi")


def outcome(text: str, hints: Hints | None = None) -> Imported | InputError:
    """What comes of a text: it is read, or refused in one line; anything else is an error of the test. What was read
    survives our own format."""
    try:
        imported = parse_imported(text, "given", hints)
    except InputError as error:
        if "\n" in str(error) or not str(error).startswith("given: "):
            raise AssertionError(f"not one line about the file: {error}") from error
        return error
    if parse_topology(to_json(imported.topology), "again") != imported.topology:
        raise AssertionError("our own format changes it")
    return imported


def lanes(topology: Topology) -> dict[tuple[int, int], int]:
    """(rank, rank) to the number of direct NVLinks or xGMI links in that direction."""
    return {
        (_rank(topology, link.src), _rank(topology, link.dst)): link.count
        for link in topology.links
        if link.kind in FABRIC and _is_gpu(topology, link.src) and _is_gpu(topology, link.dst)
    }


def out_GBps(topology: Topology, rank: int) -> float:
    """GB/s of a GPU's NVLinks and xGMI links together, to GPUs and to switches of theirs."""
    gpu = topology.gpus[rank].id
    ends = (DeviceKind.GPU, DeviceKind.NVSWITCH)
    return sum(
        link.GBps
        for link in topology.links
        if link.src == gpu and link.kind in FABRIC and topology.by_id[link.dst].kind in ends
    )


def rate(topology: Topology, src: str, dst: str) -> float:
    """GB/s from device to device, 0 where there is no link."""
    return sum(link.GBps for link in topology.links if (link.src, link.dst) == (src, dst))


def neighbours(topology: Topology, device: str) -> set[str]:
    return {link.dst for link in topology.links if link.src == device}


def isomorphic(a: dict[tuple[int, int], int], b: dict[tuple[int, int], int], size: int) -> bool:
    """Whether some numbering of the ranks makes two NVLink graphs (`lanes`) the same."""

    def extend(image: tuple[int, ...]) -> bool:
        rank = len(image)
        if rank == size:
            return True
        free = (other for other in range(size) if other not in image)
        return any(
            extend((*image, other))
            for other in free
            if all(
                a.get((rank, known), 0) == b.get((other, its), 0) and a.get((known, rank), 0) == b.get((its, other), 0)
                for known, its in enumerate(image)
            )
        )

    return extend(())


def _is_gpu(topology: Topology, device: str) -> bool:
    return topology.by_id[device].kind is DeviceKind.GPU


def _rank(topology: Topology, device: str) -> int:
    rank = topology.by_id[device].rank
    assert rank is not None
    return rank
