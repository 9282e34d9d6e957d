"""The runtimes' own readers, rule by rule, on small files; a rule is what one attribute or one character changes."""

from __future__ import annotations

import pytest

from msccl_xml.strict import load_as

ALL = ("msccl", "executor", "rccl")
HEAD = {
    "name": "t",
    "proto": "Simple",
    "nchannels": "1",
    "nchunksperloop": "2",
    "ngpus": "2",
    "coll": "allgather",
    "inplace": "1",
    "outofplace": "0",
    "minBytes": "0",
    "maxBytes": "1048576",
}
STEP = {
    "s": "0",
    "type": "s",
    "srcbuf": "i",
    "srcoff": "0",
    "dstbuf": "o",
    "dstoff": "0",
    "cnt": "1",
    "depid": "-1",
    "deps": "-1",
    "hasdep": "0",
}


def tag(name: str, values: dict[str, str | None], end: str = "/>") -> str:
    return f"<{name}" + "".join(f' {key}="{value}"' for key, value in values.items() if value is not None) + end


def step(**values: str | None) -> str:
    return tag("step", {**STEP, **values})


def tb(*steps: str, **values: str | None) -> str:
    return tag("tb", {"id": "0", "send": "1", "recv": "1", "chan": "0", **values}, ">") + "".join(steps) + "</tb>"


def gpu(*blocks: str, **values: str | None) -> str:
    chunks = {"id": "0", "i_chunks": "1", "o_chunks": "2", "s_chunks": "3"}
    return tag("gpu", {**chunks, **values}, ">") + "".join(blocks) + "</gpu>"


def document(*inside: str, **values: str | None) -> str:
    return tag("algo", {**HEAD, **values}, ">") + "\n".join(inside or (gpu(tb(step())),)) + "</algo>"


GOOD = document()


def verdicts(text: str | bytes) -> str:
    """One letter a runtime: accept, reject, crash."""
    found = [load_as(text, runtime) for runtime in ALL]
    assert all(verdict.ok == (verdict.reason is None) for verdict in found)
    return "".join("a" if verdict.ok else "c" if verdict.crash else "r" for verdict in found)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (GOOD, "aaa"),
        ("", "ccc"),
        (" \r\n" + GOOD + "\n ", "aaa"),
        ("\t" + GOOD, "rrr"),
        (GOOD + "\t", "rrr"),
        (GOOD + "x", "rrr"),
        ("\ufeff" + GOOD, "rrr"),
        ('<?xml version="1.0"?>' + GOOD, "rrr"),
        ('<?xml version="1.0" ?>' + GOOD, "rrr"),
        ("<!DOCTYPE algo>" + GOOD, "rrr"),
        ("<!-- <x y='z'> -->" + GOOD, "aaa"),
        ("<!--a=b-->" + GOOD, "rrr"),
        ("<!-- a=b -->" + GOOD, "aaa"),
        ("<!--a-->" + GOOD, "aaa"),
        ("<!--->x-->" + GOOD, "aaa"),
        ("<!-- a ->" + GOOD, "rrr"),
        ("<!--" + "x" * 260 + "-->" + GOOD, "rrr"),
        (GOOD.replace(" proto", "  proto"), "aaa"),
        (GOOD.replace(" proto", "\tproto"), "rrr"),
        (GOOD.replace(" proto", "\nproto"), "rrr"),
        (GOOD.replace("<algo ", "<algo\n"), "rrr"),
        (GOOD.replace("proto=", "proto ="), "rrr"),
        (GOOD.replace("proto=", "proto= "), "rrr"),
        (GOOD.replace('"Simple"', "'Simple'"), "rrr"),
        (GOOD.replace('"Simple"', "'Simple\""), "aaa"),
        (GOOD.replace('ngpus="2"', "ngpus=2"), "rrr"),
        (GOOD.replace('hasdep="0"/>', 'hasdep="0" />'), "aaa"),
        (GOOD.replace('hasdep="0"/>', 'hasdep="0"/ >'), "rrr"),
        (GOOD.replace('hasdep="0"/>', 'hasdep="0"/x>'), "aaa"),
        (GOOD.replace('hasdep="0"/>', 'hasdep="0"></step>'), "aaa"),
        (GOOD.replace('hasdep="0"/>', 'hasdep="0"><!-- x --></step>'), "aaa"),
        (GOOD.replace('hasdep="0"/>', 'hasdep="0"><x/></step>'), "ccc"),
        (GOOD.replace('hasdep="0"/>', 'hasdep="0"></tb>'), "rrr"),
        (GOOD.replace('hasdep="0"/>', 'hasdep="0">x</step>'), "rrr"),
        (GOOD.replace("</tb>", "</tb >"), "rrr"),
        (GOOD.replace("</tb>", "</bt>"), "rrr"),
        (GOOD.replace("</gpu>", "</tb>"), "rrr"),
        (GOOD.replace("</algo>", ""), "rrr"),
        (GOOD.replace("</algo>", "</gpu>"), "rrr"),
        (GOOD.replace("</algo>", "</algo "), "rrr"),
        (GOOD[: len(GOOD) // 2], "rrr"),
        (GOOD + "</x>", "rrr"),
        (GOOD + "</x></y>", "aaa"),
        (GOOD + GOOD, "aaa"),
        (GOOD + document(coll="nonsense"), "aaa"),
        (GOOD + document("<gpu/>"), "rrr"),
        (document(coll="nonsense") + GOOD, "rrr"),
        ("<x/>" + GOOD, "arr"),
        ("<root>" + GOOD + "</root>", "ccc"),
        (b"<algo\0z" + GOOD.encode()[5:], "aaa"),
        (GOOD.encode().replace(b"Simple", b"Simple\0z"), "aaa"),
    ],
)
def test_the_lexer(text: str | bytes, expected: str) -> None:
    assert verdicts(text) == expected


