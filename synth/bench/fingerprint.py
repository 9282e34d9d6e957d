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
    """What a run was made from. `commit` is "" outside a checkout; `dirty` is a hash of changes that are in no commit, or ""."""

    commit: str
    dirty: str
    versions: dict[str, str]
    platform: str

    @property
    def code(self) -> str:
        """Equal for equal code and packages: runs of one code have to agree in every deterministic column."""
        told = json.dumps([self.commit, self.dirty, self.versions], sort_keys=True)
        return _hash(told) if self.commit else ""


def origin() -> Origin:
    """The code that is running here, and with which packages."""
    versions = {"synth": __version__, "python": platform.python_version()}
    versions |= {name: _version(name) for name in _PACKAGES}
    return Origin(
        commit=_commit(),
        dirty=_dirty(),
        versions=versions,
        platform=f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
    )


def _commit() -> str:
    return _git("rev-parse", "HEAD").strip()


def _dirty() -> str:
    """A hash of what differs from the commit in the packages: text of tracked files, and files that git does not know yet."""
    packages = ("synth", "msccl_xml", "topologies", "benchmarks/suites")
    changed = _git("diff", "HEAD", "--", *packages)
    unknown = _git("ls-files", "--others", "--exclude-standard", "--", *packages).splitlines()
    told = [changed] if changed else []
    for name in sorted(unknown):
        try:
            told.append(f"{name}\n{(_ROOT / name).read_text(encoding='utf-8')}")
        except (OSError, UnicodeDecodeError):
            told.append(name)
    return _hash("\n".join(told)) if told else ""


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
