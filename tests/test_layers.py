"""The picture of the house (docs/design.md) as a test: an import that the picture has no arrow for fails here.

Imports are read from the source with `ast`, late ones and those for type checkers included.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

STAGES = frozenset({"routing", "ordering", "scheduling", "reductions", "lowering"})
JUDGES = frozenset({"verify", "explain", "simulate", "execute"})
#: Values and pure functions of values: they know nothing but each other.
VALUES = frozenset(
    {
        "additions",
        "boxes",
        "candidates",
        "check_links",
        "check_places",
        "check_topology",
        "choice",
        "choices",
        "chunks",
        "cluster",
        "collective",
        "collector",
        "constants",
        "default_sketch",
        "degrade",
        "doubts",
        "errors",
        "exchange",
        "group",
        "instance",
        "interpreted",
        "ir",
        "list_scheduler",
        "nearness",
        "paths",
        "protocols",
        "request",
        "sketch",
        "suspicion",
        "symmetry",
        "texts",
        "timing",
        "topo_layout",
        "topo_scene",
        "topo_svg",
        "topology",
        "topology_diff",
        "units",
        "workers",
    }
)
#: The pipeline and the files that it is cut into: they put the stages together. Others go through `pipeline` alone.
PIPELINE = frozenset(
    {
        "build",
        "cache",
        "exchanged",
        "goal",
        "hierarchical",
        "known",
        "pipeline",
        "plan",
        "search",
        "solve",
        "strategies",
        "trial",
    }
)
#: Other people's algorithms, put together from values and lowering alone: part of the pipeline's layer, but without the judge
#: and without the stages that search, so that what answers are compared with owes nothing to how they were found.
BASELINES = VALUES | {"lowering"}
#: What each part of synth may import of synth besides itself. "" is synth/__init__.py, which holds the version.
ARROWS: dict[str, frozenset[str]] = {
    "": frozenset(),
    **dict.fromkeys(VALUES, VALUES),
    "bounds": VALUES | {"milp"},
    "check_topology": VALUES | {"bounds"},
    "milp": VALUES,
    **{stage: VALUES | {"milp"} for stage in STAGES},
    **dict.fromkeys(JUDGES, VALUES),
    "inputs": VALUES,
    "probe": VALUES | {"inputs"},
    "baselines": BASELINES,
    "rivals": VALUES | {"simulate", "baselines"},
    **dict.fromkeys(PIPELINE, VALUES | STAGES | JUDGES | PIPELINE | {"bounds", "milp", "baselines"}),
    "bench": VALUES | {"pipeline", "inputs", "simulate", "verify", "baselines", "rivals", ""},
    "cli": VALUES | JUDGES | {"bench", "bounds", "cache", "pipeline", "inputs", "probe", "baselines", "rivals", ""},
    "__main__": frozenset({"cli"}),
}
#: Who may use what comes from outside, where not everybody may.
DOORS: dict[str, frozenset[str]] = {
    "pulp": frozenset({"milp"}),
    "highspy": frozenset({"milp"}),
    "gurobipy": frozenset({"milp"}),
    "scipy.optimize": frozenset({"milp"}),
    "click": frozenset({"cli"}),
    "rich": frozenset({"cli"}),
    "torch": frozenset({"execute", "probe"}),
    "cuda": frozenset({"execute"}),
    "pynvml": frozenset({"probe"}),
}
#: Not a solver but an algorithm on graphs, like those of scipy.sparse.csgraph: open to all.
OPEN = frozenset({"scipy.optimize.linear_sum_assignment"})
#: Parts that read or write files of the runtimes, or judge them.
USES_MSCCL_XML = JUDGES | {
    "lowering",
    "baselines",
    "rivals",
    "cache",
    "exchanged",
    "group",
    "known",
    "request",
    "pipeline",
    "solve",
    "trial",
    "bench",
    "cli",
}


class Source:
    """One Python file, its dotted name, and the part of the house that it belongs to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        parts = path.relative_to(ROOT).with_suffix("").parts
        self.package = parts[:-1]
        self.names = parts[:-1] if parts[-1] == "__init__" else parts
        self.top = parts[0]
        self.part = self.names[1] if len(self.names) > 1 else ""
        self.tree = ast.parse(path.read_text(encoding="utf-8"), str(path))

    def __str__(self) -> str:
        return str(self.path.relative_to(ROOT))


