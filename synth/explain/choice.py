"""Would a runtime choose a file for a call? One rule a function, each with what mends it.

Sources: microsoft/msccl b23e9cd5 (ncclTopoGetMSCCLAlgo, computeColl), Azure/msccl-executor-nccl c6f6b36d and ROCm/rccl
0cbce2a7 (mscclInternalSchedulerSelectAlgo); sections 3 and 6 of the format notes (docs/xml.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from msccl_xml.header import Header
from msccl_xml.limits import LIMITS
from synth.constants import last_byte
from synth.explain.call import Call, plain_coll
from synth.units import format_size

#: maxBytes of a registration without one.
NO_LIMIT = 1 << 63
#: The executor and RCCL hand these to no file: there is no public call, or one without an element count.
_NO_COUNT = frozenset({"alltoallv"})
#: Fewer chunks of larger buffers fit a transfer: a file may hang with them.
_IF_RIGHT = " if the file is right there (synth verify tells)"


@dataclass(frozen=True, slots=True)
class Registered(Header):
    """A header whose bounds and protocol are those of a registration (config.py)."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a runtime passes over a file, in one sentence, and the change that mends it (None: nothing does)."""

    rule: str
    """in one word: the attribute that decided, or `call`, `order`, `load`"""
    reason: str
    mend: str | None = None


def refusal(header: Header, runtime: str, call: Call) -> Refusal | None:
    """The first reason why `runtime` would not take a file that it has loaded for this call; None if it would."""
    for rule in _RULES:
        found = rule(header, runtime, call)
        if found is not None:
            return found
    return None


def _callable(header: Header, runtime: str, call: Call) -> Refusal | None:
    if header.coll == "custom":
        return Refusal(
            "call", "coll=custom is never chosen by itself", "call ncclCustomCollective with the number of the file"
        )
    if plain_coll(header.coll) in _NO_COUNT:
        return Refusal("call", f"a call of {header.coll} has no element count, by which files are chosen")
    if runtime == "msccl" and header.coll == "alltoall" and call.in_place:
        return Refusal("call", "ncclAllToAll refuses in-place calls", "call out of place")
    return None


def _ranks(header: Header, runtime: str, call: Call) -> Refusal | None:
    if header.ngpus == call.ranks:
        return None
    return Refusal(
        "ngpus",
        f"the file is for {header.ngpus} ranks, the communicator has {call.ranks}",
        "make a file for these ranks",
    )


def _channels(header: Header, runtime: str, call: Call) -> Refusal | None:
    most = LIMITS[runtime].channels
    if runtime == "msccl" or header.nchannels <= most:
        return None
    return Refusal(
        "nchannels", f"nchannels is {header.nchannels}, {runtime} has {most} channels", f"use at most {most} channels"
    )


def _place(header: Header, runtime: str, call: Call) -> Refusal | None:
    if runtime == "msccl":
        if header.coll == "alltoall" or header.inplace == call.in_place:
            return None
        wanted = int(call.in_place)
        said = f"inplace={int(header.inplace)} means {'in-place' if header.inplace else 'out-of-place'} calls only"
        mend = f'call {_other(call)}, or write inplace="{wanted}" if the file is right {call} (synth verify tells)'
        return Refusal("inplace", said, mend)
    key, flag = ("inplace", header.inplace) if call.in_place else ("outofplace", bool(header.outofplace))
    if flag:
        return None
    mend = f'call {_other(call)}, or write {key}="1" if the file is right {call} too (synth verify tells)'
    return Refusal(key, f"{key}=0 means no {'in-place' if call.in_place else 'out-of-place'} calls", mend)


def _other(call: Call) -> str:
    return "out of place" if call.in_place else "in place"


def _empty(header: Header, runtime: str, call: Call) -> Refusal | None:
    if call.count > 0:
        return None
    return Refusal(
        "count", "the buffer is too small for every rank to have a share: nothing is moved", "call with a larger buffer"
    )


def _smallest(header: Header, runtime: str, call: Call) -> Refusal | None:
    low = header.min_bytes or 0
    if call.total_bytes >= low:
        return None
    key, where = _spelled(header, "minBytes")
    mend = f'write {key}="{call.total_bytes}" or less{where}'
    return Refusal("minBytes", f"{_bytes(call)} is below {key} {low}", mend)


def _largest(header: Header, runtime: str, call: Call) -> Refusal | None:
    high = last_byte(header.max_bytes, runtime)
    if high is None or call.total_bytes <= high:
        return None
    if runtime == "msccl":
        key, where = _spelled(header, "maxBytes")
        said = f"{key} {high + 1}" if header.max_bytes is not None else f"the default maxBytes {high + 1}"
        mend = f'write {key}="{call.total_bytes + 1}" or more{where}{_IF_RIGHT}'
        return Refusal("maxBytes", f"{_bytes(call)} is not below {said}, which msccl leaves out itself", mend)
    return Refusal(
        "maxBytes",
        f"{_bytes(call)} is above maxBytes {high}",
        f'write maxBytes="{call.total_bytes}" or more, or 0{_IF_RIGHT}',
    )


def _spelled(header: Header, key: str) -> tuple[str, str]:
    """How an attribute of bounds is spelt where it counts, and where that is if not in the file."""
    return (key.lower(), " in its <load>") if isinstance(header, Registered) else (key, "")


def _bytes(call: Call) -> str:
    short = format_size(call.total_bytes)
    return f"{call.total_bytes} bytes" if short.isdecimal() else f"{short} ({call.total_bytes} bytes)"


def _divides(header: Header, runtime: str, call: Call) -> Refusal | None:
    if header.nchunksperloop == 0:
        return Refusal(
            "nchunksperloop",
            "nchunksperloop is 0: the runtime would divide by it and crash",
            "write the number of chunks",
        )
    amount, unit = call.divided(runtime)
    if amount % header.nchunksperloop == 0:
        return None
    parts = header.nchunksperloop
    mend = f"call with a multiple of {parts} {unit}, or make a file whose nchunksperloop divides {amount}"
    return Refusal("nchunksperloop", f"{amount} {unit} are not a multiple of nchunksperloop {parts}", mend)


_RULES: tuple[Callable[[Header, str, Call], Refusal | None], ...] = (
    _callable,
    _ranks,
    _channels,
    _place,
    _empty,
    _smallest,
    _largest,
    _divides,
)
