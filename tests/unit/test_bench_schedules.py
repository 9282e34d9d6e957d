"""The files that people copy: each can be read by what will read it, calls what exists, and is documented."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from synth.cli.main import cli

ROOT = Path(__file__).resolve().parent.parent.parent
SCHEDULES = ROOT / "benchmarks" / "schedules"
NAMES = sorted(path.name for path in SCHEDULES.iterdir())


def text(name: str) -> str:
    return (SCHEDULES / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_every_schedule_is_documented_and_says_how_it_is_used(name: str) -> None:
    documented = (ROOT / "docs" / "bench.md").read_text(encoding="utf-8")
    assert name in documented or f"`{Path(name).suffix}`" in documented
    assert [line for line in text(name).splitlines()[:3] if line.startswith("# ")]


@pytest.mark.parametrize("name", NAMES)
def test_every_schedule_runs_the_target_of_the_makefile(name: str) -> None:
    if name.endswith(".timer"):
        assert (SCHEDULES / name).with_suffix(".service").exists()
        return
    targets = re.findall(r"\bmake ([a-z-]+)", text(name))
    assert "nightly" in targets
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(f"\n{target}: " in makefile for target in targets)


def test_the_workflow_keeps_history_and_artefacts() -> None:
    yaml = pytest.importorskip("yaml")
    workflow: dict[Any, Any] = yaml.safe_load(text("github-actions.yml"))
    # YAML 1.1 reads the key `on` as true.
    events = workflow[True] if True in workflow else workflow["on"]
    (schedule,) = events["schedule"]
    assert re.fullmatch(r"\d+ \d+ \* \* \*", schedule["cron"])
    assert "workflow_dispatch" in events
    steps = workflow["jobs"]["bench"]["steps"]
    assert all("uses" in step or "run" in step for step in steps)
    used = [step.get("uses", "").partition("@")[0] for step in steps]
    restore, save = (steps[used.index(f"actions/cache/{what}")] for what in ("restore", "save"))
    # A cache is found again only where the paths are equal, letter by letter; the journal has to come along.
    assert restore["with"]["path"] == save["with"]["path"] == "out/nightly/history.sqlite*"
    assert save["with"]["key"].startswith(restore["with"]["restore-keys"])
    assert save["if"] == "always()"
    assert "out/nightly/report.html" in steps[used.index("actions/upload-artifact")]["with"]["path"]
    names = [step.get("run", "") for step in steps]
    assert used.index("actions/cache/restore") < names.index("make nightly") < used.index("actions/cache/save")


def test_the_slurm_script_is_read_by_bash() -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash here")
    subprocess.run([bash, "-n", str(SCHEDULES / "nightly.slurm")], check=True, capture_output=True)


def test_the_slurm_script_submits_the_next_night_runs_both_parts_and_keeps_the_worse_exit_code(tmp_path: Path) -> None:
    """With programs in place of sbatch, make and synth that note how they were called."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash here")
    for name, code in (("sbatch", 0), ("make", 2), (".venv/bin/synth", 0)):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/bin/sh\necho "{path.name} $*" >> {tmp_path}/log\nexit {code}\n', encoding="utf-8")
        path.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_SUBMIT_DIR": str(tmp_path)}
    script = [bash, str(SCHEDULES / "nightly.slurm")]
    assert subprocess.run(script, env=environment, capture_output=True, check=False).returncode == 2
    log = tmp_path / "log"
    assert [line.split()[0] for line in log.read_text(encoding="utf-8").splitlines()] == ["sbatch", "make"]
    log.unlink()
    environment |= {"NCCL_TESTS": "/opt/nccl-tests", "MACHINE": "dgx1"}
    subprocess.run(script, env=environment, capture_output=True, check=False)
    submitted, _, measured = log.read_text(encoding="utf-8").splitlines()
    assert submitted.endswith("benchmarks/schedules/nightly.slurm")
    words = measured.split()
    assert words[:3] == ["synth", "bench", "gpu"]
    options = set(re.findall(r"--[a-z]+", CliRunner().invoke(cli, ["bench", "gpu", "--help"]).output))
    assert {word for word in words if word.startswith("--")} <= options
    assert words[words.index("--binaries") + 1] == "/opt/nccl-tests"


@pytest.mark.parametrize("name", ["synth-nightly.service", "synth-nightly.timer"])
def test_the_units_have_the_sections_that_systemd_wants(name: str) -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.read_string(text(name))
    assert "Description" in unit["Unit"]
    if name.endswith(".timer"):
        assert (unit["Timer"]["OnCalendar"], unit["Install"]["WantedBy"]) == ("*-*-* 02:00", "timers.target")
    else:
        assert unit["Service"]["ExecStart"] == "/usr/bin/make nightly"


def test_systemd_finds_nothing_wrong_with_the_units(tmp_path: Path) -> None:
    verify = shutil.which("systemd-analyze")
    if verify is None or not Path("/usr/bin/make").exists():
        pytest.skip("no systemd or make here")
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    units = [str(SCHEDULES / name) for name in ("synth-nightly.service", "synth-nightly.timer")]
    command = [verify, "--user", "verify", "--man=no", *units]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(runtime)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if "initialize manager" in done.stderr:
        pytest.skip(f"systemd does not work here: {done.stderr.strip()[:100]}")
    assert (done.returncode, done.stderr) == (0, "")
