"""Contiguity and exact scheduling of small instances as one program (docs/formulation.md, section 5; TACCL's third
stage).

The routing is given. Decided are which neighbouring chunks travel as one message over a path and in what order
messages cross a link; the times are those of cost level 2, as in synth/timing.py. Times are microseconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from synth.instance import Instance
from synth.ir import Message, Schedule, Transfer
from synth.milp import Model, Solution, SolveOptions, SolveReport, linear_sum, solve, weighted_sum
from synth.milp.model import Expression
from synth.scheduling.scope import ROUNDING, Scope, transfers_of
from synth.timing import retime

#: What all messages together may add to the objective, as a share of the horizon: enough to prefer fewer, larger
#: messages among equals, and no more than the gap at which a solve ends.
TIE_SHARE = 1e-3


class Start(NamedTuple):
    """When the message that carries the transfer starts."""

    transfer: Transfer
    what: str = "start"


class Together(NamedTuple):
    """Binary: the message is sent; its chunks travel together and apart from all others."""

    message: Message
    what: str = "together"


class Before(NamedTuple):
    """Binary: of two transfers that share a link, the first goes before the second (0: after it; free where one
    message).
    """

    first: Transfer
    second: Transfer
    what: str = "before"


class Finish(NamedTuple):
    """The makespan."""

    what: str = "finish"


@dataclass(frozen=True)
class MilpScheduling:
    """Options: the solve's limits, the most chunks of a message, and how many binaries a small instance may have."""

    solve: SolveOptions = field(default_factory=SolveOptions)
    max_together: int = 8
    max_binaries: int = 400

    def __call__(self, instance: Instance, schedule: Schedule) -> tuple[Schedule, SolveReport]:
        """A schedule of the same transfers and how the solve went; the given one where none better was found.

        `schedule` must be feasible (`check_schedule`). Raises SolverError where no solver can be used.
        """
        scope = Scope(instance, schedule, self.max_together)
        model = build(scope)
        suggest(model, scope)
        solution = solve(model, self.solve)
        if solution.found:
            better = retime(instance, _messages(scope, solution))
            if better.makespan_us < schedule.makespan_us * (1 - ROUNDING):
                schedule = better
        return schedule, solution.report.restated(schedule.makespan_us, TIE_SHARE * scope.horizon_us)

    def fits(self, instance: Instance, schedule: Schedule) -> bool:
        """Whether the program is small enough (`max_binaries`) to be worth the solve."""
        scope = Scope(instance, schedule, self.max_together)
        return len(scope.messages) + len(scope.rivals) <= self.max_binaries


def build(scope: Scope) -> Model:
    """The whole program, eq. 8 to 14."""
    model = Model("scheduling")
    _variables(model, scope)
    carry_once(model, scope)
    start_together(model, scope)
    forward_after_arrival(model, scope)
    no_overlap(model, scope)
    finish_after_arrivals(model, scope)
    finish_after_loads(model, scope)
    minimise_finish(model, scope)
    return model


def _variables(model: Model, scope: Scope) -> None:
    """A start per transfer, a binary per possible message and per pair of rivals, and the finish."""
    for transfer in scope.transfers:
        latest = max(scope.horizon_us - scope.tails_us[transfer], scope.heads_us[transfer])
        model.continuous(Start(transfer), scope.heads_us[transfer], latest)
    for message in scope.messages:
        model.binary(Together(message))
    for first, second in scope.rivals:
        model.binary(Before(first, second))
    model.continuous(Finish(), 0.0, scope.horizon_us)


def carry_once(model: Model, scope: Scope) -> None:
    """Eq. 8: every transfer is carried by exactly one message."""
    for transfer in scope.transfers:
        model.add("carry-once", _carried(model, scope.carriers[transfer]) == 1)


def start_together(model: Model, scope: Scope) -> None:
    """Eq. 9: what one message carries starts at one time."""
    for message in scope.messages:
        first, *rest = transfers_of(message)
        apart = 1 - model.variables[Together(message)]
        for other in rest:
            model.add_unless("start-together", apart, _start(model, first) - _start(model, other))
            model.add_unless("start-together", apart, _start(model, other) - _start(model, first))


def forward_after_arrival(model: Model, scope: Scope) -> None:
    """Eq. 10 (eq. 6): a transfer starts once what it forwards has arrived, with all of its message."""
    for transfer in scope.transfers:
        for other in scope.before[transfer]:
            model.add("forward-after-arrival", _start(model, transfer) >= _arrival(model, scope, other))