@pytest.mark.parametrize(
    ("inside", "expected"),
    [
        ('<meta x="1"><y><z/></w></v>', "aaa"),
        ("<meta><tb/></meta>", "aaa"),
        (gpu('<copy i_off=\'0" o_off="1"/>', tb(step())), "aaa"),
        (gpu(tb("<copy/>", step())), "aaa"),
        (gpu(tb("<copy><step/></copy>", step())), "aaa"),
        (gpu(), "aaa"),
        (gpu("<tb/>"), "rrr"),
        ('<gpu id="0" i_chunks="0" o_chunks="0" s_chunks="0"/>', "aaa"),
        ('<gpu i_chunks="0"/>', "rrr"),
        (gpu(tb(step()), id="5").replace("</tb>", "</x>"), "aaa"),
        (gpu(tb(step(cnt="99")), id="5"), "aaa"),
        (gpu(tb(step(cnt="99")), id="1", i_chunks="0"), "rrr"),
        (gpu(tb(step(), send="2", recv="0"), id="1"), "raa"),
    ],
)
def test_elements(inside: str, expected: str) -> None:
    assert verdicts(document(inside)) == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"name": None}, "raa"),
        ({"proto": None}, "rrr"),
        ({"nchannels": None}, "rrr"),
        ({"nchunksperloop": None}, "rrr"),
        ({"ngpus": None}, "rrr"),
        ({"coll": None}, "rrr"),
        ({"inplace": None}, "rrr"),
        ({"outofplace": None}, "arr"),
        ({"minBytes": None}, "arr"),
        ({"maxBytes": None}, "arr"),
        ({"minBytes": "134217729", "maxBytes": None}, "rrr"),
        ({"minBytes": "-1"}, "raa"),
        ({"minBytes": "8", "maxBytes": "7"}, "raa"),
        ({"maxBytes": "9999999999999"}, "aaa"),
        ({"maxBytes": "0"}, "aaa"),
        ({"nthreads": "512"}, "aaa"),
        ({"nthreads": "500"}, "raa"),
        ({"inplace": "true"}, "aaa"),
        ({"nchannels": "99"}, "aaa"),
        ({"nchannels": "0"}, "aaa"),
        ({"proto": "simple"}, "rrr"),
        ({"proto": "LL"}, "aaa"),
        ({"proto": "LL128"}, "aaa"),
        ({"coll": "Allgather"}, "rrr"),
        ({"coll": "broadcast"}, "raa"),
        ({"coll": "custom", "nchunksperloop": "1"}, "rrr"),
        ({"nchunksperloop": "02"}, "aaa"),
        ({"nchunksperloop": "0x2"}, "aaa"),
        ({"nchunksperloop": "2e9"}, "aaa"),
        ({"nchunksperloop": " +2x"}, "aaa"),
        ({"nchunksperloop": "4294967298"}, "aaa"),
        ({"nchunksperloop": "3"}, "raa"),
        ({"ngpus": "0x2"}, "raa"),
        ({"rtype": "nic"}, "raa"),
        ({"redop": "nop"}, "aaa"),
        ({"name": "a>b/c=d 'e' &lt;"}, "aaa"),
        ({"name": ""}, "aaa"),
        ({"name": "n" * 300}, "aaa"),
        ({"name": "n" * 20000}, "rcc"),
        ({"coll": "allgather" + " " * 300}, "rrr"),
        ({"k" * 254: "1"}, "aaa"),
        ({"k" * 255: "1"}, "rrr"),
    ],
)
def test_attributes_of_algo(values: dict[str, str | None], expected: str) -> None:
    assert verdicts(document(**values)) == expected


