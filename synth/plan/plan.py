"""What others hold: the candidates of one request in waves, and what they are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from synth.baselines import Machine
from synth.bounds import Bound
from synth.boxes import Boxes
from synth.build import Builder
from synth.candidates import Candidate
from synth.collective import Collective
from synth.exchange import Slices
from synth.instance import Instance
from synth.paths import Path
from synth.plan.asked import Asked
from synth.plan.by_schedule import BySchedule
from synth.plan.by_time import ByTime
from synth.plan.in_time import in_time, waves_in_time
from synth.plan.planned import Planned
from synth.plan.traits import Traits
from synth.request import Request


@dataclass(frozen=True)
class Plan:
    """The candidates of one request over the machine's paths, and what they are made of."""

    request: Request
    paths: tuple[Path, ...]

    @cached_property
    def _planned(self) -> Planned:
        return Planned.of(self.request, self.paths)

    @cached_property
    def _by_time(self) -> ByTime:
        return ByTime(self._planned)

    @cached_property
    def _by_schedule(self) -> BySchedule:
        return BySchedule(self._planned)

    @property
    def _asked(self) -> Asked:
        return self._planned.asked

    @property
    def _traits(self) -> Traits:
        return self._planned.traits

    def candidates(self) -> list[Candidate]:
        """What to solve, in the order in which it is worth its time."""
        return [*self._planned.candidates]

    @cached_property
    def waves(self) -> tuple[tuple[Candidate, ...], ...]:
        """The candidates in waves: where one size alone is asked for, what seldom fails there first, since an answer near enough to
        the limit ends the search (finer cuts last, if schedules decide); else all at once.
        """
        return waves_in_time(self._traits, self._waves)

    @property
    def is_hurried(self) -> bool:
        """Whether the time limit is so short that candidates are cut coarser for it."""
        return any(in_time(self._traits, each) != each for wave in self._waves for each in wave)

    @property
    def _waves(self) -> list[list[Candidate]]:
        """The waves if time did not matter."""
        return self._by_time.waves if self.ends else self._by_schedule.waves

    @property
    def ends(self) -> bool:
        """Whether an answer that is near enough to the limit ends the search: one size alone is asked for, by time."""
        return self._asked.ends

    def fewest(self, planned: Sequence[Candidate]) -> int:
        """How many of the planned candidates are solved whatever the time: one, or over equal boxes one for either end of a
        range, since what is best at one end is far from it at the other.
        """
        ends = 1 if self.request.single_size else 2
        return max(1, sum(each.boxed for each in planned[:ends]))

    def served(self, known: Candidate) -> tuple[int, ...]:
        """The sizes that one of others' algorithms is for."""
        return self._planned.known.served(known)

    @cached_property
    def finer_cuts(self) -> tuple[Candidate, ...]:
        """What is cut finer than the first wave, of one large buffer, and tried next unless a schedule is near to the limit."""
        return self._by_time.finer_cuts

    @property
    def opens_interpreted(self) -> bool:
        """Whether schedules of large buffers decide, and what is made for an interpreter is tried first."""
        return self._by_schedule.opens_interpreted

    @property
    def finest_kept_up_with(self) -> tuple[Candidate, ...]:
        """Of the finest cuts for a large buffer where schedules decide, what an interpreter keeps up with."""
        return self._by_schedule.finest_kept_up_with

    @property
    def kept_up_with(self) -> set[Candidate]:
        """Where it opens so, the first wave and the finest cuts that an interpreter keeps up with."""
        return {*self.waves[0], *self.finest_kept_up_with}

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes that the answer has to serve, ascending."""
        return self._asked.sizes

    @property
    def looked_at(self) -> tuple[int, ...]:
        """The sizes at which candidates are compared, ascending."""
        return self._asked.looked_at

    @property
    def asked_count(self) -> int | None:
        """The chunk count that the user asks for, on the command line or in a sketch."""
        return self._asked.asked_count

    @property
    def builder(self) -> Builder:
        """Makes the instances."""
        return self._asked.builder

    @property
    def machine(self) -> Machine:
        """The machine as baselines see it."""
        return self._asked.machine

    @property
    def bound(self) -> Bound:
        """What no algorithm can beat on the machine."""
        return self._asked.bound

    def counts(self, low_bytes: int) -> tuple[int, ...]:
        """Admissible chunk counts for buffers from `low_bytes` up, ascending."""
        return self._asked.counts(low_bytes)

    def collective(self, count: int) -> Collective:
        """The request's collective cut by `count` (per rank where ranks have shares)."""
        return self._asked.collective(count)

    def instance(self, count: int, size_bytes: int) -> Instance:
        """The request's instance cut by `count` for a buffer size."""
        return self._asked.instance(count, size_bytes)

    def exchanges(self, size: int) -> dict[str, Slices]:
        """The machine's exchanges for a buffer size by name, in few slices and in many."""
        return self._planned.at_size.exchanges.of(size)

    @property
    def central(self) -> dict[str, tuple[int, ...]]:
        """By strategy, the ranks in the middle of the machine that could reduce all of an allreduce."""
        return self._planned.at_size.central.ranks

    @cached_property
    def has_very_many_ranks(self) -> bool:
        """Whether even the coarsest cut is more than most candidates may have."""
        return self._traits.has_very_many_ranks

    @property
    def is_soon_finest(self) -> bool:
        """Whether ranks are so few that their finest cuts are made in seconds."""
        return self._traits.is_soon_finest

    @property
    def is_quick(self) -> bool:
        """Whether ranks are so few that all candidates are soon made."""
        return self._traits.is_quick

    @property
    def has_nics(self) -> bool:
        """Whether hardly any GPUs share a NIC."""
        return self._traits.has_nics

    @property
    def takes_ll128(self) -> bool:
        """Whether files may be in LL128: as asked for, or where that is chosen unasked and every way keeps what it builds on."""
        return self._traits.takes_ll128

    @property
    def is_crowded(self) -> bool:
        """Whether ways meet in links, as in PCIe, and over boxes at shared NICs."""
        return self._traits.is_crowded

    @property
    def is_crowded_box(self) -> bool:
        """Whether ways meet inside the machine, which is one box."""
        return self._traits.is_crowded_box

    @property
    def boxes(self) -> Boxes | None:
        """The machine's boxes where it is a cluster of equal ones."""
        return self._traits.boxes

    def apart(self, *, free_roots: bool = False) -> frozenset[int]:
        """The paths that keep apart, by index, for roots that are free or for all ranks alike; none where they do not matter."""
        return self._traits.apart_free if free_roots else self._traits.apart
