"""Compiling the interpreter at run time, once for each content: the result is kept in a folder of the user's caches."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from synth.errors import SynthError
from synth.execute.cuda.abi import header

_SOURCE = Path(__file__).resolve().parent / "source"
#: C++17 is what both compilers take; the interpreter reads one memory as several types.
_HOST_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-pthread", "-fno-strict-aliasing", "-Wno-unknown-pragmas")


class BuildError(SynthError):
    """The interpreter could not be compiled: the message holds the compiler's first lines, or says what to install."""


def cache_folder() -> Path:
    """Where compiled interpreters are kept: below $SYNTH_CACHE, else below `synth` in the user's folder of caches."""
    if chosen := os.environ.get("SYNTH_CACHE"):
        return Path(chosen) / "interpreter"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "synth" / "interpreter"


def sources() -> dict[str, str]:
    """The interpreter's sources by file name, with the header that abi.py writes."""
    found = {path.name: path.read_text(encoding="utf-8") for path in sorted(_SOURCE.iterdir()) if path.is_file()}
    return {**found, "abi.h": header()}


def build_host(*, sanitizer: str = "", folder: Path | None = None) -> Path:
    """The library of the host build, kept in `folder` (`cache_folder`); with a `sanitizer` ("thread") it is checked as it runs.

    Raises BuildError where there is no compiler, or it fails.
    """
    compiler = find_host_compiler()
    if compiler is None:
        raise BuildError("the host build needs a C++ compiler: install g++ or clang++, or name one in CXX")
    flags = [*_HOST_FLAGS, *([f"-fsanitize={sanitizer}", "-g"] if sanitizer else [])]
    return cached([compiler, *flags, "host.cpp"], "host.so", folder)


def find_host_compiler() -> str | None:
    """CXX, or the first C++ compiler on the path."""
    for name in (os.environ.get("CXX", ""), "g++", "clang++", "c++"):
        if name and (found := shutil.which(name)):
            return found
    return None


def cached(command: Sequence[str], result: str, base: Path | None = None) -> Path:
    """What `command` makes of the sources (`-o` is added), kept under the hash of both in `base` (`cache_folder`)."""
    texts = sources()
    folder = (base or cache_folder()) / key(texts, command)
    target = folder / result
    if target.exists():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as work:
        for name, text in texts.items():
            (Path(work) / name).write_text(text, encoding="utf-8")
        made = Path(work) / result
        done = subprocess.run([*command, "-o", str(made)], cwd=work, capture_output=True, text=True, check=False)
        if done.returncode:
            shown = "\n".join((done.stderr or done.stdout).splitlines()[:10])
            raise BuildError(f"{Path(command[0]).name} could not compile the interpreter:\n{shown}")
        made.replace(target)
    return target


def key(texts: dict[str, str], command: Sequence[str]) -> str:
    """A name that differs wherever a source or the command does."""
    digest = hashlib.sha256()
    for part in (*command, *(piece for item in sorted(texts.items()) for piece in item)):
        digest.update(part.encode())
        digest.update(b"\0")
    return digest.hexdigest()[:24]
