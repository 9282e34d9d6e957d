"""The waves of one size where times decide: what seldom fails there comes first, since an answer near enough ends the search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from synth.baselines import BASELINES
from synth.candidates import Candidate
from synth.candidates.candidate import FEW_HOPS, JOINT, RING, VIEW
from synth.candidates.finer import finer_lists, finer_sums
from synth.candidates.pieces import summed_pieces
from synth.candidates.sizes import CONNECTION_BOUND_BYTES
from synth.candidates.transfers import FINE, direct
from synth.collective import CollectiveName
from synth.instance import Instance
from synth.plan.asked import FINER_JOINT, FINER_PIECES, Asked
from synth.plan.in_time import in_time
from synth.plan.planned import Planned
from synth.plan.traits import Traits

#: Candidates of the first wave, besides others' algorithms, which take next to no time.
_FIRST = 2
#: Sums are cut so many times finer where what their first and their last chunk wait for is what counts.
_FINER_SUMS = 2
#: And in a list where no ways meet.
_FINER_LISTS = 4
#: Sums in pieces over equal boxes come first unless rounds of a share are as fine as this.
_NEARLY_FINE = 2


@dataclass(frozen=True)
class ByTime:
    """What is planned for a request, the likeliest to be the best first."""

    planned: Planned

    @property
    def traits(self) -> Traits:
        """What the machine is like."""
        return self.planned.traits

    @property
    def asked(self) -> Asked:
        """What was asked for, over the machine's paths."""
        return self.planned.asked

    @cached_property
    def waves(self) -> list[list[Candidate]]:
        """The waves if time did not matter."""
        planned = self.planned.candidates
        known = [each for each in planned if each.strategy in BASELINES]
        made = [each for each in planned if each.strategy not in BASELINES]
        if not any(each.boxed and each.in_rounds for each in made):
            made.sort(key=lambda each: each.strategy != JOINT)
            return [*self._over_all(known, made), made]
        over_boxes = self._over_many if self.traits.has_very_many_ranks else self._over_boxes
        return [*over_boxes(known, made), made]

    def _over_all(self, known: list[Candidate], made: list[Candidate]) -> list[list[Candidate]]:
        """The first waves elsewhere: of large buffers what comes in turns, or in pieces over unequal links, which is as near to the
        limit as anything; others' algorithms with what seldom fails, in rounds and in lists; then finer cuts; rings in loops; trees
        over paths that keep apart, which come first if these share no link after all, or roots are free.
        """
        large = self.asked.request.max_bytes > CONNECTION_BOUND_BYTES
        apart = _apart(made)
        turned = [each for each in made if each.in_turns]
        looped = [each for each in made if each.looped]
        over_all = [each for each in made if not (each.boxed or each.apart or each.in_turns or each.looped)]
        paced = [each for each in over_all if each.in_rounds]
        boxed = [each for each in made if each.boxed]
        # Chunks with one destination over boxes: what is made for these fails as seldom, and is found sooner.
        whole = not boxed or not direct(self.asked.collective(1))
        listed = [each for each in over_all if whole and not each.in_rounds]
        if large:
            # Coarser and finer cuts than the first take their time, and are for what is not near the limit yet.
            listed = [each for each in listed if each.strategy == JOINT or each.count == listed[0].count]
        chained = [
            each for each in made if each.chained and not each.in_turns and each.anchor_bytes > CONNECTION_BOUND_BYTES
        ]
        # What takes longest is begun first: where time is short there is more than others' algorithms then. Not so free roots
        # of small buffers: several others are made in their time.
        opening = [*paced[:1], *[*boxed[:1], *listed][:_FIRST]]
        longest = [each for each in opening[:1] if large or each.strategy != JOINT]
        through = [*chained, *known] if turned and large else chained
        finer = [*self.finer_cuts, *self._finer_lists()]
        waves = [through or [*longest, *known, *opening[len(longest) :]], finer, looped, apart]
        if self._leads(apart):
            waves[0] = [*[each for each in apart if each.in_rounds], *known, *paced[:1]]
        # Where boxes have NICs enough, lists keep up with turns.
        beside = chained[:1] if self.traits.has_nics else []
        if tiled := [each for each in chained if each.view == VIEW]:
            # Small tiles are the soonest through many boxes.
            return [[*tiled, *beside], turned, *waves]
        if self._begins_in_pieces:
            return [[*self.finer_cuts, *known], *waves]
        return [[*turned, *beside], *waves] if turned else waves

    def _over_boxes(self, known: list[Candidate], made: list[Candidate]) -> list[list[Candidate]]:
        """The first waves over equal boxes: of large buffers what keeps apart where ways meet; elsewhere what comes in rounds is
        nearest to the limit, or says that it is not (coarse cuts of the whole do not keep boxes busy in rounds), beside it what is
        copied, or a list; then finer rounds; of many ranks what passes few boxes and the finest rounds of copies; then others'
        algorithms and lists.
        """
        fine = FINE * self.asked.request.topology.num_ranks
        finer, combining = self.finer_cuts, self.asked.collective(1).combining
        rounds = [each for each in made if each.in_rounds and in_time(self.traits, each) not in finer]
        paced = [each for each in rounds if each.boxed or self.asked.collective(each.count).chunks >= fine]
        few_hops = [each for each in made if each.strategy == FEW_HOPS and each.view is not None]
        if few_hops and not any(each.pieces for each in paced) and not combining:
            few_hops = [*[each for each in paced if each.strategy == RING][1:], *few_hops]
        paced = _longest_second([each for each in paced if each not in few_hops])
        boxed = [each for each in made if each.boxed and not each.in_rounds][:2]
        copied = [] if combining else [each for each in made if not each.boxed and each.view is None][:1]
        beside = boxed[:1] if len(paced) < _FIRST else copied
        if finer and combining:
            beside = []
        apart, over_all = _apart(made), [*paced, *beside]
        # If some meet after all, what goes over all paths may be as good.
        beside_it = [[*[each for each in apart if each.in_rounds], *over_all], apart]
        first = [apart, over_all] if self._leads(apart) else beside_it
        return [*first, [*finer], few_hops, [*known, *boxed, *copied]]

    def _leads(self, apart: Sequence[Candidate]) -> bool:
        """Whether what goes over paths that keep apart comes first: where these share no link after all no message waits for one, so
        that rounds do what they say, and free roots are found sooner over few paths.
        """
        return bool(apart) and (apart[0].strategy == JOINT or self.traits.keeps_apart)

    def _over_many(self, known: list[Candidate], made: list[Candidate]) -> list[list[Candidate]]:
        """The first waves over equal boxes of very many ranks: the likeliest two of what is made for an interpreter, and the rest of
        that with others' algorithms; what is made for links alone is often far behind.
        """
        kept_up_with = [each for each in made if each.boxed and each.view is not None]
        return [kept_up_with[:2], [*known, *kept_up_with[2:]]]

    @cached_property
    def finer_cuts(self) -> tuple[Candidate, ...]:
        """What is cut finer than the first wave, of one large buffer, and tried next unless a schedule is near to the limit."""
        if not self.asked.ends:
            return ()
        if self.traits.boxes is None:
            return self._finer_sums()
        return self._finer_across() if direct(self.asked.collective(1)) else self._finer_over_boxes()

    def _finer_sums(self) -> tuple[Candidate, ...]:
        """An allreduce of few ranks whose ways meet in finer trees; not where nothing waits for a link on paths that keep apart, in
        rounds that come first. Of more ranks in pieces.
        """
        planned = self.planned.candidates
        if not self._adds_up_much:
            return ()
        if not self.traits.is_quick:
            packed = any(each.strategy == "trees" for each in planned)
            return (
                self._in_time(summed_pieces(*self._cut(FINER_PIECES), self.asked.request.max_bytes)) if packed else ()
            )
        finer_by = _FINER_SUMS * (FINER_JOINT if any(each.strategy == JOINT for each in planned) else 1)
        kept_apart = self.traits.apart and self.traits.keeps_apart
        return self._in_time(finer_sums(*self._cut(finer_by), planned)) if not kept_apart else ()

    @property
    def _begins_in_pieces(self) -> bool:
        """Whether sums in pieces come before all else: over links of unequal width that no ways meet in nothing is nearer."""
        return any(each.pieces for each in self.finer_cuts) and self.traits.boxes is None and not self.traits.apart

    def _finer_lists(self) -> tuple[Candidate, ...]:
        """An allreduce of few ranks in finer lists where no ways meet."""
        alone = self.asked.ends and self.traits.is_quick and self.traits.boxes is None
        if not (alone and self._adds_up_much):
            return ()
        return self._in_time(finer_lists(*self._cut(_FINER_LISTS), self.planned.candidates))

    @property
    def _adds_up_much(self) -> bool:
        """Whether it is a large allreduce."""
        request = self.asked.request
        return request.collective is CollectiveName.ALLREDUCE and request.max_bytes > CONNECTION_BOUND_BYTES

    def _cut(self, finer_by: int) -> tuple[Instance, tuple[int, ...]]:
        """The largest buffer, and into what it may be cut, so many times finer than usual."""
        size = self.asked.request.max_bytes
        return self.asked.instance(1, size), self.asked.counts(size, finer_by)

    def _in_time(self, candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
        """The candidates as finely as there is time for."""
        return tuple(in_time(self.traits, each) for each in candidates)

    def _finer_across(self) -> tuple[Candidate, ...]:
        """Chunks with one destination over equal boxes in finer parts than whole shares, of a large buffer."""
        if self.asked.request.max_bytes <= CONNECTION_BOUND_BYTES:
            return ()
        across = [each for each in self.planned.candidates if each.boxed]
        return self._in_time(across[1:])

    def _finer_over_boxes(self) -> tuple[Candidate, ...]:
        """Over equal boxes of few ranks in all finer rounds than the first, where links carry no more than what the limit says: then
        the cut is what keeps a schedule from it. And of sums pieces, where rounds are fine themselves.
        """
        asked, size = self.asked, self.asked.request.max_bytes
        paced = [each for each in self.planned.candidates if each.boxed and each.in_rounds]
        counts = self.traits.counts(size)
        usual = self.planned.at_size.over_boxes(asked.instance(counts[0], size), counts, size) if paced else []
        ranks = asked.request.topology.num_ranks
        fine = any(
            asked.collective(each.count).chunks * _NEARLY_FINE >= FINE * ranks for each in paced if not each.pieces
        )
        later = [each for each in paced if each.pieces and fine and asked.collective(1).combining]
        return self._in_time([each for each in paced if each not in usual or each in later])


def _apart(made: Sequence[Candidate]) -> list[Candidate]:
    """What goes over paths that keep apart, where links alone limit it."""
    return [
        each for each in made if each.apart and (each.strategy == JOINT or each.anchor_bytes > CONNECTION_BOUND_BYTES)
    ]


def _longest_second(paced: Sequence[Candidate]) -> list[Candidate]:
    """What comes in rounds with pieces, which take longest, after one that does not: on two cores both are begun at once, and there
    is one that time suffices for.
    """
    pieces = [each for each in paced if each.pieces]
    rounds = [each for each in paced if not each.pieces]
    return [*rounds[:1], *pieces, *rounds[1:]]
