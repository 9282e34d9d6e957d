"""The synthesizing verbs: what they ask the pipeline, where the answer goes, and how each bad command line ends."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from msccl_xml.read import read_algo
from synth import __version__
from synth.cli.main import main
from synth.collective import CollectiveName
from synth.errors import NoAnswerError
from synth.request import Request
from synth.verify import VerifyError
from tests.fake_pipeline import FakePipeline, allgather_of_two, install, write_topology


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakePipeline:
    """The pipeline's stand-in, in an empty working directory that holds pair.json."""
    monkeypatch.chdir(tmp_path)
    write_topology(tmp_path)
    return install(monkeypatch, FakePipeline())


def asked(fake: FakePipeline, *args: str) -> Request:
    """What the pipeline is asked by `synth allgather --topo pair.json ARGS`."""
    assert main(["allgather", "--topo", "pair.json", *args]) == 0
    return fake.requests[-1]


def fails(capsys: pytest.CaptureFixture[str], code: int, *args: str) -> str:
    """The one line on standard error of a command that has to end in `code`, with nothing on standard output."""
    before = set(os.listdir())
    assert main(list(args)) == code
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("synth: ")
    assert told.err.count("\n") == 1
    assert "Traceback" not in told.err
    assert set(os.listdir()) == before
    return told.err