@pytest.mark.parametrize(
    ("coll", "expected"),
    [
        *((name, "aaa") for name in ("allreduce", "reduce", "broadcast", "alltoall")),
        ("reduce_scatter", "arr"),
        ("custom", "arr"),
        *((name, "raa") for name in ("reducescatter", "send", "recv", "gather", "scatter", "alltoallv")),
        ("reduce-scatter", "rrr"),
    ],
)
def test_spellings_of_the_collective(coll: str, expected: str) -> None:
    assert verdicts(document(gpu(i_chunks="0", o_chunks="0"), coll=coll)) == expected


def test_seventeen_attributes_are_one_too_many_and_spaces_count() -> None:
    extra = "".join(f'x{k}="1" ' for k in range(6))
    assert verdicts(GOOD.replace("<algo ", "<algo " + extra)) == "aaa"
    assert verdicts(GOOD.replace("<algo ", '<algo y="1" ' + extra)) == "arr"
    assert verdicts(GOOD.replace("<algo ", "<algo  " + extra)) == "arr"
    assert verdicts(GOOD.replace('<step s="0"', "<step" + " " * 8 + 's="0"')) == "rrr"
    assert verdicts(GOOD.replace(' coll="allgather"', ' coll="allgather" coll="x"')) == "aaa"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"i_chunks": None}, "rrr"),
        ({"s_chunks": None}, "rrr"),
        ({"s_chunks": "-1"}, "rrr"),
        ({"i_chunks": "2"}, "raa"),
        ({"o_chunks": "3"}, "raa"),
        ({"o_chunks": "0"}, "aaa"),
        ({"o_chunks": "-2"}, "aaa"),
    ],
)
def test_attributes_of_gpu(values: dict[str, str | None], expected: str) -> None:
    assert verdicts(document(gpu(tb(step()), **values))) == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        *(({key: None}, "rrr") for key in ("id", "send", "recv", "chan")),
        ({"id": "1"}, "rrr"),
        ({"id": "-1"}, "rrr"),
        ({"send": "0"}, "rrr"),
        ({"recv": "0"}, "rrr"),
        ({"recv": "-2"}, "rrr"),
        ({"recv": "-1"}, "aaa"),
        ({"recv": "2"}, "raa"),
        ({"send": "-1"}, "rrr"),
        ({"chan": "-1"}, "rrr"),
        ({"chan": "31"}, "aaa"),
        ({"chan": "32"}, "rra"),
        ({"chan": "127"}, "rra"),
        ({"chan": "128"}, "rrr"),
    ],
)
def test_attributes_of_tb(values: dict[str, str | None], expected: str) -> None:
    assert verdicts(document(gpu(tb(step(), **values)))) == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        *(({key: None}, "rrr") for key in STEP),
        ({"s": "-1"}, "rrr"),
        ({"s": "63"}, "aaa"),
        ({"s": "64"}, "arr"),
        ({"s": "255"}, "arr"),
        ({"s": "256"}, "rrr"),
        ({"type": "x"}, "rrr"),
        ({"type": "S"}, "rrr"),
        ({"type": "ra"}, "arr"),
        ({"type": "ra", "dstoff": "2"}, "rrr"),
        ({"srcbuf": "x"}, "rrr"),
        ({"dstbuf": ""}, "rrr"),
        ({"type": "nop", "dstbuf": "x"}, "rrr"),
        ({"type": "nop", "cnt": "99", "hasdep": "7", "srcoff": "99"}, "aaa"),
        ({"cnt": "0"}, "aaa"),
        ({"cnt": "71"}, "aaa"),
        ({"cnt": "72"}, "rrr"),
        ({"cnt": "-1"}, "rrr"),
        ({"hasdep": "1"}, "aaa"),
        ({"hasdep": "2"}, "rrr"),
        ({"srcoff": "-1"}, "aaa"),
        ({"srcoff": "-2"}, "rrr"),
        ({"srcoff": "1"}, "rrr"),
        ({"srcoff": "65536"}, "aaa"),
        ({"srcoff": "08"}, "aaa"),
        ({"srcbuf": "s", "srcoff": "2"}, "aaa"),
        ({"dstoff": "99"}, "aaa"),
        ({"type": "r", "dstoff": "1", "srcoff": "99"}, "aaa"),
        ({"type": "r", "dstoff": "2"}, "rrr"),
        ({"type": "rcs", "srcoff": "99"}, "aaa"),
        ({"type": "rcs", "dstoff": "2"}, "rrr"),
        ({"type": "rrs", "dstoff": "99"}, "aaa"),
        ({"type": "rrs", "srcoff": "1"}, "rrr"),
        ({"type": "rrc", "srcoff": "99", "dstoff": "99"}, "aaa"),
        ({"type": "rrcs", "srcoff": "1"}, "rrr"),
        ({"type": "rrcs", "dstoff": "2"}, "rrr"),
        ({"type": "cpy", "srcoff": "1"}, "rrr"),
        ({"type": "re", "dstoff": "2"}, "rrr"),
        ({"depid": "200", "deps": "77"}, "aaa"),
    ],
)
def test_attributes_of_step(values: dict[str, str | None], expected: str) -> None:
    assert verdicts(document(gpu(tb(step(**values))))) == expected


