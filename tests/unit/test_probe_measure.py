"""Alpha and beta from timed copies: the fit, who copies together, and what it says of links, with a machine that is a formula."""

from __future__ import annotations

import builtins
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synth.constants import Constants
from synth.errors import SynthError
from synth.inputs.load import load_topology
from synth.paths import Path, find_paths
from synth.probe.measure import SIZES, Fit, Measurement, Pair, Together, fit, lines_of, measure, sharing
from synth.probe.measured import calibration_text, with_measured
from synth.probe.torch_timer import TorchTimer
from synth.simulate.calibration import read_calibration
from synth.topology import Device, DeviceKind, Link, Topology, restrict
from synth.units import transfer_us

LAUNCH_US = 2.5


@dataclass(frozen=True)
class FormulaTimer:
    """A machine whose copies take exactly what `truth` says: a launch, all alphas, and an equal share of the fullest link."""

    truth: Topology

    @cached_property
    def ways(self) -> dict[Pair, Path]:
        return {(path.src, path.dst): path for path in find_paths(self.truth)}

    def copy_us(self, pairs: Sequence[Pair], size_bytes: int) -> tuple[float, ...]:
        ways = self.ways
        load: dict[int, int] = {}
        for pair in pairs:
            for link in ways[pair].links if pair in ways else ():
                load[link] = load.get(link, 0) + 1
        return tuple(self._one(ways.get(pair), load, size_bytes) for pair in pairs)

    def _one(self, path: Path | None, load: dict[int, int], size_bytes: int) -> float:
        if path is None:
            return LAUNCH_US + transfer_us(size_bytes, 1000.0)
        rate = min(self.truth.links[link].GBps / load[link] for link in path.links)
        return float(LAUNCH_US + path.alpha_us + transfer_us(size_bytes, rate))


def scaled(topology: Topology, factor: dict[tuple[str, str], float], alpha: float = 1.0) -> Topology:
    """The topology with other rates, by (kind of source, kind of target) or by (id, id), and alphas."""
    by_id = topology.by_id

    def real(link: Link) -> Link:
        ends = (str(by_id[link.src].kind), str(by_id[link.dst].kind))
        share = factor.get((link.src, link.dst), factor.get(ends, 1.0))
        return replace(link, GBps=link.GBps * share, alpha_us=link.alpha_us * alpha)

    return replace(topology, links=tuple(real(link) for link in topology.links))


@given(st.floats(0.0, 50.0), st.floats(0.5, 900.0))
def test_the_fit_finds_the_line(alpha: float, rate: float) -> None:
    found = fit([(size, alpha + transfer_us(size, rate)) for size in SIZES])
    assert found.alpha_us == pytest.approx(alpha, rel=1e-6, abs=1e-6)
    assert found.GBps == pytest.approx(rate, rel=1e-6)
    assert found.off < 1e-6


@given(st.lists(st.floats(-0.05, 0.05), min_size=len(SIZES), max_size=len(SIZES)))
def test_noise_moves_the_fit_no_more_than_itself(noise: list[float]) -> None:
    samples = [(size, (5.0 + transfer_us(size, 40.0)) * (1 + off)) for size, off in zip(SIZES, noise, strict=True)]
    found = fit(samples)
    assert found.GBps == pytest.approx(40.0, rel=0.2)
    assert found.alpha_us == pytest.approx(5.0, rel=0.2)
    assert found.off <= 0.25


def test_small_copies_count_as_much_as_large_ones() -> None:
    """Without weights, an error of 1 % of the largest copy would be worth a hundred times the latency."""
    samples = [(size, (2.0 + transfer_us(size, 20.0)) * (1.01 if size == SIZES[-1] else 1.0)) for size in SIZES]
    assert fit(samples).alpha_us == pytest.approx(2.0, rel=0.02)


def test_a_line_does_not_begin_below_zero() -> None:
    found = fit([(1000, 1.0), (2000, 3.0), (4000, 8.0)])
    assert found.alpha_us == 0.0
    assert 0.5 < found.GBps < 1.0


@pytest.mark.parametrize(
    "samples",
    [[], [(1000, 1.0)], [(1000, 1.0), (1000, 2.0)], [(1000, 9.0), (9_000_000, 1.0)], [(1000, 0.0), (2000, 1.0)]],
)
def test_times_that_make_no_sense(samples: list[tuple[int, float]]) -> None:
    with pytest.raises(SynthError, match="measuring"):
        fit(samples)


def switches(count: int) -> Topology:
    """Two GPUs on each of some switches, the switches joined by a CPU: each uplink is shared by the pairs across."""
    gpus = [Device(f"gpu{rank}", DeviceKind.GPU, rank=rank, arch="sm_80") for rank in range(2 * count)]
    plx = [Device(f"plx{number}", DeviceKind.PCIE_SWITCH) for number in range(count)]
    ends = [(gpu.id, f"plx{rank // 2}") for rank, gpu in enumerate(gpus)] + [(switch.id, "cpu0") for switch in plx]
    links = [Link(a, b, "pcie", 24.0, 0.5) for pair in ends for a, b in (pair, pair[::-1])]
    return Topology("switches", (*gpus, *plx, Device("cpu0", DeviceKind.CPU)), tuple(links))


