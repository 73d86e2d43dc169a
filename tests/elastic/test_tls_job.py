"""Whole jobs with `--tls=job` on this machine: TCP is encrypted, and nothing else changes."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize("faults", ["ps,master", "ps+worker,master"])
def test_counts_stay_exact_when_processes_are_killed_under_tls(faults, tmp_path):
    words = ["--seed=7", f"--faults={faults}", f"--dir={tmp_path}", "--tls=job"]
    done = subprocess.run(
        [sys.executable, "-m", "scripts.chaos", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every count is exact" in done.stdout
    for name in ("ca.key", "master.pem", "ps-0.pem", "worker-0.pem", "user.pem"):
        path = tmp_path / "job" / "tls" / name
        assert path.stat().st_mode & 0o777 == 0o600, name


def test_certificates_of_seconds_are_renewed_while_the_job_goes_on(chaos, tmp_path):
    chaos.write_data(tmp_path / "data", chaos.make_ids(3))
    command = chaos.train_command(
        tmp_path / "data",
        tmp_path / "export",
        tmp_path / "job",
        tmp_path / "summary.json",
        tls="job",
        tls_certificate_hours=6 / 3600,
        num_workers=2,
        num_epochs=12,
    )
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    logs = {path.stem: path.read_text() for path in (tmp_path / "job" / "logs").glob("*.log")}
    for name in ("master", "ps-0", "ps-1", "worker-0", "worker-1"):
        assert re.search(rf"the certificate of {name} was renewed", logs[name]), logs[name]
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["status"] == "finished"
    counts = chaos.counts_of(tmp_path / "export")
    assert counts.sum() == 12 * chaos.NUM_RECORDS * chaos.IDS_PER_RECORD
    assert np.all(counts == np.round(counts))
