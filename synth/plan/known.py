"""Others' algorithms among what is planned (synth.known), and the sizes that they are for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from synth.baselines import BASELINES
from synth.candidates import Candidate
from synth.candidates.candidate import LARGE_VIEW, RINGS
from synth.candidates.sizes import anchors
from synth.collective import SHARED
from synth.known import known_counts, looped_counts
from synth.plan.traits import Traits

#: Of others' algorithms those whose messages hold many chunks.
_RINGS = frozenset({"ring"})
#: Six rings share a vector without shares evenly where it is cut so much finer; what goes around one is few messages still.
_FINER_RINGS = 8
#: Larger buffers go around rings in loops, too.
_LARGEST_UNLOOPED_BYTES = 256 << 20


@dataclass(frozen=True)
class Known:
    """What libraries would run."""

    traits: Traits

    def candidates(self, sizes: Sequence[int]) -> list[Candidate]:
        """What libraries would run: the same for every size, so solved once, at the last of these, and only where no sketch says
        what to use and all ranks take part. Rings are for buffers from the first of these up, whose chunks they can share evenly,
        and made once for the largest and once for the others: there a message fills its connection, and threadblocks have to part.
        """
        asked, request = self.traits.asked, self.traits.request
        if (
            request.strategy != "auto"
            or not self.traits.is_whole
            or (self.traits.has_very_many_ranks and self.traits.boxes is not None)
        ):
            return []
        finer = 1 if request.collective in SHARED else _FINER_RINGS
        everywhere, beyond = (asked.counts(low, finer) for low in (request.min_bytes, sizes[0]))
        known = [
            Candidate(name, count, size)
            for name in BASELINES
            for count in known_counts(
                name, asked.machine, asked.collective(1), beyond if name in _RINGS else everywhere
            )
            for size in (reversed(sizes[-2:]) if name in _RINGS else sizes[-1:])
        ]
        return [*known, *self._looped(sizes[-1])]

    def _looped(self, size: int) -> list[Candidate]:
        """The rings of one machine in loops, by time, of buffers that are so large that others' messages fill connections; in a
        range, for whose sizes there are few files, where ways meet, so that trees are far from the limit.
        """
        asked, traits = self.traits.asked, self.traits
        one_machine = (
            asked.request.by_time and traits.boxes is None and (asked.request.single_size or traits.is_crowded)
        )
        if size <= _LARGEST_UNLOOPED_BYTES or not one_machine:
            return []
        found = looped_counts(asked.machine, asked.collective(1), asked.counts(size, _FINER_RINGS))
        return [Candidate(RINGS, count, size, LARGE_VIEW, in_rounds=True) for count in found]

    def served(self, known: Candidate) -> tuple[int, ...]:
        """The sizes that one of others' algorithms is for: all, of rings up to the one that it was solved at, and the largest ones
        alone if it was solved at the last.
        """
        request = self.traits.request
        anchored = (0, *anchors(request.min_bytes, request.max_bytes))
        above = anchored[-2] if known.strategy in _RINGS and known.anchor_bytes == anchored[-1] else 0
        return tuple(size for size in self.traits.asked.sizes if above < size <= known.anchor_bytes)
