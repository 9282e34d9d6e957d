"""The text of `nvidia-smi topo -m` as a table: which devices there are, what stands between two of them, where GPUs are.

People keep such tables in many states, and what can be read without guessing is: colour codes (and what is left of them), a
command line above, a header whose first tab is gone or whose columns run into "CPU Affinity", tabs made blanks, cells without
a blank between, a last cell cut short ("PH0-115": only PHB begins so), rows missing at the end (the matrix is symmetric).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from synth.errors import InputError
from synth.inputs.builder import Builder

#: What a cell may say, from near to far. SOC is what old drivers call SYS.
LABELS = ("X", "PIX", "PXB", "PHB", "NODE", "SYS", "SOC")
_CELL = re.compile(r"X|NV[0-9]{1,2}|PIX|PXB|PHB|NODE|SYS|SOC")
_CELLS = re.compile(f"(?:{_CELL.pattern})+")
_CLIPPED = re.compile(r"(P[HIX]?[BX]?|N(?:O(?:DE?)?)?|S(?:YS?|OC?)?)([0-9][0-9,-]*)?")
#: Escape sequences, and their remains where the escape character was lost on the way.
ANSI = re.compile(r"\x1b?\[[0-9;]*m")
_GPU = re.compile(r"GPU[0-9]{1,4}")
_AFTER_COLUMNS = ("CPU", "NUMA", "GPU NUMA")
_NIC_NAME = re.compile(r"^\s*(NIC[0-9]+)\s*:\s*(\S+)\s*$")
#: Devices of a table: twice those of the largest box.
_MOST = 256
_EXPECTED = "the whole output of nvidia-smi topo -m, from the header (GPU0 GPU1 ...) on"


@dataclass(frozen=True)
class SmiTable:
    """`names` are the columns in order, GPUs first as they stand; `label` knows what is between two of them ("NV12", "SYS"),
    in both orders; `places` what the table says of where a GPU is (its NUMA node, else its CPUs), "" where nothing.
    """

    names: tuple[str, ...]
    label: dict[tuple[str, str], str]
    places: dict[str, str]
    nic_names: dict[str, str]

    @property
    def gpus(self) -> tuple[str, ...]:
        return tuple(name for name in self.names if _GPU.fullmatch(name))

    @property
    def nics(self) -> tuple[str, ...]:
        return tuple(name for name in self.names if not _GPU.fullmatch(name))

    def links(self, a: str, b: str) -> int:
        """NVLinks between two GPUs as the table counts them."""
        label = self.label.get((a, b), "")
        return int(label[2:]) if label.startswith("NV") else 0


def find_header(lines: list[str]) -> int | None:
    """Where the header stands in lines without colour codes: GPU0, then other columns; None where it is not there."""
    for number, line in enumerate(lines):
        words = line.split()
        if words and words[0] == "GPU0" and (len(words) == 1 or not _CELLS.fullmatch(words[1])):
            return number
    return None


def read_table(text: str, source: str, builder: Builder) -> SmiTable:
    """The table in `text`. InputError with the line for one that has no header, or rows that do not fit it."""
    lines = [ANSI.sub("", line).rstrip("\r") for line in text.removeprefix("\ufeff").split("\n")]
    header = find_header(lines)
    if header is None:
        row = next((number for number, line in enumerate(lines) if _GPU.match(line.lstrip())), 0)
        raise InputError(source, f"line {row + 1}", f"no header above {lines[row].strip()[:20]!r}", _EXPECTED)
    names = _columns(lines[header], source, header + 1)
    given, places = _rows(lines, header + 1, names, source, builder)
    nic_names = {match[1]: match[2] for match in map(_NIC_NAME.match, lines) if match}
    label = _both_ways(names, given, source, builder)
    return SmiTable(names, label, places, {name: nic_names[name] for name in names if name in nic_names})


def _rows(
    lines: list[str], first: int, names: tuple[str, ...], source: str, builder: Builder
) -> tuple[dict[tuple[str, str], str], dict[str, str]]:
    """The labels as the rows from line `first` on give them, and the places of their devices."""
    given: dict[tuple[str, str], str] = {}
    places: dict[str, str] = {}
    for number in range(first, len(lines)):
        line, where = lines[number].strip(" "), f"line {number + 1}"
        name = line.split(maxsplit=1)[0] if line.strip() else ""
        if name not in names:
            if _GPU.match(name):
                raise InputError(source, where, name, f"a row of {', '.join(names[:3])}, ...")
            continue
        if name in places:
            raise InputError(source, where, name, "a row for each device, and one table in the file")
        cells, places[name] = _row(line[len(name) :], len(names), f"{where}, {name}", source, builder)
        if any((cell == "X") != (other == name) for other, cell in zip(names, cells, strict=True) if cell):
            expected = "an X in its own column, and there only"
            raise InputError(source, f"{where}, {name}", " ".join(cells), expected)
        given |= {(name, other): cell for other, cell in zip(names, cells, strict=True)}
    return given, places


def _columns(line: str, source: str, number: int) -> tuple[str, ...]:
    words = line.split()
    end = next((i for i, word in enumerate(words) if word in _AFTER_COLUMNS), len(words))
    names = tuple(words[:end])
    if len(set(names)) < len(names) or len(names) > _MOST:
        raise InputError(source, f"line {number}", line.strip()[:40], f"a column for each device. {_EXPECTED}")
    return names


def _row(rest: str, count: int, where: str, source: str, builder: Builder) -> tuple[list[str], str]:
    """The cells of a row ("" where one is missing) and what it says of the device's place."""
    tabbed = "\t" in rest
    pieces = [piece.strip() for piece in rest.split("\t")] if tabbed else rest.split()
    if tabbed and not pieces[0]:
        pieces.pop(0)
    cells: list[str] = []
    while pieces and len(cells) < count:
        piece = pieces.pop(0)
        words = piece.split()
        if len(words) > 1:
            pieces = [*words, *pieces]
            continue
        found = _cells(piece)
        if found is None and (clipped := _clipped(piece)):
            builder.doubt(where, f"a cell cut short, {piece[:20]!r}: read as {clipped}")
            found = [clipped]
        if found is None:
            expected = f"{count} cells, each X, NV#, PIX, PXB, PHB, NODE or SYS"
            raise InputError(source, where, piece[:40] or "nothing", expected)
        cells += found
    if len(cells) > count or not any(cells):
        raise InputError(source, where, f"{len(cells)} cells", f"{count}, as the header has")
    missing = count - len(cells)
    if missing:
        builder.doubt(
            where,
            f"{missing} cells are missing",
            "what they say is taken from the rows of the others, where they have it",
        )
    return cells + [""] * missing, _place(pieces, tabbed)


