"""Places of GPUs in the nodes of a machine, and reading them from sketch files.

Place p of a node is its GPU of the p-th lowest rank. What a sketch says of places holds for every node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from synth.errors import InputError
from synth.inputs.fields import Fields
from synth.sketch import Pair, SwitchPolicy
from synth.topology import Topology


@dataclass(frozen=True, slots=True)
class Nodes:
    """The GPUs' ids, node by node in order of rank. All nodes have as many."""

    gpus: tuple[tuple[str, ...], ...]
    machine: str

    @classmethod
    def of(cls, topology: Topology, root: Fields) -> Nodes:
        """Those of `topology`; InputError in the name of the file `root` where nodes differ in size."""
        numbers = sorted({gpu.node for gpu in topology.gpus})
        gpus = tuple(tuple(gpu.id for gpu in topology.gpus if gpu.node == node) for node in numbers)
        if len({len(ids) for ids in gpus}) > 1:
            sizes = ", ".join(str(len(ids)) for ids in gpus)
            raise InputError(
                root.source, "", f"{topology.name} with {sizes} GPUs", "a machine whose nodes have equally many"
            )
        return cls(gpus, topology.name)

    @property
    def places(self) -> int:
        return len(self.gpus[0])

    def check(self, root: Fields, key: str, wanted: int, actual: int, what: str) -> None:
        """Raise InputError unless the number that field `key` wants of `what` is the machine's."""
        if wanted != actual:
            here = f"{self.machine} has {len(self.gpus)} nodes of {self.places} GPUs"
            root.fail(key, wanted, f"{actual} {what}: a sketch for this machine ({here})")

    def within(self, pairs: list[tuple[int, int]]) -> tuple[Pair, ...]:
        """The pairs of places, in every node."""
        return tuple((ids[a], ids[b]) for ids in self.gpus for a, b in pairs)

    def across(self, pairs: list[tuple[int, int]]) -> tuple[Pair, ...]:
        """From the first place in a node to the second in every other node."""
        return tuple(
            (ids[a], others[b]) for ids in self.gpus for others in self.gpus if others != ids for a, b in pairs
        )

    def policies(self, places: list[int], few: bool) -> list[SwitchPolicy]:
        """The policy for the GPUs at these places, once for every node."""
        return [SwitchPolicy(tuple(ids[place] for place in places), few) for ids in self.gpus]


#: Reads the place of a GPU in its node from what stands at a key of the file.
Place = Callable[[str, object], int]


def read_mapping(root: Fields, key: str, table: Mapping[str, object], place: Place) -> list[tuple[int, int]]:
    """(key's place, entry's place) for every entry of the lists in `table`."""
    pairs = []
    for name, entries in table.items():
        own = place(key, name)
        where = f"{key}.{name}"
        pairs += [(own, place(where, entry)) for entry in read_list(root, where, entries)]
    return pairs


def by_place(root: Fields, nodes: Nodes) -> Place:
    """Reads TACCL's places: numbers, or numbers as text where they are keys."""

    def place(key: str, value: object) -> int:
        text = value if isinstance(value, str) else str(value) if type(value) is int else ""
        if not (text.isascii() and text.isdigit() and len(text) < 8 and int(text) < nodes.places):
            expected = f"a GPU of a node, 0 to {nodes.places - 1} on {nodes.machine} (a sketch for this machine)"
            root.fail(key, value, expected)
        return int(text)

    return place


def by_name(root: Fields, nodes: Nodes) -> Place:
    """Reads the ids of the first node's GPUs."""

    def place(key: str, value: object) -> int:
        if value not in nodes.gpus[0]:
            expected = f"a GPU of the first node of {nodes.machine}: {', '.join(nodes.gpus[0][:16])}"
            root.fail(key, value, expected)
        return nodes.gpus[0].index(str(value))

    return place


def read_pair(root: Fields, key: str, value: object, place: Place) -> tuple[int, int]:
    """The places of a list of two different GPUs."""
    ends = read_list(root, key, value)
    if len(ends) != 2 or ends[0] == ends[1]:
        root.fail(key, value, "two different GPUs [from, to]")
    return place(key, ends[0]), place(key, ends[1])


def read_object(root: Fields, key: str, default: dict[str, Any] | None = None) -> Fields:
    """The object at `key`, any keys allowed; required where there is no default."""
    value = root.data.get(key, default)
    if not isinstance(value, dict):
        root.fail(key, "missing" if value is None else value, "an object {...}")
    return Fields(root.source, root.field(key), value)


def read_list(root: Fields, key: str, value: object) -> list[Any]:
    """`value` as a list with something in it; `key` is its name in messages."""
    if not isinstance(value, list) or not value:
        root.fail(key, value, "a list [...] that is not empty")
    return value


def require_distinct(root: Fields, key: str, places: list[int]) -> None:
    """Raise InputError for a GPU that comes twice."""
    for position, place in enumerate(places):
        if place in places[:position]:
            root.fail(key, place, "each GPU once")
