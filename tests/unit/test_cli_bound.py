"""`synth bound`: the text, the JSON, and what is said where something is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from synth.cli.main import main

TOPO = {
    "format": 1,
    "name": "tail",
    "devices": [{"id": f"gpu{k}", "kind": "gpu", "rank": k} for k in range(4)],
    "links": [
        {"between": [f"gpu{a}", f"gpu{b}"], "kind": "nvlink", "GBps": 10.0, "alpha_us": 1.0}
        for a, b in ((0, 1), (1, 2), (0, 2), (2, 3))
    ],
}


@pytest.fixture
def tail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """tail.json (a triangle, and gpu3 behind gpu2) in the working directory."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "tail.json"
    path.write_text(json.dumps(TOPO))
    return path


def bound(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = main(["bound", *args])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_text_says_the_limit_and_the_cut(tail: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = bound(capsys, "allgather", "--topo", "tail.json", "--sizes", "1MB:4MB")
    assert (code, err) == (0, "")
    head, limit, by, over, blank, columns, *rows = out.splitlines()
    assert head == "allgather on tail, 4 ranks"
    assert limit == "limit    13.33 GB/s (busbw 10.00 GB/s), latency 2.00 us"
    assert by == "set by   cut bound: what must get into gpu3 (10 GB/s)"
    assert over == "over     gpu2->gpu3"
    assert (blank, columns.split()) == ("", ["size", "bound", "us", "algbw", "GB/s", "busbw", "GB/s"])
    assert [row.split()[0] for row in rows] == ["1MB", "2MB", "4MB"]
    # 3/4 of 1 MiB over 10,000 bytes a us, and the alpha of the last link.
    assert rows[0].split()[1] == f"{0.75 * 2**20 / 1e4 + 1:.2f}"


def test_the_json_has_figures_and_names(tail: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = bound(capsys, "reduce-scatter", "--topo", "tail.json", "--size", "4000", "--json")
    document = json.loads(out)
    assert code == 0
    assert (document["collective"], document["topology"], document["ranks"]) == ("reduce-scatter", "tail", 4)
    assert document["algbw_GBps"] == pytest.approx(40 / 3)
    assert document["latency_us"] == 2.0
    assert document["cut"] == {"gpus": ["gpu3"], "links": ["gpu3->gpu2"], "GBps": 10.0, "direction": "out of"}
    (row,) = document["sizes"]
    assert row["bytes"] == 4000
    assert row["bound_us"] > 2.0
    assert row["algbw_GBps"] == pytest.approx(4000 / row["bound_us"] / 1e3)


def test_allreduce_has_two_figures(tail: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = bound(capsys, "allreduce", "--topo", "tail.json", "--json")
    document = json.loads(out)
    assert document["any_algorithm"]["algbw_GBps"] == pytest.approx(10.0)
    assert document["any_algorithm"]["cut"]["gpus"] == ["gpu3"]
    assert document["algbw_GBps"] <= document["any_algorithm"]["algbw_GBps"] * (1 + 1e-9)
    assert document["cut"]["gpus"] == []
    assert document["cut"]["links"]
    _, text, _ = bound(capsys, "allreduce", "--topo", "tail.json")
    assert "any algorithm: 10.00 GB/s, what must get into gpu3 (10 GB/s)" in text


def test_nodes_ranks_and_root_are_those_of_the_other_verbs(tail: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = bound(capsys, "broadcast", "--topo", "tail.json", "--ranks", "3,2", "--root", "1", "--json")
    document = json.loads(out)
    assert (document["ranks"], document["root"], document["algbw_GBps"]) == (2, 1, pytest.approx(10.0))
    _, out, _ = bound(capsys, "allgather", "--topo", "dgx1", "--nodes", "2", "--json")
    assert json.loads(out)["topology"] == "dgx1x2"
    _, out, _ = bound(capsys, "allgather", "--topo", "tail.json", "--without", "gpu3", "--json")
    assert json.loads(out)["ranks"] == 3


def test_hundreds_of_gpus_are_answered_without_their_paths(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = bound(capsys, "allgather", "--topo", "dgx1", "--nodes", "20", "--json")
    assert code == 0
    document = json.loads(out)
    assert (document["ranks"], len(document["cut"]["gpus"])) == (160, 8)


@pytest.mark.parametrize(
    ("args", "code", "told"),
    [
        (("allgather",), 2, "--topo"),
        (("allgather", "--topo", "nowhere"), 1, "nowhere"),
        (("gossip", "--topo", "tail.json"), 2, "gossip"),
        (("broadcast", "--topo", "tail.json", "--root", "4"), 1, "a rank from 0 to 3"),
        (("allgather", "--topo", "tail.json", "--root", "1"), 1, "nothing for allgather"),
        (("allgather", "--topo", "tail.json", "--size", "1KB", "--sizes", "1KB:2KB"), 2, "exclude each other"),
        (("allgather", "--topo", "tail.json", "--ranks", "1"), 1, "2 or more GPUs"),
        (("allgather", "--topo", "tail.json", "--ranks", "0,3"), 1, "gpu0 cannot reach gpu3"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(
    tail: Path, capsys: pytest.CaptureFixture[str], args: tuple[str, ...], code: int, told: str
) -> None:
    found, out, err = bound(capsys, *args)
    assert (found, out) == (code, "")
    assert told in err
    assert err.count("\n") == 1
