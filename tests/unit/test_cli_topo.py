"""`synth topo list|show|check|convert|diff|plot`."""

from __future__ import annotations

from pathlib import Path

import pytest
from lxml import etree

from synth.cli.main import main
from synth.degrade import without
from synth.inputs.load import load_topology
from synth.inputs.topology_json import parse_topology, to_json
from synth.topology import replicate
from synth.topology_diff import differences
from tests.fake_pipeline import write_topology

Capture = pytest.CaptureFixture[str]


def told(capsys: Capture, *args: str, code: int = 0) -> str:
    """Standard output of a command that has to end in `code`, with nothing on standard error."""
    assert main(["topo", *args]) == code
    seen = capsys.readouterr()
    assert seen.err == ""
    return seen.out


def refused(capsys: Capture, *args: str, code: int = 1) -> str:
    """The one line on standard error of a command that has to fail, with nothing on standard output."""
    assert main(["topo", *args]) == code
    seen = capsys.readouterr()
    assert seen.out == ""
    assert seen.err.startswith("synth: ")
    assert seen.err.count("\n") == 1
    return seen.err


def test_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.chdir(tmp_path)
    assert "dgx1" in told(capsys, "list")


def test_show(tmp_path: Path, capsys: Capture) -> None:
    assert "pair" in told(capsys, "show", str(write_topology(tmp_path)))


def test_show_what_is_not_there(capsys: Capture) -> None:
    refused(capsys, "show", "no-such-machine")


def test_show_copies_parts_and_changes(capsys: Capture) -> None:
    text = told(capsys, "show", "dgx1", "--nodes", "2", "--without", "gpu0.1-gpu3.1", "--link", "gpu0-gpu1=10")
    assert text.startswith("dgx1x2 with gpu0-gpu1=10 without gpu0.1-gpu3.1: 16 ranks on 2 nodes")
    assert "Picture of node 0, rates" in text
    assert "Picture of node 1, rates" in text
    assert "4 ranks" in told(capsys, "show", "dgx1", "--ranks", "0,1,2,3")


@pytest.mark.parametrize(
    "args",
    [
        ["show"],
        ["shwo", "dgx1"],
        ["list", "dgx1"],
        ["convert", "dgx1"],
        ["convert", "dgx1", "--to", "yaml"],
        ["diff", "dgx1"],
        ["show", "dgx1", "--nodes", "0"],
        ["plot", "dgx1", "-o", ""],
    ],
)
def test_usage(args: list[str], capsys: Capture) -> None:
    refused(capsys, *args, code=2)


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["show", "dgx1", "--without", "gpu8"], "--without: 'gpu8'"),
        (["check", "dgx1", "--link", "gpu0-gpu5=1"], "--link: 'gpu0-gpu5', expected a link: none joins"),
        (["plot", "ring4", "--nodes", "2"], "'no NIC'"),
        (["show", "dgx1", "--nodes", "1000"], "expected at most 128 of dgx1"),
        (["convert", "dgx1", "--to", "json", "--ranks", "9"], "--ranks: 9"),
        (["show", "dgx1", "--arch", "volta"], "--arch: 'volta'"),
        (["diff", "dgx1", "nowhere"], "'nowhere'"),
        (["plot", "dgx1", "-o", "no/such/folder/x.svg"], "no/such/folder/x.svg"),
    ],
)
def test_what_cannot_be_done(args: list[str], expected: str, capsys: Capture) -> None:
    assert expected in refused(capsys, *args)


def test_check(capsys: Capture) -> None:
    assert told(capsys, "check", "dgx1") == "dgx1: nothing suspicious\n"
    (line,) = told(capsys, "check", "dgx1", "--without", "gpu0-gpu3").splitlines()
    assert line.startswith("gpu0-gpu3: 4 lanes of nvlink at each where their twins have 6")
    assert "instead of" in line


