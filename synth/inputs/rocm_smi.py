"""`rocm-smi --showtopo` to a topology: its tables of link types, hops and weights, and the NUMA nodes of the GPUs.

XGMI over one hop is a link, one lane: weights are distances, not counts of links. GPUs of a NUMA node hang on one CPU.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from synth.errors import InputError
from synth.inputs.builder import Builder
from synth.inputs.defaults import link_default
from synth.inputs.hints import Draft
from synth.inputs.nccl_links import nvlink_GBps
from synth.inputs.smi_table import ANSI
from synth.topology import DeviceKind

_TITLES = {"weight": "Weight between", "hops": "Hops between", "type": "Link Type between"}
_RULE = re.compile(r"^=+\s*(.*?)\s*=+$")
_GPU = re.compile(r"GPU[0-9]{1,4}")
_NUMA = re.compile(r"GPU\s*\[?\s*([0-9]{1,4})\s*\]?\s*:\s*\(Topology\) Numa Node:\s*(-?[0-9]{1,4})")
_WORDS = {
    "weight": re.compile(r"[0-9]{1,9}|N/A"),
    "hops": re.compile(r"[0-9]{1,4}|N/A"),
    "type": re.compile(r"XGMI|PCIE|0|X|N/A|UNKNOWN"),
}
_ONE_HOP_WEIGHT = 15
_MOST_GPUS = 256
_EXPECTED = "the output of rocm-smi --showtopo, with its table of link types"
_ABOUT = (
    "rocm-smi --showtopo. xGMI: one lane a pair, x the rate of one in RCCL (src/graph/topo.h). PCIe as RCCL takes it where the "
    "speed is unknown, generation 3 x16; between CPUs 10.0 GB/s. Latencies: synth's defaults (synth/inputs/defaults.py)."
)


@dataclass
class _Tables:
    """Cells by table and (row, column), and the NUMA node of each GPU."""

    gpus: tuple[str, ...] = ()
    cells: dict[str, dict[tuple[str, str], str]] = field(default_factory=dict)
    numa: dict[str, int] = field(default_factory=dict)


def is_rocm_smi(text: str) -> bool:
    """Whether the text has one of the tables."""
    return any(f"{title} two GPUs" in text for title in _TITLES.values())


def draft_of_rocm_smi(text: str, source: str, arch: str = "") -> Draft:
    """What the tables say, before what only the user knows; `arch` is `--arch`. InputError with the line for a broken table."""
    builder = Builder(source)
    tables = _read(text, source)
    if "type" not in tables.cells:
        raise InputError(source, "the file", "no table of link types", _EXPECTED)
    for rank, _ in enumerate(tables.gpus):
        builder.add(DeviceKind.GPU, f"gpu{rank}", 0, rank, arch)
    joined = _add_xgmi(builder, tables, arch)
    _add_tree(builder, tables)
    _say_what_is_missing(builder, joined)
    return Draft(builder.imported(_ABOUT))


def _read(text: str, source: str) -> _Tables:
    tables = _Tables()
    title = ""
    columns: list[str] = []
    for number, raw in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        line = ANSI.sub("", raw).strip()
        rule = _RULE.match(line)
        words = line.split()
        if rule is not None:
            title = next((key for key, start in _TITLES.items() if rule[1].startswith(start)), "")
            columns = []
        elif match := _NUMA.match(line):
            tables.numa[f"GPU{int(match[1])}"] = int(match[2])
        elif title and words and all(_GPU.fullmatch(word) for word in words) and not columns:
            columns = words
            _same_columns(tables, columns, f"line {number}", source)
        elif title and columns and words and words[0] in columns:
            _row(tables, title, words, columns, f"line {number}, {words[0]}", source)
    for key, cells in tables.cells.items():
        if len(cells) < len(tables.gpus) ** 2:
            raise InputError(
                source, f"{_TITLES[key]} two GPUs", f"{len(cells)} cells", f"{len(tables.gpus) ** 2}: {_EXPECTED}"
            )
    return tables


def _same_columns(tables: _Tables, columns: list[str], where: str, source: str) -> None:
    if len(set(columns)) < len(columns) or len(columns) > _MOST_GPUS:
        raise InputError(source, where, columns[-1], "a column for each GPU")
    if tables.gpus and tables.gpus != tuple(columns):
        raise InputError(source, where, f"{len(columns)} GPUs", f"the same {len(tables.gpus)} GPUs in every table")
    tables.gpus = tuple(columns)


def _row(tables: _Tables, title: str, words: list[str], columns: list[str], where: str, source: str) -> None:
    cells = [word.upper() for word in words[1:]]
    if len(cells) != len(columns):
        raise InputError(source, where, f"{len(cells)} cells", f"{len(columns)}, as the header has")
    bad = next((cell for cell in cells if not _WORDS[title].fullmatch(cell)), None)
    if bad is not None:
        raise InputError(source, where, bad[:40], "XGMI or PCIE" if title == "type" else "a number")
    tables.cells.setdefault(title, {}).update(
        {(words[0], name): cell for name, cell in zip(columns, cells, strict=True)}
    )


def _add_xgmi(builder: Builder, tables: _Tables, arch: str) -> int:
    """Links between GPUs that are one hop apart; their number."""
    joined = 0
    types = tables.cells["type"]
    for a, gpu in enumerate(tables.gpus):
        for b, other in enumerate(tables.gpus[a + 1 :], a + 1):
            there, back = types[gpu, other], types[other, gpu]
            if there != back:
                what = f"{there} one way and {back} the other"
                builder.doubt(f"gpu{a}-gpu{b}", what, "no link is taken to be there")
            elif there == "XGMI" and _one_hop(tables, gpu, other):
                joined += 1
                builder.between(f"gpu{a}", f"gpu{b}", "xgmi", nvlink_GBps(arch or "gfx"))
            elif there not in ("XGMI", "PCIE"):
                builder.doubt(f"gpu{a}-gpu{b}", f"link type {there}", "no link is taken to be there, but PCIe")
    if joined and not {"hops", "weight"} & set(tables.cells):
        what = "no table of hops: every pair of type XGMI is taken to have a link of its own"
        builder.doubt("xGMI", what, "pairs that go over a third GPU would be counted too fast")
    return joined


def _one_hop(tables: _Tables, gpu: str, other: str) -> bool:
    """Whether no third GPU is between; by weight where hops are not known, and yes where neither is."""
    if "hops" in tables.cells:
        return tables.cells["hops"][gpu, other] == "1"
    if "weight" in tables.cells:
        return tables.cells["weight"][gpu, other] == str(_ONE_HOP_WEIGHT)
    return True


def _add_tree(builder: Builder, tables: _Tables) -> None:
    pcie, socket = link_default("pcie", None, False), link_default("socket", None, False)
    assert pcie is not None
    assert socket is not None
    if tables.numa and any(gpu not in tables.numa for gpu in tables.gpus):
        builder.doubt("NUMA", "not every GPU has a NUMA node", "those without are taken to be on the first")
    first = min((numa for numa in tables.numa.values()), default=0)
    nodes = [tables.numa.get(gpu, first) for gpu in tables.gpus]
    if not tables.numa or min(nodes) < 0:
        cost = "one CPU is taken; a link between sockets may be missing"
        builder.doubt("NUMA", "where the GPUs are is not in the file", cost)
    cpus = {numa: builder.add(DeviceKind.CPU, f"cpu{max(numa, 0)}") for numa in sorted(set(nodes))}
    for rank, numa in enumerate(nodes):
        builder.between(f"gpu{rank}", cpus[numa], "pcie", pcie.GBps)
    names = list(cpus.values())
    for position, cpu in enumerate(names):
        for other in names[position + 1 :]:
            builder.between(cpu, other, "socket", socket.GBps)


def _say_what_is_missing(builder: Builder, joined: int) -> None:
    if joined:
        what = "the number of links of a pair is not in such tables: one each"
        cost = "an MI250 has up to four; RCCL_TOPO_DUMP_FILE writes a file that knows, --nvlink takes a matrix"
        builder.doubt("xGMI", what, cost)
    what = "PCIe generation, switches and CPU are not in such tables: 12.0 GB/s a GPU (generation 3), 10.0 between CPUs"
    builder.doubt("PCIe", what, "a generation 4 or 5 has two or four times that")
    builder.doubt("NICs", "not in such tables", "good for one box; pass --nics NxGBps to plan for several")
