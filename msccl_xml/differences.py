"""What the lenient reader forgives in a document: what the runtimes would stop at, or understand otherwise than XML has it.

It looks at the text alone, and knows no runtime; strict.py says which of them would take the document.
"""

from __future__ import annotations

import re

from msccl_xml.lexer import MAX_ATTRIBUTES, VALUE_BYTES, line_of

MAX_KINDS = 40
"""After so many kinds of liberty, further unknown elements are not listed."""

_ELEMENTS = frozenset({b"algo", b"gpu", b"tb", b"step"})
#: A tag that the runtimes read as XML does, with no number that they read otherwise.
_PLAIN = re.compile(
    rb"[ \n\r]*+</?(algo|gpu|tb|step)(?: [A-Za-z_]\w{0,60}=\"(?!-?0[0-9xX])[^\"&\0]{0,255}\"){0,16}+/?>"
)
_TAG = re.compile(rb"</?([^\s<>\"'/=]*+)((?:[^<>\"']++|\"[^\"]*+\"|'[^']*+')*+)>")
_VALUE = re.compile(rb"\"[^\"]*\"|'[^']*'")
_SKIPPED = ((b"<!--", b"-->"), (b"<?", b"?>"), (b"<![CDATA[", b"]]>"), (b"<!", b">"))
_OTHER_BASE = re.compile(rb"[\"']-?0[0-9xX]")


def differences(text: str | bytes) -> list[str]:
    """One line for each kind of liberty, in the order of first appearance, with its line and how often it occurs.

    Time is linear. A document that is no XML is looked at as far as it goes.
    """
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return _Differences(data).found()


class _Differences:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.seen: dict[str, list[int]] = {}

    def found(self) -> list[str]:
        position = 3 if self.data.startswith(b"\xef\xbb\xbf") else 0
        if position:
            self._note("a byte order mark", 0)
        while position < len(self.data):
            plain = _PLAIN.match(self.data, position)
            if plain is not None:
                position = plain.end()
                continue
            start = self.data.find(b"<", position)
            self._between(position, start if start >= 0 else len(self.data))
            if start < 0:
                break
            position = self._markup(start)
        return [self._line(what, *place) for what, place in self.seen.items()]

    def _line(self, what: str, first: int, times: int) -> str:
        line = line_of(self.data, first)
        return f"{what} (line {line})" if times == 1 else f"{what} (first in line {line}, {times} times)"

    def _note(self, what: str, position: int) -> None:
        self.seen.setdefault(what, [position, 0])[1] += 1

    def _between(self, start: int, end: int) -> None:
        text = self.data[start:end]
        if b"\t" in text:
            self._note("a tab between elements", start + text.index(b"\t"))
        if text.strip():
            self._note("text between elements", start)

    def _markup(self, start: int) -> int:
        """Look at what begins at `<`; the position after it."""
        for opening, closing in _SKIPPED:
            if self.data.startswith(opening, start):
                end = self.data.find(closing, start + len(opening))
                self._special(opening, start)
                return len(self.data) if end < 0 else end + len(closing)
        tag = _TAG.match(self.data, start)
        if tag is None:
            return len(self.data)
        self._tag(tag[1], tag[2], start)
        return tag.end()

    def _special(self, opening: bytes, start: int) -> None:
        if opening == b"<?":
            declaration = self.data.startswith(b"<?xml", start)
            self._note("an XML declaration" if declaration else "a processing instruction", start)
        elif opening == b"<![CDATA[":
            self._note("a CDATA section", start)
        elif opening == b"<!":
            self._note("a document type", start)
        elif re.match(rb"<!--[^ >/\n\r]{0,254}=", self.data[start : start + 260]):
            self._note("a comment whose first word has a '='", start)

    def _tag(self, name: bytes, rest: bytes, start: int) -> None:
        bare = _VALUE.sub(b'""', rest)
        slots = bare.removesuffix(b"/").count(b" ")
        values = _VALUE.findall(rest)
        checks = {
            "a tab within a tag": b"\t" in bare,
            "a line break within a tag": b"\n" in bare or b"\r" in bare,
            "spaces beside '='": re.search(rb"\s=|=\s", bare) is not None,
            "a value in single quotes": any(value.startswith(b"'") for value in values),
            f"more than {MAX_ATTRIBUTES} attributes, or spaces that count as such: the rest is lost": slots
            > MAX_ATTRIBUTES,
            "an entity, which runtimes do not decode": any(b"&" in value for value in values),
            f"a value of more than {VALUE_BYTES - 1} characters": any(len(value) > VALUE_BYTES + 1 for value in values),
            "a number with a leading 0, which runtimes read in base 8 (16 after 0x)": any(
                _OTHER_BASE.match(value) for value in values
            ),
        }
        for what, holds in checks.items():
            if holds:
                self._note(what, start)
        if name not in _ELEMENTS and not self.data.startswith(b"</", start) and len(self.seen) < MAX_KINDS:
            self._note(f"an unknown element <{name[:40].decode('utf-8', 'replace')}>, which runtimes skip", start)
