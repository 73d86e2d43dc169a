"""Real jobs of real processes lose some of them and still count exactly (scripts/chaos.py)."""

import subprocess
import sys
from pathlib import Path

import pytest

CHAOS = Path(__file__).resolve().parents[2] / "scripts" / "chaos.py"


def run_chaos(seed, faults, directory, mode="async"):
    flags = {"seed": seed, "faults": faults, "dir": directory, "mode": mode}
    done = subprocess.run(
        [sys.executable, str(CHAOS), *(f"--{name}={value}" for name, value in flags.items())],
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every count is exact" in done.stdout


@pytest.mark.timeout(180)
@pytest.mark.parametrize("seed", range(20))
def test_counts_stay_exact_when_a_worker_is_killed(seed, tmp_path):
    run_chaos(seed, "worker", tmp_path)


@pytest.mark.timeout(180)
def test_counts_stay_exact_when_a_worker_is_added(tmp_path):
    run_chaos(20, "add", tmp_path)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("seed", [21, 22])
def test_counts_stay_exact_when_the_master_is_killed_and_restarted(seed, tmp_path):
    run_chaos(seed, "master", tmp_path)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("seed", [23, 24, 25])
def test_counts_stay_exact_under_all_faults_in_one_job(seed, tmp_path):
    run_chaos(seed, "worker,worker,master,add", tmp_path)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("mode", ["bounded", "synchronous"])
@pytest.mark.parametrize("faults", ["worker,worker", "worker,master,add"])
def test_counts_stay_exact_and_nobody_waits_for_the_dead(faults, mode, tmp_path):
    run_chaos(30, faults, tmp_path, mode)
