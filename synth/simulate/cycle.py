"""Cutting long runs short: where the state of a run comes back some tiles later, so does all that follows.

The state is looked at whenever one threadblock, the pacemaker, ends a tile: where every threadblock stands relative to it, what is
in every connection, and how long everything that is under way still takes. Two equal states k tiles and t microseconds apart repeat
every k tiles, t microseconds each time, for as long as all tiles are full ones. As many repetitions as fit before the last tile are
leapt over; the rest is run as always. That is exact but for rounding.

Some runs do not come back: a threadblock that only others wait for runs ahead of them at its own pace. Over very many tiles the
average paces are leapt by instead (drift.py), which is right to about a tile.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from synth.simulate.drift import FEWEST_TILES, Drift
from synth.simulate.leap import leap

if TYPE_CHECKING:
    from synth.simulate.engine import Engine

#: Fewer tiles than this are not worth looking for a cycle.
_FEWEST_TILES = 12
#: How many ends of tiles are looked at before a run is taken for one without a cycle, and how many are kept to compare with.
_LOOKS, _KEPT = 64, 12
#: Times are equal within this share of the time that has passed: sums of the same numbers in another order differ by less.
_EQUAL = 1e-11


class _State(NamedTuple):
    """`counts` must be equal, `times` nearly so; the rest says where the run was."""

    counts: tuple[int, ...]
    times: tuple[float, ...]
    tile: int
    now_us: float


class Cycle:
    """Watches a run. `due` says that the pacemaker has ended a tile since the last look."""

    def __init__(self, pacemaker: int, free: frozenset[int]) -> None:
        self.pacemaker = pacemaker
        self.free = free
        self.due = False
        self.looks = 0
        self.states: deque[_State] = deque(maxlen=_KEPT)
        self.drift: Drift | None = None

    @classmethod
    def of(cls, engine: Engine) -> Cycle | None:
        """A watch for the run, None where its tiles are few.

        Threadblocks that neither send, receive nor wait run ahead of all others and hold nobody up: their place does not matter.
        """
        program = engine.program
        bound = [
            number
            for number, block in enumerate(program.blocks)
            if (block.send >= 0 or block.recv >= 0) and program.tiles - engine.tile[number] >= _FEWEST_TILES
        ]
        if not bound:
            return None
        free = frozenset(
            number
            for number, block in enumerate(program.blocks)
            if block.send < 0 and block.recv < 0 and not any(operation.waits for operation in block.operations)
        )
        return cls(min(bound, key=lambda number: engine.done[number] / len(program.blocks[number].operations)), free)

    def ended(self, block: int, now_us: float) -> None:
        """Threadblock `block` has ended a tile."""
        self.due = self.due or block == self.pacemaker
        if self.drift is not None:
            self.drift.ended(block, now_us)

    def look(self, engine: Engine) -> None:
        """Compare the present state with earlier ones, and leap where it is one of them."""
        self.due = False
        self.looks += 1
        state = self._state(engine)
        for earlier in reversed(self.states):
            if earlier.counts == state.counts and _nearly(earlier.times, state.times, _EQUAL * state.now_us):
                self._leap(engine, state.tile - earlier.tile, state.now_us - earlier.now_us)
                engine.cycle = None
                return
        self.states.append(state)
        if self.looks == _LOOKS // 2 and engine.program.tiles >= FEWEST_TILES:
            self.drift = Drift(engine)
        elif self.looks >= _LOOKS:
            if self.drift is not None:
                self.drift.leap(engine)
            engine.cycle = Cycle.of(engine) if engine.program.tiles >= FEWEST_TILES else None

    def _state(self, engine: Engine) -> _State:
        now, tile = engine.now, engine.tile[self.pacemaker]
        first = max(engine.tile[block] for block in range(len(engine.tile)) if block not in self.free)
        counts: list[int] = []
        times: list[float] = []
        for block in range(len(engine.tile)):
            if block in self.free and engine.tile[block] > first:
                counts.append(-1)
                continue
            counts += (engine.tile[block] - tile, engine.index[block], engine.slice[block], engine.phase[block])
            times.append(max(0.0, engine.wake_us[block] - now))
        for queues in (engine.arrivals, engine.credits):
            for queue in queues:
                counts.append(len(queue))
                times += (max(0.0, time - now) for time in queue)
        counts += engine.lacks
        return _State(tuple(counts), tuple(times), tile, now)

    def _leap(self, engine: Engine, tiles: int, time_us: float) -> None:
        """Put the run as many cycles of `tiles` and `time_us` later as leave every threadblock in front of the last tile."""
        last = engine.program.tiles - 1
        ahead = max(engine.tile[block] for block in range(len(engine.tile)) if block not in self.free)
        times = (last - 1 - ahead) // tiles
        if times < 1:
            return
        leaps = [times * tiles] * len(engine.tile)
        for block in self.free:
            leaps[block] = max(0, min(leaps[block], last - 1 - engine.tile[block]))
        leap(engine, leaps, times * time_us)


def _nearly(one: tuple[float, ...], other: tuple[float, ...], slack_us: float) -> bool:
    return len(one) == len(other) and all(abs(a - b) <= slack_us for a, b in zip(one, other, strict=True))
