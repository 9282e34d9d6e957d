"""Clocks: what the messages of a solution take, in their order, at other sizes and under other protocols."""

from __future__ import annotations

from statistics import fmean

from synth.candidates.candidate import LARGE_VIEW
from synth.constants import Constants
from synth.instance import Instance
from synth.interpreted import as_interpreted
from synth.protocols import under_protocol
from synth.solve import Solution
from synth.timing import Replay, messages_of

#: A round is no shorter than a message's latency and this share of what a threadblock takes for it: the rest overlaps.
_ROUND_SHARE = 0.5


class Clock:
    """Times a solution's messages, in their order, at other buffer sizes (cost level 2)."""

    def __init__(self, solution: Solution) -> None:
        self.solution = solution
        self.instance = self._timed(solution.instance)
        one = solution.folded or solution
        ordered = one.schedule if solution.rounds else one.interpreted or one.schedule
        waits = solution.written.waits if solution.written else None
        self.replay = Replay(self.instance, messages_of(ordered), waits)
        self.interpreted: dict[tuple[str, int], tuple[Instance, Replay]] = {}

    def time_us(self, size_bytes: int) -> float:
        """What a buffer of `size_bytes` takes on the links as they are."""
        return self.replay.makespan_us(self.instance.with_chunk_bytes(self.solution.chunk_bytes(size_bytes)))

    def estimate_us(self, size_bytes: int, protocol: str, instances: int = 1) -> float:
        """What an interpreter would take for it, launch included: an estimate, for choosing what to simulate."""
        if self.solution.rounds:
            return self._rounds_us(size_bytes, protocol)
        view = protocol, instances
        if view not in self.interpreted:
            used = {send.path for send in self.solution.schedule.sends}
            instance = self._timed(as_interpreted(self.solution.instance, protocol, used, instances=instances))
            self.interpreted[view] = (instance, self.replay.on(instance))
        instance, replay = self.interpreted[view]
        launch_us = Constants.for_topology(self.solution.instance.topology).of(protocol).launch_us
        return launch_us + replay.makespan_us(instance.with_chunk_bytes(self.solution.chunk_bytes(size_bytes)))

    def _rounds_us(self, size_bytes: int, protocol: str) -> float:
        """What the rounds take, launch included: as much longer or shorter as chunks are, and each no less than a message's mean
        latency and part of what its threadblock takes for it.
        """
        solution = self.solution
        assert solution.interpreted is not None
        constants = Constants.for_topology(solution.instance.topology)
        mine, made_for = constants.of(protocol), constants.of(LARGE_VIEW)
        slower = max(made_for.rate_GBps / mine.rate_GBps, made_for.wire / mine.wire)
        chunk_bytes = solution.chunk_bytes(size_bytes)
        scale = chunk_bytes / solution.instance.chunk_bytes
        used = {send.path for send in solution.schedule.sends}
        paths = under_protocol(solution.instance, protocol, used).paths
        hop_us = fmean(paths[send.path].alpha_us for send in solution.schedule.sends)
        round_us = solution.interpreted.makespan_us / solution.rounds
        alone_us = hop_us + _ROUND_SHARE * chunk_bytes / (mine.rate_GBps * 1e3)
        return mine.launch_us + solution.rounds * max(round_us * scale * slower, alone_us)

    def _timed(self, instance: Instance) -> Instance:
        """The instance, or a view of it, as the messages are timed on it: one box, where all do the same."""
        return self.solution.folded.instance(instance) if self.solution.folded else instance
