"""The programs of contenders: made once, from drafts that all shapes of a schedule share, or why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from msccl_xml.model import Algo
from synth.baselines import BASELINES, RIVALS
from synth.candidates.candidate import LARGE_VIEW
from synth.chunks import divides
from synth.collective import IN_PLACE_BY_DEFAULT, Collective
from synth.errors import NoAnswerError
from synth.lowering import (
    Drafts,
    LoweringOptions,
    channels_foreseen,
    lowered_collective,
    may_part,
    threadblocks_needed,
)
from synth.plan import Plan
from synth.request import Request
from synth.search import Ledger, Scored
from synth.trial.contender import Contender

#: Boxes of more GPUs have that many threadblocks for messages in the box already; with more, simulations take several times as long.
_FEW_PEERS = 8
#: Of buffers up to this messages are so short in rounds that threadblocks wait for each other more than for links.
_SHORT_IN_ROUNDS_BYTES = 16 << 20
#: The same for pieces of all ranks' shares, whose messages at either end are the shortest; over equal boxes if a share has so few.
_SHORT_IN_PIECES_BYTES = 512 << 20
_FEW_PIECES = 48


class Extent(NamedTuple):
    """How large a program is: threadblocks of the busiest rank, and steps of all."""

    threadblocks: int
    steps: int


@dataclass
class Programs:
    """The programs of one plan's candidates, which are `scored`; `refusals` holds why contenders were dropped."""

    plan: Plan
    ledger: Ledger

    def __post_init__(self) -> None:
        self.scored: Sequence[Scored] = ()
        self.refusals: dict[Contender, NoAnswerError] = {}
        self._algos: dict[Contender, Algo] = {}
        self._extents: dict[Contender, Extent] = {}
        self._drafts: dict[int, Drafts] = {}
        """by the first position of their solution"""

    @property
    def request(self) -> Request:
        """What is asked for."""
        return self.plan.request

    @property
    def sizes(self) -> Sequence[int]:
        """The sizes that the answer has to serve, ascending."""
        return self.plan.sizes

    def entry(self, contender: Contender) -> Scored:
        """The candidate that a contender is a shape of."""
        return self.scored[contender.position]

    def is_known(self, contender: Contender) -> bool:
        """Whether it is one of others' algorithms."""
        return self.entry(contender).candidate.strategy in BASELINES

    def is_rival(self, contender: Contender) -> bool:
        """Whether it is what a library would run by itself."""
        return self.entry(contender).candidate.strategy in RIVALS

    def algo(self, contender: Contender) -> Algo:
        """The contender's program, made once. Raises NoAnswerError where no runtime could hold it."""
        if contender in self.refusals:
            raise self.refusals[contender]
        if contender not in self._algos:
            self.ledger.enter("lowering")
            try:
                solution, drafts = self.entry(contender).solution, self._drafts_of(contender)
                algo = self._algos[contender] = solution.program(self._options(contender), drafts)
            except NoAnswerError as refusal:
                self.refusals[contender] = refusal
                raise
            steps = sum(len(tb.steps) for gpu in algo.gpus for tb in gpu.threadblocks)
            self._extents[contender] = Extent(algo.threadblocks, steps)
        return self._algos[contender]

    def extent(self, contender: Contender) -> Extent:
        """How large the contender's program is. Raises NoAnswerError as `algo`."""
        if contender not in self._extents:
            self.algo(contender)
        return self._extents[contender]

    def _drafts_of(self, contender: Contender) -> Drafts:
        """Those of the contender's solution, whatever protocol it is under."""
        return self._drafts.setdefault(self._first_of(contender), Drafts())

    def _first_of(self, contender: Contender) -> int:
        """The first position of the contender's solution."""
        solution = self.entry(contender).solution
        return next(position for position, entry in enumerate(self.scored) if entry.solution is solution)

    def computed(self, contender: Contender) -> Collective:
        """The collective that the contender's program carries out."""
        return lowered_collective(self.entry(contender).solution.collective, self._options(contender))

    def estimates(self, contender: Contender) -> dict[int, float]:
        """What is expected of a contender before it is simulated, by size: of most shapes the same as of the plain one."""
        entry = self.entry(contender)
        times_us = entry.times_us | entry.wide_us if contender.instances == entry.copies else entry.times_us
        if contender.up_to_bytes is None:
            return times_us
        return {size: us for size, us in times_us.items() if size <= contender.up_to_bytes}

    def divides(self, entry: Scored, instances: int, size: int) -> bool:
        """Whether runtimes would use a candidate in so many instances at a size: their chunks divide it."""
        if instances == (self.request.instances or 1):
            return True
        collective = entry.solution.collective
        return not self.request.has_cut and divides(
            collective.name, collective.num_ranks, entry.candidate.count * instances, size
        )

    def alike(self, position: int) -> int:
        """How many boxes a candidate was made for one of: what all of them do is simulated for one."""
        folded = self.scored[position].solution.folded
        return 1 if folded is None else folded.boxes.count

    def is_same(self, contender: Contender, other: Contender) -> bool:
        """Whether two shapes of one candidate have the same channels, and so one program: paths have no more than chunks."""
        solution = self.entry(contender).solution
        if solution.written is not None or contender.instances != other.instances:
            return contender.instances == other.instances  # what is written down has channels of its own
        here, there = (
            channels_foreseen(solution.instance, solution.lowered, self._options(each)) for each in (contender, other)
        )
        return here == there

    def has_parted(self, contender: Contender) -> bool:
        """Whether receives and sends of the contender's program have threadblocks apart that might share them in smaller buffers: it
        has more than they need together, and one for copies.
        """
        solution, options = self.entry(contender).solution, self._options(contender)
        if solution.written is not None or not may_part(solution.collective, solution.lowered, options):
            return False
        foreseen = channels_foreseen(solution.instance, solution.lowered, options)
        together = threadblocks_needed(solution.instance, foreseen, joined=True) + 1
        return self.extent(contender).threadblocks > together * contender.instances

    def _has_few_steps(self, contender: Contender) -> bool:
        """Whether a contender is spread over threadblocks so that each has few steps: all but what is made for large buffers, if it
        is in rounds or adds up, where the fewer share a link the better. Copies wait less with more of them, and so do short
        messages in rounds, and what goes through boxes of few GPUs with NICs enough, where messages to the next one take their
        time. What comes in turns has many chunks on few connections, and waits for links alone. Of pieces, which are short at
        either end, the others decide: sums of few of them over boxes, and medium ones of all ranks.
        """
        candidate, boxes = self.entry(contender).candidate, self.plan.boxes
        if candidate.in_turns:
            return False
        if candidate.pieces:
            few = candidate.boxed and candidate.pieces <= _FEW_PIECES and self.plan.collective(1).combining
            return few or (boxes is None and candidate.anchor_bytes <= _SHORT_IN_PIECES_BYTES)
        small = boxes is not None and boxes.size <= _FEW_PEERS and self.plan.has_nics
        short = candidate.in_rounds and boxes is None and candidate.anchor_bytes <= _SHORT_IN_ROUNDS_BYTES
        if candidate.view != LARGE_VIEW or small or short:
            return True
        return not (candidate.in_rounds or self.plan.collective(1).combining)

    def _most_bytes(self, contender: Contender) -> int:
        """The largest buffer that a file of the contender is for: below the next size that it does not serve."""
        served = max(self.estimates(contender), default=self.request.max_bytes)
        return next((size for size in self.sizes if size > served), self.request.max_bytes)

    def _options(self, contender: Contender) -> LoweringOptions:
        request = self.request
        in_place = request.inplace if request.inplace is not None else request.collective in IN_PLACE_BY_DEFAULT
        return LoweringOptions(
            runtime=request.runtime,  # type: ignore[arg-type]
            protocol=self.entry(contender).protocol,  # type: ignore[arg-type]
            inplace=in_place,
            both_layouts=request.inplace is None,
            instances=contender.instances,
            max_bytes=self._most_bytes(contender),
            channels=contender.channels or None,
            max_threadblocks=request.threadblocks,
            few_steps=self._has_few_steps(contender) != contender.otherwise,
            name=f"synth-{request.collective}-{request.topology.name}",
        )
