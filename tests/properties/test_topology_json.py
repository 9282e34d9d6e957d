"""Topology JSON on generated input: what is written is read back equal, any text gives a topology or an InputError."""

from __future__ import annotations

import json
import string
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from synth.errors import InputError
from synth.inputs.catalogue import catalogue_file
from synth.inputs.load import parse_any
from synth.inputs.topology_json import parse_topology, to_json
from synth.topology import DEFAULT_FALLBACK, DEFAULT_RELAY_THROUGH, Device, DeviceKind, Link, Topology

WORDS = st.text(string.ascii_letters + string.digits + '-_.é漢"\\ ', min_size=1, max_size=8).filter(
    lambda s: s == s.strip()
)
LINES = st.text(string.printable.replace("\v", "").replace("\f", "") + "é", max_size=30)
OTHERS = st.sampled_from([kind for kind in DeviceKind if kind is not DeviceKind.GPU])
TIMES = st.floats(0, 1e6, allow_subnormal=False)


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    ids = draw(st.lists(WORDS, min_size=1, max_size=6, unique=True))
    num_gpus = draw(st.integers(1, len(ids)))
    ranks = draw(st.permutations(range(num_gpus)))
    devices = [Device(ids[k], DeviceKind.GPU, draw(st.integers(0, 2)), ranks[k]) for k in range(num_gpus)]
    for name in ids[num_gpus:]:
        kind = draw(OTHERS)
        devices.append(Device(name, kind, -1 if kind is DeviceKind.NETWORK else draw(st.integers(0, 2))))
    links = draw(st.lists(one_link(ids), max_size=8)) if len(ids) > 1 else []
    both = [link for a, b, mirrored in links for link in ([a, b] if mirrored else [a])]
    apart = {(link.src, link.dst, link.kind, link.alpha_us, link.gap_us): link for link in both}
    kinds = st.frozensets(OTHERS)
    return Topology(
        draw(WORDS),
        tuple(draw(st.permutations(devices))),
        tuple(apart.values()),
        draw(LINES),
        draw(st.one_of(st.just(DEFAULT_RELAY_THROUGH), kinds)),
        draw(st.one_of(st.just(DEFAULT_FALLBACK), kinds)),
    )


@st.composite
def one_link(draw: st.DrawFn, ids: list[str]) -> tuple[Link, Link, bool]:
    """A link, its mirror image, and whether both are wanted."""
    src, dst = draw(st.lists(st.sampled_from(ids), min_size=2, max_size=2, unique=True))
    kind = draw(st.sampled_from(["nvlink", "pcie", "direct"]))
    count = draw(st.integers(1, 20))
    rate = draw(st.floats(1e-3, 1e5)) * count
    figures = (kind, rate, draw(TIMES), draw(st.one_of(st.just(0.0), TIMES)), count)
    return Link(src, dst, *figures), Link(dst, src, *figures), draw(st.booleans())


@given(topologies())
def test_what_is_written_is_read_back_equal(topology: Topology) -> None:
    text = to_json(topology)
    read = parse_topology(text, "file.json")
    assert read == topology
    assert to_json(read) == text


def _entry(name: str) -> str:
    path = catalogue_file(name)
    assert path is not None
    return path.read_text(encoding="utf-8")


ENTRY = _entry("pcie4-lanes-1nic")
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=6,
)


def read_or_refuse(text: str) -> Topology | None:
    """The topology of a text; None where it is refused in one line."""
    refusal = ""
    try:
        return parse_any(text, "file.json")
    except InputError as error:
        refusal = str(error)
    assert refusal.startswith("file.json: ")
    assert "\n" not in refusal
    return None


@given(st.integers(0, len(ENTRY) - 3))
def test_a_file_cut_short_is_refused(length: int) -> None:
    assert read_or_refuse(ENTRY[:length]) is None


@given(st.integers(0, len(ENTRY)), st.integers(0, 5), st.text(max_size=4))
def test_a_file_with_a_scratch_is_read_or_refused(position: int, removed: int, inserted: str) -> None:
    read_or_refuse(ENTRY[:position] + inserted + ENTRY[position + removed :])


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    assert read_or_refuse(text) is None


@given(st.data())
def test_any_value_in_place_of_any_field_is_read_or_refused(data: st.DataObject) -> None:
    content = json.loads(ENTRY)
    holder: Any = content
    while True:
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        key = data.draw(st.sampled_from(keys))
        if not (isinstance(holder[key], dict | list) and holder[key] and data.draw(st.booleans())):
            break
        holder = holder[key]
    holder[key] = data.draw(VALUES)
    text = json.dumps(content)
    read = read_or_refuse(text)
    if read is not None:
        assert parse_topology(to_json(read).encode().decode(), "again") == read
