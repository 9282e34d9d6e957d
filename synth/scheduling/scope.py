"""What the scheduling program ranges over: possible messages, rivals for a link, and the times that bound them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

from synth.instance import Instance
from synth.ir import Message, Schedule, Transfer, predecessors

#: Times that differ by less than this share are equal (sums of a few hundred doubles keep 1e-13).
ROUNDING = 1e-9


@dataclass(frozen=True)
class Scope:
    """What the program ranges over, derived from a feasible schedule whose makespan is the horizon."""

    instance: Instance
    schedule: Schedule
    max_together: int

    @cached_property
    def transfers(self) -> tuple[Transfer, ...]:
        return tuple(sorted(self.schedule.transfers()))

    @cached_property
    def before(self) -> dict[Transfer, tuple[Transfer, ...]]:
        """Eq. 2."""
        return predecessors(self.instance, self.transfers)

    @cached_property
    def ordered(self) -> tuple[Transfer, ...]:
        """The transfers in an order that respects `before`: that of the given schedule."""
        return self.schedule.transfers()

    @property
    def horizon_us(self) -> float:
        return self.schedule.makespan_us * (1 + ROUNDING)

    @cached_property
    def messages(self) -> tuple[Message, ...]:
        """What may be sent: single chunks, runs of neighbours, and whatever the given schedule sends; in a fixed
        order.
        """
        lines: dict[tuple[int, bool], list[int]] = defaultdict(list)
        for transfer in self.transfers:
            lines[transfer.path, transfer.reduce].append(transfer.chunk)
        found = {Message(tuple(sorted(send.chunks)), send.path, send.reduce) for send in self.schedule.sends}
        for (path, reduce), chunks in lines.items():
            found.update(Message(run, path, reduce) for run in _runs(self.instance, chunks, self.max_together))
        return tuple(sorted(found, key=lambda message: (message.path, message.reduce, message.chunks)))

    @cached_property
    def carriers(self) -> dict[Transfer, tuple[Message, ...]]:
        """The messages that may carry each transfer."""
        table: dict[Transfer, list[Message]] = defaultdict(list)
        for message in self.messages:
            for transfer in transfers_of(message):
                table[transfer].append(message)
        return {transfer: tuple(messages) for transfer, messages in table.items()}

    @cached_property
    def heads_us(self) -> dict[Transfer, float]:
        """The earliest each transfer can start by its dependences alone, single chunks being quickest."""
        heads: dict[Transfer, float] = {}
        for transfer in self.ordered:
            heads[transfer] = max((heads[other] + self.least_us(other) for other in self.before[transfer]), default=0.0)
        return heads

    @cached_property
    def tails_us(self) -> dict[Transfer, float]:
        """The least time from each transfer's start to the last arrival that depends on it."""
        tails = {transfer: self.least_us(transfer) for transfer in self.ordered}
        for transfer in reversed(self.ordered):
            for other in self.before[transfer]:
                tails[other] = max(tails[other], self.least_us(other) + tails[transfer])
        return tails

    @cached_property
    def rivals(self) -> tuple[tuple[Transfer, Transfer], ...]:
        """Pairs of transfers that share a link and that no dependence puts in order."""
        upstream: dict[Transfer, set[Transfer]] = {}
        for transfer in self.ordered:
            upstream[transfer] = set(self.before[transfer]).union(*(upstream[other] for other in self.before[transfer]))
        on_link: dict[int, list[Transfer]] = defaultdict(list)
        for transfer in self.transfers:
            for link in self.instance.paths[transfer.path].links:
                on_link[link].append(transfer)
        pairs = {pair for users in on_link.values() for pair in combinations(users, 2)}
        return tuple(sorted((a, b) for a, b in pairs if a not in upstream[b] and b not in upstream[a]))

    def least_us(self, transfer: Transfer) -> float:
        return self.latency_us(Message((transfer.chunk,), transfer.path, transfer.reduce))

    def latency_us(self, message: Message) -> float:
        """Eq. 5: from a message's start to its arrival."""
        return self.instance.paths[message.path].latency_us(len(message.chunks) * self.instance.chunk_bytes)

    def busy_us(self, message: Message, link: int) -> float:
        """How long a message occupies a link of its path."""
        path = self.instance.paths[message.path]
        gap_us, us_per_byte = path.occupancy[path.links.index(link)]
        return gap_us + len(message.chunks) * self.instance.chunk_bytes * us_per_byte


def transfers_of(message: Message) -> list[Transfer]:
    """The transfers that a message carries out."""
    return [Transfer(chunk, message.path, message.reduce) for chunk in message.chunks]


def _runs(instance: Instance, chunks: Iterable[int], longest: int) -> list[tuple[int, ...]]:
    """Every run of consecutive chunks with one owner and the same destinations, up to a length; single chunks
    included.

    Such chunks lie side by side in every buffer that holds them, so a message of them is one step of one threadblock.
    """
    kind = {demand.chunk: (demand.source, demand.dests) for demand in instance.demands}
    present = sorted(chunks)
    runs = []
    for position, first in enumerate(present):
        run: tuple[int, ...] = (first,)
        runs.append(run)
        for chunk in present[position + 1 : position + longest]:
            if chunk != run[-1] + 1 or kind.get(chunk) != kind.get(first):
                break
            run = (*run, chunk)
            runs.append(run)
    return runs
