"""What to try for a request: which sizes to solve at, how finely to cut there, with which strategies, in which order."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from synth.baselines import BASELINES, Machine
from synth.bounds import Bound, bound_of
from synth.boxes import Boxes
from synth.build import Builder
from synth.candidates import Candidate
from synth.candidates.apart import apart_candidates
from synth.candidates.candidate import CENTRAL, CHAINED, FEW_HOPS, HIERARCHIES, JOINT, LARGE_VIEW, RING
from synth.candidates.chained import chained_candidates
from synth.candidates.cuts import worthwhile_counts
from synth.candidates.finer import finer_candidates, finer_sums
from synth.candidates.hierarchy import gated_candidates, hierarchy_candidates, packed_candidates
from synth.candidates.joint import joint_candidates
from synth.candidates.lean import few_long_messages, lean_candidates
from synth.candidates.links import is_crowded, is_uneven
from synth.candidates.pieces import finest_pieces, pieced_sums
from synth.candidates.scheduled import candidates, interpreted_candidates, largest_candidates
from synth.candidates.sizes import CONNECTION_BOUND_BYTES, LATENCY_BOUND_BYTES, anchors
from synth.candidates.transfers import FINE, direct, is_large, transfers_of
from synth.chunks import chunk_counts, range_sizes
from synth.collective import SHARED, Collective, CollectiveName
from synth.errors import NoAnswerError
from synth.exchange import Slices
from synth.exchanged import shortest, shortest_in_slices
from synth.instance import Instance
from synth.known import known_counts
from synth.lowering import LoweringOptions
from synth.ordering import Rounds
from synth.paths import Path, meeting
from synth.reductions.fold import fold
from synth.request import Request
from synth.routing.apart import PathsApart
from synth.routing.central import central_ranks
from synth.routing.exchange import ExchangeRouting
from synth.routing.hierarchy import HierarchyRouting
from synth.routing.milp import MilpRouting
from synth.strategies import AUTO_MILP_BINARIES, LEAN_MILP_BINARIES, MILP_BINARIES
from synth.topology import DeviceKind

#: Of the sizes of a long range every so many are looked at for the choice; what is between them is read off a line.
_STRIDE = 2
_LONG_RANGE = 6
#: Latency counts at sizes where bandwidth alone takes no more than so many times the latency.
_LATENCY_COUNTS = 10
#: Transfers that are routed, ordered, made a program and looked at in a second: where time is short, no candidate has more than go
#: into it (in one second at least).
_TRANSFERS_A_SECOND = 10_000
#: Of the time that a transfer takes, what routing takes of it.
_ROUTED_SHARE = 0.25
#: Over more boxes than these there may be as many times more in what is made for one of them: the others' are only written and
#: verified.
_BOXES_SHARING = 8
#: Candidates of the first wave, besides others' algorithms, which take next to no time.
_FIRST = 2
#: Ranks up to which large buffers that equal boxes could pass on are tried without regard to boxes, too: packings take long beyond,
#: and get worse.
_MOST_PACKED_RANKS = 32
#: Ranks whose finest cuts are made in seconds; those whose candidates are all made in a second.
_FEW_RANKS = 16
_QUICK_RANKS = 8
#: Six rings share a vector without shares evenly where it is cut so much finer; what goes around one is few messages still.
_FINER_RINGS = 8
#: And what one rank sends to all, or gets from all, is a vector whose parts wait for each other hop after hop: the finer, the less.
_FINER_TREES = 4
#: Paths up to which those that keep apart are looked for, as it takes seconds beyond, and the most of them that are few.
_MOST_KEPT_APART = 256
_FEWER = 0.8
#: And so many times finer are the shares of an allreduce in a list over these.
_FINER_APART = 4
#: The sums and copies of free roots follow one another, so their way is twice as long.
_FINER_JOINT = 2
#: So are the first and the last chunk of sums that are cut as finely.
_FINER_SUMS = 2
#: And so many times finer are those in pieces over equal boxes, which come first unless rounds of a share are as fine as this.
_FINER_PIECES = 8
_NEARLY_FINE = 2
#: An allreduce in exchanges moves more than others and takes fewer hops: buffers up to this, and ranks up to which pairs are few.
_LARGEST_EXCHANGED = 256 << 10
_MOST_EXCHANGED_RANKS = 256
#: The same for a range, whose sizes share the time.
_MOST_OF_A_RANGE = 64
#: The same for those in slices, where schedules decide: these have as many times the messages.
_MOST_SLICED_RANKS = 64
#: Where schedules decide, so many exchanges are tried in few slices and in many, each of which takes a threadblock up to four steps.
_EXCHANGES_CUT = 4
_FEW_SLICES = 8
_MOST_SLICES = 32
_STEPS_OF_A_SLICE = 4
#: Exchanges that cross from box to box between gates alone, beside the others.
_EXCHANGES_WITH_GATES = 2
#: Cuts that are tried with sums in the middle of the machine.
_CENTRAL_CUTS = 2
#: Where more GPUs share a NIC, all ways to other boxes meet there.
_FEW_ON_A_NIC = 2
#: Where schedules decide, an interpreter may make of the best what it will for buffers up to this: beyond, what it keeps up with is
#: most often as good.
_LARGEST_BY_SCHEDULE = 16 << 20
#: Of others' algorithms those whose messages hold many chunks.
_RINGS = frozenset({"ring"})
#: Where times decide, one message for every rank's share has been the best for buffers up to this.
_LARGEST_MILP = 4 << 20
#: Weighted roots are tried where the limit without them is above the limit with them by this factor.
_ROOTS_MATTER = 1.003
#: By collective whether the halves that it is made of are summed.
_SUMMED = {
    CollectiveName.ALLGATHER: (False,),
    CollectiveName.REDUCE_SCATTER: (True,),
    CollectiveName.ALLREDUCE: (True, False),
}
#: What loads links by no more than this, times the limit, loads them as little as can be.
_AS_LITTLE = 1.003


@dataclass(frozen=True)
class Plan:
    """The candidates of one request over the machine's paths, and what they are made of."""

    request: Request
    paths: tuple[Path, ...]

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The sizes that the answer has to serve, ascending."""
        return range_sizes(self.request.min_bytes, self.request.max_bytes)

    @cached_property
    def looked_at(self) -> tuple[int, ...]:
        """The sizes at which candidates are compared, ascending."""
        stride = _STRIDE if len(self.sizes) > _LONG_RANGE else 1
        return tuple(sorted({*self.sizes[::stride], self.sizes[-1]}))

    @cached_property
    def builder(self) -> Builder:
        """Makes the instances."""
        return Builder(self.request.topology, self.request.sketch, self.paths)

    @cached_property
    def machine(self) -> Machine:
        """The machine as baselines see it."""
        return Machine(self.request.topology, self.paths)

    @cached_property
    def bound(self) -> Bound:
        """What no algorithm can beat on the machine."""
        return bound_of(self.request.topology, self.collective(1), self.paths)

    @cached_property
    def asked_count(self) -> int | None:
        """The chunk count that the user asks for, on the command line or in a sketch."""
        if self.request.chunks is not None:
            return self.request.chunks
        sketch = self.request.sketch
        if sketch is None or sketch.chunks_per_rank is None:
            return None
        return sketch.chunks_per_rank * (1 if self.request.collective in SHARED else self.request.topology.num_ranks)

    def collective(self, count: int) -> Collective:
        """The request's collective cut by `count` (per rank where ranks have shares)."""
        request, ranks = self.request, self.request.topology.num_ranks
        root = request.actual_root
        shared = ranks if request.collective in SHARED else 1
        return Collective(request.collective, ranks, count * shared, root, request.group)

    def instance(self, count: int, size_bytes: int) -> Instance:
        """The request's instance cut by `count` for a buffer size."""
        return self.builder.instance(self.collective(count), size_bytes)

    def candidates(self) -> list[Candidate]:
        """What to solve, in this order: what equal boxes do best at the largest size and at the smallest, others' algorithms,
        which serve all sizes at once, then in turn the first candidate of each size to solve at, the second of each, and so
        on: wherever time runs out, all sizes have had about the same.
        """
        sizes = anchors(self.request.min_bytes, self.request.max_bytes)
        by_size = [self._at(position, sizes) for position in reversed(range(len(sizes)))]
        turns = [*filter(None, itertools.chain.from_iterable(itertools.zip_longest(*by_size)))]
        ends = (by_size[0], by_size[-1])
        boxed = [each[0] for each in ends if each and (each[0].boxed or each[0].chained)]
        return _once([*boxed, *self._known(sizes), *turns], apart=self.request.single_size)

    @cached_property
    def _planned(self) -> list[Candidate]:
        """The candidates, planned once."""
        return self.candidates()

    @cached_property
    def waves(self) -> tuple[tuple[Candidate, ...], ...]:
        """The candidates in waves: where one size alone is asked for, what seldom fails there first, since an answer near enough to
        the limit ends the search (finer cuts last, if schedules decide); else all at once.
        """
        coarse = [[self._in_time(each) for each in wave] for wave in self._waves]
        return tuple(tuple(each) for each in _each_once(coarse) if each)

    @property
    def is_hurried(self) -> bool:
        """Whether the time limit is so short that candidates are cut coarser for it."""
        return any(self._in_time(each) != each for wave in self._waves for each in wave)

    def _in_time(self, candidate: Candidate) -> Candidate:
        """The candidate, cut no finer than there is time for: a coarse answer in time is better than a fine one late. Over equal
        boxes every rank keeps its share, without which they would wait for each other, and exchanges keep their parts.
        """
        if candidate.exchanged or self.asked_count is not None:
            return candidate
        most = max(1.0, self.request.time_limit_s) * _TRANSFERS_A_SECOND
        if candidate.boxed and self.boxes is not None:
            most *= max(1.0, self.boxes.count / _BOXES_SHARING)
        shared = candidate.boxed and self.request.collective is CollectiveName.ALLREDUCE
        least = self.request.topology.num_ranks if shared else 1
        count = candidate.count
        while count % 2 == 0 and count > least and self._transfers_in_time(candidate, count) > most:
            count //= 2
        return candidate if count == candidate.count else replace(candidate, count=count, pieces=None)

    def _transfers_in_time(self, candidate: Candidate, count: int) -> float:
        """How many transfers a candidate counts for if cut so: those of a piece are routed each, and take all else together."""
        collective = self.collective(count)
        transfers = transfers_of(collective)
        if candidate.pieces is None:
            return transfers
        messages_a_chunk = candidate.pieces * collective.num_ranks / collective.chunks
        return transfers * min(1.0, _ROUTED_SHARE + messages_a_chunk)

    @cached_property
    def _waves(self) -> list[list[Candidate]]:
        """The waves if time did not matter. Where schedules decide the finest cuts come early, unless ranks are many, or so few that
        it does not matter: what is made for an interpreter is often so near to the limit then that all else is not worth its time.
        """
        planned = self._planned
        if not self.ends:
            finest = [*self.finest_kept_up_with]
            early = self.is_soon_finest and not self.is_quick
            return [self._opening, *([finest, planned] if early else [planned, finest]), self._finer]
        known = [each for each in planned if each.strategy in BASELINES]
        made = [each for each in planned if each.strategy not in BASELINES]
        if any(each.boxed and each.in_rounds for each in made):
            over_boxes = self._waves_over_many if self.has_very_many_ranks else self._waves_over_boxes
            waves = over_boxes(known, made)
        else:
            made.sort(key=lambda each: each.strategy != JOINT)
            apart = [each for each in made if each.apart and each.anchor_bytes > CONNECTION_BOUND_BYTES]
            over_all = [each for each in made if not (each.boxed or each.apart)]
            paced = [each for each in over_all if each.in_rounds]
            boxed = [each for each in made if each.boxed]
            # Chunks with one destination over boxes: what is made for these fails as seldom, and is found sooner.
            whole = not boxed or not direct(self.collective(1))
            listed = [each for each in over_all if whole and not each.in_rounds]
            if self.request.max_bytes > CONNECTION_BOUND_BYTES:
                # Coarser and finer cuts than the first take their time, and are for what is not near the limit yet.
                listed = [each for each in listed if each.strategy == JOINT or each.count == listed[0].count]
            chained = [each for each in made if each.chained and each.anchor_bytes > CONNECTION_BOUND_BYTES]
            # What takes longest is begun first: where time is short there is more than others' algorithms then. Not so free roots
            # of small buffers: several others are made in their time.
            opening = [*paced[:1], *[*boxed[:1], *listed][:_FIRST]]
            small = self.request.max_bytes <= CONNECTION_BOUND_BYTES
            longest = [each for each in opening[:1] if not (small and each.strategy == JOINT)]
            waves = [chained or [*longest, *known, *opening[len(longest) :]], [*self.finer_cuts], apart]
            if apart and self.keeps_apart:
                # No message waits for a link there, so that rounds do what they say.
                waves[0] = [*[each for each in apart if each.in_rounds], *known, *paced[:1]]
        return [*waves, made]

    @property
    def ends(self) -> bool:
        """Whether an answer that is near enough to the limit ends the search: one size alone is asked for, by time."""
        return self.request.single_size and self.request.by_time and not self.request.thorough

    def _waves_over_boxes(self, known: list[Candidate], made: list[Candidate]) -> list[list[Candidate]]:
        """The first waves over equal boxes: what comes in rounds is nearest to the limit, or says that it is not (coarse cuts of the
        whole do not keep boxes busy in rounds), beside it what is copied, or a list; then finer rounds; of many ranks what passes
        few boxes and the finest rounds of copies; then others' algorithms and lists.
        """
        fine = FINE * self.request.topology.num_ranks
        finer = self.finer_cuts
        rounds = [each for each in made if each.in_rounds and self._in_time(each) not in finer]
        paced = [each for each in rounds if each.boxed or self.collective(each.count).chunks >= fine]
        few_hops = [each for each in made if each.strategy == FEW_HOPS and each.view is not None]
        if few_hops and not any(each.pieces for each in paced) and not self.collective(1).combining:
            few_hops = [*[each for each in paced if each.strategy == RING][1:], *few_hops]
        paced = sorted((each for each in paced if each not in few_hops), key=lambda each: each.pieces is not None)
        boxed = [each for each in made if each.boxed and not each.in_rounds][:2]
        copied = (
            [] if self.collective(1).combining else [each for each in made if not each.boxed and each.view is None][:1]
        )
        beside = boxed[:1] if len(paced) < _FIRST else copied
        if finer and self.collective(1).combining:
            beside = []
        return [[*paced, *beside], [*finer], few_hops, [*known, *boxed, *copied]]

    def _waves_over_many(self, known: list[Candidate], made: list[Candidate]) -> list[list[Candidate]]:
        """The first waves over equal boxes of very many ranks: the likeliest two of what is made for an interpreter, and the rest of
        that with others' algorithms; what is made for links alone is often far behind.
        """
        kept_up_with = [each for each in made if each.boxed and each.view is not None]
        return [kept_up_with[:2], [*known, *kept_up_with[2:]]]

    @cached_property
    def finer_cuts(self) -> tuple[Candidate, ...]:
        """What is cut finer than the first wave, of one large buffer, and tried next unless a schedule is near to the limit."""
        return self._finer_over_boxes() if self.boxes is not None else self._finer_sums()

    def _finer_sums(self) -> tuple[Candidate, ...]:
        """An allreduce of few ranks whose ways meet in finer trees. Not of free roots, which have finer cuts of their own, nor where
        nothing waits for a link on paths that keep apart, in rounds that come first.
        """
        request, planned = self.request, self._planned if self.ends else []
        shared = request.collective is CollectiveName.ALLREDUCE and request.max_bytes > CONNECTION_BOUND_BYTES
        if not shared or request.topology.num_ranks > _QUICK_RANKS or any(each.strategy == JOINT for each in planned):
            return ()
        finer = finer_sums(self.instance(1, request.max_bytes), self._counts(request.max_bytes, _FINER_SUMS), planned)
        return tuple(map(self._in_time, finer)) if not (self.apart and self.keeps_apart) else ()

    def _finer_over_boxes(self) -> tuple[Candidate, ...]:
        """Over equal boxes of few ranks in all finer rounds than the first, where links carry no more than what the limit says: then
        the cut is what keeps a schedule from it. And of sums pieces, where rounds are fine themselves.
        """
        size = self.request.max_bytes
        paced = [each for each in self._planned if each.boxed and each.in_rounds] if self.ends else []
        counts = self._counts(size)
        usual = self._over_boxes(self.instance(counts[0], size), counts, size) if paced else []
        ranks = self.request.topology.num_ranks
        fine = any(
            self.collective(each.count).chunks * _NEARLY_FINE >= FINE * ranks for each in paced if not each.pieces
        )
        later = [each for each in paced if each.pieces and fine and self.collective(1).combining]
        return tuple(self._in_time(each) for each in paced if each not in usual or each in later)

    def fewest(self, planned: Sequence[Candidate]) -> int:
        """How many of the planned candidates are solved whatever the time: one, or over equal boxes one for either end of a
        range, since what is best at one end is far from it at the other.
        """
        ends = 1 if self.request.single_size else 2
        return max(1, sum(each.boxed for each in planned[:ends]))

    def _at(self, position: int, sizes: Sequence[int]) -> list[Candidate]:
        request, size = self.request, sizes[position]
        low = size if request.single_size else request.min_bytes if position == 0 else sizes[position - 1]
        counts = self._counts(low, _FINER_TREES if request.collective in CHAINED else 1)
        instance = self.instance(counts[0], size)
        if request.strategy == "milp":
            return [Candidate("milp", count, size) for count in self._milp_counts(instance, counts, size)]
        boxed = self._over_boxes(instance, counts, size)
        if boxed and (request.strategy == "hierarchy" or self.has_very_many_ranks or self._are_alone(boxed)):
            return [*self._exchanged(instance, low, size), *boxed]
        inside = any(each.in_rounds for each in boxed) and self._is_held_up_inside(size)
        if inside:
            boxed = []
        few_hops = self._exchanged(instance, low, size)
        plan = self._usual(instance, counts, size, boxes=bool(boxed), inside=inside, exchanged=bool(few_hops))
        packed = self.ends and size > CONNECTION_BOUND_BYTES and any(each.strategy == "trees" for each in plan)
        if boxed and packed and self._is_packed_over_boxes:
            plan = [each for each in plan if each.strategy != "trees"]
            shared = request.collective is CollectiveName.ALLREDUCE
            boxed = packed_candidates(instance, counts, boxed, self._counts(low, _FINER_JOINT if shared else 1))
        joint = self._joint(instance, low, size) if size == sizes[-1] else []
        plan = self._kept_apart(plan, instance, low, size) if not joint else plan
        plan = [*few_hops, *plan, *self._central(plan, instance, counts, size)]
        if joint and self.ends and request.strategy == "auto" and size <= CONNECTION_BOUND_BYTES:
            # Equal shares lose to free roots there however finely they are cut, and finer cuts take long.
            coarsest = min((each.count for each in plan if each.strategy == "trees"), default=0)
            plan = [each for each in plan if each.strategy != "trees" or each.count == coarsest]
        plan += joint
        most = AUTO_MILP_BINARIES if request.thorough else LEAN_MILP_BINARIES
        # Where bandwidth alone counts, a coarse cut is far from the limit, however well it is routed.
        coarse = size <= _LARGEST_MILP or request.thorough or not request.by_time
        if request.strategy == "auto" and coarse and self._milp_fits(instance, most):
            plan.append(Candidate("milp", counts[0], size))
        return boxed + plan

    @property
    def _is_refined(self) -> bool:
        """Whether an answer that is near enough to the limit ends the search, and else finer ones are looked for: one size alone is
        asked for, by schedule.
        """
        request = self.request
        alone = request.single_size and not request.by_time and not request.thorough
        return alone and not self.has_very_many_ranks

    @cached_property
    def _opening(self) -> list[Candidate]:
        """The first wave where schedules decide."""
        return self._over_gates() or self._interpreted()

    @property
    def opens_interpreted(self) -> bool:
        """Whether schedules of large buffers decide, and what is made for an interpreter is tried first."""
        return self.request.max_bytes > _LARGEST_BY_SCHEDULE and bool(self._opening)

    @property
    def is_soon_finest(self) -> bool:
        """Whether ranks are so few that their finest cuts are made in seconds."""
        return self.request.topology.num_ranks <= _FEW_RANKS

    @property
    def is_quick(self) -> bool:
        """Whether ranks are so few that all candidates are soon made."""
        return self.request.topology.num_ranks <= _QUICK_RANKS

    def _over_gates(self) -> list[Candidate]:
        """What is tried first where schedules decide, over equal boxes in which many GPUs share a NIC: what is made for one of these
        is as good as what is made for all ranks, since the NICs are what limits, and found in a fraction of the time. Not where ways
        inside meet in PCIe, or some are wider than others that cross several links: more than the NICs limits there.
        """
        if not any(each.boxed for each in self._planned) or self.has_nics or not self._is_refined:
            return []
        if (is_uneven(self._within) and not self._is_direct_within) or is_crowded(self._within):
            return []
        size = self.request.max_bytes
        counts = self._counts(size)
        gated = gated_candidates(self.instance(counts[0], size), self.request.strategy, counts, size)
        if size > _LARGEST_BY_SCHEDULE:
            gated += [replace(each, view=LARGE_VIEW) for each in gated]
        return gated

    def _interpreted(self) -> list[Candidate]:
        """What is tried first where schedules decide, of one large buffer: what is made for an interpreter. Most often its messages
        are as near to the limit, and an interpreter keeps up with them.
        """
        if not self._is_refined or self.request.max_bytes <= _LARGEST_BY_SCHEDULE:
            return []
        by_time = Plan(replace(self.request, objective="time"), self.paths)
        return list(by_time.waves[0])

    @cached_property
    def finest_kept_up_with(self) -> tuple[Candidate, ...]:
        """Of the finest cuts for a large buffer where schedules decide, what an interpreter keeps up with: rounds, and what is made
        for one box.
        """
        kept = (each for each in self._finer if each.in_rounds or each.boxed)
        return tuple(map(self._in_time, kept)) if self.opens_interpreted else ()

    @property
    def kept_up_with(self) -> set[Candidate]:
        """Where it opens so, the first wave and the finest cuts that an interpreter keeps up with."""
        return {*self.waves[0], *self.finest_kept_up_with}

    @cached_property
    def _finer(self) -> list[Candidate]:
        """The last wave where schedules decide."""
        if not self._is_refined:
            return []
        request = self.request
        size = request.max_bytes
        joint = any(each.strategy == JOINT for each in self._planned)
        twice = request.collective is CollectiveName.ALLREDUCE
        counts = self._counts(size, _FINER_JOINT if twice else 1)
        instance = self.instance(counts[0], size)
        finer = finer_candidates(
            instance,
            request.strategy,
            counts,
            size,
            boxes=self.boxes is not None,
            joint=joint,
            latency_counts=self._latency_counts(size),
        )
        pieces = [] if self.boxes else finest_pieces(instance, request.strategy, self._counts(size, 2), size)
        return [*finer, *pieces, *self._central(finer, instance, counts, size)]

    def _kept_apart(self, planned: Sequence[Candidate], instance: Instance, low: int, size: int) -> list[Candidate]:
        """What is planned at one size, for buffers from `low` bytes up, with trees over paths that keep apart where several meet:
        before those over all paths for large buffers, beside what is made for an interpreter for smaller ones if there are no
        boxes. Where latency is all that counts, trees are as shallow over all paths, and hold nobody up.
        """
        packed = [each for each in planned if each.strategy == "trees"]
        large = size > CONNECTION_BOUND_BYTES
        small = size <= LATENCY_BOUND_BYTES or (self.boxes is not None and not large)
        if not packed or small or not self.apart:
            return list(planned)
        if large and self.request.by_time:
            finer = self._counts(low, 1 if self.request.collective in SHARED else _FINER_APART)
            return [*apart_candidates(instance, finer, size, self.apart, Rounds(LARGE_VIEW).most), *planned]
        viewed = [each for each in packed if each.view is not None or not self.request.by_time]
        return [*planned, *(replace(each, apart=True) for each in viewed)]

    @property
    def keeps_apart(self) -> bool:
        """Whether no two of the paths that keep apart share a link after all."""
        paths = self.instance(1, self.request.max_bytes).paths
        links = [link for path in self.apart for link in paths[path].links]
        return len(set(links)) == len(links)

    @cached_property
    def apart(self) -> frozenset[int]:
        """The paths that keep apart, by index: where those of several ranks meet, few in all, all ranks take part, and a good deal
        fewer are enough; none elsewhere, nor over boxes with NICs enough, whose ways are their GPUs' own.
        """
        ranks = self.request.topology.num_ranks
        whole = self.instance(1 if self.request.collective in SHARED else ranks, self.request.max_bytes)
        alone = self.request.group is not None or (self.boxes is not None and self.has_nics)
        if alone or len(whole.paths) > _MOST_KEPT_APART or not is_crowded(whole.paths):
            return frozenset()
        few = _FEWER * len(whole.paths)
        if len(whole.paths) - len(meeting(whole.paths)) > few:
            return frozenset()  # what meets no other is kept
        found = PathsApart()(whole)
        return found if len(found) <= few else frozenset()

    def _latency_counts(self, size: int) -> bool:
        """Whether latency counts beside bandwidth at a size."""
        return self.bound.us_per_byte * size <= _LATENCY_COUNTS * self.bound.latency_us

    def _usual(
        self, instance: Instance, counts: Sequence[int], size: int, *, boxes: bool, inside: bool, exchanged: bool
    ) -> list[Candidate]:
        """What to solve at one size besides what is made for equal `boxes` where there are, and what is `exchanged`."""
        request, single = self.request, self.request.single_size
        if request.strategy == "auto" and request.by_time and not request.thorough:
            plan = lean_candidates(
                instance, counts, size, single=single, boxes=boxes, inside=inside, exchanged=exchanged
            )
        else:
            thorough, latency_counts = request.thorough, self._latency_counts(size)
            plan = candidates(
                instance,
                request.strategy,
                counts,
                size,
                single=single,
                thorough=thorough,
                latency_counts=latency_counts,
                exchanged=exchanged,
            )
            if request.by_time:
                plan += interpreted_candidates(instance, request.strategy, counts, size, single=single)
            if size == request.max_bytes and request.strategy in ("auto", "trees", "flow"):
                plan += largest_candidates(plan[0].strategy, instance, counts, size, by_time=request.by_time)
        return plan

    def exchanges(self, size: int) -> dict[str, Slices]:
        """The machine's exchanges for a buffer size by name, in few slices and in many: of an allreduce of all ranks. Over several
        nodes larger buffers have paths of their own.
        """
        ranks, low = self.request.topology.num_ranks, self.request.min_bytes
        if self.instance(ranks, low).paths != self.instance(ranks, size).paths:
            low = LATENCY_BOUND_BYTES + 1
        if low not in self._exchanges:
            found = ExchangeRouting()(self.instance(ranks, low))
            cut = (each.cut(count) for count in self._slices for each in found)
            self._exchanges[low] = {each.name: each for each in (*found, *cut)}
        return self._exchanges[low]

    @cached_property
    def _exchanges(self) -> dict[int, dict[str, Slices]]:
        """Those that are known, by the smallest buffer that has their paths."""
        return {}

    @cached_property
    def _slices(self) -> tuple[int, int]:
        """Few and many slices, of which the runtime reads all steps."""
        steps = LoweringOptions(runtime=self.request.runtime).limits.steps  # type: ignore[arg-type]
        return _FEW_SLICES, min(_MOST_SLICES, steps // _STEPS_OF_A_SLICE)

    def _exchanged(self, instance: Instance, low_bytes: int, size: int) -> list[Candidate]:
        """What to solve at one size in few hops, for buffers from `low_bytes` up: the shortest of the machine's exchanges there and
        at the size, for an interpreter and on the links as they are.
        """
        request = self.request
        by_time = request.by_time
        if (
            request.collective is not CollectiveName.ALLREDUCE
            or request.strategy != "auto"
            or request.sketch is not None
            or request.group is not None
            or not (size <= _LARGEST_EXCHANGED or (not by_time and self._latency_counts(size)))
            or request.topology.num_ranks > (_MOST_EXCHANGED_RANKS if request.single_size else _MOST_OF_A_RANGE)
        ):
            return []
        counts = self._counts(low_bytes, 1 if by_time else _FINER_JOINT)
        exchanges = self.exchanges(size)
        cuts = {name: count for name, each in exchanges.items() if (count := _coarsest(each, counts))}
        fitting = [exchanges[name] for name in cuts]
        whole = [each for each in fitting if each.count == 1 and not each.has_gates]
        gated = [each for each in fitting if each.count == 1 and each.has_gates]
        turned = [each for each in fitting if each.count == len(each.exchanges) > 1]
        found = shortest(instance, whole, None, 1)
        if by_time:
            found = [*shortest(instance, whole, "LL", 2), *found, *shortest(instance, turned, "LL", 2)]
            found += shortest(instance, gated, "LL", _EXCHANGES_WITH_GATES)
            if low_bytes < size:
                smallest = instance.with_chunk_bytes(instance.collective.chunk_bytes(low_bytes))
                found += shortest(smallest, [*whole, *gated], "LL", 1)
        else:
            best = shortest_in_slices(instance, [*whole, *turned], _EXCHANGES_CUT)
            best += shortest_in_slices(instance, gated, _EXCHANGES_WITH_GATES)
            slices = self._slices if request.topology.num_ranks <= _MOST_SLICED_RANKS else ()
            found += [each.cut(count) for each in best for count in (1, *slices)]
        return [
            Candidate(name, cuts[name], size) for name in dict.fromkeys(each.name for each in found) if name in cuts
        ]

    @cached_property
    def central(self) -> dict[str, tuple[int, ...]]:
        """By strategy, the ranks in the middle of the machine that could reduce all of an allreduce."""
        return {f"{CENTRAL}{len(ranks)}": ranks for ranks in central_ranks(self.instance(1, self.request.min_bytes))}

    def _central(
        self, planned: Sequence[Candidate], instance: Instance, counts: Sequence[int], size: int
    ) -> list[Candidate]:
        """An allreduce reduced in the middle of the machine: where latency counts, these ranks are nearer to all than those of equal
        shares. Where schedules decide, in the finest cuts `planned` for the greedy, else in coarse ones for small buffers.
        """
        request = self.request
        sought = (
            request.collective is CollectiveName.ALLREDUCE and request.strategy == "auto" and request.sketch is None
        )
        if not sought or (request.by_time and size > LATENCY_BOUND_BYTES) or not self._latency_counts(size):
            return []
        if request.by_time:
            cuts = few_long_messages(instance, counts, size)
        else:
            greedy = [each for each in planned if each.strategy == "greedy" and each.view is None]
            cuts = sorted(greedy, key=lambda each: each.count)[-_CENTRAL_CUTS:]
        return [
            replace(each, strategy=name)
            for each in cuts
            for name, ranks in self.central.items()
            if each.count >= len(ranks)
        ]

    def _joint(self, instance: Instance, low_bytes: int, size: int) -> list[Candidate]:
        """What to solve at the largest size for an allreduce whose roots are free, in cuts for buffers from `low_bytes` up."""
        if size <= LATENCY_BOUND_BYTES or self.request.strategy not in ("auto", "trees"):
            return []
        joint = joint_candidates(instance, self._counts(low_bytes, _FINER_JOINT), size)
        return joint if joint and self._roots_matter() else []

    def _roots_matter(self) -> bool:
        """Whether an allreduce could be faster than one half and then the other, which reduce an equal share at every rank that
        takes part: so it is where others may reduce, too.
        """
        if self.request.group is not None:
            return True
        names = CollectiveName.REDUCE_SCATTER, CollectiveName.ALLGATHER
        ranks = self.request.topology.num_ranks
        topology, paths = self.request.topology, self.paths
        halves = [bound_of(topology, Collective(name, ranks, ranks), paths, small=False) for name in names]
        return sum(half.us_per_byte for half in halves) > self.bound.us_per_byte * _ROOTS_MATTER

    def _over_boxes(self, instance: Instance, counts: Sequence[int], size: int) -> list[Candidate]:
        """What to solve at one size for the machine's equal boxes, or through them, where it has such."""
        boxes, strategy, by_time = self.boxes, self.request.strategy, self.request.by_time
        if boxes is None:
            return []
        boxed = hierarchy_candidates(instance, strategy, counts, size, by_time=by_time, single=self.request.single_size)
        if boxed and self.ends and self.request.collective is CollectiveName.ALLREDUCE:
            boxed += pieced_sums(instance, self._counts(size, _FINER_PIECES), boxed)
        return boxed or chained_candidates(instance, boxes, strategy, counts, size, by_time=by_time)

    def _are_alone(self, boxed: Sequence[Candidate]) -> bool:
        """Whether what is made for boxes leaves nothing else worth its time: where many ranks pass large buffers on, and for one
        size below those, in rounds and in lists, where boxes have NICs enough.
        """
        first, many = boxed[0], self.request.topology.num_ranks > _MOST_PACKED_RANKS
        if first.anchor_bytes > CONNECTION_BOUND_BYTES:
            return first.chained and many and not self.request.thorough
        return first.in_rounds and self.ends and self.has_nics

    @cached_property
    def has_very_many_ranks(self) -> bool:
        """Whether even the coarsest cut is more than most candidates may have (`is_large`)."""
        return is_large(self.collective(1))

    @cached_property
    def has_nics(self) -> bool:
        """Whether hardly any GPUs share a NIC."""
        topology = self.request.topology
        nics = sum(device.kind is DeviceKind.NIC for device in topology.devices)
        return topology.num_ranks <= nics * _FEW_ON_A_NIC

    @cached_property
    def boxes(self) -> Boxes | None:
        """The machine's boxes where it is a cluster of equal ones."""
        patterns = dict.fromkeys(HIERARCHIES.values())
        found = (self.builder.boxed(self.collective(1), self.sizes[-1], pattern) for pattern in patterns)
        return next((boxes for _, boxes in filter(None, found)), None)

    @cached_property
    def _is_packed_over_boxes(self) -> bool:
        """Whether what is made for one of equal boxes, of GPUs that have NICs of their own and equal ways to each other, loads links
        as little as anything can: packings of all ranks gain nothing then, and take long.
        """
        ranks, size = self.request.topology.num_ranks, self.request.max_bytes
        found = self.builder.boxed(Collective(CollectiveName.ALLGATHER, ranks, ranks), size, "ring")
        folded = found and fold(*found)
        halves = _SUMMED.get(self.request.collective)
        if not found or not folded or not halves or not self.has_nics or is_uneven(self._within):
            return False
        routing, one = HierarchyRouting(), folded.instance
        try:
            loads = [routing.load_us(one.reversed() if summed else one, found[1]) for summed in halves]
        except NoAnswerError:
            return False
        return sum(loads) <= self.bound.us_per_byte * size * _AS_LITTLE

    @cached_property
    def _within(self) -> list[Path]:
        """The paths inside equal boxes that large buffers have; none where there are no such boxes."""
        if self.boxes is None:
            return []
        box_of = self.boxes.box_of
        paths = self.instance(self.request.topology.num_ranks, self.request.max_bytes).paths
        return [path for path in paths if box_of[path.src] == box_of[path.dst]]

    @property
    def _is_direct_within(self) -> bool:
        """Whether every path inside equal boxes is one link."""
        return all(len(path.links) == 1 for path in self._within)

    def _is_held_up_inside(self, size: int) -> bool:
        """Whether what limits one large buffer are direct links of unequal width inside the machine's equal boxes: then packings of
        all ranks are better than one box's, as far as they are made in seconds.
        """
        boxes, topology = self.boxes, self.request.topology
        if boxes is None or not self.ends or size <= CONNECTION_BOUND_BYTES or topology.num_ranks > _MOST_PACKED_RANKS:
            return False
        if not (is_uneven(self._within) and self._is_direct_within):
            return False
        copied = Collective(CollectiveName.ALLGATHER, topology.num_ranks, topology.num_ranks)
        cut = bound_of(topology, copied, self.paths, small=False).cut
        here = Counter(boxes.box_of[rank] for rank, gpu in enumerate(topology.gpus) if cut and gpu.id in cut.gpus)
        return any(ranks < boxes.size for ranks in here.values())

    def _known(self, sizes: Sequence[int]) -> list[Candidate]:
        """What libraries would run: the same for every size, so solved once, at the last of these, and only where no sketch says
        what to use and all ranks take part. Rings are for buffers from the first of these up, whose chunks they can share evenly,
        and made once for the largest and once for the others: there a message fills its connection, and threadblocks have to part.
        """
        request = self.request
        if (
            request.strategy != "auto"
            or request.sketch is not None
            or request.group is not None
            or (self.has_very_many_ranks and self.boxes is not None)
        ):
            return []
        finer = 1 if request.collective in SHARED else _FINER_RINGS
        everywhere, beyond = (self._counts(low, finer) for low in (request.min_bytes, sizes[0]))
        return [
            Candidate(name, count, size)
            for name in BASELINES
            for count in known_counts(name, self.machine, self.collective(1), beyond if name in _RINGS else everywhere)
            for size in (reversed(sizes[-2:]) if name in _RINGS else sizes[-1:])
        ]

    def served(self, known: Candidate) -> tuple[int, ...]:
        """The sizes that one of others' algorithms is for: all, of rings up to the one that it was solved at, and the largest ones
        alone if it was solved at the last.
        """
        anchored = (0, *anchors(self.request.min_bytes, self.request.max_bytes))
        above = anchored[-2] if known.strategy in _RINGS and known.anchor_bytes == anchored[-1] else 0
        return tuple(size for size in self.sizes if above < size <= known.anchor_bytes)

    def _milp_counts(self, instance: Instance, counts: Sequence[int], size: int) -> list[int]:
        """The coarsest cut, and the finest for which the program can still be solved to the end."""
        tried = [count for count in worthwhile_counts(instance, counts, size, 5) if count != counts[0]]
        fitting = [count for count in tried if self._milp_fits(self.instance(count, size), MILP_BINARIES)]
        return [counts[0], *fitting[-1:]]

    def _counts(self, low_bytes: int, finer: int = 1) -> tuple[int, ...]:
        """Admissible chunk counts for buffers from `low_bytes` up, each still admissible times `instances`; `finer` as in
        chunk_counts.
        """
        if self.asked_count is not None:
            return (self.asked_count,)
        request = self.request
        ranks = request.topology.num_ranks
        counts = chunk_counts(request.collective, ranks, low_bytes, request.max_bytes, finer=finer)
        copies = request.instances or 1
        return tuple(count // copies for count in counts if count % copies == 0) or (1,)

    def _milp_fits(self, instance: Instance, binaries: int) -> bool:
        return MilpRouting().estimate_size(instance) <= binaries


def _once(planned: Sequence[Candidate], *, apart: bool) -> list[Candidate]:
    """Each candidate once, and over equal boxes each cut once: what is solved at one size there serves all, unless those for several
    sizes are to be kept `apart`.
    """
    kept: dict[object, Candidate] = {}
    for each in planned:
        kept.setdefault((each.strategy, each.count, each.in_rounds) if each.boxed and not apart else each, each)
    return list(kept.values())


def _each_once(waves: Sequence[Sequence[Candidate]]) -> list[list[Candidate]]:
    """The waves without what an earlier one has."""
    seen: set[Candidate] = set()
    left = []
    for planned in waves:
        left.append([each for each in planned if each not in seen])
        seen.update(planned)
    return left


def _coarsest(slices: Slices, counts: Sequence[int]) -> int:
    """The coarsest of the cuts in which every part of every slice has its chunks, evenly or nearly so; 0 where there is none."""
    for count in counts:
        if count % slices.count == 0 and (count % slices.parts == 0 or count >= 2 * slices.parts):
            return count
    return 0
