"""Calibration files: what they change, and what is refused."""

from __future__ import annotations

import json

import pytest

from synth.errors import InputError
from synth.simulate import Constants, Simulator, read_calibration
from tests import graphs
from tests.algos import ring_allreduce


def test_what_a_file_does_not_say_stays() -> None:
    changed = read_calibration('{"LL": {"rate_GBps": 9, "step_us": 0}, "Simple": {}}', "mine.json")
    assert (changed.ll.rate_GBps, changed.ll.step_us) == (9, 0)
    assert changed.simple == Constants().simple
    assert changed.ll.tile_bytes == Constants().ll.tile_bytes


def test_a_calibration_changes_times() -> None:
    slow = read_calibration('{"Simple": {"rate_GBps": 1.0}}', "mine.json")
    algo, topology = ring_allreduce(4), graphs.ring(4)
    quick_us = Simulator(algo, topology).time_us(64 << 20)
    assert Simulator(algo, topology, slow).time_us(64 << 20) > 5 * quick_us


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "mine.json: line 1"),
        ("[]", "an object of protocols"),
        ('{"simple": {}}', "mine.json: simple: .*an object under one of Simple, LL, LL128"),
        ('{"LL": 3}', "mine.json: LL: 3"),
        ('{"LL": {"rate": 3}}', "LL.rate: 3, expected one of tile_bytes"),
        ('{"LL": {"rate_GBps": "3"}}', "LL.rate_GBps"),
        ('{"LL": {"rate_GBps": true}}', "LL.rate_GBps"),
        ('{"LL": {"rate_GBps": NaN}}', "LL.rate_GBps"),
        ('{"LL": {"rate_GBps": 1e999}}', "LL.rate_GBps"),
        ('{"LL": {"rate_GBps": 0}}', "LL.rate_GBps: 0, expected a number above 0"),
        ('{"LL": {"step_us": -1}}', "LL.step_us"),
        ('{"LL": {"tile_bytes": 1.5}}', "LL.tile_bytes: 1.5, expected a whole number"),
        ('{"LL": {"wire": 1.5}}', "LL.wire: 1.5, expected at most 1"),
        ('{"Simple": {"slices": 3}}', "Simple.slices: 3, expected a multiple of slots, 2"),
        ('{"Simple": {"in_flight": 1000000000}}', "Simple.in_flight: 1000000000, expected at most 1024"),
    ],
)
def test_what_is_wrong_is_named(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_calibration(text, "mine.json")


def test_every_field_can_be_set() -> None:
    from dataclasses import asdict

    table = {name: asdict(Constants().of(name)) for name in ("Simple", "LL", "LL128")}
    assert read_calibration(json.dumps(table), "mine.json") == Constants()