def test_check_of_ranks_that_do_not_reach_each_other(capsys: Capture) -> None:
    lines = told(capsys, "check", "line4", "--without", "gpu1-gpu2").splitlines()
    assert any(line.startswith("gpu2, gpu3: no connection to gpu0 (no collective") for line in lines)


def test_convert_to_json(tmp_path: Path, capsys: Capture) -> None:
    text = told(capsys, "convert", "dgx1", "--to", "json", "--without", "nic1")
    assert parse_topology(text, "x") == without(load_topology("dgx1"), "nic1")
    target = tmp_path / "two.json"
    assert told(capsys, "convert", "dgx1", "--to", "json", "--nodes", "2", "-o", str(target)) == ""
    assert load_topology(str(target)) == replicate(load_topology("dgx1"), 2)


def test_convert_to_nccl(capsys: Capture) -> None:
    assert main(["topo", "convert", "dgx-h100", "--to", "nccl"]) == 0
    seen = capsys.readouterr()
    assert len(list(etree.fromstring(seen.out.encode()).iter("gpu"))) == 8
    assert [line.split(":")[:2] for line in seen.err.splitlines()] == [
        ["warning", " bus ids"],
        ["warning", " latencies"],
    ]
    assert told(capsys, "convert", "dgx-h100", "--to", "nccl", "--quiet") == seen.out


def test_convert_from_nccl(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "box.xml"
    assert told(capsys, "convert", "mi300x", "--to", "nccl", "-q", "-o", str(file)) == ""
    assert told(capsys, "diff", "mi300x", str(file)) == ""


def test_diff(tmp_path: Path, capsys: Capture) -> None:
    changed = tmp_path / "changed.json"
    changed.write_text(to_json(without(load_topology("dgx1"), "gpu0-gpu3")), encoding="utf-8")
    assert told(capsys, "diff", "dgx1", "dgx1.json") == ""
    lost = told(capsys, "diff", "dgx1", str(changed), code=1)
    assert lost == "- nvlink gpu0 - gpu3: 44 GB/s, 2 lanes, 0.7 us\n"
    assert told(capsys, "diff", str(changed), "dgx1", code=1) == lost.replace("-", "+", 1)
    lines = told(capsys, "diff", "dgx1", "ndv2", code=1).splitlines()
    assert "- nic nic1" in lines
    assert "~ socket cpu0 - cpu1: 6 -> 10 GB/s" in lines


def test_differences_of_devices_figures_and_rules() -> None:
    topology = load_topology("pcie-2x2-nvlink")
    text = to_json(topology)
    changed = (
        text.replace('"rank": 0, "node": 0, "arch": "sm_80"', '"rank": 1, "node": 2')
        .replace('"rank": 1, "node": 0, "arch"', '"rank": 0, "node": 0, "arch"')
        .replace('"alpha_us": 0.7}', '"alpha_us": 0.8, "gap_us": 0.1}', 1)
        .replace('{"between": ["cpu0", "cpu1"]', '{"from": "cpu0", "to": "cpu1"')
        .replace("\n}\n", ',\n  "paths": {"fallback": []}\n}\n')
    )
    assert differences(topology, parse_topology(changed, "x")) == (
        "~ gpu gpu0: rank 0 -> 1, node 0 -> 2, arch sm_80 -> none",
        "~ gpu gpu1: rank 1 -> 0",
        "~ nvlink gpu0 - gpu1: 0.7 -> 0.8 us, gap 0 -> 0.1 us",
        "- socket cpu1 -> cpu0: 16 GB/s, 1 lane, 0.5 us",
        "~ paths.fallback: cpu, network, nic -> none",
    )


def test_plot(tmp_path: Path, capsys: Capture) -> None:
    target = tmp_path / "dgx1.svg"
    assert told(capsys, "plot", "dgx1", "-o", str(target)) == ""
    assert etree.fromstring(target.read_bytes()).tag == "{http://www.w3.org/2000/svg}svg"
    assert told(capsys, "plot", "dgx1") == target.read_text(encoding="utf-8")
