"""Reading NCCL topology XML safely: text to elements that know their file and line, and typed access to their attributes.

Nothing is fetched and nothing expanded: document types, and with them entities, are refused. What the elements mean is the
business of `synth.inputs.nccl_tree` (the machine's parts), `nccl_links` (rates) and `nccl_build` (the topology).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from lxml import etree

from synth.errors import InputError
from synth.inputs.builder import printable

#: NCCL's own reader gives up far below these (640 children, 16 attributes an element).
_MAX_BYTES = 32 << 20
_MAX_ELEMENTS = 100_000
_MAX_DEPTH = 40
_MAX_NUMBER = 1 << 40
_DECLARATION = re.compile(r"\A(\s*)<\?xml[^>]*\?>")
_INTEGER = re.compile(r"[+-]?(0[xX][0-9a-fA-F]{1,16}|[0-9]{1,18})")
_EXPECTED = "NCCL topology XML: <system> with <cpu> inside, as NCCL_TOPO_DUMP_FILE writes it"
#: Other XML that people have at hand, by its outermost element.
_OTHERS = {
    "graphs": "an NCCL graph file: routes that NCCL chose, not the machine",
    "graph": "an NCCL graph file: routes that NCCL chose, not the machine",
    "algo": "an MSCCL algorithm (for synth verify and simulate), no machine",
    "topology": "an hwloc file (lstopo), which says nothing of NVLinks",
    "nvidia_smi_log": "a log of nvidia-smi -q -x, which does not say how GPUs are joined",
}


@dataclass(frozen=True)
class Node:
    """An element; `source` is the file as the user named it."""

    source: str
    element: etree._Element

    @property
    def tag(self) -> str:
        return str(self.element.tag)

    @property
    def line(self) -> int:
        line = self.element.sourceline
        return line if isinstance(line, int) else 0

    @property
    def where(self) -> str:
        """The element's place for a reader of errors and doubts: its line, its tag, and what identifies it."""
        names = [f' {key}="{self.text(key)}"' for key in ("busid", "target", "name", "numaid") if self.text(key)][:1]
        rank = [f' rank="{self.text("rank")}"' for _ in (0,) if self.tag == "gpu" and self.text("rank")]
        return printable(f"line {self.line}, <{self.tag[:40]}{''.join(names + rank)[:60]}>")

    def children(self, *tags: str) -> Iterator[Node]:
        """The children of these tags (all where none is named), in order."""
        for child in self.element:
            if not tags or child.tag in tags:
                yield Node(self.source, child)

    def has(self, key: str) -> bool:
        return key in self.element.attrib

    def text(self, key: str, default: str = "") -> str:
        value = self.element.get(key)
        return default if value is None else str(value)

    def integer(self, key: str, low: int, high: int = _MAX_NUMBER, default: int | None = None) -> int:
        """A whole number, in tens or as 0x...; InputError with the line for anything else, and where it is missing without
        a default."""
        value = self.element.get(key)
        if value is None or (not value.strip() and default is not None):
            if default is None:
                raise self.error(key, "missing", f"a whole number from {low}")
            return default
        if not _INTEGER.fullmatch(value.strip()):
            raise self.error(key, value, "a whole number")
        number = int(value, 16) if "x" in value.lower() else int(value)
        if not low <= number <= high:
            raise self.error(key, value, f"a whole number from {low} to {high}")
        return number

    def error(self, key: str, value: object, expected: str) -> InputError:
        return InputError(self.source, f"{self.where} {key}", value, expected)


def read_system(text: str, source: str) -> Node:
    """The <system> of a topology file. InputError with the line for XML that is broken, and telling what it is for XML of
    another kind."""
    root = _parse(text, source)
    if root.tag in _OTHERS:
        raise InputError(source, f"line {root.line}, <{root.tag}>", _OTHERS[root.tag], _EXPECTED)
    if root.tag != "system":
        raise InputError(source, f"line {root.line}, <{root.tag[:40]}>", "XML of another kind", _EXPECTED)
    groups = list(root.children("group"))
    if groups:
        what = "a mapping of GPUs to NICs for many machine models, not one machine"
        raise InputError(source, f"line {groups[0].line}, <group>", what, _EXPECTED)
    if next(root.children("cpu"), None) is None:
        raise InputError(source, root.where, "no <cpu>", _EXPECTED)
    return root


def _parse(text: str, source: str) -> Node:
    # Without its declaration, XML may begin with blank lines, which keeps the lines' numbers.
    body = _DECLARATION.sub(r"\1", text.removeprefix("\ufeff"))
    data = body.encode("utf-8", "replace")
    if len(data) > _MAX_BYTES:
        raise InputError(source, "", f"{len(data)} bytes of XML", f"at most {_MAX_BYTES}")
    parser = etree.XMLParser(
        encoding="utf-8", resolve_entities=False, no_network=True, load_dtd=False, remove_comments=True, remove_pis=True
    )
    try:
        root = etree.fromstring(data, parser)
    except etree.XMLSyntaxError as error:
        line = error.lineno or 1
        shown = text.split("\n")[line - 1].strip()[:40] if 0 < line <= text.count("\n") + 1 else "the end"
        reason = str(error.msg).split("\n")[0].split(", line")[0].strip()
        raise InputError(source, f"line {line}", shown, f"well-formed XML ({reason})") from None
    if root.getroottree().docinfo.internalDTD is not None:
        raise InputError(source, "", "a document type (<!DOCTYPE>)", _EXPECTED)
    if sum(1 for _ in root.iter()) > _MAX_ELEMENTS:
        raise InputError(source, "", f"more than {_MAX_ELEMENTS} elements", _EXPECTED)
    if root.xpath(f"boolean(//*[count(ancestor::*) > {_MAX_DEPTH}])"):
        raise InputError(source, "", f"elements {_MAX_DEPTH} deep in each other", _EXPECTED)
    return Node(source, root)
