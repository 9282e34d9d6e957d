"""Channels: as many as bandwidth asks for and threadblocks allow, and none shared where that would break connections."""

from __future__ import annotations

import sys
from collections import Counter

import pytest

from msccl_xml.model import Algo
from synth.build import build_instance
from synth.collective import Collective, CollectiveName
from synth.errors import NoAnswerError
from synth.inputs.load import load_topology
from synth.ir import Message
from synth.lowering import LoweringOptions, lower, lowered_collective
from synth.lowering.channels import channels_per_path, map_channels
from synth.paths import find_paths
from synth.timing import retime
from synth.topology import Device, DeviceKind, Topology, replicate
from synth.verify import verify_algo
from tests import graphs
from tests.schedules import direct_schedule, tree_schedule


def _threadblocks(algo: Algo) -> int:
    return max(len(gpu.threadblocks) for gpu in algo.gpus)


def _steps(algo: Algo) -> int:
    return max(len(tb.steps) for gpu in algo.gpus for tb in gpu.threadblocks)


def test_a_wide_path_gets_several_channels_and_a_shared_port_one_for_each_peer() -> None:
    wide = graphs.instance_of(graphs.ring(2, GBps=125.0), "broadcast", 20, root=0)
    assert set(channels_per_path(wide, tree_schedule(wide), LoweringOptions()).values()) == {5}
    halved = LoweringOptions(instances=2)
    assert set(channels_per_path(wide, tree_schedule(wide), halved).values()) == {3}
    shared = graphs.instance_of(graphs.star(8, GBps=150.0), "allgather", 4)
    assert set(channels_per_path(shared, direct_schedule(shared), LoweringOptions()).values()) == {1}


def test_a_path_that_carries_one_chunk_has_one_channel() -> None:
    single = graphs.instance_of(graphs.ring(2, GBps=125.0), "broadcast", 1, root=0)
    assert set(channels_per_path(single, tree_schedule(single), LoweringOptions()).values()) == {1}


def test_one_long_message_is_cut_over_the_channels() -> None:
    instance = graphs.instance_of(graphs.ring(2, GBps=88.0), "broadcast", 8, root=0)
    algo = lower(instance, tree_schedule(instance, together=True), LoweringOptions(inplace=True))
    verify_algo(algo, instance.collective)
    assert algo.nchannels == 4
    assert {step.count for _, _, _, step in algo.steps()} == {2}


def test_equal_paths_have_channels_of_their_own() -> None:
    links = [
        *graphs.both_ways("gpu0", "left"),
        *graphs.both_ways("left", "gpu1"),
        *graphs.both_ways("gpu0", "right"),
        *graphs.both_ways("right", "gpu1"),
    ]
    switches = (Device("left", DeviceKind.NVSWITCH), Device("right", DeviceKind.NVSWITCH))
    instance = graphs.instance_of(Topology("pair", (*graphs.gpus(2), *switches), tuple(links)), "allgather", 2)
    twins = [path.index for path in find_paths(instance.topology) if path.src == 0]
    assert len(twins) == 2
    channels = map_channels(instance, {twins[0]: 2, twins[1]: 1}, 31).channels
    assert not set(channels[twins[0]]) & set(channels[twins[1]])
    assert sorted([*channels[twins[0]], *channels[twins[1]]]) == [0, 1, 2]


def test_no_channel_has_more_peers_than_its_tables_hold() -> None:
    instance = graphs.instance_of(graphs.full(35), "alltoall", 1)
    algo = lower(instance, direct_schedule(instance), LoweringOptions(max_threadblocks=80))
    verify_algo(algo, instance.collective)
    for gpu in algo.gpus:
        assert max(Counter(tb.channel for tb in gpu.threadblocks if tb.send >= 0).values()) <= 31
    packed = lower(instance, direct_schedule(instance), LoweringOptions(max_threadblocks=40))
    verify_algo(packed, instance.collective)
    assert _threadblocks(packed) <= 40


def test_threadblocks_with_too_many_steps_get_more_channels() -> None:
    instance = graphs.instance_of(graphs.ring(2), "broadcast", 150, root=0)
    algo = lower(instance, tree_schedule(instance), LoweringOptions(runtime="executor", channels=1))
    verify_algo(algo, instance.collective, runtime="executor")
    assert _steps(algo) <= 64
    assert algo.nchannels >= 3
    few = lower(instance, tree_schedule(instance), LoweringOptions(channels=1, max_threadblocks=3))
    verify_algo(few, instance.collective)
    assert 64 < _steps(few) <= 256


