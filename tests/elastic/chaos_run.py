"""Jobs under faults that `scripts/chaos` draws; it judges the counts by itself."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run_chaos(seed, faults, directory, seconds=380, **flags):
    """Run a job, whose counts must be exact; return its summary."""
    flags = {"seed": seed, "faults": faults, "dir": directory, **flags}
    done = subprocess.run(
        [sys.executable, "-m", "scripts.chaos", *(f"--{n}={value}" for n, value in flags.items())],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every count is exact" in done.stdout
    return json.loads((directory / "summary.json").read_text())
