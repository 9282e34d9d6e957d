"""Take a document apart as the runtimes do: which elements a rank looks into, which it skips, and how.

`<algo>` counts at the top level only, `<gpu>` directly in it, `<tb>` and `<step>` for the rank whose gpu it is. All else
is skipped with whatever is in it, and in there any closing tag closes. A closing tag at the top level is taken for an opening one.
One pass serves all ranks: what one sees of another's gpu is the nesting alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from msccl_xml.errors import XmlError, format_place
from msccl_xml.lexer import NODE_BYTES, Kind, Tag, line_of, read_tags, to_int

MAX_NODES = 4096
"""Elements in memory; the reader stops as soon as they are all in use."""
MAX_CHILDREN = 1024
"""Of one element; not checked by the runtimes: the next one is written over the counter."""
MAX_DEPTH = 100_000
"""Nesting goes on the stack of the reader: 8 MiB hold no more calls than this."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Where a reader stops: in one rank, or in all (None)."""

    reason: str
    position: int
    rank: int | None = None
    crash: bool = False


@dataclass(slots=True)
class Block:
    """One `<tb>` with its steps."""

    tag: Tag
    steps: list[Tag] = field(default_factory=list)


@dataclass(slots=True)
class Gpu:
    """One `<gpu>` as its own rank reads it."""

    id: int
    tag: Tag
    blocks: list[Block] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    """of the open elements within it, two levels deep"""
    stopped: bool = False


