"""What happens before what when the interpreters run an algorithm.

An event is one transfer-sized piece of a step: a step of `cnt` chunks makes ceil(cnt / m) of them, m being how many
chunks the runtime moves at once (maxAllowedCount, 1 for large buffers and up to 71 for small ones). Edges, all
static:

- program order within a threadblock;
- the k-th push on a connection (sender, receiver, channel) happens before its k-th pop;
- the waiter of (depid, deps) is released by the first step of that threadblock numbered deps or above that has hasdep;
- pop p of a connection happens before push p + slots (2 for Simple, 8 for LL and LL128).

A threadblock runs all its steps on one tile of every chunk and then on the next. Every edge leads from a tile to the
same or to a later one, so a cycle over many tiles stays within one: the algorithm deadlocks, for any number of tiles,
exactly if the graph of a single tile has a cycle. And m = 1 decides for all m: every edge of the graph for m leads,
in the graph for 1, from the last event of one step's piece to the last event of the other's. Which m there are follows from
the sizes that the file serves (granularity.py). Source: sections 4 and 5 of docs/xml.md (the interpreters' genericOp,
waitPeer and flags).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from msccl_xml.errors import format_step
from msccl_xml.model import Algo, Step, StepType
from synth.constants import IN_FLIGHT
from synth.verify.errors import VerifyError


class StepRef(NamedTuple):
    """A step that runs (no nop), with the dependences that nops before it carry added to its own."""

    gpu: int
    tb: int
    number: int
    step: Step
    waits_for: tuple[tuple[int, int], ...]

    def __str__(self) -> str:
        return f"gpu {self.gpu} threadblock {self.tb} step {format_step(self.number, self.step)}"


Program = list[list[StepRef]]
"""The steps of every threadblock, one list each."""


@dataclass(slots=True)
class Graph:
    """Events numbered block after block (a block is one threadblock), and what each waits for besides program order."""

    refs: list[StepRef] = field(default_factory=list)
    """the step of each event"""
    first: list[int] = field(default_factory=list)
    """the first chunk of the event within its step"""
    count: list[int] = field(default_factory=list)
    """how many chunks the event moves"""
    block: list[int] = field(default_factory=list)
    """the threadblock of each event"""
    start: list[int] = field(default_factory=list)
    """the first event of each block, and at the end the number of events"""
    waits: dict[int, list[int]] = field(default_factory=dict)
    """events that must be done before this one, program order left out"""
    message: dict[int, int] = field(default_factory=dict)
    """the push that each pop receives"""
    granularity: int = 1
    """chunks that a transfer holds"""

    def __len__(self) -> int:
        return len(self.refs)


def list_program(algo: Algo) -> Program:
    """Every threadblock's real steps in file order; gpus and threadblocks in file order too."""
    program: Program = []
    for gpu in algo.gpus:
        for tb in gpu.threadblocks:
            steps: list[StepRef] = []
            pending: list[tuple[int, int]] = []
            for number, step in enumerate(tb.steps):
                if step.depid >= 0:
                    pending.append((step.depid, step.deps))
                if step.type is not StepType.NOP:
                    steps.append(StepRef(gpu.id, tb.id, number, step, tuple(pending)))
                    pending = []
            program.append(steps)
    return program


def build_graph(algo: Algo, granularity: int) -> Graph:
    """The happens-before graph where a transfer holds `granularity` chunks; `algo` has passed check_structure."""
    program = list_program(algo)
    graph = Graph(granularity=granularity)
    for number, steps in enumerate(program):
        graph.start.append(len(graph))
        for ref in steps:
            for first in range(0, ref.step.count, granularity):
                graph.refs.append(ref)
                graph.first.append(first)
                graph.count.append(min(granularity, ref.step.count - first))
                graph.block.append(number)
    graph.start.append(len(graph))
    _add_flags(graph)
    _add_messages(graph, algo)
    return graph


