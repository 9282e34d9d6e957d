"""The runtimes' lexer: it is no XML parser, and reads some documents otherwise than XML has it and others not at all.

All three runtimes carry the same one (NCCL's src/graph/xml.cc, copied into msccl_parser.cc); what it takes is section 1 of
the format notes. Nothing is decoded: no entity, no character reference, no CDATA. Names and values are C strings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from functools import lru_cache

from msccl_xml.errors import XmlError

MAX_ATTRIBUTES = 16
"""Kept of an element; the 17th and later are read and lost."""
MAX_NAME = 254
"""Characters of a name, its terminator included; an `=` as terminator does not count."""
VALUE_BYTES = 256
"""The array of a value. Its end is not checked: a longer value runs over what follows in memory."""
NODE_ATTRIBUTES = 256
NODE_BYTES = 17176
"""An element in memory: its name, 17 attributes of twice 256 bytes from byte 256 on, 1024 children and counters."""

_PLAIN = re.compile(
    rb"[ \n\r]*+<([A-Za-z_]\w{0,60})((?: [A-Za-z_]\w{0,60}=\"[^\"\0]{0,255}\"){0,16}+)(/?)>"
    rb"|[ \n\r]*+</([A-Za-z_]\w{0,60})>"
)
_ATTRIBUTE = re.compile(rb" (\w+)=\"([^\"]*)\"")
_BLANK = re.compile(rb"[ \n\r]*")
_TOKEN_END = re.compile(rb"[= >/\n\r]")
_NUMBER = re.compile(rb"[ \t\n\v\f\r]*([+-]?)(?:0[xX]([0-9a-fA-F]+)|0([0-7]*)|([1-9][0-9]*))")
_DIGITS = 25
"""More than 64 bits have, so that a value of a million digits costs nothing."""


class Kind(Enum):
    """What a tag does: opens an element, closes one, or is one by itself."""

    OPEN = "open"
    CLOSE = "close"
    SINGLE = "single"


class Tag:
    """One tag.

    `position` is its `<` in the document, `reach` how far it writes from the start of its element in memory, `full`
    whether it has more attributes than are kept.
    """

    __slots__ = ("_attributes", "_raw", "full", "kind", "name", "position", "reach")

    def __init__(self, kind: Kind, name: bytes, position: int, raw: bytes = b"") -> None:
        self.kind = kind
        self.name = name
        self.position = position
        self.reach = 0
        self.full = False
        self._raw = raw
        self._attributes: dict[bytes, bytes] | None = None

    @property
    def attributes(self) -> dict[bytes, bytes]:
        """Those that are kept; of two with one name the first, as the runtimes look them up."""
        if self._attributes is None:
            self._attributes = dict(reversed(_ATTRIBUTE.findall(self._raw)))
        return self._attributes

    def keep(self, attributes: list[tuple[bytes, bytes]]) -> None:
        """Set the attributes of a tag that was read the long way."""
        self._attributes = dict(reversed(attributes))


def line_of(data: bytes, position: int) -> int:
    """The line, from 1, that a position lies on."""
    return data.count(b"\n", 0, position) + 1


def read_tags(data: bytes) -> Iterator[Tag]:
    """Every tag of a document, comments left out; XmlError where the lexer stops. Time and memory are linear."""
    position = 0
    while True:
        match = _PLAIN.match(data, position)
        if match is not None:
            position = match.end()
            name, raw, slash, closed = match.groups()
            if closed is not None:
                yield Tag(Kind.CLOSE, closed, match.start(4) - 2)
            else:
                yield Tag(Kind.SINGLE if slash else Kind.OPEN, name, match.start(1) - 1, raw)
            continue
        blank = _BLANK.match(data, position)
        position = position if blank is None else blank.end()
        if position >= len(data):
            return
        tag, position = _Lexer(data, position).read()
        if tag is not None:
            yield tag


def to_int(value: bytes, bits: int = 32) -> int:
    """What `strtol(value, NULL, 0)` makes of it, cut to `bits`: `010` is 8, `0x10` 16, `1e9` 1, and no number is 0."""
    return _to_int(value, bits) if len(value) <= _DIGITS else _to_int.__wrapped__(value, bits)


@lru_cache(maxsize=4096)
def _to_int(value: bytes, bits: int) -> int:
    match = _NUMBER.match(value)
    if match is None:
        return 0
    sign, hexadecimal, octal, decimal = match.groups()
    for digits, base in ((hexadecimal, 16), (octal, 8), (decimal, 10)):
        if digits:
            size = _magnitude(digits, base)
            return wrap(max(-(1 << 63), min((1 << 63) - 1, -size if sign == b"-" else size)), bits)
    return 0


def wrap(number: int, bits: int) -> int:
    """A number as a signed C integer of `bits` holds it."""
    half = 1 << (bits - 1)
    return (number + half) % (1 << bits) - half


def _magnitude(digits: bytes, base: int) -> int:
    """The number; of one that has more digits than 64 bits have, all that matters is that it is beyond them."""
    rest = digits.lstrip(b"0")
    return int(rest or b"0", base) if len(rest) <= _DIGITS else 1 << 64


class _Lexer:
    """Reads one tag or comment character class by character class, from its `<` on."""

    def __init__(self, data: bytes, position: int) -> None:
        self.data = data
        self.start = position
        self.position = position

    def read(self) -> tuple[Tag | None, int]:
        """The tag (None for a comment) and where to go on."""
        if self._take() != b"<":
            raise self._error(f"expected '<', found {self._shown(self.position - 1)}", self.position - 1)
        name, end = self._token(None)
        if name.startswith(b"!--"):
            self._skip_comment(name[3:], end)
            return None, self.position
        if not name and end == b"/":
            name, end = self._token(None)
            self._expect_close(end)
            return Tag(Kind.CLOSE, name, self.start), self.position
        tag = Tag(Kind.OPEN, name, self.start)
        end = self._read_attributes(tag, end)
        if end == b"/":
            tag.kind = Kind.SINGLE
            _, end = self._token(None)
        self._expect_close(end)
        return tag, self.position

    def _read_attributes(self, tag: Tag, end: bytes) -> bytes:
        slots: list[tuple[bytes, bytes]] = []
        while end == b" ":
            value: list[bytes] = []
            key, end = self._token(value)
            if slots and len(slots[-1][1]) >= VALUE_BYTES:
                # The key that follows lands in the middle of a value that is too long, and ends it.
                slots[-1] = (slots[-1][0], slots[-1][1][:VALUE_BYTES] + key)
            text = value[0] if value else b""
            size = int(value[1]) if value else 0
            slot = min(len(slots), MAX_ATTRIBUTES)
            tag.reach = max(tag.reach, NODE_ATTRIBUTES + (2 * slot + 1) * VALUE_BYTES + size + 1)
            if slot < MAX_ATTRIBUTES:
                slots.append((key, text))
            else:
                tag.full = True
        tag.keep(slots)
        return end

    def _token(self, value: list[bytes] | None) -> tuple[bytes, bytes]:
        """A name and what ends it; where that is `=`, the value goes into `value` and what follows it ends the token."""
        match = _TOKEN_END.search(self.data, self.position, self.position + MAX_NAME + 1)
        if match is None:
            if self.position + MAX_NAME < len(self.data):
                raise self._error(f"a name of more than {MAX_NAME} characters", self.position)
            raise self._error("the document ends within a tag", len(self.data))
        name = self.data[self.position : match.start()]
        end = match[0]
        if end != b"=" and len(name) == MAX_NAME:
            raise self._error(f"a name of {MAX_NAME} characters", self.position)
        self.position = match.end()
        if end == b"=":
            if value is None:
                raise self._error("'=' in the name of an element", match.start())
            end = self._read_value(value)
        return name.partition(b"\0")[0], end

    def _read_value(self, value: list[bytes]) -> bytes:
        if self._take() not in (b'"', b"'"):
            raise self._error(f"expected a quote after '=', found {self._shown(self.position - 1)}", self.position - 1)
        close = self.data.find(b'"', self.position)
        if close < 0:
            raise self._error('the document ends within a value: only " closes one', len(self.data))
        text = self.data[self.position : min(close, self.position + 2 * VALUE_BYTES)]
        value += [text.partition(b"\0")[0], b"%d" % (close - self.position)]
        self.position = close + 1
        return self._take()

    def _skip_comment(self, start: bytes, end: bytes) -> None:
        """The end `-->` may begin in what was read as the comment's name."""
        seen = (b"..." + start + end)[-3:]
        if seen == b"-->":
            return
        if seen[1:] == b"--" and self.data[self.position : self.position + 1] == b">":
            self.position += 1
        elif seen[2:] == b"-" and self.data[self.position : self.position + 2] == b"->":
            self.position += 2
        else:
            close = self.data.find(b"-->", self.position)
            if close < 0:
                raise self._error("a comment that does not end", self.start)
            self.position = close + 3

    def _take(self) -> bytes:
        if self.position >= len(self.data):
            raise self._error("the document ends within a tag", len(self.data))
        self.position += 1
        return self.data[self.position - 1 : self.position]

    def _expect_close(self, end: bytes) -> None:
        if end != b">":
            raise self._error(f"expected '>', found {self._shown(self.position - 1)}", self.position - 1)

    def _shown(self, position: int) -> str:
        byte = self.data[position]
        names = {
            9: "a tab",
            10: "a line break",
            13: "a line break",
            32: "a space",
            0xEF: "the byte EF (a byte order mark?)",
        }
        return names.get(byte) or (repr(chr(byte)) if 32 < byte < 127 else f"the byte {byte:02X}")

    def _error(self, problem: str, position: int) -> XmlError:
        return XmlError(problem, line_of(self.data, position))