def no_overlap(model: Model, scope: Scope) -> None:
    """Eq. 11 (eq. 7): of two messages that share a link, one starts once the link has finished the other."""
    for first, second in scope.rivals:
        goes_before = model.variables[Before(first, second)]
        shared = [message for message in scope.carriers[first] if message in scope.carriers[second]]
        one_message = _carried(model, shared)
        for link in _tightest(scope, first, second):
            ends = _start(model, first) + _occupied(model, scope, first, link)
            model.add_unless("no-overlap", 1 - goes_before + one_message, ends - _start(model, second))
            ends = _start(model, second) + _occupied(model, scope, second, link)
            model.add_unless("no-overlap", goes_before + one_message, ends - _start(model, first))


def finish_after_arrivals(model: Model, scope: Scope) -> None:
    """Eq. 12: the finish comes after every arrival."""
    for transfer in scope.transfers:
        model.add("finish-after-arrivals", model.variables[Finish()] >= _arrival(model, scope, transfer))


def finish_after_loads(model: Model, scope: Scope) -> None:
    """Eq. 13 (implied, tightens the relaxation): the finish comes after all that a link carries, with head and
    tail.
    """
    users: dict[int, list[Message]] = defaultdict(list)
    for message in scope.messages:
        for link in scope.instance.paths[message.path].links:
            users[link].append(message)
    for link, messages in sorted(users.items()):
        carried = [
            (transfer, scope.busy_us(message, link)) for message in messages for transfer in transfers_of(message)
        ]
        head = min(scope.heads_us[transfer] for transfer, _ in carried)
        single = {t: scope.busy_us(Message((t.chunk,), t.path, t.reduce), link) for t, _ in carried}
        tail = min(scope.tails_us[transfer] - single[transfer] for transfer in single)
        load = weighted_sum((model.variables[Together(message)], scope.busy_us(message, link)) for message in messages)
        model.add("finish-after-loads", model.variables[Finish()] >= load + (head + tail))


def minimise_finish(model: Model, scope: Scope) -> None:
    """Eq. 14: the finish, and a share of the horizon for all messages together, so that fewer are better."""
    weight = TIE_SHARE * scope.horizon_us / max(len(scope.transfers), 1)
    messages = linear_sum(model.variables[Together(message)] for message in scope.messages)
    model.minimise(model.variables[Finish()] + weight * messages)


def suggest(model: Model, scope: Scope) -> None:
    """Start the solver from the given schedule."""
    sent = {Message(tuple(sorted(send.chunks)), send.path, send.reduce): send.start_us for send in scope.schedule.sends}
    starts = {transfer: start for message, start in sent.items() for transfer in transfers_of(message)}
    for message in scope.messages:
        model.start(Together(message), float(message in sent))
    for transfer, start in starts.items():
        model.start(Start(transfer), start)
    for first, second in scope.rivals:
        model.start(Before(first, second), float(starts[first] <= starts[second]))
    model.start(Finish(), scope.schedule.makespan_us)


def _messages(scope: Scope, solution: Solution) -> list[Message]:
    """The messages that a solution sends, in order of start, which is causal since every latency is positive."""
    sent = [message for message in scope.messages if solution.values[Together(message)]]
    return sorted(sent, key=lambda message: (solution.values[Start(transfers_of(message)[0])], message))


def _tightest(scope: Scope, first: Transfer, second: Transfer) -> list[int]:
    """The links that two transfers share, less those that are never the busiest of them."""
    paths = scope.instance.paths[first.path], scope.instance.paths[second.path]
    cost = dict(zip(paths[0].links, paths[0].occupancy, strict=True))
    kept: list[int] = []
    for link in sorted(set(paths[0].links) & set(paths[1].links), key=lambda link: (cost[link], link), reverse=True):
        if all(cost[link][0] > cost[other][0] or cost[link][1] > cost[other][1] for other in kept):
            kept.append(link)
    return kept


def _start(model: Model, transfer: Transfer) -> Expression:
    return model.variables[Start(transfer)]


def _carried(model: Model, messages: Iterable[Message]) -> Expression:
    return linear_sum(model.variables[Together(message)] for message in messages)


def _arrival(model: Model, scope: Scope, transfer: Transfer) -> Expression:
    by_message = ((model.variables[Together(m)], scope.latency_us(m)) for m in scope.carriers[transfer])
    return _start(model, transfer) + weighted_sum(by_message)


def _occupied(model: Model, scope: Scope, transfer: Transfer, link: int) -> Expression:
    return weighted_sum((model.variables[Together(m)], scope.busy_us(m, link)) for m in scope.carriers[transfer])
