"""What is known of contenders: what these take at some sizes, and how near to the limit that is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from msccl_xml.model import Algo
from synth.candidates.candidate import JOINT
from synth.constants import Constants
from synth.errors import EffortError
from synth.goal import Goal
from synth.search import Scored
from synth.simulate import Simulator, by_pair
from synth.simulate.routes import Paths
from synth.timing import busiest_link_us
from synth.trial.contender import Contender
from synth.trial.programs import Programs

#: Steps, over all ranks, of a program that is simulated at all.
_MOST_STEPS = 130_000
#: Events that a simulation may have, and how often flows may get new rates in it, those of one path together (a quarter of a
#: minute): where thousands share links, each that ends is news for all of them.
MOST_EVENTS = 6_000_000
#: Messages count as work once for every so many GPUs: the more there are, the more share links.
_USUAL_RANKS = 8
#: A program that is more work is simulated where candidates are compared and at the ends of what it serves, not at every size.
_EVERY_SIZE_WORK = 20_000
#: A schedule that takes no longer than its busiest link is busy, times this, is held up by its routes alone.
_KEPT_BUSY = 1.005
#: What a simulation says of an estimate holds for sizes so many doublings away; farther, it does not make it better.
_NEAR_SIZE = 2


class Effort(NamedTuple):
    """A candidate as work: links that its messages cross, for a simulation; messages and chunks of them, for a program."""

    crossings: int
    sends: int
    transfers: int


@dataclass
class Evidence(Programs):
    """The programs, and what is known of them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.contenders: list[Contender] = []
        self.best_us: dict[int, float] = {}
        """the best schedule at each size"""
        self._times: dict[Contender, dict[int, float]] = {}
        self._simulators: dict[Contender, Simulator] = {}
        self._given_up: set[Contender] = set()
        self._estimated: set[tuple[Contender, int]] = set()
        self.most_events = MOST_EVENTS
        """those that a simulation which is begun now may have"""
        self._efforts: dict[int, Effort] = {}

    @property
    def in_any_shape(self) -> bool:
        """Whether candidates are compared by time, in as many instances as are best: then rings and trees are tried apart from other
        candidates, in all their shapes, since nobody should be worse off than with what a library runs.
        """
        return self.request.by_time and self.request.instances is None

    def time_us(self, contender: Contender, size: int) -> float:
        """What the contender takes at a size: simulated, or its own estimate where its program is too large for that."""
        known = self._times.setdefault(contender, {})
        if size not in known:
            algo = self.algo(contender)
            self.ledger.enter("simulation")
            try:
                if self.is_simulated(contender):
                    known[size] = self._simulator(contender, algo).time_us(size, most_events=self.most_events)
            except EffortError:
                self._given_up.add(contender)
            if size not in known:
                self._estimated.add((contender, size))
                known[size] = self.entry(contender).times_us[size]
        return known[size]

    def _simulator(self, contender: Contender, algo: Algo) -> Simulator:
        if contender not in self._simulators:
            topology = self.request.topology
            self._simulators[contender] = Simulator(algo, topology, paths=self._paths)
        return self._simulators[contender]

    def taken_us(self, contender: Contender, size: int) -> float:
        """`time_us` where that is known; else on the line between the nearest sizes where it is, and beyond these as much longer
        or shorter as is estimated.
        """
        known = self.known_us(contender)
        if min(known) <= size <= max(known):
            return float(np.interp(size, list(known), list(known.values())))
        return self.expected_us(contender, size)

    def expected_us(self, contender: Contender, size: int) -> float:
        """`time_us` where that is known; else the estimate, and as much more or less as at the nearest size where it is, but no less
        than anything takes.
        """
        known, estimates = self._times[contender], self.estimates(contender)
        near = min(known, key=lambda other: (_apart(other, size), other))
        if near == size:
            return known[size]
        scale = known[near] / estimates[near]
        if _apart(near, size) > _NEAR_SIZE:
            scale = max(scale, 1.0)
        return max(estimates[size] * scale, self.plan.bound.time_us(size))

    def known_us(self, contender: Contender) -> dict[int, float]:
        """The times of a contender that are known, by size: simulated, or its own estimate where that stands for it."""
        return dict(sorted(self._times.get(contender, {}).items()))

    def simulated_us(self, contender: Contender) -> dict[int, float]:
        """Those of them that were simulated."""
        return {size: us for size, us in self.known_us(contender).items() if (contender, size) not in self._estimated}

    def timed(self, size: int) -> dict[Contender, float]:
        """What is known of a size (`known_us`), the fastest first."""
        timed = {contender: times[size] for contender, times in self._times.items() if size in times}
        return dict(sorted(timed.items(), key=lambda item: (item[1], item[0].position)))

    def is_thinned(self, contender: Contender) -> bool:
        """Whether a chosen contender's times were simulated at some of its sizes only."""
        return self.effort(contender.position).crossings > _EVERY_SIZE_WORK

    def is_made(self, contender: Contender) -> bool:
        """Whether the contender has a program, which took some size's time."""
        return bool(self._times.get(contender))

    def is_simulated(self, contender: Contender) -> bool:
        """Whether the contender's program is small enough to be simulated: one box's share of it where all do the same."""
        return contender not in self._given_up and self.may_be_simulated(
            contender.position, self.extent(contender).steps
        )

    def may_be_simulated(self, position: int, steps: int) -> bool:
        """Whether a program of the candidate with so many steps is small enough."""
        return steps <= _MOST_STEPS * self.alike(position)

    @cached_property
    def _goal(self) -> Goal:
        return Goal(self.plan)

    @cached_property
    def _paths(self) -> Paths:
        return by_pair(self.plan.paths)

    def link_us(self, contender: Contender, size: int) -> float:
        """How long a contender's protocol keeps its busiest link at a size: it takes no less."""
        solution, protocol = self.entry(contender).solution, self.entry(contender).protocol
        instance = solution.instance.with_chunk_bytes(solution.chunk_bytes(size))
        wire = Constants.for_topology(self.request.topology).of(protocol).wire
        return busiest_link_us(instance, solution.schedule.transfers()) / wire

    def is_closed(self, size: int) -> bool:
        """Whether something that was simulated at a size meets the goal."""
        return any(
            size in times
            and self._goal.is_met(size, times[size], self.entry(contender).schedules_us[size], self.best_us[size])
            for contender, times in self._times.items()
        )

    def is_at_limit(self, size: int) -> bool:
        """Whether the best schedule of a size is at its limit."""
        return self._goal.is_at_limit(size, self.best_us[size])

    def as_scheduled_us(self, size: int) -> float:
        """The longest schedule of a size that may be taken for the best, where schedules of large buffers decide."""
        return self._goal.as_scheduled_us(size, self.best_us[size])

    def is_reached(self, size: int) -> bool:
        """Whether what was simulated leaves nothing to gain."""
        return any(
            size in times
            and self._goal.is_reached(size, times[size], self.entry(contender).schedules_us[size], self.best_us[size])
            for contender, times in self._times.items()
        )

    def is_scheduled(self, size: int) -> bool:
        """Where schedules decide, whether no finer cut is worth a wave: the best is near to the limit, or its busiest link alone
        holds it up and finer cuts, whose routes are a little better, take long. What is known to be more than a runtime holds is no
        answer.
        """
        held = self._held(size)
        if not held:
            return False
        best = min(held, key=lambda entry: entry.schedules_us[size])
        if self._goal.is_scheduled(size, best.schedules_us[size]) or self.is_kept(size):
            return True
        solution = best.solution
        busiest_us = busiest_link_us(solution.instance, solution.schedule.transfers())
        held_up = solution.schedule.makespan_us <= busiest_us * _KEPT_BUSY
        return held_up and not self.plan.is_soon_finest

    def is_kept(self, size: int) -> bool:
        """Where schedules of large buffers decide, whether one in rounds with free roots is taken unless one is near to the limit:
        what is left to try then is lists, which an interpreter does not keep up with, and which are hardly ever near where rounds
        are not.
        """
        if not self.plan.opens_interpreted:
            return False
        paced = (each for each in self._held(size) if each.candidate.strategy == JOINT and each.candidate.in_rounds)
        return any(self._goal.is_kept(size, each.schedules_us[size], self.best_us[size]) for each in paced)

    def is_kept_up_with(self, size: int) -> bool:
        """Where schedules of large buffers decide, whether an interpreter takes little enough with something that was simulated."""
        return any(self._goal.is_kept_up_with(size, times.get(size, math.inf)) for times in self._times.values())

    def _held(self, size: int) -> list[Scored]:
        """What serves a size and is not known to be more than a runtime holds."""
        copies = self.request.instances or 1
        return [
            entry
            for position, entry in enumerate(self.scored)
            if size in entry.schedules_us and Contender(position, 0, copies) not in self.refusals
        ]

    def is_near_both_ways(self, size: int) -> bool:
        """Whether something that was simulated at a size is as near to the limit as `is_near` says, and so is its schedule."""
        return any(
            self._goal.is_near(size, times.get(size, math.inf))
            and self._goal.is_scheduled(size, self.entry(contender).schedules_us.get(size, math.inf))
            for contender, times in self._times.items()
        )

    def is_close(self, size: int) -> bool:
        """Whether what was simulated at a size is as near to the limit as ends the search if schedules do not matter."""
        return any(self._goal.is_close(size, times.get(size, math.inf)) for times in self._times.values())

    def is_near(self, size: int) -> bool:
        """Whether what was simulated at a size is as near to the limit as is worth several times the work."""
        return any(self._goal.is_near(size, times.get(size, math.inf)) for times in self._times.values())

    def is_nearly_near(self, size: int) -> bool:
        """Whether another shape of something that was simulated at a size may end the search."""
        return any(self._goal.may_get_near(size, times.get(size, math.inf)) for times in self._times.values())

    def may_close(self, size: int) -> bool:
        """Whether a candidate may come so near to the limit that the search ends."""
        return any(self.may_be_near(entry, size) for entry in self.scored)

    def may_be_near(self, entry: Scored, size: int) -> bool:
        """Whether the estimate allows that a candidate is near the limit; in rounds it says so, too, where it does not."""
        estimate_us = entry.times_us.get(size, math.inf)
        return self._goal.may_be_met(size, estimate_us, said=entry.candidate.in_rounds)

    def effort(self, position: int) -> Effort:
        """What a candidate is as work."""
        if position not in self._efforts:
            solution = self.scored[position].solution
            sends, paths = solution.schedule.sends, solution.instance.paths
            crossings = sum(len(paths[send.path].links) for send in sends)
            if (alike := self.alike(position)) > 1:
                crossings //= alike
            else:
                crossings *= max(1, self.request.topology.num_ranks // _USUAL_RANKS)
            self._efforts[position] = Effort(crossings, len(sends), sum(len(send.chunks) for send in sends))
        return self._efforts[position]


def _apart(one: int, other: int) -> int:
    """How many doublings lie between two sizes."""
    return abs(one.bit_length() - other.bit_length())
