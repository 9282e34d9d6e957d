"""Max-min fair sharing, by hand and by what defines it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synth.simulate.fluid import Fluid
from synth.simulate.sharing import regions_of

FAR = 1e9


def rates(capacity: list[float], paths: list[tuple[int, ...]], limits: list[float] | None = None) -> list[float]:
    """The rates of flows that all start at once."""
    fluid = Fluid(capacity, paths, limits or [FAR] * len(paths))
    for flow in range(len(paths)):
        fluid.start(flow, 1.0, 0.0)
    fluid.settle(0.0)
    return [fluid.rate(flow) for flow in range(len(paths))]


def test_two_flows_halve_a_link() -> None:
    assert rates([10.0], [(0,), (0,)]) == [5.0, 5.0]


def test_a_flow_that_cannot_use_its_share_leaves_it_to_the_other() -> None:
    assert rates([10.0], [(0,), (0,)], [2.0, FAR]) == [2.0, 8.0]


def test_the_parking_lot() -> None:
    """One long flow over three links of 6, 6 and 3; a short one on each (Bertsekas and Gallager's example)."""
    assert rates([6.0, 6.0, 3.0], [(0, 1, 2), (0,), (1,), (2,)]) == pytest.approx([1.5, 4.5, 4.5, 1.5])


def test_what_a_bottleneck_elsewhere_leaves_is_shared_by_the_rest() -> None:
    """Link 0 (10) has flows 0, 1, 2; flow 0 also crosses link 1 (2): 2, then 4 and 4."""
    assert rates([10.0, 2.0], [(0, 1), (0,), (0,)]) == pytest.approx([2.0, 4.0, 4.0])


def test_a_flow_without_links_has_its_own_limit() -> None:
    assert rates([1.0], [(), (0,)], [7.0, 5.0]) == [7.0, 1.0]


def test_time_passes_at_the_rates_of_its_moments() -> None:
    """30 bytes beside another flow for 2 us at 5, then alone at 10: 2 us more."""
    fluid = Fluid([10.0], [(0,), (0,)], [FAR, FAR])
    fluid.start(0, 30.0, 0.0)
    fluid.start(1, 10.0, 0.0)
    assert sorted(fluid.settle(0.0)) == [0, 1]
    assert (fluid.end_us(0), fluid.end_us(1)) == (6.0, 2.0)
    fluid.stop(1)
    assert list(fluid.settle(2.0)) == [0]
    assert fluid.end_us(0) == pytest.approx(4.0)


def test_a_change_elsewhere_leaves_rates_alone() -> None:
    fluid = Fluid([10.0, 10.0], [(0,), (1,), (1,)], [FAR] * 3)
    fluid.start(0, 30.0, 0.0)
    fluid.settle(0.0)
    fluid.start(1, 30.0, 1.0)
    assert list(fluid.settle(1.0)) == [1]


networks = st.integers(1, 5).flatmap(
    lambda links: st.tuples(
        st.lists(st.sampled_from([1.0, 2.0, 3.5, 10.0]), min_size=links, max_size=links),
        st.lists(
            st.tuples(
                st.lists(st.integers(0, links - 1), unique=True, max_size=links).map(tuple),
                st.sampled_from([0.4, 1.0, 3.0, FAR]),
            ),
            min_size=1,
            max_size=9,
        ),
    )
)


def check_fair(capacity: list[float], flows: dict[int, tuple[tuple[int, ...], float]], rate: dict[int, float]) -> None:
    """Feasible; and every flow has its limit, or a full link on which nobody is quicker. Only max-min fair rates are so."""
    load = [sum(rate[flow] for flow, (path, _) in flows.items() if link in path) for link in range(len(capacity))]
    assert all(used <= room * (1 + 1e-6) for used, room in zip(load, capacity, strict=True))
    for flow, (path, limit) in flows.items():
        assert 0 < rate[flow] <= limit * (1 + 1e-9)
        held = rate[flow] >= limit * (1 - 1e-9)
        for link in path:
            rivals = [rate[other] for other, (theirs, _) in flows.items() if link in theirs]
            held = held or (load[link] >= capacity[link] * (1 - 1e-6) and rate[flow] >= max(rivals) * (1 - 1e-6))
        assert held, (flow, rate, load)


@given(network=networks, order=st.randoms(use_true_random=False))
def test_rates_are_max_min_fair_whatever_came_and_went_before(network, order) -> None:
    capacity, drawn = network
    flows = {number: flow for number, flow in enumerate(drawn) if flow[0] or flow[1] < FAR}
    fluid = Fluid(capacity, [path for path, _ in drawn], [limit for _, limit in drawn])
    active: dict[int, tuple[tuple[int, ...], float]] = {}
    for moment in range(12):
        for flow in order.sample(sorted(flows), k=min(2, len(flows))):
            if flow in active:
                fluid.stop(flow)
                del active[flow]
            else:
                fluid.start(flow, 1e9, float(moment))
                active[flow] = flows[flow]
        fluid.settle(float(moment))
        check_fair(capacity, active, {flow: fluid.rate(flow) for flow in active})


@given(network=networks)
def test_a_flow_moves_exactly_its_bytes(network) -> None:
    """Run to the end of each flow in turn: the bytes moved at the rates of each span add up to the flow's size."""
    capacity, drawn = network
    flows = [number for number, (path, limit) in enumerate(drawn) if path or limit < FAR]
    fluid = Fluid(capacity, [path for path, _ in drawn], [limit for _, limit in drawn])
    for flow in flows:
        fluid.start(flow, 10.0 + flow, 0.0)
    fluid.settle(0.0)
    moved = dict.fromkeys(flows, 0.0)
    now, active = 0.0, list(flows)
    while active:
        first = min(active, key=fluid.end_us)
        end = fluid.end_us(first)
        for flow in active:
            moved[flow] += fluid.rate(flow) * (end - now)
        now = end
        active.remove(first)
        fluid.stop(first)
        fluid.settle(now)
    assert moved == pytest.approx({flow: 10.0 + flow for flow in flows})


def test_a_flow_that_goes_on_at_once_changes_nothing_for_the_others() -> None:
    """Slice after slice of one sender: at the same moment one ends and the next begins, at the same rate."""
    fluid = Fluid([10.0], [(0,), (0,)], [FAR, FAR])
    fluid.start(0, 10.0, 0.0)
    fluid.start(1, 30.0, 0.0)
    fluid.settle(0.0)
    fluid.stop(0)
    fluid.start(0, 20.0, 2.0)
    assert list(fluid.settle(2.0)) == [0]
    assert (fluid.end_us(0), fluid.end_us(1)) == (6.0, 6.0)
    fluid.stop(0)
    assert list(fluid.settle(4.0)) == [1]
    assert fluid.end_us(1) == 5.0


def test_a_flow_that_ends_before_it_has_a_rate_leaves_nothing_behind() -> None:
    fluid = Fluid([10.0], [(0,), (0,), (0,)], [FAR, FAR, 4.0])
    fluid.start(0, 10.0, 0.0)
    fluid.start(1, 10.0, 0.0)
    fluid.stop(1)
    assert fluid.settle(0.0) == {0: 1.0}
    fluid.stop(0)
    fluid.start(0, 10.0, 1.0)
    fluid.stop(0)
    fluid.start(2, 8.0, 1.0)
    assert fluid.settle(1.0) == {2: 3.0}


def test_flows_of_one_kind_that_begin_at_different_times_end_at_different_times() -> None:
    """30 and 20 bytes at 10 for 1 us of the first alone, then at 5 each."""
    fluid = Fluid([10.0], [(0,), (0,)], [FAR, FAR])
    fluid.start(0, 30.0, 0.0)
    assert fluid.settle(0.0) == {0: 3.0}
    fluid.start(1, 15.0, 1.0)
    assert fluid.settle(1.0) == {0: 5.0, 1: 4.0}
    assert (fluid.rate(0), fluid.touched) == (5.0, 2)
    fluid.stop(1)
    assert fluid.settle(4.0) == {0: 4.5}


def test_paths_that_share_links_through_others_are_of_one_region() -> None:
    """0 and 2 meet 1 on different links; 4 has a link of its own, 3 and 5 none."""
    regions = regions_of([(0, 1), (1, 2), (2, 3), (), (4,), ()])
    assert regions[0] == regions[1] == regions[2]
    assert len({regions[0], *regions[3:]}) == 4


def test_what_is_counted_is_what_contends() -> None:
    """Flows 0 and 1 fill link 0, flow 2 has link 1 for itself: only where the two meet are rates found together."""
    fluid = Fluid([10.0, 10.0], [(0,), (0,), (1,)], [8.0, 7.0, 9.0])
    fluid.start(0, 30.0, 0.0)
    fluid.start(2, 30.0, 0.0)
    fluid.settle(0.0)
    assert fluid.touched == 0
    fluid.start(1, 30.0, 1.0)
    assert fluid.settle(1.0).keys() == {0, 1}
    assert fluid.touched == 2
    assert [fluid.rate(flow) for flow in range(3)] == [5.0, 5.0, 9.0]


def test_a_link_that_one_flow_crosses_is_a_limit_of_its_own() -> None:
    """So that the first two have all that they can take of the link that they share, and contend with nobody."""
    paths: list[tuple[int, ...]] = [(0, 1), (0, 2), (3,)]
    fluid = Fluid([10.0, 4.0, 6.0, 5.0], paths, [FAR] * 3)
    for flow in range(len(paths)):
        fluid.start(flow, 60.0, 0.0)
        fluid.settle(0.0)
    assert ([fluid.rate(flow) for flow in range(len(paths))], fluid.touched) == ([4.0, 6.0, 5.0], 0)
    fluid.stop(1)
    fluid.settle(10.0)
    assert (fluid.rate(0), fluid.end_us(0), fluid.touched) == (4.0, 15.0, 0)
