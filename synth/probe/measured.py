"""What measured copies say of a topology's links, and of the simulator's constants."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from synth.constants import PROTOCOLS, Constants
from synth.doubts import Doubt, Imported
from synth.paths import Path, find_paths
from synth.probe.measure import Measurement, Pair, Together
from synth.topology import Topology

#: A link that carries less than this share of what its kind should is worth a look.
_SLOW = 0.8
_TIE = 1 + 1e-9


def with_measured(topology: Topology, measurement: Measurement) -> Imported:
    """The topology with measured rates and latencies, and a doubt for each link that is slower than its kind should be.

    A link's rate is the most that went over it in any experiment in which it was the bottleneck by the description's figures
    (at least what went over it in others); one that never was keeps its figure. Its latency is scaled by the median of
    measured to described latency over the pairs that cross it.
    """
    paths = find_paths(topology)
    rates = _rates(topology, paths, measurement)
    alphas = _alphas(topology, paths, measurement)
    links = tuple(
        replace(link, GBps=rates.get(index, link.GBps), alpha_us=alphas.get(index, link.alpha_us))
        for index, link in enumerate(topology.links)
    )
    note = (
        f"measured: peer copies of torch with CUDA events; {len(rates)} of {len(links)} link directions have measured GBps, "
        f"{len(alphas)} measured alpha (that of a copy less that of one within a GPU)."
    )
    doubts = [
        Doubt(
            f"{link.src} -> {link.dst}",
            f"{rates[index]:g} GB/s measured where {link.GBps:g} are expected of this {link.kind} link",
            f"{link.GBps - rates[index]:.4g} of {link.GBps:g} GB/s",
        )
        for index, link in enumerate(topology.links)
        if rates.get(index, link.GBps) < _SLOW * link.GBps
    ]
    about = "\n".join(part for part in (topology.about, note) if part)
    return Imported(replace(topology, links=links, about=about), tuple(doubts))


def calibration_text(topology: Topology, measurement: Measurement) -> str:
    """A calibration file for `synth simulate --calibration`: rates of threadblocks, where no pair of GPUs is that fast.

    Copies tell nothing of the other constants (launch, hop latencies of the protocols): those keep the table's values.
    """
    fastest = max((alone.GBps for alone in measurement.alone.values()), default=float("inf"))
    constants = Constants.for_topology(topology)
    changed: dict[str, dict[str, float]] = {}
    for protocol in PROTOCOLS:
        table = constants.of(protocol)
        if table.rate_GBps > fastest * table.wire:
            changed[protocol] = {"rate_GBps": _rounded(fastest * table.wire)}
    return json.dumps(changed, indent=2) + "\n"


def _rates(topology: Topology, paths: Sequence[Path], measurement: Measurement) -> dict[int, float]:
    """GB/s of each link direction that some experiment tells."""
    ways: dict[Pair, list[Path]] = defaultdict(list)
    for path in paths:
        ways[path.src, path.dst].append(path)
    experiments = [Together((pair,), (alone.GBps,)) for pair, alone in measurement.alone.items()]
    experiments += measurement.together
    limit: dict[int, float] = {}
    seen: dict[int, float] = {}
    for experiment in experiments:
        load: dict[int, float] = defaultdict(float)
        carried: dict[int, float] = defaultdict(float)
        for pair, rate in zip(experiment.pairs, experiment.GBps, strict=True):
            for path in ways[pair]:
                for link in path.links:
                    load[link] += 1 / path.variants
                    carried[link] += rate / path.variants
        fullest = max(load[link] / topology.links[link].GBps for link in load)
        for link, rate in carried.items():
            seen[link] = max(rate, seen.get(link, 0.0))
            if load[link] / topology.links[link].GBps * _TIE >= fullest:
                limit[link] = max(rate, limit.get(link, 0.0))
    told = {link: max(rate, seen[link]) for link, rate in limit.items()}
    told |= {link: rate for link, rate in seen.items() if rate > topology.links[link].GBps}
    return {link: _rounded(rate) for link, rate in sorted(told.items())}


def _alphas(topology: Topology, paths: Sequence[Path], measurement: Measurement) -> dict[int, float]:
    """Latency in us of each link direction that a measured pair crosses."""
    ratios: dict[int, list[float]] = defaultdict(list)
    for path in paths:
        pair = (path.src, path.dst)
        if pair in measurement.alone and path.alpha_us > 0:
            for link in path.links:
                ratios[link].append(measurement.alpha_us(pair) / path.alpha_us)
    return {link: _rounded(topology.links[link].alpha_us * median(found)) for link, found in sorted(ratios.items())}


def _rounded(value: float) -> float:
    """Four digits: more are noise."""
    return float(f"{value:.4g}")
