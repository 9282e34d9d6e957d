"""`synth simulate`: the table, the JSON, the pictures, and what is said where something is wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from lxml import etree

from msccl_xml.model import Algo, Buffer
from msccl_xml.write import write_algo
from synth.cli.main import main
from synth.simulate import Simulator
from synth.units import bandwidth_GBps
from tests.algos import exchange_allgather, ring_allgather, ring_allreduce, step, with_steps

TOPO = {
    "format": 1,
    "name": "square",
    "devices": [{"id": f"gpu{k}", "kind": "gpu", "rank": k} for k in range(4)],
    "links": [
        {"between": [f"gpu{k}", f"gpu{(k + 1) % 4}"], "kind": "nvlink", "GBps": 10.0, "alpha_us": 1.0} for k in range(4)
    ],
}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with square.json and ring.xml (for 4 KB to 1 GB), as working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "square.json").write_text(json.dumps(TOPO))
    algo = replace(ring_allreduce(4), min_bytes=4096, max_bytes=1 << 30)
    (tmp_path / "ring.xml").write_text(write_algo(algo))
    return tmp_path


def simulate(capsys: pytest.CaptureFixture[str], *args: str, file: str = "ring.xml") -> tuple[int, str, str]:
    code = main(["simulate", file, "--topo", "square.json", *args])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def from_json(capsys: pytest.CaptureFixture[str], *args: str, file: str = "ring.xml") -> dict:
    code, out, err = simulate(capsys, "--json", *args, file=file)
    assert (code, err) == (0, "")
    return json.loads(out)


def test_the_table_is_that_of_nccl_tests(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = simulate(capsys, "--sizes", "2KB:8KB")
    assert (code, err) == (0, "")
    head, units, *rows = out.splitlines()
    assert head.split() == ["#", "size", "count", "type", "redop", "time", "algbw", "busbw"]
    assert units.split() == ["#", "(B)", "(elements)", "(us)", "(GB/s)", "(GB/s)"]
    assert [row.split()[:4] for row in rows] == [
        ["2048", "512", "float", "sum"],
        ["4096", "1024", "float", "sum"],
        ["8192", "2048", "float", "sum"],
    ]
    size, _, _, _, time, algbw, busbw = rows[2].split()
    assert float(algbw) == pytest.approx(bandwidth_GBps(int(size), float(time)), abs=0.006)
    assert float(busbw) == pytest.approx(1.5 * float(algbw), abs=0.011)
    assert rows[0].endswith("# not chosen: below minBytes 4096")


def test_json_has_the_figures_of_the_simulator(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from synth.inputs.load import load_topology

    document = from_json(capsys, "--sizes", "1MB:4MB")
    assert (document["file"], document["topology"]) == ("ring.xml", "square")
    times = [Simulator(ring_allreduce(4), load_topology("square.json")).time_us(size << 20) for size in (1, 2, 4)]
    assert [row["time_us"] for row in document["sizes"]] == times
    for row in document["sizes"]:
        assert row["algbw_GBps"] == pytest.approx(row["bytes"] / row["time_us"] / 1e3)
        assert row["busbw_GBps"] == pytest.approx(1.5 * row["algbw_GBps"])
        assert row["count"] == row["bytes"] // 4


def test_sizes_default_to_1KB_to_1GB(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert [row["bytes"] for row in from_json(capsys)["sizes"]] == [1 << k for k in range(10, 31)]


@pytest.mark.parametrize(
    ("size", "note"),
    [
        ("4KB", None),
        ("4100", "not chosen: 4 chunks do not divide 1025 elements"),
        ("1GB", "not chosen by msccl, to which maxBytes is no longer in the range"),
        ("2GB", "not chosen: above maxBytes 1073741824"),
    ],
)
def test_sizes_at_which_a_runtime_leaves_the_file_out_are_marked(
    files: Path, capsys: pytest.CaptureFixture[str], size: str, note: str | None
) -> None:
    (row,) = from_json(capsys, "--size", size)["sizes"]
    assert row["note"] == note
    assert row["time_us"] > 0


def test_a_share_is_counted_where_ranks_have_shares(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (files / "gather.xml").write_text(write_algo(ring_allgather(4)))
    (row,) = from_json(capsys, "--size", "4KB", file="gather.xml")["sizes"]
    assert row["count"] == 256
    assert row["busbw_GBps"] == pytest.approx(0.75 * row["algbw_GBps"])
    _, out, _ = simulate(capsys, "--size", "4KB", file="gather.xml")
    assert out.splitlines()[2].split()[3] == "none"


def test_a_file_from_standard_input(files: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    expected = from_json(capsys, "--size", "1MB")["sizes"]
    with open("ring.xml", "rb") as file:
        monkeypatch.setattr("sys.stdin", type("Stdin", (), {"buffer": file})())
        assert from_json(capsys, "--size", "1MB", file="-")["sizes"] == expected


def test_a_trace_has_a_row_for_every_threadblock(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, _ = simulate(capsys, "--sizes", "64KB:1MB", "--trace", "t.json")
    assert code == 0
    trace = json.loads((files / "t.json").read_text())
    events = trace["traceEvents"]
    names = {(e["name"], e["pid"]): e["args"]["name"] for e in events if e["ph"] == "M"}
    assert names["process_name", 2] == "gpu 2"
    assert names["thread_name", 2] == "tb 0 1->3 ch 0"
    steps = [event for event in events if event["ph"] == "X"]
    assert len(steps) == 4 * 7
    assert {event["name"] for event in steps if event["pid"] == 0} == {
        "s i[0]", "rrs i[3]", "rrs i[2]", "rrcs o[1]", "rcs o[0]", "rcs o[3]", "r o[2]",
    }  # fmt: skip
    assert all(event["dur"] > 0 and event["ts"] >= 0 for event in steps)
    assert trace["otherData"]["bytes"] == 1 << 20
    assert trace["otherData"]["cut"] is False


def test_a_plot_is_one_svg_that_needs_nothing_else(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, _ = simulate(capsys, "--sizes", "1KB:4MB", "--plot", "p.svg")
    assert code == 0
    text = (files / "p.svg").read_text()
    assert "href" not in text
    root = etree.fromstring(text.encode())
    of = {
        kind: root.findall(f"{{http://www.w3.org/2000/svg}}{kind}") for kind in ("circle", "polyline", "rect", "text")
    }
    assert len(of["circle"]) == 13  # a point a size
    assert len(of["polyline"]) == 2  # what is reached, and the bound
    reached = [float(y.split(",")[1]) for y in of["polyline"][1].get("points", "").split()]
    bound = [float(y.split(",")[1]) for y in of["polyline"][0].get("points", "").split()]
    assert all(low > high for low, high in zip(reached, bound, strict=True))  # y grows downwards
    told = [each.text for each in of["text"]]
    assert {"gpu 0", "gpu 1", "gpu 2", "gpu 3", "1KB", "4MB"} <= set(told)


def test_equal_command_lines_write_equal_bytes(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outputs = []
    for number in range(2):
        simulate(capsys, "--sizes", "1KB:1MB", "--trace", f"{number}.json", "--plot", f"{number}.svg")
        outputs.append([(files / f"{number}.{end}").read_bytes() for end in ("json", "svg")])
    assert outputs[0] == outputs[1]


def test_calibration_and_full_change_what_they_should(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (files / "slow.json").write_text('{"Simple": {"rate_GBps": 1.0}}')
    (plain,) = from_json(capsys, "--size", "256MB")["sizes"]
    (slow,) = from_json(capsys, "--size", "256MB", "--calibration", "slow.json")["sizes"]
    (full,) = from_json(capsys, "--size", "256MB", "--full")["sizes"]
    assert slow["time_us"] > 5 * plain["time_us"]
    assert full["time_us"] == pytest.approx(plain["time_us"], rel=1e-9)


def test_against_prints_the_speed_up_beside_each_time(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = from_json(capsys, "--sizes", "1KB:2KB", "--against", "ring, tree")
    for row in document["sizes"]:
        assert set(row["against"]) == {"ring", "tree"}
        for other in row["against"].values():
            assert other["speedup"] == pytest.approx(other["time_us"] / row["time_us"])
    _, out, _ = simulate(capsys, "--sizes", "1KB:2KB", "--against", "ring,tree")
    assert out.splitlines()[0].split()[-2:] == ["ring", "tree"]
    assert out.splitlines()[2].split()[7].endswith("x")
    assert "# no gain over ring is to be expected at any size" in out


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["--size", "1KB", "--sizes", "1KB:2KB"], 2, "exclude each other"),
        (["--against", "ring,rings"], 2, "--against: 'rings', expected names of ring, tree"),
        (["--trace", "-"], 2, "--trace and --plot take a path"),
        (["--trace", "a", "--plot", "a"], 2, "--trace and --plot both name a"),
        (["--plot", "missing/p.svg"], 1, "missing/p.svg: cannot be written"),
        (["--ranks", "0,1"], 1, "ring.xml: ngpus: 4, expected 2, the GPUs of square[0,1]"),
        (["--calibration", "ring.xml"], 1, "ring.xml: line 1"),
        (["--calibration", "none.json"], 1, "none.json: cannot be read"),
        (["--nodes", "2"], 1, "--nodes"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    files: Path, capsys: pytest.CaptureFixture[str], args: list[str], code: int, said: str
) -> None:
    got, out, err = simulate(capsys, *args)
    assert (got, out) == (code, "")
    assert said in err
    assert err.count("\n") == 1


def test_a_hang_is_said_in_one_line_and_writes_nothing(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pair = {**TOPO, "devices": TOPO["devices"][:2], "links": TOPO["links"][:1]}
    (files / "square.json").write_text(json.dumps(pair))
    (files / "hang.xml").write_text(write_algo(exchange_allgather("Simple", 3)))
    code, out, err = simulate(capsys, "--size", "48MB", "--trace", "t.json", file="hang.xml")
    assert (code, out) == (1, "")
    assert "hangs" in err
    assert "waits for room towards gpu 1" in err
    assert err.count("\n") == 1
    assert not (files / "t.json").exists()


def test_a_file_that_hangs_beyond_its_largest_buffer_is_timed_up_to_there(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = {**TOPO, "devices": TOPO["devices"][:2], "links": TOPO["links"][:1]}
    (files / "square.json").write_text(json.dumps(pair))
    (files / "short.xml").write_text(write_algo(_at_once(3, 6 << 20)))
    sizes = ("--sizes", "1536KB:12MB", "--against", "ring")
    code, out, err = simulate(capsys, *sizes, "--trace", "t.json", "--plot", "p.svg", file="short.xml")
    assert (code, err) == (0, "")
    rows = out.splitlines()[2:9]
    assert [row.split("  # ")[0].split()[4:] == ["N/A"] * 4 for row in rows] == [False] * 5 + [True] * 2
    assert rows[-1].endswith("# not chosen: above maxBytes 6291456; it would hang")
    last = from_json(capsys, *sizes, file="short.xml")["sizes"][-1]
    assert (last["time_us"], last["busbw_GBps"], last["against"]["ring"]["speedup"]) == (None, None, None)
    simulate(capsys, "--size", "6MB", "--trace", "one.json", file="short.xml")
    assert (files / "t.json").read_text() == (files / "one.json").read_text()


def _at_once(chunks: int, max_bytes: int) -> Algo:
    """Two ranks that send all they have in one step before they receive: right while that is two transfers at most."""
    algo = exchange_allgather("Simple", chunks)
    for rank in range(2):
        copy, *_ = algo.gpus[rank].threadblocks[0].steps
        receive = step("r", dst=(Buffer.OUTPUT, (1 - rank) * chunks), count=chunks)
        algo = with_steps(algo, rank, 0, (copy, step("s", count=chunks), receive))
    return replace(algo, min_bytes=1024, max_bytes=max_bytes)


def test_no_xml_is_said_in_one_line(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = simulate(capsys, file="square.json")
    assert code == 1
    assert err.startswith("synth: square.json: ")
    assert err.count("\n") == 1
