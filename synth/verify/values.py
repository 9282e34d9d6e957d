"""The symbolic run: what every chunk of memory holds, as an expression over the ranks' inputs.

An expression is a leaf (one rank's contribution to one chunk) or a sum of two. Equal expressions are one node: sums are
commutative, as IEEE 754 addition is, but not associative, so two ranks with the same node hold the same bits.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from msccl_xml.model import Buffer, Step, StepType
from synth.collective import Collective
from synth.verify.errors import VerifyError
from synth.verify.graph import Graph, StepRef
from synth.verify.layout import Layout

NOTHING = -1
"""The node of memory that nobody wrote."""
_MIXED = -1

Fused = dict[tuple[int, int, int], bool]
"""The reductions (gpu, threadblock, step) that are fused into one instruction; whether each is the last of its run.

LL adds dst, src0, src1, ..., Simple src0, src1, ..., dst (section 5.3 of docs/xml.md).
"""


@dataclass(slots=True)
class Expressions:
    """The nodes, each with what it sums: a chunk and its contributing ranks, or the fault that made it no such sum."""

    chunk: list[int] = field(default_factory=list)
    """the chunk whose contributions the node sums, _MIXED where it is no proper sum of one chunk"""
    ranks: list[int] = field(default_factory=list)
    """the contributing ranks as bits"""
    fault: list[str] = field(default_factory=list)
    """what made the node improper"""
    _sums: dict[tuple[int, int], int] = field(default_factory=dict)

    def leaves(self, chunks: Collection[int], rank: int) -> range:
        """The nodes of one rank's contributions to these chunks, which it is asked for once."""
        first = len(self.chunk)
        self.chunk += chunks
        self.ranks += [1 << rank] * len(chunks)
        self.fault += [""] * len(chunks)
        return range(first, len(self.chunk))

    def add(self, one: int, other: int, where: StepRef) -> int:
        """The node of a sum; `where` is blamed if the two are no disjoint contributions to one chunk."""
        key = (one, other) if one < other else (other, one)
        node = self._sums.get(key)
        if node is None:
            node = self._sums[key] = self._add_new(one, other, where)
        return node

    def _add_new(self, one: int, other: int, where: StepRef) -> int:
        fault = self.fault[one] or self.fault[other]
        if not fault and self.chunk[one] != self.chunk[other]:
            fault = f"chunks {self.chunk[one]} and {self.chunk[other]} were added at {where}"
        twice = self.ranks[one] & self.ranks[other]
        if not fault and twice:
            fault = f"the contribution of rank {_lowest(twice)} was added twice at {where}"
        return self._new(_MIXED if fault else self.chunk[one], self.ranks[one] | self.ranks[other], fault)

    def _new(self, chunk: int, ranks: int, fault: str) -> int:
        self.chunk.append(chunk)
        self.ranks.append(ranks)
        self.fault.append(fault)
        return len(self.chunk) - 1

    def describe(self, node: int) -> str:
        """What a node holds, in words."""
        if node == NOTHING:
            return "nothing (it was never written)"
        if self.fault[node]:
            return f"a wrong sum: {self.fault[node]}"
        return f"chunk {self.chunk[node]} of {_format_ranks(self.ranks[node])}"


def check_values(
    graph: Graph, order: Sequence[int], layout: Layout, collective: Collective, *, same_order: bool, fused: Fused
) -> None:
    """Run the events in `order` and raise VerifyError unless every output chunk ends as the collective promises.

    A step that reads memory nobody wrote is an error even if its result is never used. `same_order` also asks that
    all destinations of a combined chunk hold the same sum in the same order of additions, hence the same bits;
    `fused` are the reductions whose order a runtime may change.
    """
    run = _Run(graph, layout, collective, {})
    run.execute(order)
    _check_result(run.memory, layout, collective, run.expressions)
    if not (same_order and collective.combining):
        return
    _check_same_order(run.memory, layout, collective)
    if fused:
        run = _Run(graph, layout, collective, fused)
        run.execute(order)
        _check_same_order(run.memory, layout, collective)


