"""The one orderer: every sort key is tried on a routing, and the schedule of least makespan is kept."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, product

from synth.instance import Instance
from synth.ir import Message, Routing, Schedule
from synth.list_scheduler import Rule, Work, list_schedule
from synth.ordering.keys import SORT_KEYS, Facts
from synth.timing import TOLERANCE_US, busiest_link_us

#: How messages are taken besides the key, by what is added to its name.
RULES = {
    "": Rule(),
    ", critical links reserved": Rule(busiest_first=True, reserve=True),
    ", busiest link first": Rule(busiest_first=True),
}
#: The next rule's turn with a key comes after so many more keys with the rule before.
_KEYS_AHEAD = 2


@dataclass(frozen=True)
class Ordering:
    """Orders a routing. `keys` are names in SORT_KEYS; each is tried with each of `rules`, names in RULES, or with the first alone
    where no two paths share a link: rules say who gets that.

    Trying ends early only when a schedule is within `enough` of what no order of this routing can beat: the load of its busiest
    link and its longest chain of transfers.
    """

    keys: tuple[str, ...] = tuple(SORT_KEYS)
    enough: float = 5e-4
    work: int = 30_000
    """Transfers over all runs: on routings with very many, the last combinations are left out. Which key is the best is hard to
    tell, and the worst is far from it; where paths cross many links, as on PCIe, the rule says more than any key. So both are
    among the first few."""
    rules: tuple[str, ...] = tuple(RULES)

    def __call__(
        self, instance: Instance, routing: Routing, known: tuple[Schedule, str] | None = None
    ) -> tuple[Schedule, str]:
        """The schedule (one chunk a send) of least makespan, and the name of the rule that gave it.

        `known` is a schedule of the same routing, with its rule, that the keys have to beat.
        """
        messages = [Message((t.chunk,), t.path, t.reduce) for t in sorted(routing.transfers)]
        work = Work.of(instance, messages)
        busiest_us = busiest_link_us(instance, routing.transfers)
        facts = _facts(instance, work, busiest_us)
        longest_us = max((fact.so_far_us + fact.to_go_us for fact in facts), default=0.0)
        limit_us = max(longest_us, busiest_us) * (1 + self.enough)
        best = known
        tries = max(len(self.rules), self.work // max(1, len(messages)))
        rules = self.rules if _share_links(instance, work) else self.rules[:1]
        for rule, name in islice(_in_turns(rules, self.keys), tries):
            if best is None or best[0].makespan_us > limit_us:
                beat_us = best[0].makespan_us - TOLERANCE_US if best is not None else math.inf
                schedule = list_schedule(instance, work, _places(name, facts), rule=RULES[rule], cutoff_us=beat_us)
                if schedule is not None:
                    best = (schedule, name + rule)
        if best is None:
            raise ValueError("an orderer needs at least one key")
        return best


def _in_turns(rules: Sequence[str], keys: Sequence[str]) -> list[tuple[str, str]]:
    """All rules with all keys: the first rule is `_KEYS_AHEAD` keys ahead of the second, and so on."""
    turns = sorted(
        product(range(len(rules)), range(len(keys))), key=lambda turn: (_KEYS_AHEAD * turn[0] + turn[1], -turn[0])
    )
    return [(rules[rule], keys[key]) for rule, key in turns]


def _share_links(instance: Instance, work: Work) -> bool:
    """Whether some link is on the paths of two."""
    links = [link for path in {message.path for message in work.messages} for link in instance.paths[path].links]
    return len(set(links)) < len(links)


def _places(name: str, facts: tuple[Facts, ...]) -> list[int]:
    """Each message's place in the total order that the key gives (ties: position)."""
    key = SORT_KEYS[name]
    order = sorted(range(len(facts)), key=lambda index: (key(facts[index]), index))
    places = [0] * len(order)
    for place, index in enumerate(order):
        places[index] = place
    return places


def _facts(instance: Instance, work: Work, busiest_us: float) -> tuple[Facts, ...]:
    """What the sort keys look at, for every message of one chunk; `busiest_us` is the load of the busiest link."""
    by_path = [path.latency_us(instance.chunk_bytes) for path in instance.paths]
    latency = [by_path[message.path] for message in work.messages]
    so_far, to_go = work.so_far(latency), work.to_go(latency)
    behind = [0] * len(latency)
    for index in reversed(work.causal_order()):
        behind[index] = sum(1 + behind[follower] for follower in work.after[index])
    result = []
    by_owner = instance.by_owner(message.chunks[0] for message in work.messages)
    turns = {chunk: turn for own in by_owner.values() for turn, chunk in enumerate(own)}
    spread = {chunk: (turns[chunk] + 0.5) / len(own) for own in by_owner.values() for chunk in own}
    share = _shares(instance, work)
    for index, message in enumerate(work.messages):
        path = instance.paths[message.path]
        rotation = (path.dst - path.src) % instance.num_ranks
        chunk = message.chunks[0]
        due_us, even_us = share[chunk] * busiest_us, spread[chunk] * busiest_us
        places = (chunk, path.index, so_far[index], to_go[index], behind[index], turns[chunk], rotation)
        result.append(Facts(*places, due_us, even_us))
    return tuple(result)


def _shares(instance: Instance, work: Work) -> dict[int, float]:
    """Where each chunk stands among those of its owner that take the same tree, 0 to 1."""
    ways: dict[int, list[int]] = defaultdict(list)
    for message in work.messages:
        ways[message.chunks[0]].append(message.path)
    alike: dict[tuple[int, tuple[int, ...]], list[int]] = defaultdict(list)
    for chunk, paths in sorted(ways.items()):
        alike[instance.owner(chunk), tuple(sorted(paths))].append(chunk)
    return {chunk: (place + 0.5) / len(chunks) for chunks in alike.values() for place, chunk in enumerate(chunks)}