@pytest.mark.parametrize("name", [name.value for name in CollectiveName])
def test_every_collective_is_a_verb(name: str, fake: FakePipeline, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--topo", "pair.json", "--size", "64KB"]) == 0
    assert fake.requests[0].collective == name
    path = capsys.readouterr().out.strip()
    assert path.startswith(f"{name}-pair-")
    assert read_algo(Path(path).read_text(encoding="utf-8")) == allgather_of_two(1 << 16, 1 << 16)


def test_defaults(fake: FakePipeline) -> None:
    request = asked(fake)
    assert (request.min_bytes, request.max_bytes, request.single_size) == (1 << 10, 1 << 30, False)
    assert (request.runtime, request.strategy, request.solver, request.seed) == ("msccl", "auto", "auto", 0)
    assert (request.protocol, request.instances, request.chunks, request.max_threadblocks) == (None,) * 4
    assert (request.root, request.sketch, request.inplace, request.max_files) == (None, None, None, 4)


def test_options_reach_the_pipeline(fake: FakePipeline) -> None:
    request = asked(
        fake,
        *("--sizes", "4KB:1MB", "--runtime", "rccl", "--strategy", "trees", "--protocol", "ll128", "--instances", "2"),
        *("--chunks", "8", "--max-threadblocks", "12", "--time-limit", "1.5", "--seed", "7", "--out-of-place"),
        *("--solver", "highs", "--files", "9"),
    )
    assert (request.min_bytes, request.max_bytes) == (4096, 1 << 20)
    assert (request.runtime, request.strategy, request.protocol) == ("rccl", "trees", "LL128")
    assert (request.instances, request.chunks, request.max_threadblocks) == (2, 8, 12)
    assert request.max_files == 9
    assert (request.time_limit_s, request.seed, request.inplace, request.solver) == (1.5, 7, False, "highs")


def test_auto_is_the_default_said_aloud(fake: FakePipeline) -> None:
    request = asked(fake, "--protocol", "auto", "--instances", "auto", "--chunks", "auto", "--in-place")
    assert (request.protocol, request.instances, request.chunks, request.inplace) == (None, None, None, True)


def test_a_root_is_rank_0_unless_given(fake: FakePipeline) -> None:
    assert main(["broadcast", "--topo", "pair.json"]) == 0
    assert main(["broadcast", "--topo", "pair.json", "--root", "1"]) == 0
    assert [request.root for request in fake.requests] == [0, 1]


def test_nodes_come_before_ranks(fake: FakePipeline) -> None:
    assert asked(fake, "--nodes", "2").topology.num_ranks == 4
    request = asked(fake, "--nodes", "2", "--ranks", "3,0")
    assert request.topology.num_ranks == 2
    assert [gpu.node for gpu in request.topology.gpus] == [1, 0]


def test_a_sketch_brings_its_nodes(fake: FakePipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    marker = object()
    monkeypatch.setattr("synth.inputs.sketch_json.sketch_nodes", lambda text, source: 2)
    monkeypatch.setattr("synth.inputs.sketch_json.parse_sketch", lambda text, source, topology: marker)
    Path("hints.json").write_text("{}", encoding="utf-8")
    request = asked(fake, "--sketch", "hints.json")
    assert request.sketch is marker
    assert request.topology.num_nodes == 2
    assert asked(fake, "--sketch", "hints.json", "--nodes", "1").topology.num_nodes == 1


def test_a_set_of_files_is_printed_as_the_runtimes_want_it(
    fake: FakePipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.num_files = 3
    assert main(["allgather", "--topo", "pair.json", "--ranks", "1,0", "--sizes", "1KB:1GB"]) == 0
    paths = capsys.readouterr().out.rstrip("\n").split(":")
    assert paths == [
        "allgather-pair-1-0-1KB-2KB.xml",
        "allgather-pair-1-0-2KB-4KB.xml",
        "allgather-pair-1-0-4KB-1GB.xml",
    ]
    assert all(Path(path).is_file() for path in paths)


def test_names_hold_the_root_and_stay_short(fake: FakePipeline, capsys: pytest.CaptureFixture[str]) -> None:
    text = Path("pair.json").read_text(encoding="utf-8").replace('"pair"', '"' + "a:/ é." * 30 + '"')
    Path("long.json").write_text(text, encoding="utf-8")
    assert main(["reduce", "--topo", "long.json", "--root", "1", "--size", "1000"]) == 0
    path = capsys.readouterr().out.rstrip("\n")
    assert path.endswith("-root1-1000.xml")
    assert len(path) < 120
    assert not set(path) & set(":/ é")


@pytest.mark.parametrize("output", ["out/", "made"])
def test_a_directory_gets_all_files(output: str, fake: FakePipeline, capsys: pytest.CaptureFixture[str]) -> None:
    Path("made").mkdir()
    fake.num_files = 2
    assert main(["allgather", "--topo", "pair.json", "-o", output]) == 0
    paths = capsys.readouterr().out.rstrip("\n").split(":")
    assert [str(Path(path).parent) for path in paths] == [output.rstrip("/")] * 2
    assert sorted(os.listdir(output)) == sorted(Path(path).name for path in paths)


def test_one_file_by_name(fake: FakePipeline, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["allgather", "--topo", "pair.json", "--size", "1MB", "-o", "mine.xml"]) == 0
    assert capsys.readouterr().out == "mine.xml\n"
    assert read_algo(Path("mine.xml").read_text(encoding="utf-8")).max_bytes == 1 << 20


def test_one_file_to_standard_output(fake: FakePipeline, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["allgather", "--topo", "pair.json", "--size", "1MB", "-o", "-"]) == 0
    assert read_algo(capsys.readouterr().out) == allgather_of_two(1 << 20, 1 << 20)
    assert os.listdir() == ["pair.json"]


def test_the_summary_goes_to_standard_error(fake: FakePipeline, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["allgather", "--topo", "pair.json", "--ranks", "0,1", "--size", "64KB"]) == 0
    told = capsys.readouterr()
    assert told.out.count("\n") == 1
    assert "\x1b" not in told.err
    for part in ("routing: [trees] 64KB", "best 12.5 us", "64KB", "80.0%", "optimal", "worst cut", "Simple"):
        assert part in told.err
    assert told.out.strip() in told.err


def test_quiet_says_nothing(fake: FakePipeline, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["allgather", "--topo", "pair.json", "--size", "64KB", "--quiet"]) == 0
    told = capsys.readouterr()
    assert told.err == ""
    assert told.out == "allgather-pair-64KB.xml\n"


def test_the_report_has_the_fields_of_the_contract(fake: FakePipeline, capsys: pytest.CaptureFixture[str]) -> None:
    fake.num_files = 2
    assert main(["allgather", "--topo", "pair.json", "-o", "out/", "--report", "out/report.json"]) == 0
    report = json.loads(Path("out/report.json").read_text(encoding="utf-8"))
    head = {key: report[key] for key in ("collective", "topology", "ranks", "strategy", "verified", "synth_version")}
    assert head == {
        "collective": "allgather",
        "topology": "pair",
        "ranks": 2,
        "strategy": "auto",
        "verified": True,
        "synth_version": __version__,
    }
    assert [file["path"] for file in report["files"]] == capsys.readouterr().out.strip().split(":")
    assert " ".join(report["files"][0]) == (
        "path min_bytes max_bytes protocol chunks_per_rank instances channels threadblocks steps strategy"
    )
    assert " ".join(report["sizes"][0]) == ("bytes time_us algbw_GBps busbw_GBps schedule_us bound_us efficiency file")
    assert " ".join(report["stages"][0]) == "name seconds status objective bound gap"
    assert report["stages"][1]["gap"] is None


USAGE = {
    "no topology": ["allgather"],
    "an option that there is none of": ["allgather", "--topo", "pair.json", "--sise", "1KB"],
    "a strategy that there is none of": ["allgather", "--topo", "pair.json", "--strategy", "rings"],
    "a protocol that there is none of": ["allgather", "--topo", "pair.json", "--protocol", "LL64"],
    "a runtime that there is none of": ["allgather", "--topo", "pair.json", "--runtime", "nccl"],
    "a solver that there is none of": ["allgather", "--topo", "pair.json", "--solver", "abacus"],
    "no size": ["allgather", "--topo", "pair.json", "--size", "big"],
    "size 0": ["allgather", "--topo", "pair.json", "--size", "0"],
    "a range that is none": ["allgather", "--topo", "pair.json", "--sizes", "1KB"],
    "a range from large to small": ["allgather", "--topo", "pair.json", "--sizes", "1MB:1KB"],
    "both sizes": ["allgather", "--topo", "pair.json", "--size", "1KB", "--sizes", "1KB:1MB"],
    "ranks that are no numbers": ["allgather", "--topo", "pair.json", "--ranks", "0,one"],
    "no nodes": ["allgather", "--topo", "pair.json", "--nodes", "0"],
    "no chunks": ["allgather", "--topo", "pair.json", "--chunks", "0"],
    "half an instance": ["allgather", "--topo", "pair.json", "--instances", "0.5"],
    "no time": ["allgather", "--topo", "pair.json", "--time-limit", "0"],
    "time without end": ["allgather", "--topo", "pair.json", "--time-limit", "inf"],
    "time that is no number": ["allgather", "--topo", "pair.json", "--time-limit", "soon"],
    "a seed below 0": ["allgather", "--topo", "pair.json", "--seed", "-1"],
    "a root where there is none": ["allgather", "--topo", "pair.json", "--root", "0"],
    "alltoall in place": ["alltoall", "--topo", "pair.json", "--in-place"],
    "a range to one file": ["allgather", "--topo", "pair.json", "-o", "mine.xml"],
    "a range to standard output": ["allgather", "--topo", "pair.json", "-o", "-"],
    "a colon in a path": ["allgather", "--topo", "pair.json", "--size", "1KB", "-o", "a:b.xml"],
    "an empty path": ["allgather", "--topo", "pair.json", "--size", "1KB", "-o", ""],
    "the report on standard output": ["allgather", "--topo", "pair.json", "--report", "-"],
    "one file for both": ["allgather", "--topo", "pair.json", "--size", "1KB", "-o", "x", "--report", "./x"],
    "words too many": ["allgather", "pair.json", "--topo", "pair.json"],
}
INPUT = {
    "a topology that there is none of": ["allgather", "--topo", "no-such-machine"],
    "a rank that there is none of": ["allgather", "--topo", "pair.json", "--ranks", "0,2"],
    "a rank twice": ["allgather", "--topo", "pair.json", "--ranks", "0,0"],
    "a root that is no rank": ["broadcast", "--topo", "pair.json", "--root", "2"],
    "a sketch that is not there": ["allgather", "--topo", "pair.json", "--sketch", "none.json"],
    "a sketch that is no text": ["allgather", "--topo", "pair.json", "--sketch", "binary"],
    "a directory that is not there": ["allgather", "--topo", "pair.json", "--size", "1KB", "-o", "none/x.xml"],
    "a directory below one that is not there": ["allgather", "--topo", "pair.json", "-o", "none/deep/"],
    "a file where a directory should be": ["allgather", "--topo", "pair.json", "-o", "binary/"],
    "a path below a file": ["allgather", "--topo", "pair.json", "--size", "1KB", "-o", "binary/x.xml"],
    "a name too long": ["allgather", "--topo", "pair.json", "--size", "1KB", "-o", "x" * 300],
    "a report that is a directory": ["allgather", "--topo", "pair.json", "--report", "."],
    "a report where nothing can be": ["allgather", "--topo", "pair.json", "--report", "none/report.json"],
}


@pytest.mark.parametrize("args", USAGE.values(), ids=USAGE.keys())
def test_usage_errors(args: list[str], fake: FakePipeline, capsys: pytest.CaptureFixture[str]) -> None:
    fails(capsys, 2, *args)
    assert fake.requests == []


@pytest.mark.parametrize("args", INPUT.values(), ids=INPUT.keys())
def test_input_errors_come_before_the_work(
    args: list[str], fake: FakePipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("binary").write_bytes(b"\xff\xfe\x00")
    line = fails(capsys, 1, *args)
    assert fake.requests == []
    assert args[-1][:20] in line or "--ranks" in line


def test_no_answer_is_said_in_one_line(fake: FakePipeline, capsys: pytest.CaptureFixture[str]) -> None:
    fake.raises = NoAnswerError("pair: gpu0 cannot\nreach gpu1")
    assert main(["allgather", "--topo", "pair.json", "--quiet", "--report", "r.json"]) == 1
    assert capsys.readouterr().err == "synth: pair: gpu0 cannot reach gpu1\n"
    assert os.listdir() == ["pair.json"]


def test_ctrl_c_leaves_nothing_behind(fake: FakePipeline, capsys: pytest.CaptureFixture[str]) -> None:
    fake.raises = KeyboardInterrupt()
    assert main(["allgather", "--topo", "pair.json", "-o", "out/", "--report", "r.json"]) == 130
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.endswith("synth: interrupted\n")
    assert os.listdir() == ["pair.json"]


def test_a_bug_is_ours(fake: FakePipeline, capsys: pytest.CaptureFixture[str]) -> None:
    fake.raises = ZeroDivisionError("division by zero")
    line = fails(capsys, 3, "allgather", "--topo", "pair.json", "--quiet")
    assert line == "synth: internal error: ZeroDivisionError: division by zero (run with --debug for the traceback)\n"
    assert main(["allgather", "--topo", "pair.json", "--quiet", "--debug"]) == 3
    assert "Traceback" in capsys.readouterr().err


def test_a_file_of_ours_that_does_not_verify_is_a_bug(fake: FakePipeline, capsys: pytest.CaptureFixture[str]) -> None:
    fake.raises = VerifyError("rank 1 lacks chunk 0", ("gpu 1 threadblock 0 step 3",))
    line = fails(capsys, 3, "allgather", "--topo", "pair.json", "--quiet")
    assert "internal error: verify: rank 1 lacks chunk 0" in line


def test_more_files_than_were_asked_for_is_an_error(fake: FakePipeline, capsys: pytest.CaptureFixture[str]) -> None:
    fake.num_files = 2
    fails(capsys, 2, "allgather", "--topo", "pair.json", "--quiet", "--size", "1KB", "-o", "mine.xml")
