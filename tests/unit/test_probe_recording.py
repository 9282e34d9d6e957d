"""Recordings as JSON: every one of ours comes back the same, and a broken one is refused by file and field."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synth.errors import InputError, SynthError
from synth.probe.build import build_topology
from synth.probe.codec import parse_recording, to_json
from synth.probe.recording import Gpu, NvLink, Pair, PciDevice, Recording
from tests.probe_machines import DATA

RECORDINGS = sorted(DATA.glob("*.json"))


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_ours_come_back_the_same(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert to_json(parse_recording(text, path.name)) == text


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_ours_tell_no_names(path: Path) -> None:
    text = path.read_text(encoding="utf-8").lower()
    assert not re.search(r"uuid|guid|serial|host(?!bridge)|([0-9a-f]{2}:){5}|gpu-[0-9a-f]{8}", text)


words = st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=12)
gpus = st.builds(
    Gpu,
    index=st.integers(0, 99),
    busid=words,
    name=words,
    mig=st.booleans(),
    nvlinks=st.lists(st.builds(NvLink, st.integers(0, 35), words), max_size=3).map(tuple),
)
recordings = st.builds(
    Recording,
    source=words,
    gpus=st.lists(gpus, max_size=3).map(tuple),
    pairs=st.lists(st.builds(Pair, st.integers(0, 9), st.integers(0, 9), words), max_size=3).map(tuple),
    pci=st.lists(st.builds(PciDevice, words, numa=st.integers(-1, 9), speed=st.floats(0, 64)), max_size=3).map(tuple),
    lost=st.lists(words, max_size=2).map(tuple),
)


@given(recordings)
def test_any_recording_comes_back(recording: Recording) -> None:
    assert parse_recording(to_json(recording), "x.json") == recording


@pytest.mark.parametrize(
    ("document", "field", "value"),
    [
        ({"format": 2}, "format", "2"),
        ({}, "format", "missing"),
        ({"format": 1, "gpu": []}, "key", "'gpu'"),
        ({"format": 1, "gpus": {}}, "gpus", "{}"),
        ({"format": 1, "gpus": [7]}, "gpus[0]", "7"),
        ({"format": 1, "gpus": [{"busid": "x"}]}, "gpus[0].index", "missing"),
        ({"format": 1, "gpus": [{"index": 0}]}, "gpus[0].busid", "missing"),
        ({"format": 1, "gpus": [{"index": 0, "busid": "x", "mig": 1}]}, "gpus[0].mig", "1"),
        ({"format": 1, "gpus": [{"index": 0, "busid": 5}]}, "gpus[0].busid", "5"),
        ({"format": 1, "gpus": [{"index": True, "busid": "x"}]}, "gpus[0].index", "True"),
        (
            {"format": 1, "gpus": [{"index": 0, "busid": "x", "nvlinks": [{"number": 0, "state": 1}]}]},
            "nvlinks[0].state",
            "1",
        ),
        ({"format": 1, "gpus": [{"index": 0, "busid": "x", "fabric": []}]}, "gpus[0].fabric", "[]"),
        ({"format": 1, "gpus": [{"index": 0, "busid": "x", "pcie_width": -1}]}, "gpus[0].pcie_width", "-1"),
        ({"format": 1, "lost": ["a", 3]}, "lost[1]", "3"),
        ({"format": 1, "pci": [{"busid": "x", "speed": "fast"}]}, "pci[0].speed", "'fast'"),
    ],
)
def test_errors_name_file_field_and_value(document: dict[str, Any], field: str, value: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_recording(json.dumps(document), "rec.json")
    assert str(caught.value).startswith("rec.json: ")
    assert field in str(caught.value)
    assert value in str(caught.value)


SMALL = (DATA / "a100-pcie-bridged-pairs.json").read_text(encoding="utf-8")


@given(st.integers(0, len(SMALL)), st.integers(0, 40), st.sampled_from(["", "0", '"', "}", "[", "-", "null", "9" * 40]))
def test_broken_text_ends_in_one_line(position: int, cut: int, put: str) -> None:
    text = SMALL[:position] + put + SMALL[position + cut :]
    caught: SynthError | None = None
    try:
        topology = build_topology(parse_recording(text, "rec.json")).topology
    except SynthError as error:
        caught = error
    else:
        assert all(link.GBps > 0 for link in topology.links)
    assert caught is None or (caught.exit_code == 1 and "\n" not in str(caught))


@pytest.mark.parametrize("text", ["", "[]", "{", "\x00", '{"format": 1, "format": 1}', "[" * 100_000])
def test_what_is_no_recording(text: str) -> None:
    with pytest.raises(InputError):
        parse_recording(text, "rec.json")
