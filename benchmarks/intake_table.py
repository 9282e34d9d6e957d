"""The table of docs/intake.md: what becomes of every machine description from the wild.

    python -m benchmarks.intake_table [FOLDER]

FOLDER holds `nccl-xml/`, `smi/` and `other-formats/`; by default it is `../shared/real` beside the repository. Each file is read as
it is and, where it is refused, with what the refusal asks for; what can be read is made into an allgather that the verifier accepts.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from synth.build import build_instance
from synth.collective import Collective, CollectiveName
from synth.doubts import Hints, Imported
from synth.errors import InputError
from synth.inputs.load import parse_imported
from synth.lowering.lower import lower
from synth.lowering.options import LoweringOptions
from synth.paths import find_paths
from synth.routing.greedy import GreedyRouting
from synth.topology import DeviceKind, Topology
from synth.verify import verify_algo

ROOT = Path(__file__).resolve().parent.parent
REAL = ROOT.parent / "shared" / "real"
DOCUMENT = ROOT / "docs" / "intake.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
FOLDERS = ("nccl-xml", "smi", "other-formats")
#: What makes a file work that cannot stand alone, by the beginning of its name.
HINTS = {
    "aws-p4d": Hints(nvlink="dgx-a100", nics="4x12.5"),
    "aws-p4de": Hints(nvlink="dgx-a100", nics="4x12.5"),
    "azure-ndv4": Hints(nvlink="dgx-a100", nics="8x25"),
    "azure-ndv5": Hints(nvlink="dgx-h100", nics="8x50"),
    "oracle-topo-flattened": Hints(nvlink="dgx-a100", nics="8x25"),
    "superbench-ndv5": Hints(nvlink="dgx-h100", nics="8x50"),
}
_BYTES = 1 << 24
_FABRIC = ("nvlink", "xgmi")


@dataclass(frozen=True)
class Row:
    """A file with what came of it: as it is, and with `hints`; `refusal` is the reason why it was not read without them."""

    name: str
    imported: Imported | None
    refusal: str
    hints: Hints | None
    verified: bool


def files(folder: Path) -> list[Path]:
    """All machine descriptions in the folder, in order."""
    found = (path for name in FOLDERS for path in sorted((folder / name).rglob("*")))
    return [path for path in found if path.suffix in (".xml", ".txt")]


def hints_for(path: Path) -> Hints | None:
    """The hints that a file needs, None for none."""
    if path.suffix != ".xml":
        return None
    return next((hints for name, hints in HINTS.items() if path.name.startswith(name)), None)


def read(path: Path, hints: Hints | None = None) -> Imported:
    """A file, named without its folder. Raises InputError where it is refused."""
    return parse_imported(path.read_bytes().decode(), path.name, hints)


def row_of(path: Path) -> Row:
    """What comes of a file; any error but a refusal is one of synth, and goes through."""
    try:
        imported, refusal, hints = read(path), "", None
    except InputError as error:
        refusal, hints = str(error).removeprefix(f"{path.name}: "), hints_for(path)
        imported = read(path, hints) if hints is not None else None
    return Row(path.name, imported, refusal, hints, imported is not None and allgather(imported.topology))


def allgather(topology: Topology) -> bool:
    """Whether a quick allgather was made and verified (errors go through); False for one GPU, which needs none."""
    find_paths(topology)
    if topology.num_ranks < 2:
        return False
    collective = Collective(CollectiveName.ALLGATHER, topology.num_ranks, topology.num_ranks)
    instance = build_instance(topology, collective, _BYTES)
    _, schedule = GreedyRouting(seeds=1)(instance)
    verify_algo(lower(instance, schedule, LoweringOptions()), collective)
    return True


def fabric_GBps(topology: Topology) -> list[float]:
    """GB/s out of each GPU over its NVLinks or xGMI links, by rank."""
    ends = (DeviceKind.GPU, DeviceKind.NVSWITCH)
    return [
        sum(
            link.GBps
            for link in topology.links
            if link.src == gpu.id and link.kind in _FABRIC and topology.by_id[link.dst].kind in ends
        )
        for gpu in topology.gpus
    ]


def line_of(row: Row) -> str:
    """The row as Markdown."""
    if row.imported is None:
        return f"| `{row.name}` | | | | refused: {_cell(row.refusal)} |"
    topology, rates = row.imported.topology, fabric_GBps(row.imported.topology)
    low, high = f"{min(rates):g}", f"{max(rates):g}"
    rate = "none" if max(rates) == 0 else low if low == high else f"{low} to {high}"
    result = "verified" if row.verified else "one GPU: pass `--nodes 2`"
    if row.hints is not None:
        given = " ".join(f"--{key} {value}" for key in ("nvlink", "nics") if (value := getattr(row.hints, key)))
        result = f"refused: its NVLinks are not said; with `{given}` {result}"
    return f"| `{row.name}` | {topology.num_ranks} | {rate} | {len(row.imported.doubts)} | {result} |"


def table(folder: Path) -> str:
    """The table of all files in the folder."""
    head = ["| file | ranks | NVLink, xGMI GB/s a GPU | doubts | result |", "|---|---|---|---|---|"]
    return "\n".join([*head, *(line_of(row_of(path)) for path in files(folder))])


def with_table(document: str, new: str) -> str:
    """The document with another table between its marks."""
    before, _, rest = document.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{new}\n{END}{after}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace(">", "&gt;")


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else REAL
    document = DOCUMENT.read_text(encoding="utf-8")
    DOCUMENT.write_text(with_table(document, table(folder)), encoding="utf-8")
    print(f"{len(files(folder))} files: {DOCUMENT}")


if __name__ == "__main__":
    main()
