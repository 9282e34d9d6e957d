"""Who chooses a file for which call: each rule of each runtime at its edge, and what several files do to each other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from msccl_xml.model import Algo
from msccl_xml.write import write_algo
from synth.errors import InputError
from synth.explain import Answer, Call, FileReport, Question, explain, read_config
from synth.inputs.load import load_topology
from synth.topology import replicate
from tests.algos import ring_allgather, ring_allreduce

RUNTIMES = ("msccl", "executor", "rccl")
KB = 1 << 10


def content(algo: Algo, **changes: object) -> bytes:
    return write_algo(replace(algo, **changes)).encode()  # type: ignore[arg-type]


def ask(algo: Algo | bytes, *sizes: int, **settings: object) -> FileReport:
    text = algo if isinstance(algo, bytes) else content(algo)
    [report] = explain([("a.xml", text)], Question(sizes, **settings))  # type: ignore[arg-type]
    return report


def answer(report: FileReport, runtime: str, size: int, in_place: bool = True) -> Answer:
    return next(row.answers[runtime] for row in report.sizes if (row.bytes, row.in_place) == (size, in_place))


def rules(algo: Algo, size: int, in_place: bool = True, **settings: object) -> tuple[str | None, ...]:
    """What decides in msccl, the executor and RCCL; None where the file is chosen."""
    report = ask(algo, size, **settings)
    answers = [answer(report, runtime, size, in_place) for runtime in RUNTIMES]
    for one in answers:
        assert one.chosen == (one.rule is None) == (one.reason is None) == (one.file == "a.xml")
        assert one.chosen or one.mend is not None or one.rule == "load"
    return tuple(one.rule for one in answers)


AR = replace(ring_allreduce(4), min_bytes=KB, max_bytes=64 * KB)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (KB - 16, ("minBytes",) * 3),
        (KB, (None,) * 3),
        (64 * KB - 16, (None,) * 3),
        (64 * KB, ("maxBytes", None, None)),
        (64 * KB + 16, ("maxBytes",) * 3),
    ],
)
def test_each_runtime_has_its_own_end_of_the_range(size: int, expected: tuple[str | None, ...]) -> None:
    assert rules(AR, size) == expected


def test_no_limit_and_no_bytes_at_all() -> None:
    assert rules(replace(AR, max_bytes=0, min_bytes=0), 1 << 30) == ("maxBytes", None, None)
    assert rules(replace(AR, max_bytes=None), 1 << 27) == ("maxBytes", "load", "load")
    assert rules(replace(AR, max_bytes=None), (1 << 27) - 16) == (None, "load", "load")
    assert rules(replace(ring_allgather(4), max_bytes=64), 16) == ("count",) * 3


def test_divisibility_is_of_elements_but_of_bytes_where_msccl_adds_nothing() -> None:
    assert rules(AR, 1036) == ("nchunksperloop",) * 3  # 259 elements, 4 chunks
    gather = ring_allgather(2, c=12)  # 24 chunks; 1 KB is 256 elements or 1024 bytes
    assert rules(gather, KB) == ("nchunksperloop",) * 3
    fine = ring_allgather(2, c=64)  # 128 chunks; 256 bytes are 64 elements
    assert rules(fine, 256) == (None, "nchunksperloop", "nchunksperloop")
    assert rules(fine, 512) == (None, None, None)
    assert rules(fine, 256, element_bytes=1) == (None, None, None)
    assert rules(fine, 512, element_bytes=8) == (None, "nchunksperloop", "nchunksperloop")


def test_a_zero_of_chunks_is_told_before_it_divides() -> None:
    text = content(AR).replace(b'nchunksperloop="4"', b'nchunksperloop="0"')
    report = ask(text, KB, runtimes=("executor", "rccl"))
    assert report.loads["executor"].ok
    assert answer(report, "executor", KB).reason == "nchunksperloop is 0: the runtime would divide by it and crash"
    assert report.cost is not None
    assert report.cost.scratch_bytes == 0


@pytest.mark.parametrize(
    ("inplace", "outofplace", "call_in_place", "expected"),
    [
        (True, True, True, (None, None, None)),
        (True, True, False, ("inplace", None, None)),
        (True, False, False, ("inplace", "outofplace", "outofplace")),
        (False, True, True, ("inplace", "inplace", "inplace")),
        (False, True, False, (None, None, None)),
        (False, False, False, (None, "outofplace", "outofplace")),
    ],
)
def test_place(inplace: bool, outofplace: bool, call_in_place: bool, expected: tuple[str | None, ...]) -> None:
    assert rules(replace(AR, inplace=inplace, outofplace=outofplace), KB, call_in_place) == expected


def test_ranks_are_compared_by_msccl_when_it_loads_and_by_the_others_when_they_choose() -> None:
    report = ask(AR, KB, ranks=8)
    assert report.loads["msccl"].reason == "ngpus is 4, the communicator has 8 ranks"
    assert report.loads["executor"].ok
    assert answer(report, "executor", KB).reason == "the file is for 4 ranks, the communicator has 8"


def test_alltoall_in_place_is_refused_by_msccl_whatever_the_file_says() -> None:
    text = content(replace(ring_allgather(2), coll="alltoall", inplace=True)).replace(b'i_chunks="1"', b'i_chunks="2"')
    report = ask(text, KB)
    assert [answer(report, runtime, KB).rule for runtime in RUNTIMES] == ["call", None, None]
    assert answer(report, "msccl", KB, in_place=False).chosen, "the attribute is not compared there"


def test_custom_and_the_spelling_of_reduce_scatter() -> None:
    custom = ask(content(AR, coll="custom"), KB)
    assert [load.ok for load in custom.loads.values()] == [True, False, False]
    assert answer(custom, "msccl", KB).rule == "call"
    scatter = ask(content(AR, coll="reducescatter"), KB)
    assert [load.ok for load in scatter.loads.values()] == [False, True, True]
    assert scatter.loads["msccl"].mend == 'write coll="reduce_scatter"'


def test_the_first_file_that_fits_wins_in_the_order_of_the_runtime() -> None:
    narrow, wide = content(AR, max_bytes=4 * KB), content(AR)
    first, second = explain([("b.xml", wide), ("a.xml", narrow)], Question((KB, 16 * KB), places=(True,)))
    assert answer(first, "msccl", KB) == Answer(True, "b.xml")
    assert answer(second, "msccl", KB).rule == "order"
    assert answer(second, "executor", KB) == Answer(True, "a.xml"), "it reads a directory in the order of names"
    assert answer(first, "executor", KB).file == "a.xml"
    assert answer(first, "executor", 16 * KB).chosen
    assert answer(second, "executor", 16 * KB).rule == "maxBytes"
    assert answer(second, "executor", 16 * KB).file == "b.xml"


def test_files_of_another_collective_do_not_stand_in_the_way() -> None:
    other = content(ring_allgather(4), name="other")
    _, second = explain([("a.xml", other), ("b.xml", content(AR))], Question((KB,), places=(True,)))
    assert all(answer(second, runtime, KB).chosen for runtime in RUNTIMES)


def test_msccl_keeps_the_first_four_that_it_can_read() -> None:
    ranges = [content(AR, min_bytes=KB << k, max_bytes=KB << k + 1) for k in range(5)]
    files = [(f"{k}.xml", text) for k, text in enumerate(ranges)]
    reports = explain([("bad.xml", b"<x"), *files], Question(tuple(KB << k for k in range(5)), places=(True,)))
    assert [report.loads["msccl"].ok for report in reports] == [False, True, True, True, True, False]
    assert reports[5].loads["msccl"].reason == "msccl keeps 4 files, and as many come before it"
    assert answer(reports[4], "msccl", 8 * KB).chosen
    assert answer(reports[5], "msccl", 16 * KB).rule == "order"
    for runtime in ("executor", "rccl"):
        assert answer(reports[1], runtime, KB).rule == "load", "one bad file makes the directory useless"
        assert answer(reports[1], runtime, KB).file is None


def test_what_a_refused_file_does_to_its_directory() -> None:
    body, head = content(AR).replace(b'cnt="1"', b'cnt="99"'), content(AR, proto="simple", coll="AllReduce")
    assert "ncclCommInit" in ask(body, KB).loads["executor"].caveats[0]
    assert "all other files" in ask(head, KB).loads["rccl"].caveats[0]
    other = content(ring_allreduce(8))
    for ranks, rule in ((8, None), (4, "ngpus"), (None, "load")):
        _, second = explain([("a.xml", body), ("b.xml", other)], Question((KB,), places=(True,), ranks=ranks))
        assert answer(second, "executor", KB).rule == rule


def test_what_has_to_be_set() -> None:
    loads = ask(AR, KB).loads
    assert loads["msccl"].needs == ("MSCCL_XML_FILES=a.xml", "NCCL_ALGO=MSCCL,RING,TREE")
    assert any("RCCL_MSCCL_FORCE_ENABLE=1" in need for need in loads["rccl"].needs)
    wide = ask(replace(ring_allgather(4), proto="LL128"), KB).loads["msccl"].needs
    assert any("NCCL_PROTO" in need for need in wide)
    assert not any("NCCL_ALGO" in need for need in wide)
    assert any("root" in note for note in ask(replace(AR, coll="broadcast"), KB).loads["executor"].caveats)
    assert any("fused" in note for note in loads["rccl"].caveats)


def test_cost() -> None:
    scratch = replace(AR, gpus=tuple(replace(gpu, scratch_chunks=2) for gpu in AR.gpus))
    cost = ask(scratch, KB).cost
    assert cost is not None
    assert (cost.threadblocks, cost.channels, cost.connections_per_gpu) == (1, 1, 2)
    assert cost.scratch_bytes == 64 * KB * 2 // 4
    assert cost.connections_per_nic is None
    unlimited = ask(replace(scratch, max_bytes=0), KB, 16 * KB).cost
    assert unlimited is not None
    assert unlimited.scratch_bytes == 8 * KB


def test_connections_of_a_nic_are_those_that_cross_nodes() -> None:
    topology = replicate(load_topology("ndv2"), 2)
    cost = ask(ring_allreduce(16), KB, topology=topology, ranks=16).cost
    assert cost is not None
    assert cost.connections_per_nic == 2, "a ring leaves each node once and enters it once"


def test_the_call_is_that_of_nccl_tests() -> None:
    call = Call("allgather", 3, 4, False, 1 << 20)
    assert (call.count, call.total_bytes) == (87380, 1048560)
    assert call.divided("msccl") == (1048560, "bytes")
    assert call.divided("rccl") == (262140, "elements")
    assert Call("reduce_scatter", 4, 2, False, KB).total_count == 512
    assert Call("gather", 4, 4, False, KB).total_count == 64, "the executor does not multiply it"


def test_text_that_nobody_loads_still_gets_a_report() -> None:
    report = ask(b"no xml", KB)
    assert not any(load.ok for load in report.loads.values())
    assert (report.sizes, report.cost, report.header) == ((), None, None)
    tabs = ask(content(AR).replace(b" proto", b"\tproto"), KB)
    assert tabs.loads["rccl"].mend == "take out of the file: a tab within a tag (line 1)"
    assert tabs.cost is not None


def registered(text: str, *files: tuple[str, bytes], sizes: tuple[int, ...] = (KB,)) -> list[FileReport]:
    """Reports on the files that a configuration of these <load>s registers, in its order."""
    config = read_config(f"<msccl_algos>{text}</msccl_algos>".encode(), "my.xml")
    contents = dict(files)
    loads = [(one.path, contents[one.path]) for one in config.registrations]
    return explain(loads, Question(sizes, places=(True,), runtimes=("msccl",), config=config))


def test_a_registration_counts_in_place_of_the_file() -> None:
    """AR says 1 KB to 64 KB, in Simple."""
    load = '<load path="a.xml" minbytes="4096" maxbytes="1048576" proto="LL128"/>'
    [report] = registered(load, ("a.xml", content(AR)), sizes=(KB, 4 * KB, 512 * KB, 1024 * KB))
    told = [answer(report, "msccl", size) for size in (KB, 4 * KB, 512 * KB, 1024 * KB)]
    assert [one.rule for one in told] == ["minBytes", None, None, "maxBytes"]
    assert told[0].reason == "1KB (1024 bytes) is below minbytes 4096"
    assert told[0].mend == 'write minbytes="1024" or less in its <load>'
    assert (
        told[3].mend == 'write maxbytes="1048577" or more in its <load> if the file is right there (synth verify tells)'
    )
    loaded = report.loads["msccl"]
    assert loaded.needs[0] == "MSCCL_CONFIG=my.xml"
    assert any("NCCL_PROTO" in need for need in loaded.needs)
    assert any("registered as LL128, though the file says Simple" in note for note in loaded.caveats)


@pytest.mark.parametrize("bound", ["", ' maxbytes="-1"'])
def test_a_registration_without_an_end_has_no_limit(bound: str) -> None:
    [report] = registered(f'<load path="a.xml" proto="Simple"{bound}/>', ("a.xml", content(AR)), sizes=(16, 1 << 40))
    assert all(row.answers["msccl"].chosen for row in report.sizes)


def test_scratch_is_made_for_the_size_that_the_file_says() -> None:
    scratch = replace(AR, gpus=tuple(replace(gpu, scratch_chunks=2) for gpu in AR.gpus))
    for bound, told in (("65536", False), ("65537", True), ("-1", True)):
        [report] = registered(f'<load path="a.xml" maxbytes="{bound}" proto="Simple"/>', ("a.xml", content(scratch)))
        assert any("its scratch is made for" in note for note in report.loads["msccl"].caveats) is told


def test_registrations_are_tried_in_their_order_and_four_are_kept() -> None:
    loads = "".join(
        f'<load path="{name}.xml" maxbytes="{top}" proto="LL"/>'
        for name, top in zip("cbade", [2, 3, 4, 9, 9], strict=True)
    )
    files = [(f"{name}.xml", content(AR)) for name in "abcde"]
    reports = registered(loads.replace('"2"', '"2048"').replace('"9"', '"9999"'), *files)
    assert [report.path for report in reports] == ["c.xml", "b.xml", "a.xml", "d.xml", "e.xml"]
    assert [report.loads["msccl"].ok for report in reports] == [True] * 4 + [False]
    assert answer(reports[0], "msccl", KB).chosen
    assert [answer(report, "msccl", KB).rule for report in reports[1:]] == ["maxBytes", "maxBytes", "order", "order"]


def test_one_file_may_be_registered_twice() -> None:
    loads = '<load path="a.xml" maxbytes="2048" proto="LL"/><load path="a.xml" minbytes="2048" proto="Simple"/>'
    small, large = registered(loads, ("a.xml", content(AR)), sizes=(KB, 2 * KB))
    assert [row.answers["msccl"].chosen for row in small.sizes] == [True, False]
    assert [row.answers["msccl"].chosen for row in large.sizes] == [False, True]


def test_bounds_in_another_spelling_are_not_read() -> None:
    """msccl-tools writes minBytes and maxBytes, which the runtime does not look for."""
    load = '<load path="a.xml" minBytes="4096" maxBytes="8192" proto="Simple"/>'
    [report] = registered(load, ("a.xml", content(AR)), sizes=(KB, 1 << 20))
    assert all(row.answers["msccl"].chosen for row in report.sizes)
    notes = [note for note in report.loads["msccl"].caveats if "not read" in note]
    assert notes == [f"{key} is not read in a <load>: write {key.lower()}" for key in ("maxBytes", "minBytes")]


def test_other_elements_of_a_configuration_are_passed_over() -> None:
    text = '<other><load path="x.xml" proto="LL"/></other><!-- one --><load path="a.xml" proto="LL"></load>'
    config = read_config(f"<x></x><msccl_algos>{text}</msccl_algos><msccl_algos/>".encode(), "my.xml")
    assert [one.path for one in config.registrations] == ["a.xml"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "my.xml: 'no <msccl_algos>'"),
        ("<algo/>", "my.xml: 'no <msccl_algos>'"),
        ("<msccl_algos/>", "my.xml: 'no <load>'"),
        ("<msccl_algos>", "'<msccl_algos> is not closed'"),
        ("<msccl_algos></algo>", "my.xml: line 1: '</algo>'"),
        ('<?xml version="1.0"?>\n<msccl_algos/>', "my.xml: line 1: .*, expected what microsoft/msccl can read"),
        ('<msccl_algos>\n<load proto="LL"/></msccl_algos>', "line 2: <load> path: None"),
        ('<msccl_algos>\n<load path="a"/></msccl_algos>', "line 2: <load> proto: None, .*crashes"),
        ('<msccl_algos><load path="a" proto="ll"/></msccl_algos>', "proto: 'll', expected Simple or LL or LL128"),
        (f"<msccl_algos>{'<load />' * 1025}</msccl_algos>", "expected at most 1024"),
    ],
)
def test_what_keeps_msccl_from_starting_is_named(text: str, told: str) -> None:
    with pytest.raises(InputError, match=told) as error:
        read_config(text.encode(), "my.xml")
    assert "\n" not in str(error.value)