def test_pairs_that_share_an_uplink_copy_together() -> None:
    sets = sharing(find_paths(switches(2)))
    assert ((0, 2), (1, 3)) in sets
    assert ((2, 0), (3, 1)) in sets
    assert all(len(set(pairs)) == len(pairs) > 1 for pairs in sets)
    assert len(set(sets)) == len(sets)


def test_links_of_one_pair_need_no_company() -> None:
    assert sharing(find_paths(load_topology("dgx1"))) == ()


def test_measured_figures_are_those_of_the_machine() -> None:
    described = switches(3)
    truth = scaled(
        described, {("gpu", "pcie-switch"): 0.9, ("pcie-switch", "gpu"): 0.9, ("plx0", "cpu0"): 0.5}, alpha=3.0
    )
    told: list[str] = []
    measurement = measure(FormulaTimer(truth), described, told.append)
    assert len(told) == 6 + 30 + len(measurement.together)
    found = with_measured(described, measurement)
    rates = {(link.src, link.dst): link.GBps for link in found.topology.links}
    assert rates["gpu0", "plx0"] == pytest.approx(21.6, rel=1e-3)
    assert rates["plx0", "cpu0"] == pytest.approx(12.0, rel=1e-3)
    assert rates["plx1", "cpu0"] == pytest.approx(24.0, rel=1e-3)
    assert [link.alpha_us for link in found.topology.links] == pytest.approx([1.5] * 18, rel=1e-3)
    (doubt,) = found.doubts
    assert doubt.where == "plx0 -> cpu0"
    assert "12 GB/s measured where 24 are expected" in doubt.what
    assert doubt.cost == "12 of 24 GB/s"
    assert "measured: peer copies" in found.topology.about


def test_links_that_are_only_crossed_together_are_doubted_together() -> None:
    described = switches(2)
    truth = scaled(described, {("plx0", "cpu0"): 0.5})
    found = with_measured(described, measure(FormulaTimer(truth), described, lambda _what: None))
    assert [doubt.where for doubt in found.doubts] == ["plx0 -> cpu0", "cpu0 -> plx1"]


@pytest.mark.parametrize("name", ["dgx1", "dgx-a100", "mi300x", "pcie-2x2-nvlink"])
def test_a_machine_as_described_stays_as_it_is(name: str) -> None:
    described = load_topology(name)
    measurement = measure(FormulaTimer(described), described, lambda _what: None)
    found = with_measured(described, measurement)
    assert found.doubts == ()
    for old, new in zip(described.links, found.topology.links, strict=True):
        assert new.GBps == pytest.approx(old.GBps, rel=1e-3)
        assert new.alpha_us == pytest.approx(old.alpha_us, rel=1e-3)


def test_a_slow_nvlink_is_found_on_a_mesh() -> None:
    described = load_topology("dgx1")
    truth = scaled(described, {("gpu0", "gpu3"): 0.5})
    found = with_measured(described, measure(FormulaTimer(truth), described, lambda _what: None))
    assert [doubt.where for doubt in found.doubts] == ["gpu0 -> gpu3"]
    assert next(link.GBps for link in found.topology.links if (link.src, link.dst) == ("gpu0", "gpu3")) == 22.0


def test_a_slow_port_of_an_nvswitch_is_that_of_one_gpu() -> None:
    described = load_topology("dgx-a100")
    truth = scaled(described, {("gpu5", "nvswitch0"): 0.5})
    found = with_measured(described, measure(FormulaTimer(truth), described, lambda _what: None))
    assert [doubt.where for doubt in found.doubts] == ["gpu5 -> nvswitch0"]


def test_one_gpu_has_only_its_own_copies() -> None:
    topology = restrict(load_topology("dgx1"), [0])
    measurement = measure(FormulaTimer(topology), topology, lambda _what: None)
    assert len(measurement.local) == 1
    assert measurement.alone == {}
    found = with_measured(topology, measurement)
    assert found.topology.links == topology.links
    assert calibration_text(topology, measurement) == "{}\n"


def test_a_pair_quicker_than_a_local_copy_has_no_negative_alpha() -> None:
    measurement = Measurement((Fit(5.0, 1000.0, 0.0),) * 2, {(0, 1): Fit(3.0, 20.0, 0.0)})
    assert measurement.alpha_us((0, 1)) == 0.0