def _cells(piece: str) -> list[str] | None:
    """The labels in a piece of a row; several where the blanks between were lost; one that is missing for nothing at all."""
    if not piece:
        return [""]
    return [_same(label) for label in _CELL.findall(piece)] if _CELLS.fullmatch(piece) else None


def _same(label: str) -> str:
    return "SYS" if label == "SOC" else label


def _clipped(piece: str) -> str:
    """The only label that begins as a piece does which was cut off ("PH", "PH0-115")."""
    match = _CLIPPED.fullmatch(piece)
    fits = [label for label in LABELS[1:] if match and label.startswith(match[1])]
    return _same(fits[0]) if len(fits) == 1 else ""


def _place(pieces: list[str], tabbed: bool) -> str:
    """The NUMA node of a row, else its CPUs; a table of blanks does not show which of two is empty."""
    cpus, numa = ([*pieces, "", ""])[:2]
    if not tabbed and len(pieces) < 2:
        numa = ""
    known = [f"NUMA {numa}"] if numa and numa != "N/A" else [f"CPUs {cpus}"] if cpus and cpus != "N/A" else [""]
    return known[0]


def _say_conflicts(given: dict[tuple[str, str], str], builder: Builder) -> None:
    for (a, b), cell in given.items():
        other = given.get((b, a), "")
        if cell and other and cell != other and a < b and not (cell.startswith("NV") and other.startswith("NV")):
            builder.doubt(f"{a}-{b}", f"{cell} in one row and {other} in the other", "the nearer of the two is taken")


def _both_ways(
    names: tuple[str, ...], given: dict[tuple[str, str], str], source: str, builder: Builder
) -> dict[tuple[str, str], str]:
    """The labels with those of missing rows and cells taken from the other side."""
    rows = {row for row, _ in given}
    gone = [name for name in names if name not in rows]
    if not rows & {name for name in names if _GPU.fullmatch(name)}:
        raise InputError(source, "rows", "none of a GPU", _EXPECTED)
    if gone:
        cost = "what they say is taken from the rows of the others"
        builder.doubt("rows", f"those of {', '.join(gone)} are missing", cost)
    _say_conflicts(given, builder)
    label: dict[tuple[str, str], str] = {}
    for (a, b), cell in given.items():
        label[a, b] = cell or given.get((b, a), "")
        label.setdefault((b, a), cell)
    pairs = ((a, b) for a in names for b in names if a < b and not {a, b} <= set(gone))
    unknown = [pair for pair in pairs if not label.get(pair)]
    if unknown:
        builder.doubt(f"{unknown[0][0]}-{unknown[0][1]}", f"{len(unknown)} pairs of devices are in no row")
    return {pair: cell for pair, cell in label.items() if cell}
