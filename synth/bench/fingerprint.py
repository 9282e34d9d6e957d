"""What is hashed, so that like is compared with like: instances, files, and the state that a run was made from."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from synth import __version__
from synth.bench.values import Job

_ROOT = Path(__file__).resolve().parent.parent.parent
#: Packages whose version can change an answer.
_PACKAGES = ("numpy", "scipy", "highspy", "pulp")
#: What answers come from: packages, and the suites that come along.
_SOURCES = ("synth", "msccl_xml", "topologies")
_SUITES = ("benchmarks/suites",)
_LENGTH = 16


def instance_hash(job: Job) -> str:
    """Of all that shapes the answer of a synthesis: the machine's devices and links, and the request (but not its budget)."""
    topology = job.machine.topology
    told = {
        "devices": [asdict(device) for device in topology.devices],
        "links": [asdict(link) for link in topology.links],
        "relay_through": sorted(topology.relay_through),
        "fallback": sorted(topology.fallback),
        "collective": job.collective,
        "range": [job.sizes[0], job.sizes[-1]],
        "strategy": job.strategy,
        "seed": job.seed,
        "runtime": job.runtime,
    }
    return _hash(json.dumps(told, sort_keys=True))


def text_hash(text: str) -> str:
    """Of a file's text."""
    return _hash(text)


@dataclass(frozen=True, slots=True)
class Origin:
    """What a run was made from. `commit` is "" outside a checkout; `dirty` is a hash of what no commit has (outside a checkout, of
    all that is installed), or "".
    """

    commit: str
    dirty: str
    versions: dict[str, str]
    platform: str

    @property
    def short(self) -> str:
        """`3f2a1b0c+`: the beginning of the commit; the plus stands for changes that are in no commit."""
        return self.commit[:8] + ("+" if self.dirty else "") if self.commit else "no commit"

    @property
    def code(self) -> str:
        """Equal for equal code and packages: runs of one code have to agree in every deterministic column."""
        return _hash(json.dumps([self.commit, self.dirty, self.versions], sort_keys=True))


def origin() -> Origin:
    """The code that is running here, and with which packages."""
    versions = {"synth": __version__, "python": platform.python_version()}
    versions |= {name: _version(name) for name in _PACKAGES}
    commit = _git("rev-parse", "HEAD").strip()
    return Origin(
        commit=commit,
        dirty=_changes() if commit else _installed(),
        versions=versions,
        platform=f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
    )


def code_here() -> str:
    """A hash of the programs and packages of this process: hosts where it is equal give equal answers."""
    files = sorted(path for package in ("synth", "msccl_xml") for path in (_ROOT / package).rglob("*.py"))
    told = [f"{path.relative_to(_ROOT).as_posix()}\n{_digest(path)}" for path in files]
    return _hash("\n".join([*told, *(f"{name} {_version(name)}" for name in _PACKAGES)]))


def _changes() -> str:
    """A hash of what differs from the commit in the packages: text of tracked files, and files that git does not know yet."""
    changed = _git("diff", "HEAD", "--binary", "--", *_SOURCES, *_SUITES)
    unknown = _git("ls-files", "--others", "--exclude-standard", "--", *_SOURCES, *_SUITES).splitlines()
    told = [changed] if changed else []
    told += [f"{name}\n{_digest(_ROOT / name)}" for name in sorted(unknown)]
    return _hash("\n".join(told)) if told else ""


def _installed() -> str:
    """A hash of the packages as they stand on the disk: an installation without a commit is told apart from another by it."""
    files = sorted(
        path
        for package in _SOURCES
        for path in (_ROOT / package).rglob("*")
        if path.suffix != ".pyc" and path.is_file()
    )
    return _hash("\n".join(f"{path.relative_to(_ROOT).as_posix()}\n{_digest(path)}" for path in files))


def _digest(path: Path) -> str:
    """Of a file's bytes; "" where it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def _git(*arguments: str) -> str:
    """What git prints of the checkout that synth runs from; "" where there is none."""
    if not (_ROOT / ".git").exists():
        return ""
    try:
        command = ["git", "-C", str(_ROOT), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_LENGTH]
