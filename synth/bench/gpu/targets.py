"""What is to be measured: files that are named, or those of a run in the history."""

from __future__ import annotations

from collections.abc import Sequence

from msccl_xml.errors import XmlError
from msccl_xml.read import read_algo
from synth.bench.fingerprint import text_hash
from synth.bench.gpu.drive import Target
from synth.bench.rows import Run
from synth.bench.store import Store
from synth.chunks import range_sizes
from synth.collective import CollectiveName
from synth.constants import last_byte
from synth.errors import InputError, SynthError
from synth.simulate import Simulator, paths_by_pair
from synth.texts import read_text
from synth.topology import Topology
from synth.verify import VerifyError, infer_collective


def targets_of_files(
    paths: Sequence[str], topology: Topology, sizes: tuple[int, int], runtime: str = "msccl", root: int | None = None
) -> list[Target]:
    """Files on a machine at the doublings of a range (bytes), those of them that each file is for.

    Raises SynthError where a file cannot be read, InputError where it is for no size of the range or for another machine.
    """
    by_pair = paths_by_pair(topology)
    targets = []
    for path in paths:
        text = read_text(path)
        try:
            algo = read_algo(text.encode())
            collective = infer_collective(algo, root=root).name
        except (XmlError, VerifyError, InputError) as error:
            raise SynthError(" ".join(f"{path}: {error}".split())) from error
        simulator = Simulator(algo, topology, paths=by_pair)
        last = last_byte(algo.max_bytes, runtime)
        served = [
            size for size in range_sizes(*sizes) if (algo.min_bytes or 0) <= size and (last is None or size <= last)
        ]
        if not served:
            raise InputError(path, "minBytes", algo.min_bytes, "a file for some size of --sizes")
        times = {size: simulator.time_us(size) for size in served}
        targets.append(Target(topology.name, collective, algo, text, text_hash(text), times))
    return targets


def targets_of_run(store: Store, run: Run, machine: str | None) -> list[Target]:
    """The files of a run's answers, of one machine or of all, at the sizes of their cases."""
    cases: dict[tuple[str, str, str], dict[int, float]] = {}
    for record in store.records(run).values():
        if record.xml_hash is not None and record.time_us is not None and machine in (None, record.machine):
            key = (record.machine, record.collective, record.xml_hash)
            cases.setdefault(key, {})[record.bytes] = record.time_us
    if not cases:
        raise InputError("--machine", "", machine, f"a machine that {run.title} has answers for")
    targets = []
    for (name, collective, digest), times in cases.items():
        text = store.file(digest)
        if text is not None:
            algo = read_algo(text.encode())
            targets.append(Target(name, CollectiveName(collective), algo, text, digest, times))
    return targets
