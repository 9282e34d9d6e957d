"""Where an answer goes: what `-o` means, what files are called, and whether they can be written at all."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from synth.cli.atomic import check_writable
from synth.errors import UsageError
from synth.group import group_text
from synth.request import FilePlan, Request
from synth.units import format_size

STDOUT = "-"
_UNSAFE = re.compile(r"[^A-Za-z0-9._]+")
#: Longest topology part of a name: far below the 255 bytes that file systems allow, with room for the rest.
_MAX_PART = 80


@dataclass(frozen=True, slots=True)
class Target:
    """`file` is one file (`-`: standard output), else files get names in `directory` ("" is the working directory)."""

    file: str | None
    directory: str
    new_directory: str | None
    report: str | None


def choose_target(output: str | None, report: str | None, single_size: bool) -> Target:
    """The target that `-o` and `--report` name; nothing is touched.

    Raises UsageError where one file is named for a set of files, both options name the same file, or a name holds a
    colon, at which runtimes split MSCCL_XML_FILES.
    """
    if output == "" or report == "":
        raise UsageError("-o and --report take a path, not an empty text")
    if report == STDOUT:
        raise UsageError("--report takes a file; standard output carries the paths of the answer")
    if output is not None and ":" in output:
        raise UsageError(f"-o {output}: a path without ':', at which runtimes split MSCCL_XML_FILES")
    if output is None:
        return Target(None, "", None, report)
    if output != STDOUT and (output.endswith("/") or os.path.isdir(output)):
        new_directory = None if os.path.isdir(output) else output.rstrip("/") or "/"
        return Target(None, output, new_directory, report)
    if not single_size:
        where = "standard output is one file" if output == STDOUT else f"-o {output} names one file"
        instead = "" if output == STDOUT else f", or a directory: -o {output}/"
        raise UsageError(f"{where}, but a range of sizes makes a set of them: give --size{instead}")
    if report is not None and output != STDOUT and os.path.realpath(output) == os.path.realpath(report):
        raise UsageError(f"-o and --report both name {output}")
    return Target(output, "", None, report)


def check_target(target: Target, request: Request) -> None:
    """Raise SynthError where a file of the answer could not be written, so that no work is lost."""
    if target.file is None:
        name = file_name(request, request.min_bytes, request.max_bytes)
        check_writable(os.path.join(target.directory, name), target.new_directory)
    elif target.file != STDOUT:
        check_writable(target.file)
    if target.report is not None:
        check_writable(target.report, target.new_directory)


def name_files(target: Target, request: Request, files: Sequence[FilePlan]) -> tuple[str, ...]:
    """The path of each file of the answer, in order; UsageError where `-o` names one and there are more."""
    if target.file is None:
        names = [file_name(request, plan.min_bytes, plan.max_bytes) for plan in files]
        return tuple(os.path.join(target.directory, name) for name in names)
    if len(files) != 1:
        raise UsageError(f"-o {target.file} names one file, but there are {len(files)}: give --size, or a directory")
    return (target.file,)


def file_name(request: Request, min_bytes: int, max_bytes: int) -> str:
    """`allreduce-dgx1-1KB-128KB.xml`: letters, digits, dots and dashes only, the same for the same request."""
    parts = [request.collective.value, _safe(request.topology.name)]
    if request.group is not None:
        parts.append(_safe("group" + group_text(request.group).replace(",", ".")))
    if request.root is not None:
        parts.append(f"root{request.root}")
    # The first file may begin a little below what was asked for (`synth.chunks.moved_bytes`).
    parts.append(format_size(request.min_bytes if request.single_size else max(request.min_bytes, min_bytes)))
    if not request.single_size:
        parts.append(_end(max_bytes))
    return "-".join(parts) + ".xml"


def _end(max_bytes: int) -> str:
    """The end of a range: where the next file begins if that is the shorter spelling (131071 is "128KB")."""
    return min(format_size(max_bytes), format_size(max_bytes + 1), key=len)


def _safe(name: str) -> str:
    safe = _UNSAFE.sub("-", name).strip("-.") or "topology"
    if len(safe) <= _MAX_PART:
        return safe
    return f"{safe[:_MAX_PART]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