@pytest.mark.parametrize(
    ("kind", "send", "recv"), [("s", "-1", "1"), ("r", "1", "-1"), ("rcs", "-1", "1"), ("rrcs", "1", "-1")]
)
def test_a_step_needs_the_peer_it_uses(kind: str, send: str, recv: str) -> None:
    assert verdicts(document(gpu(tb(step(type=kind), send=send, recv=recv)))) == "rrr"


def test_threadblock_ids_are_a_range_in_any_order() -> None:
    def blocks(*ids: int) -> str:
        return document(gpu(*(tb(step(), id=str(number), chan=str(number % 32)) for number in ids)))

    assert verdicts(blocks(1, 0, 2)) == "aaa"
    assert verdicts(blocks(0, 2)) == "rrr"
    assert verdicts(blocks(0, 0)) == "rrr"
    assert verdicts(blocks(*range(64))) == "aaa"
    assert verdicts(blocks(*range(65))) == "aar"
    assert verdicts(blocks(*range(216))) == "aar"
    assert verdicts(blocks(*range(217))) == "rar"


def test_a_channel_has_32_threadblocks_that_send() -> None:
    def sending(count: int, kind: str = "s") -> str:
        return document(gpu(*(tb(step(type=kind), id=str(number)) for number in range(count))))

    assert verdicts(sending(32)) == "aaa"
    assert verdicts(sending(33)) == "rrr"
    assert verdicts(sending(33, "r")) == "rrr"
    assert verdicts(sending(33, "cpy")) == "aaa"
    twice = gpu(*(tb(step(), id=str(number)) for number in range(20)))
    assert verdicts(document(twice, twice)) == "rrr", "the gpu stands twice: both are read, and counted together"


def test_the_step_after_a_nop_carries_its_dependence() -> None:
    nop = step(type="nop", depid="0", deps="0")
    assert verdicts(document(gpu(tb(nop, step(depid="0", deps="0"))))) == "aaa"
    assert verdicts(document(gpu(tb(nop, step())))) == "rrr"
    assert verdicts(document(gpu(tb(step(type="nop"), step())))) == "aaa"
    assert verdicts(document(gpu(tb(nop)))) == "aaa"


