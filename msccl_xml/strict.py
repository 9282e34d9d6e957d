"""Read a document as a runtime's own reader does, and say where and why it would stop.

A rank looks into its own `<gpu>` only, so the ranks of one file may answer differently; a file is taken if all of them
take it. A reader has two passes: the whole document is taken apart (walk.py), then attributes are looked at, those of
`<algo>` first (rules.py has what is asked of them). RCCL and the executor read the first element of a file twice: once
by itself, to know what the file is for. Sources: the format notes (docs/xml.md), sections 1, 2, 5.2, 5.3 and 8.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from msccl_xml.errors import XmlError
from msccl_xml.header import Header, Problem, header_of, header_problem
from msccl_xml.lexer import NODE_BYTES, Tag, line_of, to_int
from msccl_xml.limits import LIMITS
from msccl_xml.rules import GpuRules
from msccl_xml.walk import Gpu, Stop, Walk

#: How the size of the communicator is told where nobody says it: `ngpus` in decimal, near the beginning of the file.
_NGPUS = re.compile(rb"ngpus=\"([0-9]{1,9})")
_HEAD_BYTES = 4096


@dataclass(frozen=True, slots=True)
class LoadVerdict:
    """Whether a runtime takes a file; `reason` is one sentence and None where it does.

    `line` is the line of the file that stops it, where one does. `crash`: it would not refuse the file but break
    down. `rank` is the first rank that stops; None where all do.
    """

    ok: bool
    reason: str | None = None
    line: int | None = None
    crash: bool = False
    rank: int | None = None
    mend: str | None = None
    """what to change in the file, where that is plain"""
    header: Header | None = None
    """what the file says of itself as this reader understands it; only where it is taken"""
    listed: Header | None = None
    """the same where RCCL or the executor, which look at the first element alone before, put the file on their list"""


def load_as(text: str | bytes, runtime: str, *, ranks: int | None = None, rank: int | None = None) -> LoadVerdict:
    """What the reader of `runtime` (`msccl`, `executor`, `rccl`) says to the document `text`, on all ranks or one.

    `ranks` is the size of the communicator, which microsoft/msccl compares with `ngpus` (default: the file's own);
    with `rank`, only that rank is asked. Time is linear in the document, memory too. Raises ValueError for another
    runtime.
    """
    if runtime not in LIMITS:
        raise ValueError(f"runtime is {runtime!r}, expected one of {' '.join(LIMITS)}")
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return _Reader(data, runtime, ranks, rank).read()


class _Reader:
    """One reading of one document."""

    def __init__(self, data: bytes, runtime: str, ranks: int | None, rank: int | None) -> None:
        self.data = data
        self.limits = LIMITS[runtime]
        self.is_msccl = runtime == "msccl"
        self.size = ranks
        self.only = rank
        self.rules: GpuRules | None = None
        self.first: Problem | None = None
        """the first problem that the second pass would find in a <gpu>"""

    def read(self) -> LoadVerdict:
        """Both passes; the second is made along with the first, and counts only if that comes to its end."""
        walk = Walk(self.data, self._judge)
        verdict = self._first_pass(walk)
        first = walk.first
        if self.is_msccl or first is None or header_problem(first, self.limits, alone=True) is not None:
            return verdict
        return replace(verdict, listed=header_of(first))

    def _first_pass(self, walk: Walk) -> LoadVerdict:
        error: XmlError | None = None
        try:
            walk.run()
        except XmlError as stopped:
            error = stopped
        stops = [stop for stop in walk.stops if self._asked(walk, stop.rank)]
        crash = next((stop for stop in stops if stop.crash), None) or self._overrun(walk)
        if crash is not None:
            return self._verdict(crash)
        if error is not None:
            return LoadVerdict(False, error.message, error.line)
        if stops:
            return self._verdict(stops[0])
        if walk.algo is None:
            return LoadVerdict(False, "no <algo> at the top level of the document: the reader would crash", crash=True)
        return self._second_pass(walk, walk.algo)

    def _second_pass(self, walk: Walk, algo: Tag) -> LoadVerdict:
        problem = header_problem(algo, self.limits)
        if problem is None and not self.is_msccl and walk.first is not None and walk.first is not algo:
            problem = header_problem(walk.first, self.limits, alone=True)
        if problem is None and self.is_msccl:
            problem = self._size_problem(algo)
        if problem is None:
            problem = self.first
        if problem is None:
            return LoadVerdict(True, header=header_of(algo))
        return replace(self._verdict(problem.stop()), mend=problem.mend)

    def _size_problem(self, algo: Tag) -> Problem | None:
        """microsoft/msccl takes a file for exactly the ranks that there are."""
        ngpus = to_int(algo.attributes[b"ngpus"])
        size = self.size
        if size is None:
            match = _NGPUS.search(self.data, 0, _HEAD_BYTES)
            size = int(match[1]) or None if match is not None else None
        if size == ngpus:
            return None
        if size is None:
            where = f"within the first {_HEAD_BYTES} bytes"
            return Problem(f"ngpus is no plain number {where}: say how many ranks the communicator has", algo)
        return Problem(f"ngpus is {ngpus}, the communicator has {size} ranks", algo)

    def _judge(self, walk: Walk, gpu: Gpu) -> None:
        """The second pass over one <gpu>, as soon as it is read."""
        if self.first is not None or walk.algo is None or not self._asked(walk, gpu.id):
            return
        if self.rules is None:
            self.rules = GpuRules(walk.algo, self.limits)
        self.first = self.rules.problem(gpu)

    def _asked(self, walk: Walk, rank: int | None) -> bool:
        """Whether the rank (None: all) is one of those that read the file."""
        if rank is None:
            return True
        if self.only is not None:
            return rank == self.only
        ngpus = to_int(walk.algo.attributes.get(b"ngpus", b"")) if walk.algo is not None else 0
        return 0 <= rank < max(1, ngpus)

    def _overrun(self, walk: Walk) -> Stop | None:
        """RCCL and the executor read the first element into a block of memory of its size, with no check."""
        first = walk.first
        if self.is_msccl or first is None or first.reach <= NODE_BYTES:
            return None
        return Stop(
            "a value of the first element is so long that it overwrites other memory", first.position, crash=True
        )

    def _verdict(self, stop: Stop) -> LoadVerdict:
        return LoadVerdict(False, stop.reason, line_of(self.data, stop.position), stop.crash, stop.rank)
