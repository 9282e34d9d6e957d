"""Read MSCCL XML leniently: any well-formed document that has what an algorithm needs, old generations included.

Lenient is about layout (declarations, tabs, comments, unknown elements such as TACCL's `<copy>`) and about attributes
that came later (`outofplace`, `minBytes`, `maxBytes`, `nthreads`). What one runtime in particular would refuse is not
judged here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from typing import TypeVar

from lxml import etree

from msccl_xml.errors import XmlError
from msccl_xml.model import Algo, Buffer, Gpu, Step, StepType, Threadblock

MAX_DOCUMENT_BYTES = 256 << 20
"""Far above any file a runtime could hold (4095 elements a rank); keeps a wrong file from eating the machine."""

_ALGO_ATTRIBUTES = frozenset(
    [
        "name",
        "coll",
        "proto",
        "ngpus",
        "nchannels",
        "nchunksperloop",
        "inplace",
        "outofplace",
        "minBytes",
        "maxBytes",
        "nthreads",
    ]
)
# The runtimes read numbers with strtol(base 0): "010" is 8 there and 10 to a human, so leading zeros are refused.
_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,18})")

_TYPES = {kind.value: kind for kind in StepType}
_BUFFERS = {buffer.value: buffer for buffer in Buffer}

_Word = TypeVar("_Word", bound=StrEnum)


def read_algo(text: str | bytes) -> Algo:
    """The algorithm that `text` holds; XmlError names line, element and attribute where it holds none."""
    root = _parse(text)
    if root.tag != "algo":
        raise XmlError(f"the root element is <{root.tag}>, expected <algo>", _line(root))
    return Algo(
        name=root.get("name", ""),
        coll=_text(root, "coll"),
        proto=_text(root, "proto"),
        ngpus=_int(root, "ngpus"),
        nchannels=_int(root, "nchannels"),
        nchunksperloop=_int(root, "nchunksperloop"),
        gpus=tuple(_read_gpu(node) for node in root.iterchildren("gpu")),
        inplace=_bool(root, "inplace"),
        outofplace=_bool(root, "outofplace") if "outofplace" in root.attrib else None,
        min_bytes=_optional_int(root, "minBytes"),
        max_bytes=_optional_int(root, "maxBytes"),
        nthreads=_optional_int(root, "nthreads"),
        extra=tuple((str(key), str(value)) for key, value in root.attrib.items() if key not in _ALGO_ATTRIBUTES),
    )


def _parse(text: str | bytes) -> etree._Element:
    data = text.encode("utf-8", "replace") if isinstance(text, str) else text
    if len(data) > MAX_DOCUMENT_BYTES:
        raise XmlError(f"the document has {len(data)} bytes, at most {MAX_DOCUMENT_BYTES} are read")
    parser = etree.XMLParser(
        # A str is decoded already: its own declaration of an encoding is void.
        encoding="utf-8" if isinstance(text, str) else None,
        resolve_entities=False,
        no_network=True,
        load_dtd=False,
        huge_tree=False,
        remove_comments=True,
        remove_pis=True,
    )
    try:
        root = etree.fromstring(data, parser)
    except etree.XMLSyntaxError as error:
        raise XmlError(f"not XML: {error.msg}", error.lineno) from None
    if b"<!DOCTYPE" in data:
        raise XmlError("a document type declaration is not read", 1)
    return root


def _line(node: etree._Element) -> int | None:
    line = node.sourceline
    return line if isinstance(line, int) else None


def _read_gpu(node: etree._Element) -> Gpu:
    return Gpu(
        id=_int(node, "id"),
        input_chunks=_int(node, "i_chunks"),
        output_chunks=_int(node, "o_chunks"),
        scratch_chunks=_int(node, "s_chunks"),
        threadblocks=tuple(_read_tb(child) for child in node.iterchildren("tb")),
    )


def _read_tb(node: etree._Element) -> Threadblock:
    return Threadblock(
        id=_int(node, "id"),
        send=_int(node, "send"),
        recv=_int(node, "recv"),
        channel=_int(node, "chan"),
        steps=tuple(_read_step(child) for child in node.iterchildren("step")),
    )


def _read_step(node: etree._Element) -> Step:
    # `s` is not kept: the runtimes execute in file order and count dependences by position.
    return Step(
        type=_word(node, "type", _TYPES),
        src_buffer=_word(node, "srcbuf", _BUFFERS),
        src_offset=_int(node, "srcoff"),
        dst_buffer=_word(node, "dstbuf", _BUFFERS),
        dst_offset=_int(node, "dstoff"),
        count=_int(node, "cnt"),
        depid=_int(node, "depid"),
        deps=_int(node, "deps"),
        hasdep=_bool(node, "hasdep"),
    )


def _text(node: etree._Element, key: str) -> str:
    value = node.get(key)
    if value is None:
        raise XmlError(f"<{node.tag}> has no attribute {key}", _line(node))
    return value


def _int(node: etree._Element, key: str) -> int:
    value = _text(node, key)
    number = _parse_number(value)
    if number is None:
        raise _bad_value(node, key, value, "a decimal whole number")
    return number


@lru_cache(maxsize=4096)
def _parse_number(value: str) -> int | None:
    return int(value) if _NUMBER.fullmatch(value) else None


def _optional_int(node: etree._Element, key: str) -> int | None:
    return _int(node, key) if key in node.attrib else None


def _bool(node: etree._Element, key: str) -> bool:
    value = _text(node, key)
    if value not in ("0", "1"):
        raise _bad_value(node, key, value, "0 or 1")
    return value == "1"


def _word(node: etree._Element, key: str, words: Mapping[str, _Word]) -> _Word:
    value = _text(node, key)
    word = words.get(value)
    if word is None:
        raise _bad_value(node, key, value, "one of " + " ".join(words))
    return word


def _bad_value(node: etree._Element, key: str, value: str, expected: str) -> XmlError:
    shown = value if len(value) <= 40 else value[:37] + "..."
    return XmlError(f"<{node.tag}> {key}={shown!r}, expected {expected}", _line(node))