def _add_flags(graph: Graph) -> None:
    """The first event of a waiting step waits for the last event of the step that releases it."""
    published: dict[tuple[int, int], tuple[list[int], list[int]]] = {}
    for event, ref in enumerate(graph.refs):
        if ref.step.hasdep and graph.first[event] + graph.count[event] == ref.step.count:
            numbers, events = published.setdefault((ref.gpu, ref.tb), ([], []))
            numbers.append(ref.number)
            events.append(event)
    for event, ref in enumerate(graph.refs):
        if graph.first[event]:
            continue
        for depid, deps in ref.waits_for:
            numbers, events = published[ref.gpu, depid]
            graph.waits.setdefault(event, []).append(events[bisect_left(numbers, deps)])


def _add_messages(graph: Graph, algo: Algo) -> None:
    pushes: dict[tuple[int, int, int], list[int]] = {}
    pops: dict[tuple[int, int, int], list[int]] = {}
    blocks = [(gpu.id, tb) for gpu in algo.gpus for tb in gpu.threadblocks]
    for event, ref in enumerate(graph.refs):
        gpu, tb = blocks[graph.block[event]]
        if ref.step.type.sends:
            pushes.setdefault((gpu, tb.send, tb.channel), []).append(event)
        if ref.step.type.receives:
            pops.setdefault((tb.recv, gpu, tb.channel), []).append(event)
    slots = IN_FLIGHT[algo.proto]
    for connection, received in pops.items():
        sent = pushes[connection]
        for k, pop in enumerate(received):
            graph.message[pop] = sent[k]
            graph.waits.setdefault(pop, []).append(sent[k])
            if k + slots < len(sent):
                graph.waits.setdefault(sent[k + slots], []).append(pop)


def order_events(graph: Graph) -> list[int]:
    """The events in an order that the graph allows; VerifyError with steps that wait for each other if none exists."""
    done = bytearray(len(graph))
    blocks = len(graph.start) - 1
    at = graph.start[:blocks]
    waiting: dict[int, list[int]] = {}
    ready = deque(range(blocks))
    order: list[int] = []
    while ready:
        block = ready.popleft()
        event, end = at[block], graph.start[block + 1]
        while event < end:
            missing = next((before for before in graph.waits.get(event, ()) if not done[before]), None)
            if missing is not None:
                waiting.setdefault(missing, []).append(block)
                break
            done[event] = 1
            order.append(event)
            ready.extend(waiting.pop(event, ()))
            event += 1
        at[block] = event
    if len(order) < len(graph):
        problem = "deadlock: these steps wait for each other"
        if graph.granularity < max(ref.step.count for ref in graph.refs):
            problem += f" (buffers so large that a transfer holds {graph.granularity} chunk)"
        raise VerifyError(problem, _cycle(graph, done, at))
    return order


def _cycle(graph: Graph, done: bytearray, at: list[int]) -> tuple[str, ...]:
    """From a stuck threadblock to the one it waits for, until one comes up again; the witness is what lies between."""
    block = next(b for b, event in enumerate(at) if event < graph.start[b + 1])
    path: list[tuple[int, int, int]] = []
    seen: dict[int, int] = {}
    while block not in seen:
        seen[block] = len(path)
        stuck = at[block]
        awaited = next(before for before in graph.waits[stuck] if not done[before])
        path.append((block, stuck, awaited))
        block = graph.block[awaited]
    lines: list[str] = []
    for _, stuck, awaited in path[seen[block] :]:
        lines.append(f"  {graph.refs[stuck]}\n    {_reason(graph, stuck, awaited)} {graph.refs[awaited]}")
        there = at[graph.block[awaited]]
        if graph.refs[there] != graph.refs[awaited]:
            lines.append("    which comes after")
    return tuple(lines)


def _reason(graph: Graph, stuck: int, awaited: int) -> str:
    if graph.message.get(stuck) == awaited:
        return "waits for a message from"
    if graph.refs[stuck].gpu == graph.refs[awaited].gpu:
        return "waits for the flag of"
    return "waits for a free slot, which is freed by"