def test_a_fused_reduction_passes_a_dependence_on() -> None:
    nop, add = step(type="nop", depid="0", deps="0"), step(type="re", srcbuf="s")
    copy = step(type="cpy")
    assert verdicts(document(gpu(tb(add, nop, add)))) == "aaa"
    assert verdicts(document(gpu(tb(add, nop, add, copy)))) == "rrr", "it slides to the copy, which has none"
    assert verdicts(document(gpu(tb(step(type="re", srcbuf="s", hasdep="1"), nop, add)))) == "rrr"
    assert verdicts(document(gpu(tb(add, nop, step(type="re", srcbuf="s", dstoff="1"))))) == "rrr"
    assert verdicts(document(gpu(tb(*[add] * 16, nop, add)))) == "rrr", "the 16th ends the run"
    assert verdicts(document(gpu(tb(*[add] * 17, nop, add)))) == "aaa", "and no later one does"


def test_a_rank_sees_4095_elements() -> None:
    def steps(count: int) -> str:
        quarter = [
            tb(*[step()] * (count // 4 + (count % 4 if k == 0 else 0)), id=str(k), chan=str(k)) for k in range(4)
        ]
        return document(gpu(*quarter), '<gpu id="1" i_chunks="0" o_chunks="0" s_chunks="0"/>')

    assert verdicts(steps(4095 - 1 - 2 - 4)) == "aaa"
    assert verdicts(steps(4096 - 1 - 2 - 4)) == "rrr"


def test_more_than_1024_children_overwrite_memory() -> None:
    assert verdicts(document(gpu(tb(*[step()] * 1024)))) == "aaa"
    assert verdicts(document(gpu(tb(*[step()] * 1100)))) == "ccc"
    assert verdicts(document('<gpu id="9"/>' * 1100)) == "ccc"


def test_where_it_stops() -> None:
    text = GOOD + "\n"
    verdict = load_as(text.replace("<tb", "\n\n<tb").replace('chan="0"', 'chan="77"'), "msccl")
    assert (verdict.line, verdict.rank) == (3, 0)
    assert verdict.reason == "gpu 0: threadblock 0: chan is 77, expected 0..31"
    declared = load_as('<?xml version="1.0" ?>\n' + text, "rccl")
    assert (declared.line, declared.reason) == (1, "<?xml> is taken for an element, and is not closed")


def test_one_rank_and_another_size() -> None:
    text = document(gpu(tb(step(cnt="99"))), gpu(tb(step(), send="0", recv="0"), id="1"))
    assert not load_as(text, "msccl", rank=0).ok
    assert load_as(text, "msccl", rank=1).ok
    other = load_as(GOOD, "msccl", ranks=3)
    assert other.reason == "ngpus is 2, the communicator has 3 ranks"
    assert load_as(GOOD, "executor", ranks=3).ok, "read all the same, and never chosen"
    assert load_as(GOOD.replace('ngpus="2"', 'ngpus="0x2"'), "msccl", ranks=2).ok


def test_an_unknown_runtime_is_no_verdict() -> None:
    with pytest.raises(ValueError, match="expected one of msccl executor rccl"):
        load_as(GOOD, "nccl")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (tag("algo", HEAD, ">") + "<x>" * 300_000, "ccc"),
        (tag("algo", HEAD, ">") + "<x>" * 1000 + "</y>" * 1000 + "</algo>", "aaa"),
        (document(gpu(tb(step() * 100_000))), "ccc"),
        (GOOD.replace("name=", 'x="' + "a" * 80_000_000 + '" name='), "ccc"),
        ("<" * 1_000_000, "rrr"),
        ('<a b="' + '"' * 1_000_000, "rrr"),
        (document(minBytes="9" * 1_000_000), "rcc"),
        ('<!DOCTYPE a [<!ENTITY b "c"><!ENTITY d "&b;&b;">]>' + GOOD, "rrr"),
    ],
    ids=["nested forever", "nested", "steps", "long value", "brackets", "quotes", "digits", "entities"],
)
def test_hostile_documents_get_a_verdict(text: str, expected: str) -> None:
    assert verdicts(text) == expected
