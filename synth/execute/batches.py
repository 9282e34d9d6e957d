"""The engine for NCCL: the rounds of rounds.py, each a group of point-to-point messages and then work on the same stream.

Nothing here is NCCL's own: the same rounds run over gloo, which is how the tests run them. On a GPU all of it is queued on the
current stream and `run` returns before it is done, as torch's own collectives do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from synth.execute.act import compute, outgoing
from synth.execute.arithmetic import combiner
from synth.execute.call import Call, TorchEngine
from synth.execute.communicator import distributed
from synth.execute.program import Operation, Part, Program
from synth.execute.rounds import Act, Receive, Round, plan_rounds
from synth.execute.watch import Watch

if TYPE_CHECKING:
    import torch

#: More tiles than this bring no more parallelism and cost a walk through the program each.
MOST_TILES = 4


class BatchEngine(TorchEngine):
    """Runs calls on a process group by rounds; see the module."""

    most_tiles: int | None = MOST_TILES

    def __init__(self, group: Any) -> None:
        self.group = group
        self._dist = distributed()
        self._plans: dict[tuple[int, int], tuple[Program, list[list[Round]]]] = {}

    def run(self, call: Call, watch: Watch) -> None:
        """Queue this rank's part of `call`. Raises HangError, before anything is sent, where the algorithm waits for itself."""
        _BatchRun(self, call).run(self._rounds(call))

    def close(self) -> None:
        """Forget the plans."""
        self._plans.clear()

    def _rounds(self, call: Call) -> list[Round]:
        key = (id(call.program), call.cut.tiles)
        if key not in self._plans:
            self._plans[key] = (call.program, plan_rounds(call.program, call.cut.tiles))
        return self._plans[key][1][call.rank]


class _BatchRun:
    """One call."""

    def __init__(self, engine: BatchEngine, call: Call) -> None:
        self.engine, self.call, self.dist = engine, call, engine._dist
        self.combine = combiner(call.op)
        self.slots: dict[tuple[int, int], torch.Tensor] = {}
        self.messages: dict[tuple[int, int], torch.Tensor] = {}

    def run(self, rounds: list[Round]) -> None:
        """All rounds, without gradients."""
        import torch

        with torch.no_grad():
            for one in rounds:
                self._exchange(one)
                for act in one.acts:
                    operation, part = self._what(act)
                    compute(self.call, operation, part, act.tile, self._message(act), self.combine)

    def _exchange(self, one: Round) -> None:
        """All messages of a round, in the order of their connections at both ends."""
        queue: list[tuple[int, int, Any]] = []
        for send in one.sends:
            operation, part = self._what(send.act)
            data = outgoing(self.call, operation, part, send.act.tile, self._message(send.act))
            peer = self.call.program.connections[send.connection].dst
            queue.append((send.connection, 0, self._point(self.dist.isend, data, peer)))
        for receive in one.receives:
            peer = self.call.program.connections[receive.connection].src
            queue.append((receive.connection, 1, self._point(self.dist.irecv, self._slot(receive), peer)))
        if queue:
            queue.sort(key=lambda each: each[:2])
            for work in self.dist.batch_isend_irecv([point for _, _, point in queue]):
                work.wait()

    def _point(self, function: Any, data: torch.Tensor, peer: int) -> Any:
        import torch

        raw = data.view(torch.uint8)  # NCCL knows no 16-bit integers, and need not know what it carries
        return self.dist.P2POp(function, raw, self.dist.get_global_rank(self.engine.group, peer), self.engine.group)

    def _what(self, act: Act) -> tuple[Operation, Part]:
        operation = self.call.blocks[act.block].operations[act.operation]
        return operation, operation.parts[act.part]

    def _message(self, act: Act) -> torch.Tensor | None:
        return None if act.slot < 0 else self.messages[self.call.blocks[act.block].recv, act.slot]

    def _slot(self, receive: Receive) -> torch.Tensor:
        """Where a message goes: a slot of its own for every one that a connection can hold, made when first used."""
        src = self.call.program.connections[receive.connection].src
        sender = self.call.program.ranks[src][receive.sender.block].operations[receive.sender.operation]
        elements = self.call.elements(sender.parts[receive.sender.part], receive.sender.tile)
        key = (receive.connection, receive.slot)
        if key not in self.slots or self.slots[key].numel() < elements:
            self.slots[key] = self.call.like.new_empty(elements)
        self.messages[key] = self.slots[key][:elements]
        return self.messages[key]
