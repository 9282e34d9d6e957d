"""Write an `Algo` as text that the hand-written lexers of all three runtimes accept.

They read no XML declaration, no tab, no newline inside a tag, no entity, and keep 16 attributes an element: a space
before `/>` or two between attributes eat one of those. Source: xmlGetChar/Value/Token/Node of NCCL's
src/graph/xml.cc, which MSCCL reuses.
"""

from __future__ import annotations

import re

from msccl_xml.errors import XmlError
from msccl_xml.model import Algo, Gpu, Step, Threadblock

MAX_ATTRIBUTES = 16
"""MAX_ATTR_COUNT of the runtimes: the 17th attribute of an element is lost."""
MAX_NAME = 63
"""microsoft/msccl keeps 63 characters of the name."""
MAX_VALUE = 255
"""The value of an attribute goes into an array of 256 bytes, unchecked."""

_UNSAFE_NAME = re.compile(r"[^A-Za-z0-9_.,:+=()@ -]")
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_VALUE = re.compile(r"[\x20-\x7e]*")


def safe_name(name: str) -> str:
    """`name` as a file may hold it: 63 characters that no lexer trips over."""
    return _UNSAFE_NAME.sub("-", name)[:MAX_NAME]


def write_algo(algo: Algo) -> str:
    """The MSCCL XML text of `algo`; the same bytes for the same value, and ASCII throughout.

    Attributes that are None are left out. Raises XmlError for `extra` attributes that the lexers would lose or misread.
    """
    lines = [f"<algo{_attributes(_algo_attributes(algo))}>"]
    for gpu in algo.gpus:
        lines += _gpu_lines(gpu)
    lines.append("</algo>")
    return "\n".join(lines) + "\n"


def _algo_attributes(algo: Algo) -> dict[str, str]:
    values: dict[str, object] = {
        "name": safe_name(algo.name),
        "proto": algo.proto,
        "nchannels": algo.nchannels,
        "nchunksperloop": algo.nchunksperloop,
        "ngpus": algo.ngpus,
        "coll": algo.coll,
        "inplace": int(algo.inplace),
        "outofplace": None if algo.outofplace is None else int(algo.outofplace),
        "minBytes": algo.min_bytes,
        "maxBytes": algo.max_bytes,
        "nthreads": algo.nthreads,
    }
    attributes = {key: str(value) for key, value in values.items() if value is not None}
    for key, value in algo.extra:
        if key in values or key in attributes or not _KEY.fullmatch(key):
            raise XmlError(f"extra attribute {key!r} of <algo> cannot be written")
        attributes[key] = value
    if len(attributes) > MAX_ATTRIBUTES:
        raise XmlError(f"<algo> has {len(attributes)} attributes, the runtimes keep {MAX_ATTRIBUTES}")
    return attributes


def _attributes(attributes: dict[str, str]) -> str:
    for key, value in attributes.items():
        if not _VALUE.fullmatch(value) or len(value) > MAX_VALUE or any(mark in value for mark in '"<&'):
            raise XmlError(f"{key}={value!r} of <algo>: the runtimes read no such value")
    return "".join(f' {key}="{value}"' for key, value in attributes.items())


def _gpu_lines(gpu: Gpu) -> list[str]:
    chunks = f'i_chunks="{gpu.input_chunks}" o_chunks="{gpu.output_chunks}" s_chunks="{gpu.scratch_chunks}"'
    lines = [f'  <gpu id="{gpu.id}" {chunks}>']
    for tb in gpu.threadblocks:
        lines += _tb_lines(tb)
    lines.append("  </gpu>")
    return lines


def _tb_lines(tb: Threadblock) -> list[str]:
    opening = f'    <tb id="{tb.id}" send="{tb.send}" recv="{tb.recv}" chan="{tb.channel}">'
    return [opening, *(_step_line(number, step) for number, step in enumerate(tb.steps)), "    </tb>"]


def _step_line(number: int, step: Step) -> str:
    return (
        f'      <step s="{number}" type="{step.type}"'
        f' srcbuf="{step.src_buffer}" srcoff="{step.src_offset}" dstbuf="{step.dst_buffer}" dstoff="{step.dst_offset}"'
        f' cnt="{step.count}" depid="{step.depid}" deps="{step.deps}" hasdep="{int(step.hasdep)}"/>'
    )
