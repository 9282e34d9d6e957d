"""Loops: chunks that go around rings, all in step (docs/formulation.md, section 5).

Around a ring every rank passes on what it gets, so that nobody waits who keeps step with the others. Exact times know nothing of
that: where rings meet in a link they put one's message before another's, and threadblocks that carry these out one after another
hold up both rings.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from synth.instance import Instance
from synth.ir import Message, Routing, Schedule, Send, Way
from synth.list_scheduler import Work
from synth.timing import busiest_link_us


@dataclass(frozen=True)
class Loops:
    """Orders chunks that all go around: what an owner sends around one ring goes in so many `loops`, in a message each."""

    loops: int = 1

    def __call__(
        self, instance: Instance, routing: Routing, pieces: Sequence[tuple[int, ...]] | None = None
    ) -> tuple[Schedule, int]:
        """The messages, each in the round of its hop in its loop, and the number of rounds. Times are those of rounds, which take as
        long together as the busiest link does; `pieces` are not looked at, as loops say what travels together.
        """
        messages: list[tuple[int, Message]] = []
        rounds = 0
        for (_, way), chunks in _runs(instance, routing).items():
            hops = _hops(instance, way)
            around = 1 + max(hops)
            rounds = max(rounds, self.loops * around)
            for loop in range(self.loops):
                first, end = (len(chunks) * part // self.loops for part in (loop, loop + 1))
                for (path, reduce), hop in zip(way, hops, strict=True):
                    if together := tuple(chunks[first:end]):
                        messages.append((loop * around + hop, Message(together, path, reduce)))
        round_us = busiest_link_us(instance, routing.transfers) / max(1, rounds)
        messages.sort(key=lambda each: each[0])
        sends = [Send(*message, round_us * number, round_us * (number + 1)) for number, message in messages]
        return Schedule(tuple(sends)), rounds


def _runs(instance: Instance, routing: Routing) -> dict[tuple[int, Way], list[int]]:
    """The chunks that one owner sends one way, ascending, by owner and way."""
    runs: dict[tuple[int, Way], list[int]] = defaultdict(list)
    for chunk, way in routing.ways().items():
        runs[instance.owner(chunk), way].append(chunk)
    return runs


def _hops(instance: Instance, way: Way) -> list[int]:
    """How many transfers of a way each comes after."""
    work = Work.of(instance, [Message((0,), path, reduce) for path, reduce in way])
    return [round(hops) for hops in work.so_far([1.0] * len(way))]
