"""The trial: what is simulated is what the files take, and a better schedule is not given up for it."""

from __future__ import annotations

import pytest

from synth.paths import find_paths
from synth.pipeline import synthesize
from synth.request import Progress
from synth.search import Ledger, Search
from synth.simulate import Simulator
from synth.topology import Topology
from synth.trial import Trial
from tests.graphs import dgx1, full, ring
from tests.jobs import request

KB, MB, GB = 1 << 10, 1 << 20, 1 << 30


def trial_of(topology: Topology, collective: str, low: int, high: int) -> Trial:
    job = request(topology, collective, low, high)
    search = Search(job, find_paths(topology), Ledger(), lambda _: None)
    return Trial(job, search.sizes(), search.run(), Ledger(), lambda _: None)


@pytest.mark.parametrize("collective", ["allreduce", "alltoall"])
def test_the_times_of_an_answer_are_those_of_its_files(collective: str) -> None:
    topology = ring(4)
    result = synthesize(request(topology, collective, 16 * KB, 256 * KB))
    assert "simulated interpreter" in result.notes[0]
    for row in result.sizes:
        assert row.time_us == pytest.approx(Simulator(result.files[row.file].algo, topology).time_us(row.bytes))
        assert row.time_us > row.schedule_us


def test_every_size_can_be_served_and_costs_what_was_simulated() -> None:
    trial = trial_of(full(4), "allgather", KB, 16 * MB)
    costs = trial.costs()
    for size in trial.sizes:
        assert any(size in known for known in costs)
    size = trial.sizes[-1]
    close = [
        k
        for k, known in enumerate(costs)
        if size in known and trial.scored[k].schedules_us[size] <= trial.best_us[size]
    ]
    assert any(costs[k][size] == trial.time_us(k, size) for k in close)


def test_a_clearly_worse_schedule_is_never_chosen() -> None:
    topology = dgx1()
    result = synthesize(request(topology, "allgather", 64 * MB))
    trial = trial_of(topology, "allgather", 64 * MB, 64 * MB)
    assert result.sizes[0].schedule_us <= trial.best_us[64 * MB] * 1.0051


@pytest.mark.parametrize(("size", "protocol"), [(KB, "LL"), (GB, "Simple")])
def test_the_simulator_chooses_the_protocol(size: int, protocol: str) -> None:
    assert synthesize(request(ring(4), "allreduce", size)).files[0].protocol == protocol


def test_a_program_that_is_too_large_keeps_its_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("synth.trial._MOST_STEPS", 3)
    told: list[Progress] = []
    result = synthesize(request(ring(4), "allreduce", MB), told.append)
    assert "too large to simulate" in result.notes[0]
    assert result.sizes[0].time_us >= result.sizes[0].schedule_us
