"""A group of ranks: its text, the collectives of it, and what files of it are held to."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from msccl_xml.model import Buffer
from msccl_xml.read import read_algo
from msccl_xml.write import write_algo
from synth.cli.main import main
from synth.collective import COMBINING, ROOTED, SHARED, Collective, CollectiveName
from synth.errors import InputError
from synth.execute.layout import due_units
from synth.group import group_attribute, group_of, group_text, parse_group
from synth.pipeline import synthesize
from synth.request import Request
from synth.verify import VerifyError, infer_collective, verify_algo
from tests.algos import relayed_allreduce, with_step
from tests.graphs import from_pairs, line


@given(st.sets(st.integers(0, 300), min_size=1))
def test_text_and_ranks_are_the_same(ranks: set[int]) -> None:
    group = tuple(sorted(ranks))
    assert parse_group(group_text(group)) == group


@pytest.mark.parametrize(
    ("text", "group"),
    [
        ("0-3,5", (0, 1, 2, 3, 5)),
        ("5,0", (0, 5)),
        (" 1, 2 ", (1, 2)),
        ("1,1", None),
        ("3-1", None),
        ("0,", None),
        ("a", None),
    ],
)
def test_texts(text: str, group: tuple[int, ...] | None) -> None:
    assert parse_group(text) == group


@pytest.mark.parametrize("name", CollectiveName)
def test_a_chunk_moves_between_members_or_not_at_all(name: CollectiveName) -> None:
    group, root = (1, 3), 3 if name in ROOTED else None
    whole = Collective(name, 4, 8 if name in SHARED else 2, root)
    some = replace(whole, group=group)
    for chunk in range(whole.num_chunk_ids):
        ends = whole.sources(chunk) & set(group), whole.destinations(chunk) & set(group)
        assert (some.sources(chunk), some.destinations(chunk)) == (ends if all(ends) else (frozenset(), frozenset()))
        for rank in range(4):
            offset = whole.input_offset(chunk, rank) if rank in some.sources(chunk) else None
            assert some.input_offset(chunk, rank) == offset


@pytest.mark.parametrize("group", [(0,), (0, 4), (2, 1), (1, 1)])
def test_what_is_no_group_is_refused(group: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="--group"):
        Collective(CollectiveName.ALLREDUCE, 4, 1, group=group)


def test_a_root_takes_part() -> None:
    with pytest.raises(InputError, match="--root"):
        Collective(CollectiveName.BROADCAST, 4, 1, 0, (1, 2))


def test_a_file_tells_its_group_and_is_held_to_it() -> None:
    algo = read_algo(write_algo(relayed_allreduce()).encode())
    assert group_of(algo) == (0, 2)
    assert infer_collective(algo).group == (0, 2)
    verify_algo(algo, infer_collective(algo))
    with pytest.raises(VerifyError):
        verify_algo(algo, replace(infer_collective(algo), group=None))
    with pytest.raises(InputError, match="group"):
        infer_collective(replace(algo, extra=(("group", "0;2"),)))


def test_the_buffers_of_others_stay_as_they_are() -> None:
    algo = with_step(relayed_allreduce(), 1, 0, 0, dst_buffer=Buffer.OUTPUT)
    with pytest.raises(VerifyError, match="gpu 1, which takes no part"):
        verify_algo(algo, infer_collective(algo))


def test_a_group_that_no_attribute_holds_is_refused() -> None:
    with pytest.raises(InputError, match="--group"):
        group_attribute(tuple(range(0, 512, 2)))


@pytest.mark.parametrize("name", CollectiveName)
def test_what_is_due_is_where_chunks_end(name: CollectiveName) -> None:
    collective = Collective(name, 4, 8 if name in SHARED else 2, 3 if name in ROOTED else None, (1, 3))
    for rank in range(4):
        ends = (collective.output_offset(chunk, rank) for chunk in range(collective.num_chunk_ids))
        filled = {end // collective.per_rank for end in ends if end is not None}
        assert set(due_units(collective, rank)) == filled


@pytest.mark.parametrize("runtime", ["msccl", "executor", "rccl"])
@pytest.mark.parametrize("name", CollectiveName)
def test_ends_of_a_line_reach_each_other_over_its_middle(name: CollectiveName, runtime: str) -> None:
    request = Request(
        topology=line(4), collective=name, group=(0, 3), min_bytes=1 << 14, max_bytes=1 << 14, runtime=runtime
    )
    result = synthesize(request)
    algo = result.files[0].algo
    promise = infer_collective(algo, root=request.actual_root)
    assert promise.group == (0, 3)
    verify_algo(algo, promise, runtime=runtime)
    assert result.sizes[0].schedule_us >= result.sizes[0].bound_us
    assert (promise.combining, promise.name) == (name in COMBINING, name)


def test_others_reduce_where_that_is_nearest() -> None:
    """In a star of three around rank 0, which takes no part, a sum in the middle enters every member once."""
    request = Request(
        topology=from_pairs("hub", 4, [(0, 1), (0, 2), (0, 3)]),
        collective=CollectiveName.ALLREDUCE,
        group=(1, 2, 3),
        min_bytes=1 << 26,
        max_bytes=1 << 26,
    )
    row = synthesize(replace(request, objective="schedule")).sizes[0]
    # Summed at a member, every byte enters the three of them four times in all: 4 / 3 of what the cut says.
    assert row.schedule_us < 1.2 * row.bound_us


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, report = tmp_path / "o.xml", tmp_path / "r.json"
    args = ["allreduce", "--topo", "dgx1", "--group", "0,7", "--size", "1MB", "--no-cache", "-o", str(out)]
    assert main([*args, "--report", str(report)]) == 0
    assert "runtimes know no groups" in capsys.readouterr().err
    assert json.loads(report.read_text())["group"] == [0, 7]
    assert main(["verify", str(out)]) == 0
    assert "ranks 0,7 alone" in capsys.readouterr().err
    assert main(["explain", str(out)]) == 0
    assert "of ranks 0,7 alone" in capsys.readouterr().out
    assert main(["simulate", str(out), "--topo", "dgx1", "--size", "1MB", "--against", "ring"]) == 1
    assert "baselines are of all" in capsys.readouterr().err
    assert main(["bound", "allreduce", "--topo", "dgx1", "--group", "0,7", "--size", "1MB"]) == 0
    assert "group 0,7" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "code", "told"),
    [
        (["--group", "0,9"], 1, "ranks from 0 to 7 of dgx1"),
        (["--group", "3"], 1, "2 or more ranks"),
        (["--group", "0,x"], 2, "--group"),
        (["--group", "2,7", "--root", "0"], 1, "a rank of --group 2,7"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(
    args: list[str], code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["broadcast", "--topo", "dgx1", "--size", "1MB", *args]) == code
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


def test_all_ranks_are_no_group(tmp_path: Path) -> None:
    args = ["broadcast", "--topo", "dgx1", "--size", "4KB", "--no-cache", "--quiet"]
    assert main([*args, "--group", "0-7", "-o", str(tmp_path / "a.xml")]) == 0
    assert main([*args, "-o", str(tmp_path / "b.xml")]) == 0
    assert (tmp_path / "a.xml").read_bytes() == (tmp_path / "b.xml").read_bytes()