@pytest.mark.parametrize(
    ("chunks", "slots", "channels"),
    [
        (150, 1.25, 2),
        (150, 0.9, 1),
        # As few steps as all runtimes load.
        (100, 0.9, 2),
        # More than this one loads.
        (300, 0.9, 2),
    ],
)
def test_more_threadblocks_that_hardly_save_steps_are_not_taken(
    chunks: int, slots: float, channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lowering = sys.modules[lower.__module__]
    monkeypatch.setattr(lowering, "_MORE_SLOTS", slots)
    monkeypatch.setattr(lowering, "channels_foreseen", channels_per_path)
    monkeypatch.setattr(lowering, "_more_channels", lambda _, draft: dict.fromkeys(draft.parallel, 2))
    instance = graphs.instance_of(graphs.ring(2), "broadcast", chunks, root=0)
    algo = lower(instance, tree_schedule(instance), LoweringOptions(channels=1, inplace=True))
    verify_algo(algo, instance.collective)
    assert (algo.nchannels, _steps(algo)) == (channels, chunks // channels)


@pytest.mark.parametrize(
    ("collective", "threadblocks", "channels", "drafts", "of_long_ones"),
    [
        # Four channels for the steps have 28 threadblocks, of which four copy; they might be 16 if all were shared.
        ("allgather", 28, 4, 1, 1),
        ("allgather", 24, 3, 2, 1),
        ("allgather", 20, 2, 2, 1),
        # Nothing is copied.
        ("reduce-scatter", 24, 4, 1, 1),
        ("reduce-scatter", 20, 3, 2, 1),
    ],
)
def test_where_receives_and_sends_do_not_share_there_are_as_many_channels_as_threadblocks_allow(
    collective: str,
    threadblocks: int,
    channels: int,
    drafts: int,
    of_long_ones: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A draft that is long to make is not tried if nothing but sharing would make it fit."""
    lowering = sys.modules[lower.__module__]
    new, made = lowering._new_draft, []
    monkeypatch.setattr(lowering, "_new_draft", lambda *each: made.append(each) or new(*each))
    instance = graphs.instance_of(graphs.full(4), collective, 200)
    schedule = tree_schedule(instance)
    options = LoweringOptions(max_threadblocks=threadblocks)
    algo = lower(instance, schedule, options)
    verify_algo(algo, instance.collective)
    assert (algo.nchannels, _threadblocks(algo) <= threadblocks, len(made)) == (channels, True, drafts)
    made.clear()
    monkeypatch.setattr(lowering, "_MANY_SENDS", len(schedule.sends))
    assert lower(instance, schedule, options) == algo
    assert len(made) == of_long_ones


def test_around_a_ring_receives_and_sends_may_share_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    lowering = sys.modules[lower.__module__]
    new, made = lowering._new_draft, []
    monkeypatch.setattr(lowering, "_new_draft", lambda *each: made.append(each) or new(*each))
    monkeypatch.setattr(lowering, "_MANY_SENDS", 1)
    instance = graphs.instance_of(graphs.ring(4), "allgather", 100)
    over = {(path.src, path.dst): path.index for path in instance.paths}
    hops = [
        Message((chunk,), over[(chunk // 100 + hop) % 4, (chunk // 100 + hop + 1) % 4])
        for hop in range(3)
        for chunk in range(400)
    ]
    schedule = retime(instance, hops)
    algo = lower(instance, schedule, LoweringOptions(max_threadblocks=8))
    verify_algo(algo, instance.collective)
    assert len(made) == 2
    # One channel for each connection would have more steps than the runtime loads, and there is no room for as few as all want.
    tight = lower(instance, schedule, LoweringOptions(max_threadblocks=4, inplace=True))
    verify_algo(tight, instance.collective)
    assert (tight.nchannels, _threadblocks(tight), _steps(tight)) == (2, 4, 150)


def test_instances_run_on_channels_of_their_own() -> None:
    instance = graphs.instance_of(graphs.ring(4), "allgather", 2)
    one = lower(instance, tree_schedule(instance), LoweringOptions())
    chosen = LoweringOptions(instances=3)
    three = lower(instance, tree_schedule(instance), chosen)
    verify_algo(three, lowered_collective(instance.collective, chosen))
    assert three.nchunksperloop == 3 * one.nchunksperloop
    assert three.nchannels == 3 * one.nchannels
    assert _threadblocks(three) == 3 * _threadblocks(one)


def test_fewer_channels_before_giving_up() -> None:
    instance = graphs.instance_of(graphs.full(4, GBps=100.0), "allgather", 8)
    schedule = direct_schedule(instance)
    assert lower(instance, schedule, LoweringOptions()).nchannels > 1
    tight = lower(instance, schedule, LoweringOptions(max_threadblocks=7))
    assert (tight.nchannels, _threadblocks(tight)) == (1, 7)
    verify_algo(tight, instance.collective)
    with pytest.raises(NoAnswerError, match="--max-threadblocks: the schedule needs 4 on a gpu, 3 are allowed"):
        lower(instance, schedule, LoweringOptions(max_threadblocks=3))


def test_limits_say_what_to_relax() -> None:
    instance = graphs.instance_of(graphs.ring(2), "broadcast", 300, root=0)
    with pytest.raises(NoAnswerError, match="beyond what msccl takes: .* steps"):
        lower(instance, tree_schedule(instance), LoweringOptions(channels=1, max_threadblocks=2))
    crowded = graphs.instance_of(graphs.full(34), "broadcast", 1, root=0)
    with pytest.raises(NoAnswerError, match="--instances: 20 with 2 channels each, expected at most 32 channels"):
        lower(crowded, direct_schedule(crowded), LoweringOptions(instances=20))


def test_equal_paths_get_the_channels_on_which_a_runtime_takes_them() -> None:
    topology = replicate(load_topology("dgx-a100"), 2)
    instance = build_instance(topology, Collective(CollectiveName.ALLGATHER, 16, 16), 1 << 20)
    shared = [path for path in instance.paths if path.variants > 1]
    assert {path.variants for path in shared} == {4}
    numbering = map_channels(instance, {path.index: 2 for path in shared}, 31)
    for path in shared:
        assert [channel % 4 for channel in numbering.channels[path.index]] == [path.variant] * 2
    assert numbering.width % 4 == 0
