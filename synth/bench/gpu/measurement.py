"""A measured case beside its simulation, and its place in the history."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass

from synth.bench.store import Store
from synth.units import format_size

OK, WRONG, FAILED, SKIPPED = "ok", "wrong", "failed", "skipped"


@dataclass(frozen=True, slots=True)
class Measurement:
    """One size of one file on GPUs. `way` is what measured it; times are us, with and without the file.

    `wrong` counts elements that were not as they should be. Where `status` is skipped or failed, `problem` says why, and `bytes`
    may be 0 for all sizes of the file.
    """

    at: str
    commit_id: str
    machine: str
    collective: str
    bytes: int
    xml_hash: str
    way: str
    status: str
    problem: str = ""
    with_us: float | None = None
    without_us: float | None = None
    wrong: int | None = None
    simulated_us: float | None = None
    command: str = ""

    @property
    def name(self) -> str:
        """`dgx1/allreduce/1MB, nccl-tests`."""
        size = format_size(self.bytes) if self.bytes else "all sizes"
        return f"{self.machine}/{self.collective}/{size}, {self.way}"

    @property
    def is_wrong(self) -> bool:
        """Whether the file gave wrong results, or no result."""
        return self.status in (WRONG, FAILED)

    @property
    def is_skipped(self) -> bool:
        """Whether nothing could be measured here."""
        return self.status == SKIPPED

    @property
    def line(self) -> str:
        """What was found, in one line."""
        if self.with_us is None:
            return f"{self.name}: {self.status}: {self.problem}"
        told = f"{self.name}: {self.status}, {self.with_us:.1f} us"
        if self.simulated_us:
            told += f", simulated {self.simulated_us:.1f} us ({self.with_us / self.simulated_us:.2f} times that)"
        if self.without_us:
            told += f", without the file {self.without_us:.1f} us"
        return told + (f": {self.problem}" if self.problem else "")


def keep(store: Store, measurements: Sequence[Measurement]) -> None:
    """Add measurements to the history, all or none."""
    store.insert("measurement", [asdict(item) for item in measurements])


def newest(store: Store, files: Collection[tuple[str, str]]) -> list[Measurement]:
    """What is known of `files` (machine, hash): the last measurement of each at each size, in the order of the cases.

    A failure or a skip of a whole file is forgotten once the file was measured again; of several files that were skipped for one
    reason, one stands for all.
    """
    names = ", ".join(Measurement.__dataclass_fields__)
    last: dict[tuple[str, str, str, str], dict[int, Measurement]] = {}
    for row in store.select(f"SELECT {names} FROM measurement ORDER BY id"):
        item = Measurement(**row)
        if (item.machine, item.xml_hash) not in files:
            continue
        sizes = last.setdefault((item.machine, item.collective, item.way, item.xml_hash), {})
        sizes.pop(0, None)
        sizes[item.bytes] = item
    found = [item for sizes in last.values() for item in sizes.values()]
    found.sort(key=lambda item: (item.machine, item.collective, item.bytes, item.way, item.xml_hash))
    return list({item.line if item.is_skipped else (item.xml_hash, item.line): item for item in found}.values())
