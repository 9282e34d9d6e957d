"""What is said of a machine beside its file, by every verb that takes `--topo`: hints, and what is broken or slow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from msccl_xml.write import write_algo
from synth.cli.main import main
from synth.degrade import with_link, without
from synth.inputs.load import load_topology
from synth.topology import replicate
from tests.fake_pipeline import FakePipeline, allgather_of_two, install, write_topology

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakePipeline:
    """The pipeline's stand-in, in an empty working directory that holds pair.json and a file for it."""
    monkeypatch.chdir(tmp_path)
    write_topology(tmp_path)
    (tmp_path / "ag.xml").write_text(write_algo(allgather_of_two()), encoding="utf-8")
    return install(monkeypatch, FakePipeline())


def test_a_plan_for_a_broken_machine(fake: FakePipeline, capsys: Capture) -> None:
    args = [
        "--nodes",
        "2",
        "--without",
        "nic1",
        "--without",
        "gpu0.1-gpu3.1",
        "--link",
        "gpu0-gpu1=10",
        "--size",
        "1MB",
    ]
    assert main(["allgather", "--topo", "dgx1", *args]) == 0
    two = with_link(replicate(load_topology("dgx1"), 2), "gpu0-gpu1=10")
    assert fake.requests[0].topology == without(without(two, "nic1"), "gpu0.1-gpu3.1")
    name = capsys.readouterr().out.strip()
    assert name == "allgather-dgx1x2-with-gpu0-gpu1-10-without-nic1-without-gpu0.1-gpu3.1-1MB.xml"


def test_ranks_count_after_what_is_gone(fake: FakePipeline) -> None:
    assert main(["alltoall", "--topo", "dgx1", "--without", "gpu3", "--ranks", "3,4", "--size", "1MB"]) == 0
    assert [gpu.id for gpu in fake.requests[0].topology.gpus] == ["gpu4", "gpu5"]


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(
    "verb", ["allreduce", "simulate ag.xml", "explain ag.xml", "topo show", "topo check", "topo plot"]
)
@pytest.mark.parametrize(
    ("args", "told"),
    [
        (
            ["--without", "gpu7"],
            "--without: 'gpu7', expected a device, or two devices that a link joins, in pair (close to it: gpu",
        ),
        (["--link", "gpu0-gpu1"], "--link: 'gpu0-gpu1', expected two devices and GB/s"),
        (["--arch", "volta"], "--arch: 'volta'"),
        (["--nvlink", "nowhere"], "--nvlink: 'nowhere'"),
    ],
)
def test_what_does_not_fit_is_refused_by_every_verb(verb: str, args: list[str], told: str, capsys: Capture) -> None:
    machine = ["pair.json"] if verb.startswith("topo") else ["--topo", "pair.json"]
    assert main([*verb.split(), *machine, *args]) == 1
    seen = capsys.readouterr()
    assert seen.out == ""
    assert seen.err.startswith(f"synth: {told}")
    assert seen.err.count("\n") == 1


@pytest.mark.usefixtures("fake")
def test_a_slow_link_takes_longer(capsys: Capture) -> None:
    def time_us(*args: str) -> float:
        assert main(["simulate", "ag.xml", "--topo", "pair.json", "--size", "1MB", "--json", *args]) == 0
        return float(json.loads(capsys.readouterr().out)["sizes"][0]["time_us"])

    assert time_us("--link", "gpu0-gpu1=2") > 3 * time_us()


@pytest.mark.usefixtures("fake")
def test_explain_takes_the_ranks_that_are_left(capsys: Capture) -> None:
    args = ["explain", "ag.xml", "--topo", "pair.json", "--runtime", "msccl", "--without"]
    assert main([*args, "gpu1"]) == 1
    assert "the communicator has 1 ranks" in capsys.readouterr().out
    assert main([*args, "nic0"]) == 0


def test_a_cluster_by_its_file(fake: FakePipeline, tmp_path: Path) -> None:
    boxes = [{"topo": "pair.json", "count": 2}, {"topo": "pcie-2x2-nvlink"}]
    (tmp_path / "cluster.json").write_text(json.dumps({"format": 1, "cluster": boxes}), encoding="utf-8")
    assert main(["allgather", "--topo", "cluster.json", "--size", "1MB"]) == 0
    assert [gpu.id for gpu in fake.requests[0].topology.gpus[:5]] == ["gpu0", "gpu1", "gpu0.1", "gpu1.1", "gpu0.2"]
    assert fake.requests[0].topology.name == "cluster"


def test_doubts_are_told_unless_quiet(fake: FakePipeline, tmp_path: Path, capsys: Capture) -> None:
    table = "\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU1\tNV4\t X \n"
    (tmp_path / "topo.txt").write_text(table, encoding="utf-8")
    assert main(["allgather", "--topo", "topo.txt", "--size", "1MB"]) == 0
    assert "warning: " in capsys.readouterr().err
    assert main(["allgather", "--topo", "topo.txt", "--size", "1MB", "--quiet"]) == 0
    assert capsys.readouterr().err == ""
    assert main(["allgather", "--topo", "topo.txt", "--size", "1MB", "-q", "--arch", "sm_86"]) == 0
    assert {gpu.arch for gpu in fake.requests[-1].topology.gpus} == {"sm_86"}
