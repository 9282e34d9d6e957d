"""What the readers ask of the attributes of `<algo>`, and what those say once they are accepted."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from msccl_xml.check import PROTOCOLS
from msccl_xml.lexer import MAX_ATTRIBUTES, Tag, to_int
from msccl_xml.limits import Limits
from msccl_xml.walk import Stop

WARP = 32
"""microsoft/msccl takes whole warps of threads."""

#: Values that are right for every file, for attributes that older generators left out.
_DEFAULTS = {"name": "algorithm", "outofplace": "1", "minBytes": "0", "maxBytes": "1073741824"}


@dataclass(frozen=True, slots=True)
class Problem:
    """Why the second pass stops, and the tag it looks at."""

    reason: str
    tag: Tag
    rank: int | None = None
    mend: str | None = None
    """what to change in the file, where that is plain"""

    def stop(self) -> Stop:
        return Stop(self.reason, self.tag.position, self.rank)


@dataclass(frozen=True, slots=True)
class Header:
    """The attributes of `<algo>` as numbers and words, as the runtimes understand them; None where one is absent."""

    coll: str
    proto: str
    ngpus: int
    nchannels: int
    nchunksperloop: int
    inplace: bool
    outofplace: bool | None
    min_bytes: int | None
    max_bytes: int | None
    group: str | None = None
    """the ranks that take part, where not all do: synth's own, no runtime asks for it"""


def header_of(algo: Tag) -> Header:
    """The header in a tag that `header_problem` has nothing against."""
    values = algo.attributes

    def word(key: str) -> str:
        return shown(values.get(key.encode(), b""))

    def number(key: str, bits: int = 32) -> int | None:
        return to_int(values[key.encode()], bits) if key.encode() in values else None

    outofplace = number("outofplace")
    return Header(
        coll=word("coll"),
        proto=word("proto"),
        ngpus=number("ngpus") or 0,
        nchannels=number("nchannels") or 0,
        nchunksperloop=number("nchunksperloop") or 0,
        inplace=bool(number("inplace")),
        outofplace=None if outofplace is None else bool(outofplace),
        min_bytes=number("minBytes", 64),
        max_bytes=number("maxBytes", 64),
        group=word("group") if b"group" in values else None,
    )


def header_problem(algo: Tag, limits: Limits, *, alone: bool = False) -> Problem | None:
    """What is wrong with the attributes of `<algo>`; `alone`: of the first element, when only the use of the file is asked."""
    needed = ["nchunksperloop", "nchannels", "ngpus", "coll", "inplace", *limits.required]
    if not alone:
        needed.append("proto")
        if limits.runtime == "msccl":
            needed.append("name")
    for key in needed:
        if key.encode() not in algo.attributes:
            mend = f'add {key}="{_DEFAULTS[key]}" to <algo>' if key in _DEFAULTS else None
            if algo.full:
                mend = f"leave out other attributes and doubled spaces: {MAX_ATTRIBUTES} attributes are kept"
            return Problem(
                f"<{shown(algo.name)}> has no attribute {key}, {limits.runtime} requires it", algo, mend=mend
            )
    values = algo.attributes
    if not alone and values[b"proto"] not in [name.encode() for name in PROTOCOLS]:
        told = f"proto is {shown(values[b'proto'])!r}, expected one of {' '.join(PROTOCOLS)}"
        return Problem(told, algo, mend=_spelling("proto", values[b"proto"], PROTOCOLS))
    if values[b"coll"] not in [name.encode() for name in limits.colls]:
        known = " ".join(sorted(limits.colls))
        told = f"coll is {shown(values[b'coll'])!r}, {limits.runtime} reads {known}"
        return Problem(told, algo, mend=_spelling("coll", values[b"coll"], limits.colls))
    return _msccl_problem(algo) if limits.runtime == "msccl" else None


def _msccl_problem(algo: Tag) -> Problem | None:
    low = to_int(algo.attributes.get(b"minBytes", b"0"), 64)
    high = to_int(algo.attributes.get(b"maxBytes", b"134217728"), 64)
    if low > high:
        return Problem(f"minBytes {low} is above maxBytes {high}", algo)
    if low < 0:
        return Problem(f"minBytes is {low}, expected at least 0", algo)
    threads = to_int(algo.attributes.get(b"nthreads", b"0"))
    if threads % WARP:
        return Problem(f"nthreads is {threads}, expected a multiple of {WARP}", algo)
    return None


def _spelling(key: str, value: bytes, known: Iterable[str]) -> str | None:
    """The known word that differs in case, hyphens and underscores alone."""
    bare = re.sub(r"[-_ ]", "", shown(value)).lower()
    right = next((word for word in sorted(known) if re.sub(r"[-_ ]", "", word).lower() == bare), None)
    return None if right is None else f'write {key}="{right}"'


def shown(value: bytes) -> str:
    """The beginning of a value as text."""
    text = value[:40].decode("utf-8", "replace")
    return text if len(value) <= 40 else text + "..."
