"""What the lenient reader forgives is told; a file of ours has nothing to tell."""

from __future__ import annotations

import pytest

from msccl_xml.differences import differences
from msccl_xml.write import write_algo
from tests.algos import ring_allgather

GOOD = write_algo(ring_allgather(3))


def test_our_own_files_take_no_liberty() -> None:
    assert differences(GOOD) == []
    assert differences(GOOD.replace("\n", "\r\n") + "<!-- x = y -->") == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('<?xml version="1.0"?>\n' + GOOD, ["an XML declaration (line 1)"]),
        ("\ufeff" + GOOD, ["a byte order mark (line 1)"]),
        ("<!DOCTYPE algo>" + GOOD, ["a document type (line 1)"]),
        ("<!--a=b-->" + GOOD, ["a comment whose first word has a '=' (line 1)"]),
        (GOOD.replace("  <gpu", "\t<gpu", 1), ["a tab between elements (line 2)"]),
        (GOOD.replace(" proto", "\tproto"), ["a tab within a tag (line 1)"]),
        (GOOD.replace(" proto", "\nproto"), ["a line break within a tag (line 1)"]),
        (GOOD.replace("proto=", "proto = "), ["spaces beside '=' (line 1)"]),
        (GOOD.replace('"Simple"', "'Simple'"), ["a value in single quotes (line 1)"]),
        (GOOD.replace('name="', 'name="a&amp;'), ["an entity, which runtimes do not decode (line 1)"]),
        (GOOD.replace('name="', 'name="' + "n" * 300), ["a value of more than 255 characters (line 1)"]),
        (GOOD.replace("</algo>", "<copy/><copy></copy></algo>"), ["an unknown element <copy>, which runtimes skip"]),
        (GOOD.replace("</algo>", "x</algo>"), ["text between elements"]),
        (GOOD.replace(" proto", " " * 8 + "proto"), ["more than 16 attributes, or spaces that count as such"]),
        (GOOD.replace('ngpus="3"', 'ngpus="03"'), ["a number with a leading 0, which runtimes read in base 8"]),
    ],
)
def test_one_liberty_is_one_line(text: str, expected: list[str]) -> None:
    found = differences(text)
    assert len(found) == len(expected)
    assert all(line.startswith(start) for line, start in zip(found, expected, strict=True))


@pytest.mark.parametrize("text", ["<", "<" * 10**6, "<!--" * 10**5, "<a b='" * 10**5, '<a b="', "", "<a>" * 10**5])
def test_what_is_no_xml_is_looked_at_as_far_as_it_goes(text: str) -> None:
    assert len(differences(text)) <= 2


def test_repeats_are_counted_and_kinds_are_limited() -> None:
    assert differences(GOOD.replace("</algo>", "\n<x/>\n<x/></algo>"))[0].endswith("times)")
    assert len(differences("".join(f"<x{k}/>" for k in range(1000)))) == 40
