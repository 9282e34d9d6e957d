"""Requests for tests: what the command line would ask of the pipeline, with a field or two changed."""

from __future__ import annotations

from dataclasses import replace

from synth.collective import CollectiveName
from synth.request import Request
from synth.topology import Topology


def request(
    topology: Topology,
    collective: CollectiveName | str,
    min_bytes: int,
    max_bytes: int | None = None,
    **changes: object,
) -> Request:
    """A job for buffers of `min_bytes` to `max_bytes` (one size if that is None), everything else by default."""
    plain = Request(
        topology=topology,
        collective=CollectiveName(collective),
        min_bytes=min_bytes,
        max_bytes=min_bytes if max_bytes is None else max_bytes,
        time_limit_s=600.0,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]
