"""From `--topo` to a Topology: find the file, tell its kind from its content, hand it to the reader of that kind."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from synth.errors import InputError, NoAnswerError, SynthError
from synth.inputs.catalogue import catalogue_file, catalogue_names
from synth.inputs.fields import decode_json
from synth.inputs.topology_json import parse_topology
from synth.topology import Topology

#: Keys of TACCL's topology files (TACCL, examples/topo and INPUT_GUIDE.md), none of which our format has.
_TACCL_KEYS = frozenset(
    {"gpus_per_node", "nics_per_node", "node_betas", "node_betas_list", "node_invbws", "node_invbws_list", "betas"}
    | {"invbws", "alpha", "remote_alpha", "remote_beta", "remote_invbw"}
)
#: A line of a table of `nvidia-smi topo -m`, or of rocm-smi, whatever colour codes stand before it.
_SMI_TABLE = re.compile(r"^(\x1b\[[0-9;]*m|\s)*GPU\s*\[?0\b|System Management Interface", re.MULTILINE)
_EXPECTED_KINDS = "our topology JSON or TACCL topology JSON"


def load_topology(name_or_path: str) -> Topology:
    """The topology of a file, or of a catalogue entry ("dgx1" or "dgx1.json"); an existing file goes first.

    Raises InputError for a name that is neither, for what cannot be read as text, and for what its reader refuses.
    """
    path = Path(name_or_path)
    if not _is_file(path, name_or_path):
        entry = catalogue_file(name_or_path)
        if entry is None:
            raise _not_found(path, name_or_path)
        path = entry
    return parse_any(_read(path, name_or_path), name_or_path)


def at_fault(error: SynthError, topology: Topology, given: str) -> SynthError:
    """The error, told of the file or name that `--topo` gave where it names only the machine described there."""
    told = str(error)
    if not isinstance(error, InputError | NoAnswerError) or not told.startswith(f"{topology.name}: "):
        return error
    if Path(given).name in (topology.name, f"{topology.name}.json"):
        return error
    return NoAnswerError(f"{given}: {told}")


def parse_any(text: str, source: str) -> Topology:
    """The topology that `text` describes, in whichever of the known formats it is; `source` names it in errors.

    Raises InputError where the text is in no known format, or in one that is known but not read yet.
    """
    body = text.removeprefix("\ufeff").lstrip()
    if not body:
        raise InputError(source, "", "an empty file", _EXPECTED_KINDS)
    if body.startswith("<"):
        raise InputError(source, "", "an XML file", f"{_EXPECTED_KINDS}; NCCL topology XML is not read yet")
    if not body.startswith(("{", "[")) and _SMI_TABLE.search(body):
        expected = f"{_EXPECTED_KINDS}; tables of nvidia-smi and rocm-smi are not read yet"
        raise InputError(source, "", body.split("\n")[0][:40], expected)
    if not body.startswith("{"):
        raise InputError(source, "", body.split("\n")[0][:40], _EXPECTED_KINDS)
    value = decode_json(text, source)
    if "format" not in value and _TACCL_KEYS & set(value):
        from synth.inputs.taccl import parse_taccl_topology

        return parse_taccl_topology(text, source)
    return parse_topology(text, source)


def _is_file(path: Path, name: str) -> bool:
    """Whether something other than a folder stands at the path; InputError where not even that can be told."""
    try:
        return path.exists() and not path.is_dir()
    except (OSError, ValueError) as error:
        raise InputError("--topo", "", name, f"a path that can be looked up ({_reason(error)})") from None


def _not_found(path: Path, name: str) -> InputError:
    if name and path.is_dir():
        return InputError("--topo", "", name, "a file, not a folder")
    names = catalogue_names()
    close = difflib.get_close_matches(path.name.removesuffix(".json").lower(), names, n=3, cutoff=0.4)
    offered = f"close to it: {', '.join(close)}" if close else f"one of {', '.join(names)}"
    return InputError("--topo", "", name, f"a file, or a name from `synth topo list` ({offered})")


def _read(path: Path, name: str) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(name, f"byte {error.start}", "no UTF-8 text", _EXPECTED_KINDS) from None
    except OSError as error:
        raise InputError(name, "", _reason(error), "a file that can be read") from None


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
