"""What the user says beside the file: `--nvlink`, `--nics` and `--arch` (`synth.doubts.Hints`), read and applied.

--nvlink dgx1          the NVLinks of a machine of the catalogue, GPU by GPU
--nvlink FILE          those of any file that `--topo` takes, or a matrix of link counts, a row a line
--nvlink none          there are none
--nics 8x25            eight NICs of 25 GB/s each; --nics 0: leave out those that the file has
--nics FILE            {"nics": [{"id": "mlx5_0", "GBps": 25, "beside": "gpu0"}]}: these and no others
--arch sm_90           the GPUs that the file does not name
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from synth.doubts import Doubt, Hints, Imported
from synth.errors import InputError
from synth.inputs.builder import told_once
from synth.inputs.fabric import fabric_doubts
from synth.inputs.fields import Fields, decode_json
from synth.inputs.topology_json import ARCH
from synth.topology import Device, DeviceKind, Topology

_NICS = re.compile(r"(?P<count>[0-9]{1,4})(?:x(?P<GBps>[0-9]{1,6}(?:\.[0-9]{1,6})?)(?:GBps|GB/s)?)?")
_MATRIX_SPLIT = re.compile(r"[\s,;]+")
_MOST_GPUS = 1024
_MAX_GBPS = 1_000_000
NVLINK_EXPECTED = (
    "--nvlink with a machine of the catalogue that has the same GPUs (dgx1, dgx-a100, ...), a file (nvidia-smi topo -m of the "
    "machine, or a matrix of link counts), or none where there are no NVLinks"
)


@dataclass(frozen=True, slots=True)
class Draft:
    """What a file says before the user has spoken. `unsaid`: why its NVLinks are not known, "" where they are; `stated`: every
    figure is the author's own, so that none is doubted on reading (`synth topo check` does).
    """

    imported: Imported
    unsaid: str = ""
    stated: bool = False


@dataclass(frozen=True, slots=True)
class NicEntry:
    """A NIC by name, its line rate in GB/s, and the device that it is beside ("" for one that the file has)."""

    id: str
    GBps: float
    beside: str = ""


@dataclass(frozen=True, slots=True)
class NicHint:
    """`--nics`: a number of NICs with their rate in GB/s (None: as the file says), or entries by name."""

    given: str
    count: int
    GBps: float | None
    entries: tuple[NicEntry, ...] | None = None


@dataclass(frozen=True, slots=True)
class NvlinkHint:
    """`--nvlink` with what it leads to: a machine with NVLinks, a matrix of link counts, or neither for none."""

    given: str
    machine: Topology | None = None
    counts: tuple[tuple[int, ...], ...] | None = None


@dataclass(frozen=True, slots=True)
class Given:
    """The hints, read."""

    nvlink: NvlinkHint | None = None
    nics: NicHint | None = None
    arch: str = ""


def parse_arch(hints: Hints) -> str:
    """`--arch`, "" where not given. InputError for what is no architecture."""
    if hints.arch is None:
        return ""
    arch = hints.arch.strip().lower()
    if not ARCH.fullmatch(arch):
        raise InputError(
            "--arch", "", hints.arch, "a GPU architecture: sm_70 (V100), sm_80 (A100), sm_90 (H100), gfx942"
        )
    return arch


def parse_nics(text: str) -> NicHint | None:
    """`--nics N` or `--nics NxGBps`; None where the text is neither (a file then)."""
    match = _NICS.fullmatch(text.strip())
    if match is None:
        return None
    rate = float(match["GBps"]) if match["GBps"] else None
    if rate is not None and not 0 < rate <= _MAX_GBPS:
        raise InputError("--nics", "", text, "a rate above 0, in GB/s, such as 8x25")
    return NicHint(text, int(match["count"]), rate)


def parse_nics_file(text: str, source: str) -> NicHint:
    """The NICs that a JSON file lists. InputError naming field, value and what was expected."""
    root = Fields.of(decode_json(text, source), source, "", ("nics",))
    entries = []
    for position, item in enumerate(root.items("nics")):
        fields = Fields.of(item, source, f"nics[{position}]", ("id", "GBps", "beside"))
        rate = fields.number("GBps", _MAX_GBPS, positive=True)
        if rate is None:
            fields.fail("GBps", "missing", "the NIC's line rate in GB/s, such as 25 for 200 Gbit/s")
        entries.append(NicEntry(fields.text("id"), float(rate), fields.text("beside", "-").removeprefix("-")))
    names = [entry.id for entry in entries]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        root.fail("nics", twice, "an id that no other NIC has")
    return NicHint(source, len(entries), None, tuple(entries))


def is_matrix(text: str) -> bool:
    """Whether the text is a matrix of numbers, a row a line."""
    rows = _rows(text)
    return bool(rows) and all(re.fullmatch(r"[0-9]+", cell) for row in rows for cell in row)


def parse_matrix(text: str, source: str) -> tuple[tuple[int, ...], ...]:
    """A square matrix of link counts. InputError naming the row otherwise; links of a GPU to itself are refused."""
    rows = _rows(text)
    if not 0 < len(rows) <= _MOST_GPUS:
        raise InputError(source, "", f"{len(rows)} rows", "a square matrix of link counts")
    for number, row in enumerate(rows):
        if len(row) != len(rows):
            raise InputError(source, f"row {number}", f"{len(row)} counts", f"{len(rows)}, one for each of the rows")
        bad = next((cell for cell in row if not re.fullmatch(r"[0-9]{1,4}", cell)), None)
        if bad is not None:
            raise InputError(source, f"row {number}", bad, "a number of links")
        if int(row[number]):
            raise InputError(source, f"row {number}", row[number], "0 for the links of a GPU to itself")
    return tuple(tuple(int(cell) for cell in row) for row in rows)


def _rows(text: str) -> list[list[str]]:
    lines = (line.partition("#")[0].strip() for line in text.removeprefix("\ufeff").splitlines())
    return [[cell for cell in _MATRIX_SPLIT.split(line.strip("[](),;")) if cell] for line in lines if line]


def finish(draft: Draft, given: Given, source: str) -> Imported:
    """The topology with what the user said, and all doubts.

    Raises InputError where the file needs a hint that was not given, or one does not fit the machine.
    """
    from synth.inputs.hints_apply import with_nics, with_nvlinks

    topology, doubts = _with_arch(draft.imported.topology, given.arch), list(draft.imported.doubts)
    if given.nvlink is not None:
        topology, said = with_nvlinks(topology, given.nvlink)
        doubts = [doubt for doubt in doubts if "pass --nvlink" not in doubt.cost] + said
    elif draft.unsaid:
        raise InputError(source, "NVLinks", draft.unsaid, NVLINK_EXPECTED)
    if given.nics is not None:
        topology, said = with_nics(topology, given.nics)
        doubts = [doubt for doubt in doubts if "pass --nics" not in doubt.cost] + said
    if topology.num_ranks == 1:
        doubts.append(Doubt("GPUs", "one only", "a plan needs two or more: pass --nodes N for N such boxes"))
    return Imported(topology, told_once([*doubts, *(() if draft.stated else fabric_doubts(topology))]))


def _with_arch(topology: Topology, arch: str) -> Topology:
    """The GPUs that have none get `arch`; InputError where one says otherwise."""
    if not arch:
        return topology
    other = next((gpu for gpu in topology.gpus if gpu.arch not in ("", arch)), None)
    if other is not None:
        raise InputError("--arch", "", arch, f"{other.arch}, which the file says of {other.id}")
    devices = tuple(_named(device, arch) for device in topology.devices)
    return replace(topology, devices=devices)


def _named(device: Device, arch: str) -> Device:
    return replace(device, arch=arch) if device.kind is DeviceKind.GPU else device
