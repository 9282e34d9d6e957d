"""The baselines on machines where their times are known, their shapes, and what they refuse."""

from __future__ import annotations

from collections import Counter

import pytest

from msccl_xml.model import StepType
from synth.baselines import BASELINES, BaselineOptions, Built, build
from synth.baselines.machine import Machine
from synth.baselines.tree import double_tree
from synth.collective import CollectiveName
from synth.errors import InputError, NoAnswerError
from synth.inputs.load import load_topology
from synth.lowering import Protocol, Runtime
from synth.paths import find_paths
from synth.topology import Topology, replicate
from synth.verify import verify_algo
from tests import graphs
from tests.unit.test_baseline_rings import directed_ring

ALLREDUCE, ALLGATHER = CollectiveName.ALLREDUCE, CollectiveName.ALLGATHER
REDUCE_SCATTER, ALLTOALL = CollectiveName.REDUCE_SCATTER, CollectiveName.ALLTOALL
BROADCAST, REDUCE = CollectiveName.BROADCAST, CollectiveName.REDUCE
#: 1 MB at 10 GB/s: 100 us.
SIZE = 1e6
WHOLE_US = 100.0


def time_us(
    name: str, topology: Topology, collective: CollectiveName, size: float = SIZE, chunks: int | None = None
) -> float:
    return judged(name, topology, collective, size, BaselineOptions(chunks=chunks)).schedule.makespan_us


def judged(
    name: str,
    topology: Topology,
    collective: CollectiveName,
    size: float = SIZE,
    options: BaselineOptions | None = None,
) -> Built:
    """The baseline, after the judge has seen its program."""
    options = options or BaselineOptions()
    built = build(name, topology, collective, size, options)
    verify_algo(built.algo, built.collective, runtime=options.runtime)
    return built


@pytest.mark.parametrize("count", [2, 3, 4, 7])
def test_rings_take_exactly_their_share_of_the_vector(count: int) -> None:
    share = (count - 1) / count * WHOLE_US
    one_way, both_ways = directed_ring(count), graphs.ring(count, alpha_us=0.0)
    rings = 2 if count > 2 else 1
    for topology, width in ((one_way, 1), (both_ways, rings), (graphs.star(count, alpha_us=0.0), 1)):
        assert time_us("ring", topology, ALLGATHER) == pytest.approx(share / width)
        assert time_us("ring", topology, REDUCE_SCATTER) == pytest.approx(share / width)
        assert time_us("ring", topology, ALLREDUCE) == pytest.approx(2 * share / width)


def test_every_hop_of_a_ring_costs_its_latency() -> None:
    assert time_us("ring", graphs.ring(6), ALLGATHER, size=1e-6) == pytest.approx(5 * graphs.ALPHA_US)
    assert time_us("ring", graphs.ring(6), ALLREDUCE, size=1e-6) == pytest.approx(10 * graphs.ALPHA_US)


def test_a_broadcast_around_a_ring_is_a_pipeline() -> None:
    star = graphs.star(4, alpha_us=0.0)
    for pieces in (1, 2, 8):
        # Two hops after the first, each one piece behind it.
        expected = (1 + 2 / pieces) * WHOLE_US
        assert time_us("ring", star, BROADCAST, chunks=pieces) == pytest.approx(expected)
        assert time_us("ring", star, REDUCE, chunks=pieces) == pytest.approx(expected)


def test_pieces_are_as_fine_as_the_size_wants() -> None:
    star = graphs.star(4)
    chunks = [judged("ring", star, BROADCAST, size).collective.chunks for size in (1e2, 1e5, 1e7)]
    assert chunks[0] == 1
    assert chunks == sorted(set(chunks))


@pytest.mark.parametrize("count", [2, 4, 8])
def test_halving_and_doubling_move_what_rings_move_in_fewer_steps(count: int) -> None:
    wide = graphs.star(count, alpha_us=0.0)
    assert time_us("halving-doubling", wide, ALLREDUCE) == pytest.approx(2 * (count - 1) / count * WHOLE_US)
    steps = count.bit_length() - 1
    slow = graphs.star(count)
    assert time_us("halving-doubling", slow, ALLGATHER, size=1e-6) == pytest.approx(steps * 2 * graphs.ALPHA_US)
    assert time_us("halving-doubling", slow, ALLREDUCE, size=1e-6) == pytest.approx(2 * steps * 2 * graphs.ALPHA_US)


