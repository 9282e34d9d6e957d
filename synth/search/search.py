"""The search: candidates through the stages, wave by wave, each scored at the sizes and protocols that it could serve."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from synth.baselines import BASELINES
from synth.candidates import Candidate
from synth.candidates.candidate import JOINT
from synth.candidates.sizes import CONNECTION_BOUND_BYTES
from synth.candidates.transfers import transfers_of
from synth.plan import Plan
from synth.request import Progress, Request
from synth.search.ledger import Ledger
from synth.search.making import Making
from synth.search.scoring import Scored, Scoring, merged
from synth.solve import Solution
from synth.units import format_size
from synth.workers import in_time

#: Of the time limit, what the search may take; the rest is for simulating what it found, which takes longer of a range.
_SEARCH_SHARE, _SEARCH_SHARE_OF_A_RANGE = 0.6, 0.5
#: Transfers of all candidates together from which on the search is left to other processes: below, it ends within a second.
_WORTH_A_PROCESS = 4_000
#: Schedules that take so many times as long as others gain too little by finer cuts.
_FAR_BEHIND = 1.1

#: What a candidate came to, and the seconds that its stages took.
_Answer = tuple[list[Scored], dict[str, float]]


@dataclass
class Search:
    """One plan carried out, wave by wave: `scored` is what can be chosen from."""

    plan: Plan
    ledger: Ledger
    progress: Callable[[Progress], None]
    scored: list[Scored] = field(default_factory=list)
    is_over: bool = field(default=False, init=False)
    """whether the time for the search is up"""
    _done: int = field(default=0, init=False)
    """candidates that there was time for"""
    _late: list[Candidate] = field(default_factory=list, init=False)
    """those that there was none for"""

    @property
    def request(self) -> Request:
        """What is asked for."""
        return self.plan.request

    @property
    def notes(self) -> tuple[str, ...]:
        """What was cut short, in words."""
        notes = []
        if self.plan.is_hurried:
            notes.append(
                "--time-limit is short for this machine, so that what is large is cut coarser; a longer one finds better"
            )
        if self.is_over:
            ended = f"after {self._done} of {sum(map(len, self.plan.waves))} candidates"
            notes.append(f"--time-limit ended the search {ended}; another run may end at another")
        return tuple(notes)

    def run(self) -> list[Scored]:
        """All waves, as far as there is time: every candidate solved and scored."""
        for _ in self.waves():
            if self.is_over:
                break
        return self.scored

    def waves(self) -> Generator[list[Scored], None, None]:
        """After each wave of the plan all that was found so far, in a fixed order; what an earlier wave found keeps its place.

        Of the first wave at least one candidate is solved, whatever the time. So it is of later ones when time is up: whoever asks
        for one then has no answer yet. Where the first wave hardly ever ends the search, later ones are begun while it is looked at.
        """
        tried = 0
        ahead = self._begun_ahead
        for waves in (self.plan.waves[:ahead], *((wave,) for wave in self.plan.waves[ahead:])):
            hopeful = [self._hopeful(planned) for planned in waves]
            with closing(self._answers(hopeful)) as answers:
                for planned in hopeful:
                    self._carry_out(planned, answers, tried)
                    tried += len(planned)
                    yield self.scored

    @property
    def _begun_ahead(self) -> int:
        """How many waves are begun at once: of small buffers all; of large ones what comes in pieces, which takes as long as what
        comes before it takes to be simulated, and what is one candidate after one other, as they take a core each.
        """
        plan, request = self.plan, self.request
        if not plan.ends or request.jobs == 1:
            return 1
        if request.max_bytes <= CONNECTION_BOUND_BYTES:
            return len(plan.waves)
        first, *second = plan.waves[:2]
        pieces = any(each.pieces for wave in second for each in wave)
        alone = len(first) == 1 and [*map(len, second)] == [1]
        return 2 if pieces or alone else 1

    def _answers(self, waves: Sequence[Sequence[Candidate]]) -> Generator[_Answer | None, None, None]:
        """What the candidates come to, wave by wave; None for what there is no time for."""
        listed = [candidate for planned in waves for candidate in planned]
        certain = 0 if self.scored else self.plan.fewest(waves[0])
        processes, urgent = self._processes(listed), len(waves[0])
        # Whoever looks at what is found asks for the bound.
        meanwhile = (lambda: self.plan.bound) if self.request.jobs > 1 else None
        return in_time(
            processes, _solved, self, listed, left_s=self._left_s, certain=certain, urgent=urgent, meanwhile=meanwhile
        )

    def _left_s(self) -> float:
        """Seconds that the search may still take."""
        share = _SEARCH_SHARE if self.request.single_size else _SEARCH_SHARE_OF_A_RANGE
        return self.request.time_limit_s * share - self.ledger.elapsed_s()

    def _hopeful(self, planned: Sequence[Candidate]) -> list[Candidate]:
        """Without finer cuts of free roots where what an earlier wave made of these was far behind: they take longest, and gain
        little.
        """
        taken: dict[bool, float] = {}
        for entry in self.scored if not self.request.by_time else ():
            joint = entry.candidate.strategy == JOINT
            taken[joint] = min([taken.get(joint, math.inf), *entry.schedules_us.values()])
        behind = taken.get(True, 0.0) > taken.get(False, math.inf) * _FAR_BEHIND
        return [each for each in planned if not (behind and each.strategy == JOINT)]

    @property
    def coarsest_left(self) -> Candidate | None:
        """What a runtime is the likeliest to hold where it holds nothing so far: of the candidates that there was no time for, what
        has the fewest chunks; then the coarsest that was made, in a list half as fine or less. None where there is no such.
        """
        if self._late:
            return min(self._late, key=lambda each: each.count)
        made = [entry.candidate for entry in self.scored]
        made = [each for each in made if not each.has_cut_of_its_own and each.strategy not in BASELINES]
        if not made or self.plan.asked_count is not None:
            return None
        coarsest = min(made, key=lambda each: each.count)
        counts = [count for count in self.plan.counts(self.request.min_bytes) if 2 * count <= coarsest.count]
        return replace(coarsest, count=counts[-1], in_rounds=False, pieces=None) if counts else None

    def also(self, left: Sequence[Candidate]) -> list[Scored]:
        """What was found so far, and what some of the candidates that were left out come to."""
        self._late = [each for each in self._late if each not in left]
        self.ledger.rest()
        for candidate in left:
            found, seconds = _solved(self, candidate)
            self.ledger.add(seconds)
            self.scored = merged([*self.scored, *found])
        return self.scored

    def solve(self, candidate: Candidate) -> Solution | None:
        """The candidate through the stages; None where there is no such on this machine, or of as many chunks."""
        return Making(self.plan, self.ledger)(candidate)

    def score(self, candidate: Candidate, solution: Solution) -> list[Scored]:
        """A solution under every protocol, at the sizes that it is for."""
        return Scoring(self.plan)(candidate, solution)

    def _carry_out(self, planned: Sequence[Candidate], answers: Iterator[_Answer | None], tried: int) -> None:
        """Take one wave's answers, after so many candidates of earlier ones."""
        scored: list[Scored] = []
        best: dict[int, float] = {}
        self.ledger.rest()
        total = sum(map(len, self.plan.waves))
        late: list[Candidate] = []
        for number, candidate in enumerate(planned):
            size = candidate.anchor_bytes
            detail = f"{candidate.strategy}, {candidate.count} chunks, {format_size(size)}"
            self.progress(Progress("search", detail, (tried + number) / total, best.get(size)))
            answer = next(answers)
            if answer is None:
                late.append(candidate)
                continue
            found, seconds = answer
            self.ledger.add(seconds)
            for entry in found:
                best[size] = min(best.get(size, math.inf), entry.solution.schedule.makespan_us)
            scored += found
        wanted = self.is_over or not self.scored
        while late and wanted and not scored:
            found, seconds = _solved(self, late.pop(0))
            self.ledger.add(seconds)
            scored += found
        self._done += len(planned) - len(late)
        self._late += late
        self.is_over |= bool(late)
        self.scored = merged([*self.scored, *scored])
        served = set[int]().union(*(entry.times_us for entry in self.scored))
        if left := [size for size in self.plan.sizes if size not in served]:
            # Time ran out before anything was solved nearer: an answer made for other sizes is better than none.
            self.scored = [entry.joined(Scoring(self.plan).again(entry, left)) for entry in self.scored]

    def _processes(self, planned: Sequence[Candidate]) -> int:
        """Processes for the plan: none where it is so little work that starting one takes longer."""
        transfers = sum(transfers_of(self.plan.collective(candidate.count)) for candidate in planned)
        return self.request.jobs if transfers > _WORTH_A_PROCESS else 0


def _solved(search: Search, candidate: Candidate) -> _Answer:
    """One candidate solved and scored, with the seconds that its stages took: in whichever process."""
    ledger = Ledger()
    here = replace(search, ledger=ledger)
    solution = here.solve(candidate)
    scored = here.score(candidate, solution) if solution is not None else []
    ledger.enter("done")
    return scored, ledger.seconds
