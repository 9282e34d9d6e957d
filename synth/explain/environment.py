"""What a runtime must be told before it uses a file, and what to know about a file that it would use.

Source: section 6 of the format notes (docs/xml.md), with the names that the runtimes read.
"""

from __future__ import annotations

from collections.abc import Sequence

from msccl_xml.header import Header
from msccl_xml.limits import LIMITS
from msccl_xml.model import Algo

_ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter"})
_REDUCING = frozenset({"allreduce", "reduce", "reducescatter", "reduce_scatter"})
#: Multiprocessors of the GPUs that people have; threadblocks of one grid wait for each other and must all fit.
_MULTIPROCESSORS = (("H20", 78), ("V100", 80), ("A100", 108), ("H100", 132))


def needs(header: Header, runtime: str, paths: Sequence[str], config: str | None = None) -> tuple[str, ...]:
    """Environment and settings without which `runtime` ignores the file; `paths` are all files, in load order, and `config` is
    what registers them if that does.
    """
    if runtime == "msccl":
        told = ["MSCCL_XML_FILES=" + ":".join(paths) if config is None else f"MSCCL_CONFIG={config}"]
        if header.coll == "allreduce":
            told.append("NCCL_ALGO=MSCCL,RING,TREE")
        if header.proto == "LL128":
            told.append("NCCL_PROTO=LL,LL128,Simple (not on V100 and A100 with NVLink, where LL128 is on by itself)")
        return tuple(told)
    told = ["MSCCL_ALGO_DIR=<the directory, with nothing else in it>"]
    if runtime == "rccl":
        return (*told, "RCCL_MSCCL_FORCE_ENABLE=1 (not on machines that RCCL enables files for)")
    told.append("one process for each GPU")
    told.append(f"NCCL_MAX_NCHANNELS of at least {header.nchannels}, where it is set")
    return tuple(told)


def caveats(header: Header, runtime: str, algo: Algo | None) -> tuple[str, ...]:
    """What may go wrong or surprise although the file loads; `algo` is the file as read, where it can be."""
    told = []
    if header.coll in _ROOTED:
        told.append(f"no runtime compares the root: every {header.coll} would get this file, whatever its root")
    if header.coll in _REDUCING:
        told.append("only sum, product, minimum and maximum are handed to files")
    if runtime == "msccl":
        told += _msccl_caveats(header)
    if runtime == "executor" and header.coll in ("broadcast", "reduce") and header.proto == "Simple":
        told.append("over a network, Simple is expected to hang in broadcast and reduce: use LL, or one node")
    if algo is not None:
        told += _structure_caveats(runtime, algo)
    return tuple(told)


def refused_caveats(runtime: str, listed: bool) -> tuple[str, ...]:
    """What a file that `runtime` refuses does to others; `listed`: its first element passes when read by itself."""
    if runtime == "msccl":
        return ()
    if listed:
        return ("in MSCCL_ALGO_DIR it makes ncclCommInit fail where the ranks are as many as it says",)
    return ("in MSCCL_ALGO_DIR it keeps all other files from being used",)


def _msccl_caveats(header: Header) -> list[str]:
    told = ["not used within a group of several operations"]
    if header.max_bytes is None:
        told.append("without maxBytes msccl stops before 128MB")
    return told


def _structure_caveats(runtime: str, algo: Algo) -> list[str]:
    told = []
    most = algo.threadblocks
    small = [f"{name} ({count})" for name, count in _MULTIPROCESSORS if count < most]
    if small:
        told.append(f"{most} threadblocks do not fit the multiprocessors of {', '.join(small)}: it would hang there")
    if any(not gpu.threadblocks for gpu in algo.gpus) or len(algo.gpus) < algo.ngpus:
        told.append("a gpu has no threadblock: the kernel launch would fail")
    if any(tb.channel >= algo.nchannels for gpu in algo.gpus for tb in gpu.threadblocks):
        told.append(f"a threadblock uses a channel beyond nchannels {algo.nchannels}, which is not connected")
    kinds = {step.type for _, _, _, step in algo.steps()} - LIMITS[runtime].basic_types
    if kinds:
        named = " ".join(sorted(kinds))
        told.append(
            f"{named}: builds of RCCL without fused operations load the file and fail when it is called; "
            "make it with --runtime rccl, which uses none, or run a build that has them"
        )
    return told