def test_ranks_beyond_a_power_of_two_are_folded_for_allreduce() -> None:
    # One hop up to the partner, two steps of halving, two of doubling, one hop back.
    assert time_us("halving-doubling", graphs.full(6), ALLREDUCE, size=1e-6) == pytest.approx(6 * graphs.ALPHA_US)


def test_all_pairs_takes_one_step_a_shot() -> None:
    full = graphs.full(5)
    for collective, shots in ((ALLGATHER, 1), (REDUCE_SCATTER, 1), (ALLTOALL, 1), (ALLREDUCE, 2)):
        assert time_us("all-pairs", full, collective) == pytest.approx(shots * (graphs.ALPHA_US + WHOLE_US / 5))


def test_one_shot_moves_whole_vectors_in_one_step() -> None:
    assert time_us("one-shot", graphs.full(4), ALLREDUCE) == pytest.approx(graphs.ALPHA_US + WHOLE_US)
    assert time_us("one-shot", graphs.star(4, alpha_us=0.0), ALLREDUCE) == pytest.approx(3 * WHOLE_US)


@pytest.mark.parametrize("runtime", ["msccl", "executor", "rccl"])
@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize(("chunks", "instances"), [(1, 1), (3, 1), (2, 2)])
def test_one_shot_passes_the_judge(runtime: Runtime, inplace: bool, chunks: int, instances: int) -> None:
    protocols: tuple[Protocol, ...] = ("Simple", "LL")
    for protocol in protocols:
        options = BaselineOptions(chunks, protocol, runtime, inplace, instances)
        built = judged("one-shot", graphs.full(4), ALLREDUCE, options=options)
        assert built.collective.chunks == built.algo.nchunksperloop == chunks * instances
        assert built.algo.nchannels == instances
        added = sum(step.count for _, _, _, step in built.algo.steps() if step.type is StepType.REDUCE)
        assert added == 4 * 3 * chunks * instances


def test_gpus_beside_the_same_nics_use_one_each() -> None:
    topology = replicate(load_topology("dgx-a100"), 2)
    machine = Machine(topology, find_paths(topology))
    rails = Counter(link for rank in range(8) for link in machine.paths[machine.direct[rank, rank + 8]].links)
    assert set(rails.values()) == {1}
    turned = machine.reversed()
    assert all(turned.paths[path].src == src for (src, _), path in turned.direct.items())


def test_one_shot_spreads_many_peers_over_channels() -> None:
    built = judged("one-shot", graphs.star(36), ALLREDUCE, options=BaselineOptions(instances=2, max_threadblocks=72))
    assert built.algo.nchannels == 4


def test_hierarchical_crosses_the_network_once_a_share() -> None:
    box = graphs.full(4, GBps=1000.0, alpha_us=0.0)
    topology = graphs.two_boxes(box, range(4), GBps=10.0, alpha_us=0.0)
    within = WHOLE_US / 100
    # Each of eight ranks sends its eighth to the rail's other end, then both go to three GPUs of the box at once.
    assert time_us("hierarchical", topology, ALLGATHER) == pytest.approx(WHOLE_US / 8 + within / 8, rel=0.02)
    assert time_us("hierarchical", topology, REDUCE_SCATTER) == pytest.approx(WHOLE_US / 8 + within / 8, rel=0.02)
    assert time_us("hierarchical", topology, ALLREDUCE) == pytest.approx(WHOLE_US / 4 + within / 4, rel=0.02)
    # Half of the vector leaves each box, over four rails.
    assert time_us("hierarchical", topology, ALLTOALL) == pytest.approx(WHOLE_US / 2, rel=0.02)


def test_the_double_tree_uses_a_switch_both_ways() -> None:
    # Every rank but the roots gets each half once, and hands one of them on twice: the whole vector out, the whole in.
    assert time_us("tree", graphs.star(8, alpha_us=0.0), BROADCAST) < 1.5 * WHOLE_US
    assert time_us("tree", graphs.star(8), BROADCAST, size=1e-6) <= 4 * 2 * graphs.ALPHA_US + 1e-6


def test_the_double_tree_of_two_boxes_uses_every_nic() -> None:
    topology = graphs.two_boxes(graphs.full(4, GBps=100.0), range(4), GBps=10.0)
    # Four rails of 10 GB/s share the vector; 256 pieces at most let the chain in the box start late.
    assert time_us("tree", topology, BROADCAST, size=1e8) == pytest.approx(100 * WHOLE_US / 4, rel=0.2)
    assert time_us("tree", topology, REDUCE, size=1e8) == pytest.approx(100 * WHOLE_US / 4, rel=0.2)


