"""Ordering: what the sort keys see and prefer, and that the orderer keeps the best of what they give."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from synth.instance import Instance
from synth.ir import Message, Routing, Schedule, Transfer
from synth.list_scheduler import Rule, Work, list_schedule
from synth.ordering import RULES, SORT_KEYS, Ordering
from synth.ordering.keys import Facts
from synth.routing.trees import TreesRouting
from synth.timing import check_schedule, retime
from tests.graphs import instance_of, line, star

CHUNK = 1e4  # keeps a link of 10 GB/s for 1 us
#: What differs from it says what a key looks at: the smaller tuple goes first.
PLAIN = Facts(chunk=5, path=0, so_far_us=4.0, to_go_us=4.0, behind=3, turn=1, rotation=2, due_us=6.0, even_us=8.0)


def over(instance: Instance, src: int, dst: int) -> int:
    return next(path.index for path in instance.paths if (path.src, path.dst) == (src, dst))


@pytest.mark.parametrize(
    ("name", "sooner"),
    [
        ("longest-path-to-go", PLAIN._replace(to_go_us=5.0)),
        ("deep-trees-sooner", PLAIN._replace(due_us=9.0, to_go_us=5.0)),
        ("deep-trees-little-sooner", PLAIN._replace(due_us=7.5, to_go_us=5.0)),
        ("deep-trees-much-sooner", PLAIN._replace(due_us=17.0, to_go_us=5.0)),
        ("trees-abreast", PLAIN._replace(due_us=5.0, so_far_us=9.0)),
        ("shortest-path-so-far", PLAIN._replace(so_far_us=3.0, to_go_us=1.0)),
        ("most-transfers-behind", PLAIN._replace(behind=4, to_go_us=1.0)),
        ("longest-path-first", PLAIN._replace(so_far_us=9.0, to_go_us=1.0)),
        ("chunk-by-chunk", PLAIN._replace(chunk=4, so_far_us=9.0)),
        ("in-turns", PLAIN._replace(turn=0, to_go_us=1.0)),
        ("by-rotation", PLAIN._replace(rotation=1, to_go_us=1.0)),
        ("pipelined", PLAIN._replace(even_us=9.5, so_far_us=3.0, to_go_us=5.0)),
    ],
)
def test_what_a_key_puts_first(name: str, sooner: Facts) -> None:
    assert SORT_KEYS[name](sooner) < SORT_KEYS[name](PLAIN)


def test_every_key_has_its_case() -> None:
    assert len(SORT_KEYS) == 12


def test_how_much_sooner_a_deep_tree_comes_differs_by_key() -> None:
    little, middle, much = (f"deep-trees-{word}sooner" for word in ("little-", "", "much-"))
    for due_us, told in ((7.5, {little, middle, much}), (9.0, {middle, much}), (17.0, {much})):
        deep = PLAIN._replace(due_us=due_us, to_go_us=5.0)
        assert {name for name in (little, middle, much) if SORT_KEYS[name](deep) < SORT_KEYS[name](PLAIN)} == told


def test_rules_and_keys_are_tried_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of routings with many transfers three combinations are tried at least: two keys, and the first of them under another rule."""
    rules: list[Rule] = []

    def recorded(
        instance: Instance, work: Work, places: Sequence[int], *, rule: Rule, cutoff_us: float
    ) -> Schedule | None:
        rules.append(rule)
        return list_schedule(instance, work, places, rule=rule, cutoff_us=cutoff_us)

    monkeypatch.setattr("synth.ordering.orderer.list_schedule", recorded)
    instance = instance_of(star(3), "allgather", 4, CHUNK)
    routing, _ = TreesRouting()(instance)
    keys = ("by-rotation", "chunk-by-chunk", "in-turns")
    plain, reserved, busiest = RULES.values()
    for work, tried in ((0, [plain, plain, reserved]), (10**6, [plain, plain, reserved, plain, reserved, busiest])):
        rules.clear()
        Ordering(keys, enough=-1.0, work=work)(instance, routing)
        assert rules[:6] == tried
    assert len(rules) == len(keys) * len(RULES)


def test_rules_are_tried_where_paths_share_a_link() -> None:
    """A rule says who gets a shared link; where there is none all rules give the same, and the next key gets its chance sooner."""
    for topology, shared in ((line(3), False), (star(3), True)):
        instance = instance_of(topology, "allgather", 4, CHUNK)
        routing, _ = TreesRouting()(instance)
        rules = (*RULES, *RULES)
        made = [Ordering(("by-rotation",), rules=(rule,), enough=0.0)(instance, routing)[0] for rule in rules]
        best, rule = Ordering(("by-rotation",), enough=0.0)(instance, routing)
        assert best.makespan_us == pytest.approx(min(each.makespan_us for each in made))
        assert shared or (rule == "by-rotation" and made[0].makespan_us == made[-1].makespan_us)


def relay() -> tuple[Instance, Routing]:
    """From rank 0: chunk 1 to rank 1, chunk 2 over rank 1 to rank 2. Chunk 2 first takes 4 us, chunk 1 first 5 us."""
    instance = instance_of(line(3), "scatter", 1, CHUNK, root=0)
    first, second = over(instance, 0, 1), over(instance, 1, 2)
    return instance, Routing((Transfer(1, first), Transfer(2, first), Transfer(2, second)))


def test_the_chunk_with_the_longest_way_goes_first() -> None:
    instance, routing = relay()
    schedule, rule = Ordering(("longest-path-to-go",))(instance, routing)
    assert (schedule.makespan_us, rule) == (4.0, "longest-path-to-go")
    assert [send.chunks for send in schedule.sends] == [(2,), (1,), (2,)]


def test_chunk_by_chunk_is_worse_here_and_the_best_key_is_kept() -> None:
    instance, routing = relay()
    alone, rule = Ordering(("chunk-by-chunk",), enough=0.0)(instance, routing)
    assert alone.makespan_us == 5.0
    assert rule.startswith("chunk-by-chunk")
    best, rule = Ordering(("chunk-by-chunk", "most-transfers-behind"))(instance, routing)
    assert (best.makespan_us, rule) == (4.0, "most-transfers-behind")


def test_a_known_schedule_has_to_be_beaten() -> None:
    instance, routing = relay()
    first, second = over(instance, 0, 1), over(instance, 1, 2)
    good = retime(instance, [Message((2,), first), Message((1,), first), Message((2,), second)])
    assert Ordering()(instance, routing, (good, "as routed")) == (good, "as routed")
    poor = retime(instance, [Message((1,), first), Message((2,), first), Message((2,), second)])
    better, rule = Ordering()(instance, routing, (poor, "as routed"))
    assert better.makespan_us == 4.0
    assert rule in SORT_KEYS


def test_every_key_gives_a_feasible_schedule_of_the_routing() -> None:
    instance = instance_of(star(4), "alltoall", 2, CHUNK)
    routing = Routing(tuple(Transfer(d.chunk, over(instance, d.source, min(d.dests))) for d in instance.demands))
    for name in SORT_KEYS:
        schedule, _ = Ordering((name,))(instance, routing)
        check_schedule(instance, schedule, routing)
        assert all(len(send.chunks) == 1 for send in schedule.sends)


def test_no_key_is_no_order() -> None:
    with pytest.raises(ValueError, match="at least one key"):
        Ordering(())(*relay())
