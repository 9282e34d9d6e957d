"""`MSCCL_CONFIG`: the file that registers algorithms with microsoft/msccl, each for a range of sizes and a protocol.

    <msccl_algos><load path="a.xml" minbytes="1024" maxbytes="1048576" proto="LL"/></msccl_algos>

Files are loaded in its order. Of a registered file the bounds and the protocol are those of its <load>, whatever the file says:
from `minbytes` (0 where absent) up to and without `maxbytes` (no limit where absent or -1). Source: microsoft/msccl b23e9cd5,
mscclGetAllAlgoFromConfigAndSetInfo and ncclTopoGetMSCCLAlgo; section 6 of the format notes (docs/xml.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice

from msccl_xml.errors import XmlError
from msccl_xml.header import Header, shown
from msccl_xml.lexer import Kind, Tag, line_of, read_tags, to_int
from msccl_xml.model import Algo
from msccl_xml.walk import MAX_CHILDREN
from synth.constants import PROTOCOLS
from synth.errors import InputError
from synth.explain.choice import NO_LIMIT, Registered

_ROOT, _LOAD = b"msccl_algos", b"load"
_INFINITE = -1


@dataclass(frozen=True, slots=True)
class Registration:
    """One <load>: calls of `min_bytes` up to, and without, `max_bytes` (None: no limit) run the file in `proto`.

    `remarks` say what else stands there that is not read.
    """

    path: str
    min_bytes: int
    max_bytes: int | None
    proto: str
    remarks: tuple[str, ...] = ()

    def applied(self, header: Header) -> Registered:
        """What the runtime goes by: the file's own header with this registration's bounds and protocol."""
        own = asdict(header)
        high = NO_LIMIT if self.max_bytes is None else self.max_bytes
        return Registered(**own | {"min_bytes": self.min_bytes, "max_bytes": high, "proto": self.proto})

    def caveats(self, algo: Algo | None) -> tuple[str, ...]:
        """What goes wrong between this registration and the file, where the file can be read."""
        told = list(self.remarks)
        if algo is None:
            return tuple(told)
        if algo.proto != self.proto:
            told.append(
                f"registered as {self.proto}, though the file says {algo.proto}, under which synth verify checks it"
            )
        scratch = any(gpu.scratch_chunks for gpu in algo.gpus)
        if scratch and algo.max_bytes is not None and (self.max_bytes is None or self.max_bytes > algo.max_bytes):
            told.append(f"its scratch is made for the file's own maxBytes {algo.max_bytes}: larger calls fail")
        return tuple(told)


@dataclass(frozen=True, slots=True)
class Config:
    """A registration file and what it registers, in order."""

    path: str
    registrations: tuple[Registration, ...]


def read_config(content: bytes, source: str) -> Config:
    """The registrations in the content of a file; time and memory are linear in it.

    Raises InputError naming the line where microsoft/msccl would refuse to start or crash.
    """
    try:
        loads = list(islice(_loads(content, source), MAX_CHILDREN + 1))
    except XmlError as error:
        raise InputError(source, f"line {error.line}", error.message, "what microsoft/msccl can read") from None
    if len(loads) > MAX_CHILDREN:
        raise InputError(source, "", "one <load> too many", f"at most {MAX_CHILDREN}: more overwrite other memory")
    if not loads:
        raise InputError(source, "", "no <load>", "<msccl_algos> with a <load> for every file")
    return Config(source, tuple(_registration(tag, line_of(content, tag.position), source) for tag in loads))


def _loads(content: bytes, source: str) -> Iterator[Tag]:
    """The <load> elements of the first <msccl_algos>; other elements are skipped with what is in them."""
    nesting: list[bytes] = []
    found = False
    for tag in read_tags(content):
        if tag.kind is Kind.CLOSE:
            if not nesting or nesting[-1] != tag.name:
                where = f"line {line_of(content, tag.position)}"
                raise InputError(source, where, f"</{shown(tag.name)}>", "the end of what was opened last")
            nesting.pop()
            if found and not nesting:
                return
            continue
        if nesting == [_ROOT] and tag.name == _LOAD:
            yield tag
        found = found or (not nesting and tag.name == _ROOT)
        if tag.kind is Kind.OPEN:
            nesting.append(tag.name)
        if found and not nesting:
            return
    if nesting:
        raise InputError(source, "", f"<{shown(nesting[-1])}> is not closed", "a whole document")
    if not found:
        raise InputError(source, "", "no <msccl_algos>", "one at the top level: microsoft/msccl would crash")


def _registration(tag: Tag, line: int, source: str) -> Registration:
    values = tag.attributes
    where = f"line {line}: <load>"
    if b"path" not in values:
        raise InputError(source, f"{where} path", None, "the path of a file: without it microsoft/msccl does not start")
    if b"proto" not in values:
        raise InputError(
            source, f"{where} proto", None, f"{' or '.join(PROTOCOLS)}: without it microsoft/msccl crashes"
        )
    proto = shown(values[b"proto"])
    if proto not in PROTOCOLS:
        raise InputError(
            source, f"{where} proto", proto, f"{' or '.join(PROTOCOLS)}: else microsoft/msccl does not start"
        )
    high = to_int(values.get(b"maxbytes", b"-1"), 64)
    remarks = tuple(
        f"{key.decode()} is not read in a <load>: write {key.lower().decode()}"
        for key in sorted(values)
        if key.lower() in (b"minbytes", b"maxbytes") and key != key.lower()
    )
    return Registration(
        path=values[b"path"].decode("utf-8", "surrogateescape"),
        min_bytes=to_int(values.get(b"minbytes", b"0"), 64),
        max_bytes=None if high == _INFINITE else high,
        proto=proto,
        remarks=remarks,
    )
