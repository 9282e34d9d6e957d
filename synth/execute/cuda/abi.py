"""What Python and C++ must agree on: kinds, table columns and parameters, each told once, here, and written out as a C++ header.

Tables are of 32-bit integers, parameters of 64-bit integers; an address is a parameter like any other.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum

import numpy as np
from numpy.typing import NDArray

from msccl_xml.model import Buffer, StepType
from synth.errors import InputError

#: Columns of the table of threadblocks. `send` and `recv` are connections, -1 for none.
BLOCK_COLUMNS = ("rank", "tb", "send", "recv", "first_step", "num_steps")
#: Columns of the table of steps. Waits and sources are ranges of their own tables; `number` is the step's in the file.
STEP_COLUMNS = (
    "type",
    "src_buffer",
    "src_offset",
    "dst_buffer",
    "dst_offset",
    "count",
    "first_wait",
    "num_waits",
    "publishes",
    "number",
    "first_source",
    "num_sources",
)
#: Columns of the table of waits: until threadblock `block` has done `steps` of its steps in this tile.
WAIT_COLUMNS = ("block", "steps")
#: Columns of the table of connections, which holds addresses: slots and tail lie with the receiver, head with the sender.
CONNECTION_COLUMNS = ("slots", "tail", "head")
#: Columns of the records of threadblocks that gave up: what each waited for (`WaitKind`; 0 where it did not give up).
STUCK_COLUMNS = ("kind", "step", "tile", "index", "goal", "seen")

STEP_TYPES = tuple(kind for kind in StepType if kind is not StepType.NOP)
BUFFERS = tuple(Buffer)
PROTOCOLS = ("Simple", "LL", "LL128")

#: Bytes between two flags, so that no two share a cache line (lines of L2 are 128 bytes).
FLAG_BYTES = 128
#: Data words (of 8 bytes) of an LL128 line; the sixteenth is its flag.
LINE_WORDS = 15
LINE_BYTES = 8 * (LINE_WORDS + 1)


class DataType(StrEnum):
    """Types of elements, as torch and nccl-tests name them."""

    FLOAT32 = "float32"
    FLOAT64 = "float64"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    UINT8 = "uint8"

    @property
    def item_bytes(self) -> int:
        """Bytes of one element."""
        return 2 if self is DataType.BFLOAT16 else np.dtype(self.value).itemsize

    @property
    def floating(self) -> bool:
        """Whether elements are rounded."""
        return "float" in self.value

    @property
    def numpy(self) -> np.dtype[np.generic]:
        """The type of the arrays that hold such elements: numpy knows no bfloat16, so its bits are held as uint16."""
        return np.dtype(np.uint16 if self is DataType.BFLOAT16 else self.value)


#: Other people's names of the same types (nccl-tests, torch).
_ALIASES = {
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "fp16": "float16",
    "fp32": "float32",
    "bf16": "bfloat16",
}


def data_type(name: str) -> DataType:
    """The type of that name, torch's or that of nccl-tests; InputError for another."""
    known = _ALIASES.get(name, name)
    if known not in set(DataType):
        raise InputError("--dtype", "", name, "one of " + " ".join((*DataType, *_ALIASES)))
    return DataType(known)


class ReduceOp(StrEnum):
    """How contributions are combined; `avg` is the sum divided by the number of ranks, rounded towards 0 for integers."""

    SUM = "sum"
    PROD = "prod"
    MIN = "min"
    MAX = "max"
    AVG = "avg"


class WaitKind(IntEnum):
    """What a threadblock may wait for."""

    NOTHING = 0
    FLAG = 1
    ROOM = 2
    DATA = 3
    LINE = 4
    LINE128 = 5
    BARRIER = 6


#: Everything that a run is told, in order. The first nine are addresses.
PARAMS = (
    "blocks",
    "steps",
    "waits",
    "sources",
    "buffers",
    "connections",
    "progress",
    "launches",
    "stuck",
    "abort",
    "outputs",
    "num_ranks",
    "first_block",
    "num_blocks",
    "protocol",
    "dtype",
    "op",
    "share",
    "per_share",
    "chunk",
    "scratch_stride",
    "tile",
    "tiles",
    "most",
    "slot_bytes",
    "slices",
    "slots",
    "smallest_slice",
)


def header() -> str:
    """The C++ header of everything above."""
    lines = ["// Written by synth/execute/cuda/abi.py.", "#pragma once", ""]
    lines += _enumeration("BLOCK", [*BLOCK_COLUMNS, "columns"])
    lines += _enumeration("STEP", [*STEP_COLUMNS, "columns"])
    lines += _enumeration("WAIT", [*WAIT_COLUMNS, "columns"])
    lines += _enumeration("CONNECTION", [*CONNECTION_COLUMNS, "columns"])
    lines += _enumeration("STUCK", [*STUCK_COLUMNS, "columns"])
    lines += _enumeration("TYPE", [kind.value for kind in STEP_TYPES])
    lines += _enumeration("BUFFER", ["input", "output", "scratch"])
    lines += _enumeration("PROTOCOL", list(PROTOCOLS))
    lines += _enumeration("DTYPE", [dtype.value for dtype in DataType])
    lines += _enumeration("OP", [op.value for op in ReduceOp])
    lines += _enumeration("KIND", [kind.name for kind in WaitKind])
    lines += ["struct Params {", *(f"  long long {name};" for name in PARAMS), "};"]
    sizes = {"FLAG_BYTES": FLAG_BYTES, "LINE_WORDS": LINE_WORDS, "LINE_BYTES": LINE_BYTES}
    lines += [f"enum {{ {', '.join(f'{name} = {size}' for name, size in sizes.items())} }};", ""]
    return "\n".join(lines)


def table(rows: list[tuple[int, ...]], columns: int) -> NDArray[np.int32]:
    """Rows as a table of 32-bit integers; never empty, so that it has an address."""
    return np.array(rows or [(0,) * columns], dtype=np.int32).reshape(-1, columns)


def _enumeration(prefix: str, names: list[str]) -> list[str]:
    values = ", ".join(f"{prefix}_{name.upper()} = {value}" for value, name in enumerate(names))
    return [f"enum {{ {values} }};"]
