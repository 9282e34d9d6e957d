"""Suite files: what they say becomes syntheses, and what is wrong in them is told with file and field."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from synth.bench.fingerprint import instance_hash
from synth.bench.suite import find_suite, load_suite, parse_suite
from synth.collective import CollectiveName
from synth.errors import InputError
from tests.benches import TINY, suite


def test_every_machine_is_run_with_every_collective_strategy_and_seed() -> None:
    found = parse_suite(
        """
        name = "some"
        sizes = ["1KB", "1MB"]
        collectives = ["allreduce", "allgather"]
        strategies = ["auto", "greedy"]
        seeds = [0, 7]
        budget_s = 20
        topologies = ["ring4", { topology = "a100x4", nodes = 2, collectives = ["alltoall"], sizes = ["64KB"], budget_s = 5 }]
        """,
        "some.toml",
    )
    assert (found.name, found.total_s, len(found.jobs)) == ("some", None, 2 * 2 * 2 + 4)
    first, last = found.jobs[0], found.jobs[-1]
    assert (first.key, first.sizes, first.budget_s) == ("ring4/allreduce/1KB:1MB/auto/0", (1 << 10, 1 << 20), 20)
    assert (last.key, last.collective, last.budget_s) == ("a100x4x2/alltoall/64KB/greedy/7", CollectiveName.ALLTOALL, 5)
    assert last.machine.topology.num_ranks == 8
    assert last.case(1 << 16) == "a100x4x2/alltoall/64KB/greedy/7"


def test_a_command_names_what_a_synthesis_asks_for() -> None:
    job = parse_suite('topologies = ["a100x4*2"]\nsizes = ["64KB"]\nbudget_s = 9', "x").jobs[0]
    assert job.command == (
        "synth allreduce --topo a100x4 --nodes 2 --size 64KB --runtime msccl --strategy auto --seed 0 --time-limit 9 --no-cache"
    )


def test_each_makes_a_synthesis_of_every_size() -> None:
    jobs = parse_suite('topologies = ["ring4"]\nsizes = ["1KB", "3000", "1MB"]\neach = true', "x").jobs
    assert [job.sizes for job in jobs] == [(1024,), (3000,), (1 << 20,)]


def test_json_says_the_same_as_toml() -> None:
    document = {"name": "tiny", "sizes": ["1KB", "4KB"], "collectives": ["allgather", "alltoall"]}
    document |= {"topologies": ["ring4"], "baselines": ["ring"]}
    assert parse_suite(json.dumps(document), "x.json", is_json=True) == suite()


def test_the_digest_is_that_of_what_is_run_and_not_of_its_wording() -> None:
    assert suite(TINY + "# a remark\n[tolerances]\ntime = 0.5\n").digest == suite().digest
    assert suite(TINY.replace("4KB", "8KB")).digest != suite().digest
    assert suite(TINY.replace("ring4", "line4")).digest != suite().digest


def test_the_instance_hash_follows_the_machine_and_not_its_prose() -> None:
    job = suite().jobs[0]
    machine = job.machine
    slower = replace(
        machine.topology, links=(replace(machine.topology.links[0], GBps=1.0), *machine.topology.links[1:])
    )
    assert instance_hash(replace(job, machine=replace(machine, topology=slower))) != instance_hash(job)
    reworded = replace(machine.topology, about="other words")
    assert instance_hash(replace(job, machine=replace(machine, topology=reworded))) == instance_hash(job)
    assert instance_hash(replace(job, seed=1)) != instance_hash(job)
    assert instance_hash(replace(job, budget_s=1.0)) == instance_hash(job)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('sizes = ["1KB"]', "x.toml: topologies: None, expected a list"),
        ('topologies = ["ring4"]', "x.toml: sizes: None, expected a list"),
        ('topologies = []\nsizes = ["1KB"]', "x.toml: topologies: [], expected a list with at least one entry"),
        ('topologies = ["ring4"]\nsizes = ["1KX"]', "x.toml: sizes: '1KX', expected a whole number of bytes"),
        ('topologies = ["ring4"]\nsizes = ["1KB", "3000"]', "x.toml: sizes: 3000, expected powers of two"),
        ('topologies = ["nosuch"]\nsizes = ["1KB"]', "'nosuch', expected a file, or a name"),
        ('topologies = ["ring4*x"]\nsizes = ["1KB"]', "x.toml: topologies.nodes: 'x', expected a whole number"),
        ('topologies = [{ topology = "ring4", sises = [] }]\nsizes = ["1KB"]', "x.toml: topologies.sises"),
        (
            'topologies = ["ring4"]\nsizes = ["1KB"]\ncollectives = ["all"]',
            "x.toml: collectives: 'all', expected one of",
        ),
        ('topologies = ["ring4"]\nsizes = ["1KB"]\nbudget_s = 0', "x.toml: budget_s: 0, expected a positive number"),
        ('topologies = ["ring4"]\nsizes = ["1KB"]\nseeds = [-1]', "x.toml: seeds: -1, expected a whole number from 0"),
        ('topologies = ["ring4"]\nsizes = ["1KB"]\neach = 1', "x.toml: each: 1, expected true or false"),
        ('topologies = ["ring4"]\nsizes = ["1KB"]\nbudget = 1', "x.toml: budget: 1, expected no such field"),
        ('topologies = ["ring4", "ring4"]\nsizes = ["1KB"]', "expected every synthesis once"),
        (
            'topologies = ["ring4"]\nsizes = ["1KB"]\n[tolerances]\ntime = "x"',
            "x.toml: tolerances.time: 'x', expected a",
        ),
        (
            'topologies = ["ring4"]\nsizes = ["1KB"]\n[tolerances]\nspeed = 1',
            "x.toml: tolerances.speed: 1, expected one of",
        ),
        ("topologies = [", "expected TOML that can be read"),
    ],
)
def test_what_is_wrong_is_told_with_file_field_and_value(text: str, told: str) -> None:
    with pytest.raises(InputError) as error:
        parse_suite(text, "x.toml")
    assert told in str(error.value)


def test_a_suite_is_found_by_path_and_by_name(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(TINY, encoding="utf-8")
    assert load_suite(str(tmp_path / "mine.toml")).digest == suite().digest
    assert find_suite("quick").name == "quick.toml"
    with pytest.raises(InputError, match=r"--suite: 'nosuch', expected .*nightly, quick"):
        find_suite("nosuch")


def test_the_nightly_suite_is_as_wide_as_it_says() -> None:
    jobs = load_suite("nightly").jobs
    assert len({job.machine.label for job in jobs}) >= 12
    assert len({job.collective for job in jobs}) >= 4
    assert all(len(job.sizes) >= 6 for job in jobs)


def test_the_quick_suite_loads() -> None:
    assert {job.machine.label for job in load_suite("quick").jobs} == {"ring4", "pcie-2x2-nvlink", "a100x4", "dgx1"}