class _Run:
    """One execution: the memory of all ranks and the messages under way."""

    def __init__(self, graph: Graph, layout: Layout, collective: Collective, fused: Fused) -> None:
        self.expressions = Expressions()
        self.memory = _initial_memory(self.expressions, layout, collective)
        self._graph = graph
        self._layout = layout
        self._fused = fused
        self._messages: dict[int, list[int]] = {}
        self._pending: dict[tuple[int, int], list[int]] = {}

    def execute(self, order: Sequence[int]) -> None:
        for event in order:
            self._step(event)

    def _step(self, event: int) -> None:
        graph, add = self._graph, self.expressions.add
        ref, first, count = graph.refs[event], graph.first[event], graph.count[event]
        step, memory = ref.step, self._layout.ranks[ref.gpu]
        if _does_nothing(step):
            return
        values: list[int] = self._messages.pop(graph.message[event]) if step.type.receives else []
        if step.type.reads_src:
            local = self._read(ref, memory.address(step.src_buffer, step.src_offset) + first, count)
            values = [add(a, b, ref) for a, b in zip(local, values, strict=True)] if values else local
        target = memory.address(step.dst_buffer, step.dst_offset) + first
        if step.type is StepType.REDUCE:
            self._reduce(ref, target, values)
        elif step.type.writes_dst:
            self.memory[ref.gpu][target : target + count] = values
        if step.type.sends:
            self._messages[event] = values

    def _reduce(self, ref: StepRef, target: int, values: list[int]) -> None:
        """Add `values` to memory; within a fused run to each other first, and to memory with the last of the run."""
        last_of_run = self._fused.get((ref.gpu, ref.tb, ref.number))
        if last_of_run is not None:
            sums = self._pending.pop((ref.gpu, target), None)
            if sums is not None:
                values = [self.expressions.add(a, b, ref) for a, b in zip(sums, values, strict=True)]
            if not last_of_run:
                self._pending[ref.gpu, target] = values
                return
        old = self._read(ref, target, len(values))
        values = [self.expressions.add(a, b, ref) for a, b in zip(old, values, strict=True)]
        self.memory[ref.gpu][target : target + len(values)] = values

    def _read(self, ref: StepRef, address: int, count: int) -> list[int]:
        values = self.memory[ref.gpu][address : address + count]
        if NOTHING in values:
            name = self._layout.ranks[ref.gpu].name(address + values.index(NOTHING))
            problem = f"gpu {ref.gpu} reads {name}, which nobody wrote when called {self._layout}"
            raise VerifyError(problem, (f"  {ref}",))
        return values


def _does_nothing(step: Step) -> bool:
    """Whether it copies onto itself, whatever is there: what a rank without work has, as each needs a step."""
    return step.type is StepType.COPY and (step.src_buffer, step.src_offset) == (step.dst_buffer, step.dst_offset)


def _initial_memory(expressions: Expressions, layout: Layout, collective: Collective) -> list[list[int]]:
    memory = [[NOTHING] * rank_memory.size for rank_memory in layout.ranks]
    for rank, here in enumerate(memory):
        inputs, start = collective.inputs(rank), layout.ranks[rank].address(Buffer.INPUT, 0)
        for offset, node in zip(inputs.values(), expressions.leaves(inputs, rank), strict=True):
            here[start + offset] = node
    return memory


def _check_result(memory: list[list[int]], layout: Layout, collective: Collective, expressions: Expressions) -> None:
    chunks = range(collective.num_chunk_ids)
    wanted = {chunk: sum(1 << rank for rank in collective.sources(chunk)) for chunk in chunks}
    for rank, here in enumerate(memory):
        start = layout.ranks[rank].address(Buffer.OUTPUT, 0)
        for chunk, offset in collective.outputs(rank).items():
            node = here[start + offset]
            if node == NOTHING or expressions.chunk[node] != chunk or expressions.ranks[node] != wanted[chunk]:
                expected = f"chunk {chunk} of {_format_ranks(wanted[chunk])}"
                problem = f"wrong result when called {layout}: gpu {rank} must end with {expected} in o[{offset}]"
                raise VerifyError(problem, (f"  it holds {expressions.describe(node)}",))


def _check_same_order(memory: list[list[int]], layout: Layout, collective: Collective) -> None:
    first: dict[int, tuple[int, int]] = {}
    for rank, here in enumerate(memory):
        start = layout.ranks[rank].address(Buffer.OUTPUT, 0)
        for chunk, offset in collective.outputs(rank).items():
            node = here[start + offset]
            other, held = first.setdefault(chunk, (rank, node))
            if held != node:
                problem = f"gpu {other} and gpu {rank} add the contributions to chunk {chunk} in different orders"
                raise VerifyError(f"{problem}: their results may differ in the last bits")


def _lowest(ranks: int) -> int:
    return (ranks & -ranks).bit_length() - 1


def _format_ranks(ranks: int) -> str:
    numbers = [k for k in range(ranks.bit_length()) if ranks >> k & 1]
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    if numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"ranks {numbers[0]}..{numbers[-1]}"
    return "ranks " + ",".join(map(str, numbers))
