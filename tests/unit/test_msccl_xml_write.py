from __future__ import annotations

from dataclasses import replace

import pytest

from msccl_xml.errors import XmlError
from msccl_xml.write import write_algo
from tests.algos import relay_broadcast

ALGO = relay_broadcast("LL", 1)


def test_the_text_is_exactly_this() -> None:
    lines = write_algo(ALGO).splitlines()
    assert lines[0] == (
        '<algo name="synth-broadcast-test" proto="LL" nchannels="1" nchunksperloop="1" ngpus="3" coll="broadcast"'
        ' inplace="1" outofplace="1" minBytes="0" maxBytes="1073741824">'
    )
    assert lines[1:4] == [
        '  <gpu id="0" i_chunks="1" o_chunks="1" s_chunks="0">',
        '    <tb id="0" send="1" recv="-1" chan="0">',
        '      <step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1"'
        ' depid="-1" deps="-1" hasdep="0"/>',
    ]
    assert lines[-1] == "</algo>"


def test_attributes_that_are_none_are_left_out() -> None:
    text = write_algo(replace(ALGO, outofplace=None, min_bytes=None, max_bytes=None))
    assert "outofplace" not in text
    assert "Bytes" not in text


@pytest.mark.parametrize(
    "extra",
    [
        (("a", "tab\there"),),
        (("a", 'quote"'),),
        (("a", "&lt;"),),
        (("a", "é"),),
        (("a", "x" * 256),),
        (("a b", "x"),),
        (("coll", "x"),),
        (("a", "1"), ("a", "2")),
        tuple((f"a{k}", "1") for k in range(7)),
    ],
)
def test_what_the_lexers_would_lose_or_misread_is_refused(extra: tuple[tuple[str, str], ...]) -> None:
    with pytest.raises(XmlError):
        write_algo(replace(ALGO, extra=extra))


def test_sixteen_attributes_fit() -> None:
    extra = tuple((f"a{k}", "1") for k in range(6))
    assert write_algo(replace(ALGO, extra=extra)).splitlines()[0].count("=") == 16
