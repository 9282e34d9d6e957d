"""Transfers of more chunks never make threadblocks wait for each other that do not with fewer (docs/formulation.md, section 9)."""

from __future__ import annotations

from hypothesis import event, given
from hypothesis import strategies as st

from msccl_xml.model import Buffer, StepType
from synth.lowering.buffers import Slot
from synth.lowering.deadlock import find_splits
from synth.lowering.operations import Lane, Operation
from synth.lowering.threadblocks import Program

_RANKS = 3
_MOST = 6


@st.composite
def _rings(draw: st.DrawFn) -> list[Program]:
    """Every rank sends steps of some chunks to the next, in one threadblock with what it receives, in any order; some are fused."""
    sent = [draw(st.lists(st.integers(1, _MOST), max_size=5)) for _ in range(_RANKS)]
    return [_program(draw, rank, sent[rank - 1], sent[rank]) for rank in range(_RANKS)]


def _program(draw: st.DrawFn, rank: int, received: list[int], sent: list[int]) -> Program:
    lane = Lane(0, (rank - 1) % _RANKS, (rank + 1) % _RANKS)
    slot = Slot(Buffer.SCRATCH, 0)
    operations: list[Operation] = []
    pops = pushes = 0
    while pops < len(received) or pushes < len(sent):
        both = pops < len(received) and pushes < len(sent)
        fused = both and received[pops] == sent[pushes] and draw(st.booleans())
        pop = fused or pushes == len(sent) or (both and draw(st.booleans()))
        push = fused or not pop
        kind = StepType.RECV_COPY_SEND if fused else StepType.RECV if pop else StepType.SEND
        operations.append(
            Operation(
                rank,
                (len(operations), 0),
                kind,
                tuple(range(received[pops] if pop else sent[pushes])),
                lane,
                slot,
                slot,
                (pops, 0) if pop else None,
                (pushes, 0) if push else None,
            )
        )
        pops, pushes = pops + pop, pushes + push
    return {lane: operations} if operations else {}


@given(_rings(), st.integers(1, 3))
def test_what_ends_with_transfers_of_few_chunks_ends_with_those_of_more(programs: list[Program], capacity: int) -> None:
    waits = [{} for _ in programs]
    ends = [not find_splits(programs, waits, capacity, chunks) for chunks in range(1, _MOST + 1)]
    event(f"ends from {ends.index(True) + 1} chunks on" if any(ends) else "never ends")
    assert ends == sorted(ends)
