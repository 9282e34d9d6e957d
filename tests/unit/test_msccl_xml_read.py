from __future__ import annotations

import pytest

from msccl_xml.errors import XmlError
from msccl_xml.model import Buffer, Step, StepType
from msccl_xml.read import read_algo
from msccl_xml.write import write_algo
from tests.algos import ring_allgather

STEP = '<step s="0" type="cpy" srcbuf="i" srcoff="0" dstbuf="o" dstoff="1" cnt="2" depid="-1" deps="-1" hasdep="0"/>'
GPU = f'<gpu id="0" i_chunks="2" o_chunks="4" s_chunks="0"><tb id="0" send="-1" recv="-1" chan="0">{STEP}</tb></gpu>'
OLD = f'<algo name="a" nchunksperloop="4" nchannels="1" proto="LL" ngpus="1" inplace="1" coll="allreduce">{GPU}</algo>'


def test_the_attributes_of_an_old_file_are_enough() -> None:
    algo = read_algo(OLD)
    assert (algo.outofplace, algo.min_bytes, algo.max_bytes, algo.nthreads) == (None, None, None, None)
    (step,) = algo.gpus[0].threadblocks[0].steps
    assert step == Step(StepType.COPY, Buffer.INPUT, 0, Buffer.OUTPUT, 1, 2)


def test_declaration_comments_tabs_and_unknown_elements_are_passed_over() -> None:
    text = OLD.replace("<tb", '<copy i_off="0" o_off="1"/>\n\t<tb').replace("<gpu", "<!-- a comment --> <gpu")
    assert read_algo('<?xml version="1.0" encoding="latin-1"?>\n' + text) == read_algo(OLD)
    assert read_algo(b'\xef\xbb\xbf<?xml version="1.0"?>' + text.encode()) == read_algo(OLD)


def test_unknown_attributes_of_the_algorithm_are_kept() -> None:
    assert read_algo(OLD.replace("<algo", '<algo redop="nop"')).extra == (("redop", "nop"),)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (' cnt="2"', "", "<step> has no attribute cnt"),
        ('cnt="2"', 'cnt="010"', "<step> cnt='010', expected a decimal whole number"),
        ('cnt="2"', 'cnt="2.0"', "<step> cnt='2.0', expected a decimal whole number"),
        ('type="cpy"', 'type="ra"', "<step> type='ra', expected one of s r rcs"),
        ('hasdep="0"', 'hasdep="2"', "<step> hasdep='2', expected 0 or 1"),
        ('srcbuf="i"', 'srcbuf="x"', "<step> srcbuf='x', expected one of i o s"),
        (' coll="allreduce"', "", "<algo> has no attribute coll"),
        ("</algo>", "", "not XML"),
        ("</algo>", "</algo><algo/>", "not XML"),
    ],
)
def test_an_error_names_line_element_and_attribute(old: str, new: str, message: str) -> None:
    text = "\n\n" + OLD.replace("<step", "\n<step").replace(old, new)
    with pytest.raises(XmlError) as caught:
        read_algo(text)
    assert message in caught.value.message
    assert caught.value.line == (4 if "<step>" in message else caught.value.line)
    assert str(caught.value).startswith(f"line {caught.value.line}: ")


def test_another_root_is_refused() -> None:
    with pytest.raises(XmlError, match="the root element is <system>"):
        read_algo("<system/>")


@pytest.mark.parametrize("text", ["", "   ", "{}", b"\x00\xff", "<algo"])
def test_what_is_no_xml_is_refused(text: str | bytes) -> None:
    with pytest.raises(XmlError):
        read_algo(text)


def test_entities_are_not_expanded() -> None:
    bomb = '<!DOCTYPE algo [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;">]>' + OLD.replace('name="a"', 'name="&b;"')
    with pytest.raises(XmlError):
        read_algo(bomb)


def test_a_file_of_ours_is_read() -> None:
    assert read_algo(write_algo(ring_allgather(4))) == ring_allgather(4)
