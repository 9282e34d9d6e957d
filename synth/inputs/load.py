"""From `--topo` to a topology: find the file, tell its kind from its content, hand it to the reader of that kind, add the hints."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from synth.doubts import Hints, Imported
from synth.errors import InputError, NoAnswerError, SynthError
from synth.inputs.catalogue import catalogue_file, catalogue_names
from synth.inputs.cluster_json import import_cluster, is_cluster
from synth.inputs.fields import decode_json
from synth.inputs.hints import (
    Draft,
    Given,
    NicHint,
    NvlinkHint,
    finish,
    is_matrix,
    parse_arch,
    parse_matrix,
    parse_nics,
    parse_nics_file,
)
from synth.inputs.topology_json import parse_topology
from synth.topology import DeviceKind, Topology

#: Keys of TACCL's topology files (TACCL, examples/topo and INPUT_GUIDE.md), none of which our format has.
_TACCL_KEYS = frozenset(
    {"gpus_per_node", "nics_per_node", "node_betas", "node_betas_list", "node_invbws", "node_invbws_list", "betas"}
    | {"invbws", "alpha", "remote_alpha", "remote_beta", "remote_invbw"}
)
#: A line of a table of `nvidia-smi topo -m`, whatever colour codes (or what is left of them) stand before it.
_SMI_TABLE = re.compile(r"^(\x1b?\[[0-9;]*m|\s)*GPU[0-9]+(\s|$)", re.MULTILINE)
_EXPECTED_KINDS = (
    "our topology JSON, NCCL topology XML (NCCL_TOPO_DUMP_FILE), the table of nvidia-smi topo -m or rocm-smi --showtopo, "
    "or TACCL topology JSON"
)
#: What other text that people have at hand begins with or contains.
_OTHERS = (
    (
        re.compile(r"^\| NVIDIA-SMI |^\+-+\+\s*\n\| NVIDIA-SMI", re.MULTILINE),
        "the summary of nvidia-smi; topo -m prints the table",
    ),
    (re.compile(r"^=+NVSMI LOG=+", re.MULTILINE), "a log of nvidia-smi -q; topo -m prints the table"),
    (re.compile(r"^GPU 0: .*UUID", re.MULTILINE), "the list of nvidia-smi -L or nvlink; topo -m prints the table"),
    (re.compile(r"^Machine \(|^\s*HostBridge", re.MULTILINE), "text of lstopo, which says nothing of NVLinks"),
    (
        re.compile(r"ROCm System Management Interface"),
        "a log of rocm-smi without tables of links; --showtopo prints them",
    ),
)


def import_topology(name_or_path: str, hints: Hints | None = None) -> Imported:
    """The topology of a file, or of a catalogue entry ("dgx1" or "dgx1.json"), with the doubts of reading it; an existing
    file goes first. `hints` say what the file cannot.

    Raises InputError for a name that is neither, for what cannot be read as text, for what its reader refuses, for a hint
    that is needed and missing, and for one that does not fit.
    """
    return parse_imported(_find(name_or_path, "--topo"), name_or_path, hints)


def load_topology(name_or_path: str, hints: Hints | None = None) -> Topology:
    """`import_topology` without its doubts."""
    return import_topology(name_or_path, hints).topology


def _find(name_or_path: str, option: str) -> str:
    """The text of a file or of a catalogue entry that an option names."""
    path = Path(name_or_path)
    if not _is_file(path, name_or_path, option):
        entry = catalogue_file(name_or_path)
        if entry is None:
            raise _not_found(path, name_or_path, option)
        path = entry
    return _read(path, name_or_path)


def at_fault(error: SynthError, topology: Topology, given: str) -> SynthError:
    """The error, told of the file or name that `--topo` gave where it names only the machine described there."""
    told = str(error)
    if not isinstance(error, InputError | NoAnswerError) or not told.startswith(f"{topology.name}: "):
        return error
    if Path(given).name in (topology.name, f"{topology.name}.json"):
        return error
    return NoAnswerError(f"{given}: {told}")


def parse_any(text: str, source: str, hints: Hints | None = None) -> Topology:
    """`parse_imported` without its doubts."""
    return parse_imported(text, source, hints).topology


def parse_imported(text: str, source: str, hints: Hints | None = None) -> Imported:
    """The topology that `text` describes, in whichever of the known formats it is, with the doubts of reading it; `source` names
    it in errors. Files that `hints` name are read.

    Raises InputError where the text is in no known format, and as `import_topology`.
    """
    given = _given(hints or Hints())
    return finish(_draft(text, source, given.arch), given, source)


def _draft(text: str, source: str, arch: str) -> Draft:
    """What the text says, by the reader of its kind. Readers that not every command needs are imported late."""
    body = text.removeprefix("\ufeff").lstrip()
    if body.startswith("<"):
        from synth.inputs.nccl_build import draft_of_nccl_xml

        return draft_of_nccl_xml(text, source, arch)
    if body.startswith("{"):
        return _from_json(text, source)
    from synth.inputs.rocm_smi import draft_of_rocm_smi, is_rocm_smi

    if is_rocm_smi(text):
        return draft_of_rocm_smi(text, source, arch)
    other = next((what for pattern, what in _OTHERS if pattern.search(text)), None)
    if other is None and _SMI_TABLE.search(text):
        from synth.inputs.smi import draft_of_smi

        return draft_of_smi(text, source, arch)
    if other is None and any(character.isdigit() for character in body) and is_matrix(text):
        other = "a matrix of numbers, which --nvlink takes"
    raise InputError(source, "", other or body.split("\n")[0][:40] or "an empty file", _EXPECTED_KINDS)


def _from_json(text: str, source: str) -> Draft:
    value = decode_json(text, source)
    if is_cluster(value):
        return Draft(import_cluster(text, source, import_topology), stated=True)
    if "format" not in value and _TACCL_KEYS & set(value):
        from synth.inputs.taccl import import_taccl_topology

        return Draft(import_taccl_topology(text, source))
    return Draft(Imported(parse_topology(text, source)), stated=True)


def _given(hints: Hints) -> Given:
    """The hints, with the files that they name read."""
    arch = parse_arch(hints)
    nvlink = None if hints.nvlink is None else _nvlink(hints.nvlink, arch)
    return Given(nvlink, None if hints.nics is None else _nics(hints.nics), arch)


def _nvlink(given: str, arch: str) -> NvlinkHint:
    if given == "none":
        return NvlinkHint(given)
    text = _find(given, "--nvlink")
    if is_matrix(text):
        return NvlinkHint(given, counts=parse_matrix(text, given))
    machine = _draft(text, given, arch).imported.topology
    joined = {DeviceKind.GPU, DeviceKind.NVSWITCH}
    if not any({machine.by_id[link.src].kind, machine.by_id[link.dst].kind} <= joined for link in machine.links):
        raise InputError("--nvlink", given, "no links between GPUs", "a machine with NVLinks, or none")
    return NvlinkHint(given, machine)


def _nics(given: str) -> NicHint:
    hint = parse_nics(given)
    if hint is not None:
        return hint
    path = Path(given)
    if not _is_file(path, given, "--nics") or path.is_dir():
        raise InputError(
            "--nics", "", given, "a number of NICs, such as 8x25 (eight of 25 GB/s), or a JSON file of them"
        )
    return parse_nics_file(_read(path, given), given)


def _is_file(path: Path, name: str, option: str) -> bool:
    """Whether something other than a folder stands at the path; InputError where not even that can be told."""
    try:
        return path.exists() and not path.is_dir()
    except (OSError, ValueError) as error:
        raise InputError(option, "", name, f"a path that can be looked up ({_reason(error)})") from None


def _not_found(path: Path, name: str, option: str) -> InputError:
    if name and path.is_dir():
        return InputError(option, "", name, "a file, not a folder")
    names = catalogue_names()
    close = difflib.get_close_matches(path.name.removesuffix(".json").lower(), names, n=3, cutoff=0.4)
    offered = f"close to it: {', '.join(close)}" if close else f"one of {', '.join(names)}"
    return InputError(option, "", name, f"a file, or a name from `synth topo list` ({offered})")


def _read(path: Path, name: str) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(name, f"byte {error.start}", "no UTF-8 text", _EXPECTED_KINDS) from None
    except OSError as error:
        raise InputError(name, "", _reason(error), "a file that can be read") from None


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