def test_the_calibration_caps_threadblocks_at_what_the_links_carry() -> None:
    described = switches(3)
    slow = scaled(described, {("gpu", "pcie-switch"): 0.25, ("pcie-switch", "gpu"): 0.25})
    text = calibration_text(described, measure(FormulaTimer(slow), described, lambda _what: None))
    base = Constants.for_topology(described)
    read = read_calibration(text, "cal.json", base)
    assert read.simple.rate_GBps == pytest.approx(6.0, rel=1e-3)
    assert read.ll128.rate_GBps == pytest.approx(6.0 * base.ll128.wire, rel=1e-3)
    assert read.ll.rate_GBps == pytest.approx(min(base.ll.rate_GBps, 3.0), rel=1e-3)
    assert read.simple.nvlink_us == base.simple.nvlink_us
    fast = calibration_text(described, measure(FormulaTimer(scaled(described, {}, 1.0)), described, lambda _what: None))
    assert json.loads(fast).keys() <= {"Simple"}


def test_what_was_measured_is_told() -> None:
    measurement = Measurement(
        (Fit(2.0, 900.0, 0.0),) * 2, {(0, 1): Fit(4.0, 20.0, 0.034)}, (Together(((0, 1), (1, 0)), (10.0, 9.0)),)
    )
    lines = lines_of(measurement)
    assert lines[0] == "gpu0: copies within it 900.0 GB/s, 2.00 us to launch"
    assert lines[2] == "gpu0 -> gpu1: 20.0 GB/s, 2.00 us beside launch (fits within 3%)"
    assert lines[3] == "at once, 64MB: 0->1, 1->0: 19.0 GB/s together"


class FakeTorch:
    """As much of torch as the timer uses: a copy takes 2 us and 1 us per 1000 bytes, the first of all rounds ten times that."""

    def __init__(self, gpus: int = 2) -> None:
        self.gpus = gpus
        self.clock_us = 0.0
        self.current: list[Any] = []
        self.copies: list[tuple[int, int, int]] = []
        self.slept = 0
        self.full = False
        self.cuda = SimpleNamespace(
            is_available=lambda: self.gpus > 0,
            device_count=lambda: self.gpus,
            Stream=lambda device: SimpleNamespace(device=device),
            Event=lambda enable_timing: self.Event(self),
            stream=self.on,
            device=self.on,
            synchronize=lambda device: None,
            _sleep=lambda cycles: setattr(self, "slept", self.slept + 1),
        )

    uint8 = "uint8"

    def device(self, _kind: str, rank: int) -> int:
        return rank

    def zeros(self, size: int, dtype: str, device: int) -> Any:
        if self.full:
            raise RuntimeError("CUDA out of memory.\nTried to allocate")
        return SimpleNamespace(size=size, device=device, copy_=lambda source, non_blocking: self.copy(source, device))

    empty = zeros

    def copy(self, source: Any, target: int) -> None:
        assert {source.device, target} <= {place.device for place in self.current}
        slow = 10 if len(self.copies) < 4 else 1
        self.copies.append((source.device, target, source.size))
        self.clock_us += slow * (2 + source.size / 1000)

    @contextmanager
    def on(self, place: Any) -> Iterator[None]:
        self.current.append(place)
        yield
        self.current.pop()

    class Event:
        def __init__(self, torch: FakeTorch) -> None:
            self.torch = torch

        def record(self, stream: Any) -> None:
            self.at_us = self.torch.clock_us

        def synchronize(self) -> None:
            return None

        def elapsed_time(self, other: FakeTorch.Event) -> float:
            return (other.at_us - self.at_us) / 1e3


@pytest.fixture
def fake_torch(monkeypatch: pytest.MonkeyPatch) -> FakeTorch:
    fake = FakeTorch()
    monkeypatch.setitem(sys.modules, "torch", cast(ModuleType, fake))
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    return fake


def test_the_torch_timer_takes_the_median_of_warm_rounds(fake_torch: FakeTorch) -> None:
    timer = TorchTimer(2)
    (found,) = timer.copy_us([(0, 1)], 64 << 20)
    assert found == pytest.approx(2 + (64 << 20) / 1000)
    assert fake_torch.copies == [(0, 1, 64 << 20)] * 4 * 6
    assert fake_torch.slept == 6
    assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_the_torch_timer_copies_small_buffers_more_often(fake_torch: FakeTorch) -> None:
    (found,) = TorchTimer(2).copy_us([(1, 1)], 4096)
    assert found == pytest.approx(2 + 4.096)
    assert len(fake_torch.copies) == 50 * 6


def test_the_torch_timer_says_what_is_wrong(fake_torch: FakeTorch) -> None:
    with pytest.raises(SynthError, match="torch sees 2 GPUs and the probe 8: unset CUDA_VISIBLE_DEVICES"):
        TorchTimer(8)
    timer = TorchTimer(2)
    fake_torch.full = True
    with pytest.raises(SynthError, match="CUDA out of memory") as caught:
        timer.copy_us([(0, 1)], 4096)
    assert "\n" not in str(caught.value)
    fake_torch.gpus = 0
    with pytest.raises(SynthError, match="torch sees no GPU"):
        TorchTimer(2)


def test_without_torch_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name == "torch":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    with pytest.raises(SynthError, match="torch is not installed"):
        TorchTimer(8)
