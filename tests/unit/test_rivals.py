"""What libraries would take: the best variant at every size, whichever was the best at another."""

from __future__ import annotations

import pytest

from synth.baselines import BaselineOptions, build
from synth.bench.measure import times_if_any
from synth.collective import CollectiveName
from synth.constants import PROTOCOLS
from synth.errors import NoAnswerError
from synth.rivals import Rivals
from synth.simulate import Simulator
from tests.graphs import dgx1, ring

KB, MB = 1 << 10, 1 << 20


@pytest.mark.parametrize("collective", [CollectiveName.ALLREDUCE, CollectiveName.ALLGATHER])
def test_a_variant_that_is_slow_at_small_sizes_still_counts_at_large_ones(collective: CollectiveName) -> None:
    topology, sizes = ring(4), (KB, 64 * KB, MB, 64 * MB, 256 * MB)
    times = Rivals(topology, collective).times_us("ring", sizes)
    assert list(times) == list(sizes)
    for protocol in PROTOCOLS:
        for size in (KB, 256 * MB):
            options = BaselineOptions(protocol=protocol, max_bytes=size)
            built = build("ring", topology, collective, size, options)
            assert times[size] <= Simulator(built.algo, topology).time_us(size) * (1 + 1e-9)


def test_what_cannot_be_the_fastest_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """LL takes twice the bytes of what it sends, so that its links alone take longer than a run under Simple."""
    run: list[tuple[str, int]] = []
    simulated = Simulator.time_us

    def recorded(simulator: Simulator, size: int) -> float:
        run.append((simulator.algo.proto, size))
        return simulated(simulator, size)

    monkeypatch.setattr(Simulator, "time_us", recorded)
    sizes = (KB, 256 * MB)
    times = Rivals(ring(4), CollectiveName.ALLREDUCE).times_us("ring", sizes)
    assert ("LL", KB) in run
    assert ("LL", 256 * MB) not in run
    assert ("Simple", 256 * MB) in run
    assert times[KB] < times[256 * MB]


def test_a_baseline_that_a_machine_lacks_has_no_times() -> None:
    rivals = Rivals(ring(4), CollectiveName.ALLTOALL)
    assert times_if_any(rivals, "ring", (KB, MB)) == {}
    with pytest.raises(NoAnswerError, match="ring"):
        rivals.times_us("ring", (KB, MB))


def test_a_broadcast_is_called_in_place_as_answers_are_and_nobody_copies_it() -> None:
    topology, size = dgx1(), 256 * MB
    taken, copied = (
        Rivals(topology, each).times_us("ring", [size])[size]
        for each in (CollectiveName.REDUCE, CollectiveName.BROADCAST)
    )
    assert copied <= taken * 1.05
