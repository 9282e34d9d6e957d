"""Writing and reading MSCCL XML lose nothing, and the text is one that the runtimes' lexers take."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from msccl_xml.model import Algo, Buffer, Gpu, Step, StepType, Threadblock
from msccl_xml.read import read_algo
from msccl_xml.write import safe_name, write_algo

_SAFE = st.text("abcXYZ019_.,:+=()@ -", max_size=63)
_SMALL = st.integers(-1, 300)
_BYTES = st.none() | st.integers(0, 2**62)
_STEPS = st.builds(
    Step,
    st.sampled_from(StepType),
    st.sampled_from(Buffer),
    _SMALL,
    st.sampled_from(Buffer),
    _SMALL,
    st.integers(0, 71),
    _SMALL,
    _SMALL,
    st.booleans(),
)
_TBS = st.builds(Threadblock, _SMALL, _SMALL, _SMALL, _SMALL, st.lists(_STEPS, max_size=4).map(tuple))
_GPUS = st.builds(Gpu, _SMALL, _SMALL, _SMALL, _SMALL, st.lists(_TBS, max_size=3).map(tuple))
ALGOS = st.builds(
    Algo,
    name=_SAFE,
    coll=st.sampled_from(["allreduce", "reduce_scatter", "custom"]),
    proto=st.sampled_from(["Simple", "LL", "LL128"]),
    ngpus=_SMALL,
    nchannels=_SMALL,
    nchunksperloop=_SMALL,
    gpus=st.lists(_GPUS, max_size=3).map(tuple),
    inplace=st.booleans(),
    outofplace=st.none() | st.booleans(),
    min_bytes=_BYTES,
    max_bytes=_BYTES,
    nthreads=st.none() | st.integers(0, 1024),
    extra=st.dictionaries(st.sampled_from(["redop", "maxcount", "a-b"]), _SAFE, max_size=3).map(
        lambda d: tuple(d.items())
    ),
)
#: One element as the lexers read it: one space between attributes, double quotes, nothing before `>` or `/>`.
_ELEMENT = re.compile(r' *<(/?[a-z]+)((?: [A-Za-z_.-]+="[^"<&\t\n]*")*)/?>')


@settings(deadline=None, derandomize=True)
@given(ALGOS)
def test_what_is_written_is_read_back(algo: Algo) -> None:
    text = write_algo(algo)
    assert read_algo(text) == algo
    assert read_algo(text.encode()) == algo
    assert write_algo(read_algo(text)) == text


@settings(deadline=None, derandomize=True)
@given(ALGOS)
def test_the_text_is_one_that_the_lexers_take(algo: Algo) -> None:
    text = write_algo(algo)
    assert text.isascii()
    assert text.endswith("</algo>\n")
    for line in text.splitlines():
        match = _ELEMENT.fullmatch(line)
        assert match, line
        assert match[2].count('="') <= 16


@given(st.text())
def test_any_name_becomes_a_safe_one(name: str) -> None:
    safe = safe_name(name)
    assert len(safe) <= 63
    assert safe_name(safe) == safe
    assert read_algo(write_algo(Algo(name, "allreduce", "LL", 1, 1, 1, (), True))).name == safe