def test_the_trees_of_eight_and_five_are_nccls() -> None:
    first, second = double_tree(8)
    assert first == [None, 2, 4, 2, 0, 6, 4, 6]
    assert second == [1, 3, 1, 7, 5, 3, 5, None]
    assert double_tree(5) == ([None, 2, 4, 2, 0], [1, None, 3, 0, 3])


@pytest.mark.parametrize("count", range(2, 40))
def test_the_two_trees_span_and_share_at_most_one_inner_rank(count: int) -> None:
    inner = []
    for parents in double_tree(count):
        children = Counter(parent for parent in parents if parent is not None)
        assert parents.count(None) == 1
        assert max(children.values()) <= 2
        for rank in range(count):
            above: int | None = rank
            for _ in range(count.bit_length() + 1):
                above = parents[above] if above is not None else None
            assert above is None
        inner.append(set(children))
    assert len(inner[0] & inner[1]) <= count % 2 or count == 2


@pytest.mark.parametrize(
    ("name", "topology", "collective", "reason"),
    [
        ("ring", graphs.line(4), ALLREDUCE, "no ring visits every GPU of line4 once"),
        ("ring", graphs.ring(4), ALLTOALL, "ring: no alltoall, expected one of allreduce"),
        ("tree", graphs.ring(4), ALLGATHER, "tree: no allgather"),
        ("halving-doubling", graphs.ring(6), ALLGATHER, "ring6 has 6 ranks, expected a power of two for allgather"),
        ("hierarchical", graphs.ring(4), ALLGATHER, "ring4 is one node, expected two or more"),
        ("one-shot", graphs.ring(4), ALLREDUCE, "ranks 0 and 2 of ring4 are not joined directly"),
        ("all-pairs", Topology("alone", tuple(graphs.gpus(1)), ()), ALLGATHER, "alone has 1 GPU, expected 2 or more"),
    ],
)
def test_what_does_not_exist_is_refused_with_the_reason(
    name: str, topology: Topology, collective: CollectiveName, reason: str
) -> None:
    with pytest.raises(NoAnswerError, match=reason):
        build(name, topology, collective, SIZE)


@pytest.mark.parametrize(("name", "threadblocks"), [("ring", 1), ("all-pairs", 2), ("one-shot", 3)])
def test_limits_that_are_too_tight_are_named(name: str, threadblocks: int) -> None:
    with pytest.raises(NoAnswerError, match="--max-threadblocks"):
        build(name, graphs.full(4), ALLREDUCE, SIZE, BaselineOptions(max_threadblocks=threadblocks))


def test_nodes_of_different_sizes_have_no_rails() -> None:
    boxes = graphs.two_boxes(graphs.full(3), range(3))
    gone = {"gpu5", "nic5"}
    smaller = Topology(
        "uneven",
        tuple(device for device in boxes.devices if device.id not in gone),
        tuple(link for link in boxes.links if not {link.src, link.dst} & gone),
    )
    with pytest.raises(NoAnswerError, match="the nodes of uneven have 2 and 3 GPUs, expected equal nodes"):
        build("hierarchical", smaller, ALLGATHER, SIZE)


def test_an_unknown_name_or_option_is_an_input_error() -> None:
    with pytest.raises(InputError, match="expected one of ring, tree, "):
        build("bruck", graphs.ring(4), ALLGATHER, SIZE)
    with pytest.raises(InputError, match="--chunks"):
        BaselineOptions(chunks=0)
    with pytest.raises(InputError, match="--in-place"):
        build("all-pairs", graphs.full(3), ALLTOALL, SIZE, BaselineOptions(inplace=True))
    with pytest.raises(InputError, match="--root"):
        build("ring", graphs.ring(3), BROADCAST, SIZE, BaselineOptions(root=3))


def test_a_baseline_is_the_same_every_time() -> None:
    for name in ("ring", "tree", "all-pairs"):
        assert build(name, graphs.dgx1(), ALLREDUCE, SIZE) == build(name, graphs.dgx1(), ALLREDUCE, SIZE)


def test_every_baseline_is_named_as_it_is_listed() -> None:
    assert all(name == baseline.name for name, baseline in BASELINES.items())
    assert set(BASELINES) >= {"ring", "tree", "halving-doubling", "all-pairs", "one-shot", "hierarchical"}