def sources(top: str) -> list[Source]:
    return [Source(path) for path in sorted((ROOT / top).rglob("*.py"))]


def imports(source: Source) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything that the file imports; `from a import b` is "a.b"."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = source.package[: len(source.package) - node.level + 1] if node.level else ()
            module = ".".join((*base, *([node.module] if node.module else [])))
            for alias in node.names:
                yield node.lineno, f"{module}.{alias.name}"


def part_of(name: str) -> str:
    """The part of synth that the dotted name `synth....` lies in; "" for what synth/__init__.py itself holds."""
    second = name.split(".")[1] if "." in name else ""
    return second if second in ARROWS else ""


def wrong_arrows(source: Source) -> list[str]:
    """The imports of `source` that its part of the house has no arrow for."""
    wrong = []
    for line, name in imports(source):
        if name.split(".")[0] == "synth":
            target = part_of(name)
            allowed = target == source.part or target in ARROWS[source.part]
        elif name.split(".")[0] == "msccl_xml":
            allowed = source.part in USES_MSCCL_XML
        else:
            doors = [door for door in DOORS if f"{name}.".startswith(f"{door}.") and name not in OPEN]
            allowed = all(source.part in DOORS[door] for door in doors)
        if not allowed:
            wrong.append(f"{source}:{line}: imports {name}")
    return wrong


def test_every_file_has_a_place_in_the_picture() -> None:
    assert [str(source) for source in sources("synth") if source.part not in ARROWS] == []


def test_no_arrow_that_the_picture_does_not_have() -> None:
    found = [line for source in sources("synth") if source.part in ARROWS for line in wrong_arrows(source)]
    assert found == []


def test_msccl_xml_imports_nothing_of_synth_and_no_solver_or_terminal() -> None:
    closed = {"synth", *DOORS}
    found = [
        f"{source}:{line}: imports {name}"
        for source in sources("msccl_xml")
        for line, name in imports(source)
        if any(f"{name}.".startswith(f"{door}.") for door in closed)
    ]
    assert found == []


def test_only_the_output_module_prints() -> None:
    found = [
        f"{source}:{node.lineno}"
        for source in sources("synth") + sources("msccl_xml")
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call) and _prints(node.func) and str(source) != "synth/cli/output.py"
    ]
    assert found == []


def _prints(called: ast.expr) -> bool:
    """Whether a call of this expression puts something on standard output or standard error."""
    if isinstance(called, ast.Name):
        return called.id == "print"
    return ast.unparse(called) in {"click.echo", "click.secho", "sys.stdout.write", "sys.stderr.write"}


def test_nothing_is_kept_in_module_state() -> None:
    """But for what a worker process is started with, which it keeps until it ends."""
    found = [
        f"{source}:{node.lineno}"
        for source in sources("synth") + sources("msccl_xml")
        if str(source) != "synth/workers.py"
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Global)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("synth/routing/greedy.py", "from synth.scheduling import exact"),
        ("synth/verify/run.py", "import synth.lowering.buffers"),
        ("synth/verify/run.py", "def late():\n    from synth import pipeline"),
        ("synth/topology.py", "from synth.routing import trees"),
        ("synth/routing/milp.py", "from scipy import optimize"),
        ("synth/baselines/ring.py", "from synth.routing import trees"),
        ("synth/baselines/ring.py", "from synth.verify import verify_algo"),
        ("synth/pipeline.py", "import rich.table"),
        ("synth/pipeline.py", "from synth.cli import output"),
        ("synth/cli/run.py", "from synth.routing import trees"),
        ("synth/routing/trees.py", "from msccl_xml import model"),
        ("synth/routing/trees.py", "from ..ordering import keys"),
    ],
)
def test_the_reader_of_imports_sees_a_wrong_arrow(
    path: str, code: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_text(code, encoding="utf-8")
    assert len(wrong_arrows(Source(file))) == 1
