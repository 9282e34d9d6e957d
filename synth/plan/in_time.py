"""How finely a candidate may be cut for there to be time for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from synth.candidates import Candidate
from synth.candidates.candidate import HIERARCHICAL, JOINT
from synth.candidates.transfers import FINE, transfers_of
from synth.collective import Collective, CollectiveName
from synth.plan.traits import Traits

#: Transfers that are routed, ordered, made a program and looked at in a second: where time is short, no candidate has more than go
#: into it (in one second at least).
_TRANSFERS_A_SECOND = 10_000
#: Of the time that a transfer takes, what routing takes of it.
_ROUTED_SHARE = 0.25
#: Over more boxes than these there may be as many times more in what is made for one of them: the others' are only written and
#: verified.
_BOXES_SHARING = 8


def in_time(traits: Traits, candidate: Candidate) -> Candidate:
    """The candidate, cut no finer than there is time for: a coarse answer in time is better than a fine one late. Over equal
    boxes every rank keeps its share, without which they would wait for each other, and what has a cut of its own keeps that.
    """
    request = traits.request
    if candidate.has_cut_of_its_own or traits.asked.asked_count is not None:
        return candidate
    most = _transfers_in_time(traits)
    if candidate.boxed and traits.boxes is not None:
        most *= max(1.0, traits.boxes.count / _BOXES_SHARING)
    shared = candidate.boxed and request.collective is CollectiveName.ALLREDUCE
    least = request.topology.num_ranks if shared else 1
    count = candidate.count
    while count % 2 == 0 and count > least and _transfers(candidate, traits.asked.collective(count)) > most:
        count //= 2
    if count == candidate.count:
        return candidate
    # Rounds of few messages are long, and chains of them take many: a list in several instances is ahead there.
    coarse = candidate.strategy != JOINT and traits.asked.collective(count).chunks < FINE * request.topology.num_ranks
    listed = coarse and not candidate.boxed and request.collective in HIERARCHICAL
    return replace(candidate, count=count, pieces=None, in_rounds=candidate.in_rounds and not listed)


def is_time_for(traits: Traits, candidate: Candidate, times: int) -> bool:
    """Whether there is time for so many times what a candidate takes."""
    transfers = _transfers(candidate, traits.asked.collective(candidate.count))
    return times * transfers <= _transfers_in_time(traits)


def waves_in_time(traits: Traits, waves: Sequence[Sequence[Candidate]]) -> tuple[tuple[Candidate, ...], ...]:
    """The waves as there is time for them, each candidate in the first that has it."""
    coarse = [[in_time(traits, each) for each in wave] for wave in waves]
    return tuple(tuple(each) for each in _each_once(coarse) if each)


def _transfers_in_time(traits: Traits) -> float:
    """How many transfers a candidate may have."""
    return max(1.0, traits.asked.request.time_limit_s) * _TRANSFERS_A_SECOND


def _transfers(candidate: Candidate, collective: Collective) -> float:
    """How many transfers a candidate counts for if cut so: those of a piece are routed each, and take all else together."""
    transfers = transfers_of(collective)
    if candidate.pieces is None:
        return transfers
    messages_a_chunk = candidate.pieces * collective.num_ranks / collective.chunks
    return transfers * min(1.0, _ROUTED_SHARE + messages_a_chunk)


def _each_once(waves: Sequence[Sequence[Candidate]]) -> list[list[Candidate]]:
    """The waves without what an earlier one has."""
    seen: set[Candidate] = set()
    left = []
    for planned in waves:
        left.append([each for each in planned if each not in seen])
        seen.update(planned)
    return left
