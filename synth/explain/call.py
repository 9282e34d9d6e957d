"""One call of a collective as nccl-tests makes it, and what the runtimes compute from it."""

from __future__ import annotations

from dataclasses import dataclass

from synth.chunks import element_count
from synth.collective import CollectiveName

#: Element types by the names that nccl-tests has for them, with their bytes.
ELEMENT_BYTES = {
    "int8": 1,
    "uint8": 1,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "uint64": 8,
    "half": 2,
    "float16": 2,
    "bfloat16": 2,
    "float": 4,
    "float32": 4,
    "double": 8,
    "float64": 8,
}
#: Where the runtimes multiply the count of a call by the ranks (sizeMultiplier).
_MULTIPLIED = frozenset({"allgather", "reducescatter", "alltoall"})
#: Where microsoft/msccl turns elements into bytes before it looks for an algorithm.
_BYTEWISE = frozenset({"allgather", "broadcast", "alltoall"})


def plain_coll(coll: str) -> str:
    """The collective without the separator that the runtimes disagree about."""
    return coll.replace("_", "").replace("-", "")


@dataclass(frozen=True, slots=True)
class Call:
    """A call of `coll` (as a file spells it) on `ranks` ranks, with a buffer of `size_bytes` as nccl-tests counts it."""

    coll: str
    ranks: int
    element_bytes: int
    in_place: bool
    size_bytes: int

    @property
    def count(self) -> int:
        """The element count of the call: of a rank's share where ranks have shares."""
        known = {name.value.replace("-", ""): name for name in CollectiveName}
        name = known.get(plain_coll(self.coll))
        if name is None:
            return self.size_bytes // self.element_bytes
        return element_count(name, self.ranks, self.size_bytes, self.element_bytes)

    @property
    def total_count(self) -> int:
        """Elements of the whole vector, which is what `nchunksperloop` cuts."""
        return self.count * (self.ranks if plain_coll(self.coll) in _MULTIPLIED else 1)

    @property
    def total_bytes(self) -> int:
        """Bytes of the whole vector, which is what `minBytes` and `maxBytes` are compared with."""
        return self.total_count * self.element_bytes

    def divided(self, runtime: str) -> tuple[int, str]:
        """What has to be a multiple of `nchunksperloop`, and in what it is counted."""
        if runtime == "msccl" and plain_coll(self.coll) in _BYTEWISE:
            return self.total_bytes, "bytes"
        return self.total_count, "elements"

    def __str__(self) -> str:
        return "in place" if self.in_place else "out of place"
