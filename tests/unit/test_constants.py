"""The table of protocol figures: which GPUs get which, and how the generations relate."""

from __future__ import annotations

from dataclasses import replace

import pytest

from synth.constants import IN_FLIGHT, PROTOCOLS, Constants, Generation, generation_of
from synth.inputs.load import load_topology
from synth.paths import PathKind
from synth.simulate import Simulator, read_calibration
from synth.topology import Topology
from tests import graphs
from tests.algos import ring_allreduce


def of_archs(*archs: str) -> Topology:
    ring = graphs.ring(len(archs), GBps=50.0)
    devices = tuple(replace(device, arch=arch) for device, arch in zip(ring.devices, archs, strict=True))
    return replace(ring, devices=devices)


@pytest.mark.parametrize(
    ("archs", "generation"),
    [
        (["sm_70"], Generation.VOLTA),
        (["sm_60", "sm_75"], Generation.VOLTA),
        (["", ""], Generation.VOLTA),
        (["sm_80"], Generation.AMPERE),
        (["sm_86", "sm_89"], Generation.AMPERE),
        (["sm_90"], Generation.HOPPER),
        (["sm_90a"], Generation.HOPPER),
        (["sm_100", "sm_103"], Generation.BLACKWELL),
        (["sm_120"], Generation.BLACKWELL),
        (["gfx90a"], Generation.AMD),
        (["gfx942"], Generation.AMD),
        (["sm_90", "sm_80", "sm_90"], Generation.AMPERE),
        (["sm_100", "", "sm_100"], Generation.VOLTA),
        (["quantum"], Generation.VOLTA),
    ],
    ids=str,
)
def test_the_slowest_gpu_decides(archs: list[str], generation: Generation) -> None:
    topology = of_archs(*archs)
    assert generation_of(topology) is generation
    assert Constants.for_topology(topology) == Constants.for_generation(generation)


@pytest.mark.parametrize(
    ("machine", "generation"),
    [
        ("dgx1", "Volta"),
        ("dgx-a100", "Ampere"),
        ("dgx-h100", "Hopper"),
        ("hgx-b200", "Blackwell"),
        ("mi250", "AMD"),
        ("mi300x", "AMD"),
    ],
)
def test_machines_of_the_catalogue_say_what_they_are(machine: str, generation: str) -> None:
    assert generation_of(load_topology(machine)) == generation


def test_without_a_word_about_the_gpus_figures_are_voltas() -> None:
    assert Constants() == Constants.for_generation(Generation.VOLTA)


@pytest.mark.parametrize("generation", Generation)
@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_figure_makes_sense(generation: Generation, name: str) -> None:
    constants = Constants.for_generation(generation)
    one, ll = constants.of(name), constants.ll
    assert one.in_flight == IN_FLIGHT[name]
    assert one.slices % one.slots == 0
    assert one.rate_GBps >= ll.rate_GBps
    assert one.wire >= ll.wire
    assert one.launch_us >= ll.launch_us
    assert [ll.hop_us(kind) for kind in PathKind] == [0, 0, 0]
    assert all(one.hop_us(kind) >= 0 for kind in PathKind)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_newer_nvidia_gpus_are_no_slower_but_for_amperes_trees(name: str) -> None:
    """NCCL's table has Ampere's tree channels at 24.0 GB/s and Volta's at 26.5."""
    rates = [Constants.for_generation(each).of(name).rate_GBps for each in Generation if each is not Generation.AMD]
    if name == "Simple":
        rates.remove(26.5)
    assert rates == sorted(rates)


def test_ll_of_all_channels_reaches_what_the_table_of_nccl_says() -> None:
    totals = {Generation.VOLTA: (12, 39.0), Generation.AMPERE: (24, 87.7), Generation.HOPPER: (24, 141.0)}
    for generation, (channels, total) in totals.items():
        assert Constants.for_generation(generation).ll.rate_GBps * channels == pytest.approx(total)


def test_the_simulator_takes_the_figures_of_the_gpus_and_a_calibration_on_top_of_them() -> None:
    algo = ring_allreduce(3)
    size = 96 << 20
    old, new = (of_archs(*[arch] * 3) for arch in ("sm_70", "sm_90"))
    assert Simulator(algo, new).time_us(size) < Simulator(algo, old).time_us(size)
    hopper = Constants.for_topology(new)
    assert Simulator(algo, new).time_us(size) == Simulator(algo, old, hopper).time_us(size)
    changed = read_calibration('{"Simple": {"launch_us": 1}}', "mine.json", hopper)
    saved_us = hopper.simple.launch_us - 1
    assert Simulator(algo, new, changed).time_us(size) == pytest.approx(Simulator(algo, new).time_us(size) - saved_us)