class Walk:
    """One walk through a document: the first element, the first `<algo>`, and every gpu in it, handed to `judge` when complete."""

    def __init__(self, data: bytes, judge: Callable[[Walk, Gpu], None]) -> None:
        self.data = data
        self.judge = judge
        self.first: Tag | None = None
        self.algo: Tag | None = None
        self.stops: list[Stop] = []
        self._algos = 0
        self._children = 0
        self._common = 0
        self._own: dict[int, int] = {}
        self._in_algo = False
        self._gpu: Gpu | None = None
        self._skipped = 0
        self._open: Tag | None = None
        """the outermost element that is open"""

    def run(self) -> None:
        """Walk to the end; raises XmlError where every rank stops for good. What stops one rank goes to `stops`."""
        for tag in read_tags(self.data):
            if self.first is None:
                self.first = tag
            if tag.reach > MAX_NODES * NODE_BYTES:
                self.stops.append(
                    Stop("a value is longer than all the memory for the document", tag.position, crash=True)
                )
                return
            self._step(tag)
            if self.stops and self.stops[-1].rank is None:
                return
        if self._open is not None:
            line = line_of(self.data, self._open.position)
            raise XmlError(f"<{_text(self._open.name)}> is taken for an element, and is not closed", line)
        if self._common >= MAX_NODES:
            self.stops.append(self._too_many(0, None))
        for rank, own in sorted(self._own.items()):
            if self._common + own >= MAX_NODES:
                self.stops.append(self._too_many(0, rank))

    def _step(self, tag: Tag) -> None:
        if self._gpu is not None:
            self._inside_gpu(self._gpu, tag)
        elif self._skipped:
            self._skip(tag)
        elif self._in_algo:
            self._inside_algo(tag)
        elif tag.name == b"algo":
            self._open_algo(tag)
        elif tag.kind is not Kind.SINGLE:
            self._skipped = 1
        if self._open is None:
            self._open = tag
        if not self._skipped and not self._in_algo:
            self._open = None

    def _skip(self, tag: Tag) -> None:
        if tag.kind is Kind.OPEN:
            self._skipped += 1
            if self._skipped == MAX_DEPTH:
                self.stops.append(Stop("elements nested so deep that the stack overflows", tag.position, crash=True))
        elif tag.kind is Kind.CLOSE:
            self._skipped -= 1

    def _open_algo(self, tag: Tag) -> None:
        self._common += 1
        self._children = 0
        self._algos += 1
        if self.algo is None:
            self.algo = tag
        self._in_algo = tag.kind is not Kind.SINGLE

    def _inside_algo(self, tag: Tag) -> None:
        if tag.kind is Kind.CLOSE:
            self._match(tag, b"algo")
            self._in_algo = False
        elif tag.name == b"gpu":
            self._open_gpu(tag)
        elif tag.kind is Kind.OPEN:
            self._skipped = 1

    def _open_gpu(self, tag: Tag) -> None:
        self._common += 1
        self._children += 1
        if self._children > MAX_CHILDREN:
            reason = f"<algo> has more than {MAX_CHILDREN} gpus, which overwrites other memory"
            self.stops.append(Stop(reason, tag.position, crash=True))
            return
        if b"id" not in tag.attributes:
            raise XmlError("<gpu> has no attribute id", line_of(self.data, tag.position))
        gpu = Gpu(to_int(tag.attributes[b"id"]), tag)
        if tag.kind is Kind.OPEN:
            self._gpu = gpu
        else:
            self._close_gpu(gpu)

    def _close_gpu(self, gpu: Gpu) -> None:
        self._gpu = None
        if not gpu.stopped and self._algos == 1:
            self.judge(self, gpu)

    def _inside_gpu(self, gpu: Gpu, tag: Tag) -> None:
        """A tag below a gpu: its own rank knows `<tb>` and `<step>`, all others count the nesting."""
        if tag.kind is Kind.CLOSE and not self._skipped:
            self._match(tag, b"gpu")
            self._close_gpu(gpu)
            return
        if not gpu.stopped and self._skipped <= 2:
            self._own_view(gpu, tag)
        self._skip(tag)

    def _own_view(self, gpu: Gpu, tag: Tag) -> None:
        depth = self._skipped
        if tag.kind is Kind.CLOSE:
            kind = gpu.kinds.pop()
            if kind and tag.name != kind.encode():
                self._stop(gpu, f"<{kind}> is closed by </{_text(tag.name)}>", tag)
            return
        within = gpu.kinds[-1] if gpu.kinds else "gpu"
        if within == "step":
            self._stop(gpu, "an element within a <step>, on which the reader crashes", tag, crash=True)
            return
        kind = ""
        if within == "gpu" and tag.name == b"tb":
            kind = "tb"
            gpu.blocks.append(Block(tag))
        elif within == "tb" and tag.name == b"step":
            kind = "step"
            gpu.blocks[-1].steps.append(tag)
        if kind:
            self._count(gpu, tag, kind)
        if tag.kind is Kind.OPEN and depth < 2:
            gpu.kinds.append(kind)

    def _count(self, gpu: Gpu, tag: Tag, kind: str) -> None:
        own = self._own[gpu.id] = self._own.get(gpu.id, 0) + 1
        children = len(gpu.blocks) if kind == "tb" else len(gpu.blocks[-1].steps)
        if children > MAX_CHILDREN:
            parent = "the gpu" if kind == "tb" else "the threadblock"
            reason = f"{parent} has more than {MAX_CHILDREN} <{kind}> elements, which overwrites other memory"
            self._stop(gpu, reason, tag, crash=True)
        elif self._common + own >= MAX_NODES:
            self.stops.append(self._too_many(tag.position, gpu.id))
            self._forget(gpu)

    def _too_many(self, position: int, rank: int | None) -> Stop:
        where = "" if rank is None else f"{format_place(rank)}: "
        return Stop(f"{where}more than {MAX_NODES - 1} elements in the view of this rank", position, rank)

    def _stop(self, gpu: Gpu, reason: str, tag: Tag, crash: bool = False) -> None:
        self.stops.append(Stop(f"{format_place(gpu.id)}: {reason}", tag.position, gpu.id, crash))
        self._forget(gpu)

    def _forget(self, gpu: Gpu) -> None:
        """Its rank reads no further; for the others the nesting goes on."""
        gpu.stopped = True
        gpu.blocks = []

    def _match(self, tag: Tag, name: bytes) -> None:
        if tag.name != name:
            problem = f"<{name.decode()}> is closed by </{_text(tag.name)}>"
            raise XmlError(problem, line_of(self.data, tag.position))


def _text(name: bytes) -> str:
    return name[:40].decode("ascii", "replace")
