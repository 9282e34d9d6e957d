"""An interpreter that runs a small algorithm under every interleaving, with numbers for data: the judge of the judge.

Written from the notes on the format (docs/xml.md, sections 3 to 5) and sharing no code with synth/verify. A state is
how far each threadblock is; two threadblocks that could act now on one chunk of memory, one of them writing, are a
race. Without a race the memory of a state does not depend on the way there, so that states are visited once.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from msccl_xml.model import Algo, Step
from synth.collective import Collective

RECEIVES = {"r", "rcs", "rrs", "rrc", "rrcs"}
SENDS = {"s", "rcs", "rrs", "rrcs"}
READS = {"s", "rrs", "rrc", "rrcs", "cpy", "re"}
WRITES = {"r", "rcs", "rrc", "rrcs", "cpy", "re"}


class WrongError(Exception):
    """The algorithm is wrong; the message says how."""


class TooLargeError(Exception):
    """Too many states to visit."""


@dataclass
class Action:
    """One transfer's worth of a step on one tile."""

    tile: int
    number: int
    step: Step
    first: int
    count: int
    last: bool
    waits: list[tuple[int, int]]


@dataclass
class Machine:
    algo: Algo
    collective: Collective
    in_place: bool
    group: int
    tiles: int
    max_states: int
    where: list[tuple[int, Any]] = field(default_factory=list)
    actions: list[list[Action]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.slots = 2 if self.algo.proto == "Simple" else 8
        for gpu in self.algo.gpus:
            for tb in gpu.threadblocks:
                self.where.append((gpu.id, tb))
                self.actions.append(self.list_actions(tb.steps))
        self.index = {(gpu, tb.id): k for k, (gpu, tb) in enumerate(self.where)}
        if len(self.index) < len(self.where):
            raise WrongError("two threadblocks of one id")
        ends = [(gpu, "s", tb.send, tb.channel) for gpu, tb in self.where if tb.send >= 0]
        ends += [(gpu, "r", tb.recv, tb.channel) for gpu, tb in self.where if tb.recv >= 0]
        if len(set(ends)) < len(ends):
            raise WrongError("two threadblocks on one end of a connection")
        for gpu, side, peer, channel in ends:
            if (peer, "r" if side == "s" else "s", gpu, channel) not in ends:
                raise WrongError("no counterpart")

    def list_actions(self, steps: tuple[Step, ...]) -> list[Action]:
        result = []
        for tile in range(self.tiles):
            waits: list[tuple[int, int]] = []
            for number, one in enumerate(steps):
                if one.depid >= 0:
                    waits.append((one.depid, one.deps))
                if one.type == "nop":
                    continue
                for first in range(0, one.count, self.group):
                    count = min(self.group, one.count - first)
                    result.append(Action(tile, number, one, first, count, first + count == one.count, waits))
                    waits = []
        return result

    # Memory cells are (rank, tile, space, index); in place, i and o are one space.

    def cell(self, rank: int, tile: int, buffer: str, offset: int) -> tuple[int, int, str, int]:
        c = self.collective
        sizes = {"i": c.input_chunks(rank), "o": c.output_chunks(rank), "s": self.algo.gpus[rank].scratch_chunks}
        declared = self.algo.gpus[rank]
        limits = {"i": declared.input_chunks, "o": declared.output_chunks, "s": declared.scratch_chunks}
        if not 0 <= offset < limits[buffer]:
            raise WrongError("beyond the declared buffer")
        if self.in_place and buffer != "s":
            shift = c.in_place_shift(rank)
            if shift is None:
                raise WrongError("no such call in place")
            index = offset + (max(0, -shift) if buffer == "i" else max(0, shift))
            low_i, low_o = max(0, -shift), max(0, shift)
            if not (low_i <= index < low_i + sizes["i"] or low_o <= index < low_o + sizes["o"]):
                raise WrongError("beyond the caller's buffer")
            return rank, tile, "io", index
        if not 0 <= offset < sizes[buffer]:
            raise WrongError("beyond the caller's buffer")
        return rank, tile, buffer, offset

    def touched(self, block: int, action: Action) -> tuple[list[Any], list[Any]]:
        rank, one = self.where[block][0], action.step
        span = range(action.first, action.first + action.count)
        if one.type in WRITES and one.dst_buffer != "s" and rank not in self.collective.members:
            raise WrongError("writes a buffer of a rank that takes no part")
        reads = [self.cell(rank, action.tile, one.src_buffer, one.src_offset + k) for k in span if one.type in READS]
        writes = [self.cell(rank, action.tile, one.dst_buffer, one.dst_offset + k) for k in span if one.type in WRITES]
        return reads, writes

    def enabled(self, state: tuple[int, ...], fifos: dict[Any, tuple[Any, ...]], block: int) -> bool:
        if state[block] == len(self.actions[block]):
            return False
        gpu, tb = self.where[block]
        action = self.actions[block][state[block]]
        for depid, deps in action.waits:
            if (gpu, depid) not in self.index:
                raise WrongError("waits for a threadblock that does not exist")
            other = self.index[gpu, depid]
            past = [a for a in self.actions[other][: state[other]] if a.step.hasdep and a.last]
            if not past or (past[-1].tile, past[-1].number) < (action.tile, deps):
                return False
        if action.step.type in RECEIVES and not fifos.get((tb.recv, gpu, tb.channel)):
            return False
        full = action.step.type in SENDS and len(fifos.get((gpu, tb.send, tb.channel), ())) >= self.slots
        return not full

    def check_races(self, state: tuple[int, ...], able: list[int]) -> None:
        seen: dict[Any, bool] = {}
        for block in able:
            action = self.actions[block][state[block]]
            reads, writes = self.touched(block, action)
            if action.step.type == "cpy" and reads == writes:
                writes = []
            for cell in set(reads) | set(writes):
                if cell in seen and (seen[cell] or cell in writes):
                    raise WrongError("race")
            for cell in set(reads) | set(writes):
                seen[cell] = seen.get(cell, False) or cell in writes

    def act(self, state: tuple[int, ...], memory: dict[Any, int], fifos: dict[Any, tuple[Any, ...]], block: int) -> Any:
        gpu, tb = self.where[block]
        action = self.actions[block][state[block]]
        kind, memory, fifos = action.step.type, dict(memory), dict(fifos)
        reads, writes = self.touched(block, action)
        if (kind in RECEIVES and tb.recv < 0) or (kind in SENDS and tb.send < 0):
            raise WrongError("no peer")
        values: list[int] = []
        if kind in RECEIVES:
            key = (tb.recv, gpu, tb.channel)
            values, fifos[key] = list(fifos[key][0]), fifos[key][1:]
            if len(values) != action.count:
                raise WrongError("counts differ")
        if kind == "cpy" and reads == writes:
            return (*state[:block], state[block] + 1, *state[block + 1 :]), memory, fifos
        if kind in READS:
            if any(cell not in memory for cell in reads):
                raise WrongError("reads what nobody wrote")
            local = [memory[cell] for cell in reads]
            values = [a + b for a, b in zip(local, values, strict=True)] if values else local
        if kind == "re":
            if any(cell not in memory for cell in writes):
                raise WrongError("adds to what nobody wrote")
            values = [memory[cell] + v for cell, v in zip(writes, values, strict=True)]
        for cell, value in zip(writes, values, strict=False):
            memory[cell] = value
        if kind in SENDS:
            key = (gpu, tb.send, tb.channel)
            fifos[key] = (*fifos.get(key, ()), tuple(values))
        return (*state[:block], state[block] + 1, *state[block + 1 :]), memory, fifos

    def initial(self) -> dict[Any, int]:
        memory = {}
        for tile in range(self.tiles):
            for chunk in range(self.collective.num_chunk_ids):
                for rank in self.collective.sources(chunk):
                    offset = self.collective.input_offset(chunk, rank)
                    assert offset is not None
                    shift = (self.collective.in_place_shift(rank) if self.in_place else None) or 0
                    space = "io" if self.in_place else "i"
                    memory[rank, tile, space, offset + max(0, -shift)] = number_of(tile, chunk, rank)
        return memory

    def ending(self, state: tuple[int, ...], memory: dict[Any, int], fifos: dict[Any, tuple[Any, ...]]) -> str:
        """What is wrong once nothing can act any more; empty if all is done and right."""
        if any(at < len(actions) for at, actions in zip(state, self.actions, strict=True)):
            return "deadlock"
        if any(fifos.values()):
            return "messages left over"
        for tile in range(self.tiles):
            for chunk in range(self.collective.num_chunk_ids):
                wanted = sum(number_of(tile, chunk, rank) for rank in self.collective.sources(chunk))
                for rank in self.collective.destinations(chunk):
                    offset = self.collective.output_offset(chunk, rank)
                    assert offset is not None
                    if memory.get(self.cell(rank, tile, "o", offset)) != wanted:
                        return "result"
        return ""

    def explore(self) -> None:
        ending = ""
        start = (tuple(0 for _ in self.where), self.initial(), {})
        seen, stack = {start[0]}, [start]
        while stack:
            state, memory, fifos = stack.pop()
            able = [block for block in range(len(state)) if self.enabled(state, fifos, block)]
            self.check_races(state, able)
            if not able:
                # Not the last word: a race elsewhere is what really is wrong.
                ending = self.ending(state, memory, fifos)
            for block in able:
                following = self.act(state, memory, fifos, block)
                if following[0] not in seen:
                    seen.add(following[0])
                    stack.append(following)
            if len(seen) > self.max_states:
                raise TooLargeError(f"{len(seen)} states")
        if ending:
            raise WrongError(ending)


def number_of(tile: int, chunk: int, rank: int) -> int:
    """What a rank contributes to a chunk: 60 random bits, so that no wrong sum is right by chance."""
    return random.Random(f"{tile} {chunk} {rank}").getrandbits(60)


def judge(
    algo: Algo, collective: Collective, *, tiles: int = 1, max_states: int = 20_000, groups: Iterable[int] | None = None
) -> str:
    """Empty if the algorithm is right in every layout it claims, else how it is wrong; or TooLargeError.

    `groups` are the numbers of chunks that a transfer may hold: by default those of the largest and of the smallest buffers.
    """
    layouts = ([False] if algo.outofplace or not algo.inplace else []) + ([True] if algo.inplace else [])
    largest = max((one.count for _, _, _, one in algo.steps()), default=1)
    try:
        for in_place in layouts:
            for group in sorted({1, largest}) if groups is None else groups:
                Machine(algo, collective, in_place, group, tiles, max_states).explore()
    except WrongError as wrong:
        return str(wrong)
    return ""
